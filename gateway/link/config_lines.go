package link

import (
	"fmt"
	"net"
	"strconv"

	"github.com/schemegate/schemegate/configs"
)

const (
	maxLines     = 64 // of one link; call.tried has a bit for each
	maxBudget    = 1_000_000
	maxBytesRate = 1 << 30
)

// LinesConfig is how many lines a link has, where they go, and what each of them may carry.
type LinesConfig struct {
	// Lines is how many sockets the link keeps, all with the same profile; 0 means 1.
	Lines int `yaml:"lines"`
	// Addresses are further host:port beside Config.Address; the lines are spread over all of them in turn.
	Addresses []string      `yaml:"addresses"`
	TLS       TLSConfig     `yaml:"tls"`
	Budgets   BudgetsConfig `yaml:"budgets"`
}

// BudgetsConfig limits each line. Zero is no limit.
type BudgetsConfig struct {
	// MaxRate is how many messages a second may leave. A call that would not leave before its SendBefore is not sent (ErrRateLimited).
	// Network management is counted, and never waits.
	MaxRate int `yaml:"max_rate"`
	// InboundBytes and InboundFrames are how much is read in a second. A peer that sends more is slowed down by not being read.
	InboundBytes  int `yaml:"inbound_bytes"`
	InboundFrames int `yaml:"inbound_frames"`
	// UselessFrames is how many keep-alives and unreadable frames may come in a minute; then the line is given up with DownFlood.
	UselessFrames int `yaml:"useless_frames"`
}

// defaultLinesConfig is one line, with inbound budgets that no card scheme's line reaches.
func defaultLinesConfig() LinesConfig {
	return LinesConfig{
		Lines:   1,
		Budgets: BudgetsConfig{InboundBytes: 32 << 20, InboundFrames: 50_000, UselessFrames: 1000},
	}
}

// Files gives the places of the profile's file names that are set, so that whoever reads the configuration can make them start where it
// lies.
func (c *LinesConfig) Files() []*string {
	var set []*string
	for _, file := range []*string{&c.TLS.CAFile, &c.TLS.CertFile, &c.TLS.KeyFile} {
		if *file != "" {
			set = append(set, file)
		}
	}
	return set
}

func (c Config) lineCount() int { return max(1, c.Lines) }

// lineAddress gives the address of a line, counted from 0.
func (c Config) lineAddress(number int) string {
	if i := number % (1 + len(c.Addresses)); i > 0 {
		return c.Addresses[i-1]
	}
	return c.Address
}

func validateAddress(path, address string, f *configs.Faults) {
	if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
		f.Add(path, "an address is host:port", address)
	}
}

func (c LinesConfig) validate(at func(string) string, f *configs.Faults) {
	if c.Lines < 0 || c.Lines > maxLines {
		f.Add(at("lines"), fmt.Sprintf("between 1 and %d", maxLines), c.Lines)
	} else if len(c.Addresses) >= max(1, c.Lines) {
		f.Add(at("addresses"), "every address needs a line: lines is at least one more than the further addresses", len(c.Addresses))
	}
	c.TLS.validate(at, f)
	for i, address := range c.Addresses {
		validateAddress(at("addresses."+strconv.Itoa(i)), address, f)
	}
	for _, budget := range []struct {
		name       string
		value, max int
	}{
		{"max_rate", c.Budgets.MaxRate, maxBudget}, {"inbound_bytes", c.Budgets.InboundBytes, maxBytesRate},
		{"inbound_frames", c.Budgets.InboundFrames, maxBudget}, {"useless_frames", c.Budgets.UselessFrames, maxBudget},
	} {
		if budget.value < 0 || budget.value > budget.max {
			f.Add(at("budgets."+budget.name), fmt.Sprintf("between 0 (no limit) and %d", budget.max), budget.value)
		}
	}
}
