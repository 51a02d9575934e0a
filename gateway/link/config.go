package link

import (
	"fmt"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

const (
	maxPendingLimit    = 65_536 // of Config.MaxPending
	maxEchoMisses      = 10
	maxConfiguredDelay = time.Hour // of every duration of a link
)

// Config is one link's profile: everything in which peers differ.
type Config struct {
	Address     string `yaml:"address"` // host:port
	LinesConfig `yaml:",inline"`
	Framing     iso8583.FramingConfig `yaml:"framing"`
	Spec        iso8583.SpecConfig    `yaml:"spec"`

	// Correlation are the elements that, with the MTI, tell which request a response answers. Both must carry each of them.
	Correlation []iso8583.Element `yaml:"correlation"`
	// CorrelationNetwork is the same for class 8, whose answers often lack DE 41 and more.
	CorrelationNetwork []iso8583.Element `yaml:"correlation_network"`
	// Confirm are elements that a response must repeat where it carries them; one that differs is not delivered.
	Confirm           []iso8583.Element `yaml:"confirm"`
	CorrelationConfig `yaml:",inline"`

	SignOn SignOnConfig `yaml:"sign_on"`
	// Network, Codes and AnswerElements lay the profile's own values over those of a network dialect.
	Network      NetworkConfig `yaml:"network"`
	NetworkSTANs STANRange     `yaml:"network_stans"`
	Codes        NetworkCodes  `yaml:"network_codes"`
	// EchoElements go into our echo requests, beside those the link fills in itself.
	EchoElements map[iso8583.Element]string `yaml:"echo_elements"`
	// AnswerElements are copied from a class 8 request of the peer into our answer, where the request has them. Empty is as in the
	// network dialect.
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
	// Elements go into our sign-on and sign-off, beside those the link fills in itself.
	Elements map[iso8583.Element]string `yaml:"elements"`
}

// DefaultConfig is a profile for a scheme of the 1987 version; only the address is missing.
func DefaultConfig() Config {
	return Config{
		LinesConfig: defaultLinesConfig(),
		Framing:     iso8583.DefaultFramingConfig(),
		Spec:        iso8583.DefaultSpecConfig(),

		Correlation:        []iso8583.Element{iso8583.TransmissionDateTime, iso8583.STAN, iso8583.TerminalID},
		CorrelationNetwork: []iso8583.Element{iso8583.STAN},
		Confirm:            []iso8583.Element{iso8583.RRN},
		CorrelationConfig:  defaultCorrelationConfig(),

		SignOn:       SignOnConfig{Required: true},
		NetworkSTANs: STANRange{From: minSTAN, To: maxSTAN},

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
	validateAddress(at("address"), c.Address, f)
	c.LinesConfig.validate(at, f)
	if _, err := c.Framing.Build(); err != nil {
		f.AddError(at("framing"), err)
	}
	spec, err := c.Spec.Build()
	if err != nil {
		f.AddError(at("spec"), err)
	}
	c.validateKeys(at, spec, f)
	c.validateNetwork(at, spec, f)
	c.validateLimits(at, f)
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

func isDigits(s string) bool {
	for _, r := range s {
		if r < '0' || r > '9' {
			return false
		}
	}
	return true
}
