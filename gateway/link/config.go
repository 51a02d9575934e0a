package link

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

const (
	maxKeyElements     = 8      // of a correlation key
	maxPendingLimit    = 65_536 // of Config.MaxPending
	maxEchoMisses      = 10
	maxConfiguredDelay = time.Hour // of every duration of a link
	networkCodeDigits  = 3         // DE 70 is n3
)

// Config is one link's profile: everything in which peers differ.
type Config struct {
	Address string                `yaml:"address"` // host:port
	Framing iso8583.FramingConfig `yaml:"framing"`
	Spec    iso8583.SpecConfig    `yaml:"spec"`

	// Correlation are the elements that, with the MTI, tell which request a response answers. Both must carry each of them.
	Correlation []iso8583.Element `yaml:"correlation"`
	// CorrelationNetwork is the same for class 8, whose answers often lack DE 41 and more.
	CorrelationNetwork []iso8583.Element `yaml:"correlation_network"`
	// Confirm are elements that a response must repeat where it carries them; one that differs is not delivered.
	Confirm []iso8583.Element `yaml:"confirm"`

	SignOn SignOnConfig `yaml:"sign_on"`
	Codes  NetworkCodes `yaml:"network_codes"`
	// EchoElements go into our echo requests, beside DE 7, 11 and 70.
	EchoElements map[iso8583.Element]string `yaml:"echo_elements"`
	// AnswerElements are copied from a class 8 request of the peer into our answer, where the request has them.
	AnswerElements []iso8583.Element `yaml:"answer_elements"`

	EchoInterval configs.Duration `yaml:"echo_interval"` // nothing received for this long: ask
	EchoTimeout  configs.Duration `yaml:"echo_timeout"`  // for the answer to one echo
	EchoMisses   int              `yaml:"echo_misses"`   // this many in a row without a byte from the peer: dead

	ConnectTimeout   configs.Duration `yaml:"connect_timeout"`
	WriteTimeout     configs.Duration `yaml:"write_timeout"`       // for one frame; a call's own deadline may end it earlier
	SignOnTimeout    configs.Duration `yaml:"sign_on_timeout"`     // for the answer to sign-on and sign-off
	SignOnAgainAfter configs.Duration `yaml:"sign_on_again_after"` // after the peer signed us off
	ReconnectMin     configs.Duration `yaml:"reconnect_min"`
	ReconnectMax     configs.Duration `yaml:"reconnect_max"`
	// MaxPending is how many calls may wait at the same time. Reversals (class 4) may wait beyond it, a quarter of it more and at least
	// 64, and network management (class 8) beyond those, so that neither starves on a link full of waiting authorizations.
	MaxPending int `yaml:"max_pending"`
}

// SignOnConfig says whether and with which elements we sign on.
type SignOnConfig struct {
	Required bool `yaml:"required"`
	// Elements go into our sign-on and sign-off, beside DE 7, 11 and 70.
	Elements map[iso8583.Element]string `yaml:"elements"`
}

// NetworkCodes are the values of DE 70, which differ between schemes.
type NetworkCodes struct {
	SignOn  string `yaml:"sign_on"`
	SignOff string `yaml:"sign_off"`
	Echo    string `yaml:"echo"`
	// Accept are further codes of the peer's requests that are answered with DE 39 = 00, like a cutover notice. A code that is in no
	// list is answered with "function not supported": agreeing to a key change that nobody makes would be a lie.
	Accept []string `yaml:"accept"`
}

// DefaultConfig is a profile for a scheme of the 1987 version; only the address is missing.
func DefaultConfig() Config {
	return Config{
		Framing: iso8583.DefaultFramingConfig(),
		Spec:    iso8583.DefaultSpecConfig(),

		Correlation:        []iso8583.Element{iso8583.TransmissionDateTime, iso8583.STAN, iso8583.TerminalID},
		CorrelationNetwork: []iso8583.Element{iso8583.STAN},
		Confirm:            []iso8583.Element{iso8583.RRN},

		SignOn: SignOnConfig{Required: true},
		Codes:  NetworkCodes{SignOn: "001", SignOff: "002", Echo: "301", Accept: []string{"201"}},
		AnswerElements: []iso8583.Element{iso8583.TransmissionDateTime, iso8583.STAN, iso8583.TimeLocal, iso8583.DateLocal,
			iso8583.AcquirerID, iso8583.ForwarderID, iso8583.RRN, iso8583.TerminalID, iso8583.CardAcceptorID,
			iso8583.NetworkManagementCode, iso8583.ReceiverID},

		EchoInterval: configs.Duration(30 * time.Second), EchoTimeout: configs.Duration(5 * time.Second), EchoMisses: 2,
		ConnectTimeout: configs.Duration(5 * time.Second), WriteTimeout: configs.Duration(5 * time.Second),
		SignOnTimeout: configs.Duration(10 * time.Second), SignOnAgainAfter: configs.Duration(30 * time.Second),
		ReconnectMin: configs.Duration(500 * time.Millisecond), ReconnectMax: configs.Duration(30 * time.Second),
		MaxPending: 1024,
	}
}

// SetDefaults makes a link that a configuration file brings into being start from DefaultConfig.
func (c *Config) SetDefaults() { *c = DefaultConfig() }

