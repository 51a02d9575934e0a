package link

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

const (
	maxKeyElements = 8  // of a correlation key, a fallback or a list of confirming elements
	maxFallbacks   = 4  // lists of Config.CorrelationFallback
	maxPerMTI      = 32 // entries of Config.Correlations, and of Config.Confirms

	networkClass  = 8 // second digit of an MTI: network management
	reversalClass = 4
)

// CorrelationConfig says what tells which request a response answers, beyond the default key, and how long an interim answer lets the
// request wait.
type CorrelationConfig struct {
	// Correlations are the keys of single exchanges, by the request's type without its repeat bit, instead of Config.Correlation or
	// Config.CorrelationNetwork.
	Correlations map[iso8583.MTI][]iso8583.Element `yaml:"correlations"`
	// CorrelationFallback are lists of elements for a response that lacks an element of its key, tried in order. Such a response answers
	// the one call of its exchange that agrees in all elements of a list and in what the response does have of its key; never one of two.
	CorrelationFallback [][]iso8583.Element `yaml:"correlation_fallback"`
	// Confirms replace Config.Confirm for single exchanges, by the request's type without its repeat bit.
	Confirms map[iso8583.MTI][]iso8583.Element `yaml:"confirms"`
	// InterimExtension is by how much each "still working" answer moves a call's deadline, never past Call.Latest.
	InterimExtension configs.Duration `yaml:"interim_extension"`
}

func defaultCorrelationConfig() CorrelationConfig {
	return CorrelationConfig{InterimExtension: configs.Duration(30 * time.Second)}
}

// keyElements gives the elements of the key of an exchange.
func (c *Config) keyElements(exchange iso8583.MTI) []iso8583.Element {
	if elements, ok := c.Correlations[exchange]; ok {
		return elements
	}
	if exchange.Class() == networkClass {
		return c.CorrelationNetwork
	}
	return c.Correlation
}

// confirmElements gives the elements that the response of an exchange must repeat where it carries them.
func (c *Config) confirmElements(exchange iso8583.MTI) []iso8583.Element {
	if elements, ok := c.Confirms[exchange]; ok {
		return elements
	}
	return c.Confirm
}

func (c Config) validateKeys(at func(string) string, spec *iso8583.Spec, f *configs.Faults) {
	validateElements(at("correlation"), c.Correlation, 1, spec, f)
	validateElements(at("correlation_network"), c.CorrelationNetwork, 1, spec, f)
	validateElements(at("confirm"), c.Confirm, 0, spec, f)
	if len(c.CorrelationFallback) > maxFallbacks {
		f.Add(at("correlation_fallback"), fmt.Sprintf("at most %d lists", maxFallbacks), len(c.CorrelationFallback))
	}
	for i, elements := range c.CorrelationFallback {
		validateElements(at("correlation_fallback."+strconv.Itoa(i)), elements, 1, spec, f)
	}
	validatePerMTI(at("correlations"), c.Correlations, 1, spec, f)
	validatePerMTI(at("confirms"), c.Confirms, 0, spec, f)
	if c.InterimExtension <= 0 || c.InterimExtension.Std() > maxConfiguredDelay {
		f.Add(at("interim_extension"), fmt.Sprintf("more than 0s and at most %s", maxConfiguredDelay), c.InterimExtension)
	}
}

func validatePerMTI(path string, table map[iso8583.MTI][]iso8583.Element, least int, spec *iso8583.Spec, f *configs.Faults) {
	if len(table) > maxPerMTI {
		f.Add(path, fmt.Sprintf("at most %d message types", maxPerMTI), len(table))
	}
	for mti, elements := range table {
		below := path + "." + mti.String()
		switch {
		case spec == nil:
		case spec.IsResponse(mti) || spec.Exchange(mti) != mti:
			f.Add(below, "the type of a request, and not of its repeat", nil)
		case !spec.Lists(mti):
			f.Add(below, "spec.mtis does not list the type, so this has no effect", nil)
		}
		validateElements(below, elements, least, spec, f)
	}
}

func validateElements(path string, elements []iso8583.Element, least int, spec *iso8583.Spec, f *configs.Faults) {
	if len(elements) < least || len(elements) > maxKeyElements {
		f.Add(path, fmt.Sprintf("between %d and %d elements", least, maxKeyElements), len(elements))
	}
	for i, e := range elements {
		switch {
		case !e.Valid():
			f.Add(path+"."+strconv.Itoa(i), "a data element is a number from 2 to 128, and not 65", uint8(e))
		case spec != nil && !spec.Has(e):
			f.Add(path+"."+strconv.Itoa(i), "the spec's dialect does not have the element", uint8(e))
		case slices.Contains(elements[:i], e):
			f.Add(path+"."+strconv.Itoa(i), "an element stands in a key once", uint8(e))
		}
	}
}