// Validate adds every fault of the profile, by its path in the configuration file.
func (c Config) Validate(path string, f *configs.Faults) {
	at := func(key string) string { return joinPath(path, key) }
	if host, port, err := net.SplitHostPort(c.Address); err != nil || host == "" || port == "" {
		f.Add(at("address"), "an address is host:port", c.Address)
	}
	if _, err := c.Framing.Build(); err != nil {
		f.Add(at("framing"), err.Error(), nil)
	}
	spec, err := c.Spec.Build()
	if err != nil {
		f.Add(at("spec"), err.Error(), nil)
	}
	c.validateKeys(at, f)
	c.validateNetwork(at, spec, f)
	c.validateLimits(at, f)
}

func (c Config) validateKeys(at func(string) string, f *configs.Faults) {
	keys := []struct {
		name     string
		elements []iso8583.Element
		min      int
	}{{"correlation", c.Correlation, 1}, {"correlation_network", c.CorrelationNetwork, 1}, {"confirm", c.Confirm, 0}}
	for _, key := range keys {
		if len(key.elements) < key.min || len(key.elements) > maxKeyElements {
			f.Add(at(key.name), fmt.Sprintf("between %d and %d elements", key.min, maxKeyElements), len(key.elements))
		}
		for i, e := range key.elements {
			switch {
			case !e.Valid():
				f.Add(at(key.name+"."+strconv.Itoa(i)), "a data element is a number from 2 to 128, and not 65", uint8(e))
			case slices.Contains(key.elements[:i], e):
				f.Add(at(key.name+"."+strconv.Itoa(i)), "an element stands in a key once", uint8(e))
			}
		}
	}
}

func (c Config) validateNetwork(at func(string) string, spec *iso8583.Spec, f *configs.Faults) {
	codes := map[string]string{"sign_on": c.Codes.SignOn, "sign_off": c.Codes.SignOff, "echo": c.Codes.Echo}
	for i, code := range c.Codes.Accept {
		codes["accept."+strconv.Itoa(i)] = code
	}
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(codes)) {
		code := codes[name]
		if len(code) != networkCodeDigits || !isDigits(code) {
			f.Add(at("network_codes."+name), "a network management code (DE 70) is three digits", code)
		} else if other, ok := seen[code]; ok {
			f.Add(at("network_codes."+name), "is the same code as "+other, code)
		}
		seen[code] = name
	}
	for i, e := range c.AnswerElements {
		if !e.Valid() || e == iso8583.ResponseCode {
			f.Add(at("answer_elements."+strconv.Itoa(i)), "an element to copy is a number from 2 to 128, and neither 39 nor 65", uint8(e))
		}
	}
	if spec == nil {
		return
	}
	for _, mti := range []iso8583.MTI{iso8583.MTINetworkManagementRequest, iso8583.MTINetworkManagementResponse} {
		if _, err := spec.Encode(spec.NewMessage(mti)); err != nil {
			f.Add(at("spec.mtis"), "a link needs "+mti.String()+" for sign-on and echo", nil)
		}
	}
	for key, elements := range map[string]map[iso8583.Element]string{"sign_on.elements": c.SignOn.Elements, "echo_elements": c.EchoElements} {
		for e, value := range elements {
			elementPath := at(key + "." + strconv.Itoa(int(e)))
			if ownNetworkElement(e) {
				f.Add(elementPath, "DE 7, 11 and 70 are set by the link itself", nil)
			} else if err := spec.NewMessage(iso8583.MTINetworkManagementRequest).Set(e, value); err != nil {
				f.Add(elementPath, err.Error(), nil)
			}
		}
	}
}

func (c Config) validateLimits(at func(string) string, f *configs.Faults) {
	durations := []struct {
		name  string
		value configs.Duration
	}{
		{"echo_interval", c.EchoInterval}, {"echo_timeout", c.EchoTimeout}, {"connect_timeout", c.ConnectTimeout},
		{"write_timeout", c.WriteTimeout}, {"sign_on_timeout", c.SignOnTimeout}, {"sign_on_again_after", c.SignOnAgainAfter},
		{"reconnect_min", c.ReconnectMin}, {"reconnect_max", c.ReconnectMax},
	}
	for _, d := range durations {
		if d.value <= 0 || d.value.Std() > maxConfiguredDelay {
			f.Add(at(d.name), fmt.Sprintf("more than 0s and at most %s", maxConfiguredDelay), d.value)
		}
	}
	if c.ReconnectMin > c.ReconnectMax {
		f.Add(at("reconnect_min"), "at most reconnect_max", c.ReconnectMin)
	}
	if c.EchoMisses < 1 || c.EchoMisses > maxEchoMisses {
		f.Add(at("echo_misses"), fmt.Sprintf("between 1 and %d", maxEchoMisses), c.EchoMisses)
	}
	if c.MaxPending < 1 || c.MaxPending > maxPendingLimit {
		f.Add(at("max_pending"), fmt.Sprintf("between 1 and %d", maxPendingLimit), c.MaxPending)
	}
}

func joinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// ownNetworkElement are the elements that the link fills in itself in its 08xx messages.
func ownNetworkElement(e iso8583.Element) bool {
	return e == iso8583.TransmissionDateTime || e == iso8583.STAN || e == iso8583.NetworkManagementCode
}

func isDigits(s string) bool {
	for _, r := range s {
		if r < '0' || r > '9' {
			return false
		}
	}
	return true
}
