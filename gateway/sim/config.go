package sim

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// What a card scheme does with financial traffic that comes before the sign-on, where it requires one.
const (
	BeforeSignOnRefuse = "refuse" // answers with NotSignedOnCode
	BeforeSignOnIgnore = "ignore" // says nothing
)

// How a reversal says that it is about a part of its original.
const (
	PartialByStandard = "standard" // DE 95 has the amount that is to stand; in 1993 DE 24 = 401, DE 4 that amount, DE 30 the approved one
	PartialByAmount   = "de4"      // DE 4 below what stands is the amount taken back
)

// CardConfig is a simulated card scheme. Start from DefaultCardConfig: the zero value does not run.
type CardConfig struct {
	Listen  string                `yaml:"listen"`  // address of the TCP listener; port 0 takes a free one
	Spec    iso8583.SpecConfig    `yaml:"spec"`    // the dialect, as a link profile has it
	Framing iso8583.FramingConfig `yaml:"framing"` // the frames, as a link profile has them
	Network NetworkConfig         `yaml:"network"` // network management, where it is not as the edition has it
	TLS     TLSConfig             `yaml:"tls"`

	SignOnRequired      bool   `yaml:"sign_on_required"`      // financial traffic needs an 0800 with DE 70 = 001 first, on each connection
	BeforeSignOn        string `yaml:"before_sign_on"`        // BeforeSignOnRefuse or BeforeSignOnIgnore
	NotSignedOnCode     string `yaml:"not_signed_on_code"`    // DE 39 of what is refused before sign-on
	UnknownOriginalCode string `yaml:"unknown_original_code"` // DE 39 of a reversal whose DE 90 names nothing we had
	NothingHeldCode     string `yaml:"nothing_held_code"`     // DE 39 of a reversal whose original was declined
	AlreadyReversedCode string `yaml:"already_reversed_code"` // DE 39 of another reversal of what is reversed as a whole; a repeat gets its first answer

	PartialReversal    string `yaml:"partial_reversal"`     // PartialByStandard or PartialByAmount
	CompletionEndsHold bool   `yaml:"completion_ends_hold"` // one completion for each authorisation: what it leaves is let go
	RepeatsRefreshTime bool   `yaml:"repeats_refresh_time"` // a repeat may have a new DE 7; all else is as in its first sending
	Balance            string `yaml:"balance"`              // of every account, in the answer to an inquiry (DE 54)

	EchoInterval configs.Duration `yaml:"echo_interval"` // between host-initiated echoes on each connection; 0 sends none
	LateAfter    configs.Duration `yaml:"late_after"`    // how long the magic amounts' late answers are held back
	ByteGap      configs.Duration `yaml:"byte_gap"`      // between the single bytes of a split answer
	GlueWait     configs.Duration `yaml:"glue_wait"`     // after which a glued answer goes alone when no other came
	WriteTimeout configs.Duration `yaml:"write_timeout"` // for one write, then the connection is closed

	CutoverEvery      int              `yaml:"cutover_every"`       // financial messages to the next cutover notice; 0 for none
	HangUpEvery       int              `yaml:"hang_up_every"`       // messages until a connection is closed; 0 for never
	HangUpAfter       configs.Duration `yaml:"hang_up_after"`       // the time until a connection is closed; 0 for never
	KeepAliveInterval configs.Duration `yaml:"keep_alive_interval"` // between frames without a message on each connection; 0 sends none

	Seed         uint64 `yaml:"seed"`          // of the mixes of rules: the same seed decides the same for the same message
	MagicAmounts bool   `yaml:"magic_amounts"` // the built-in rules stand behind Rules
	Rules        []Rule `yaml:"rules"`         // the first that matches decides

	JournalFile       string `yaml:"journal_file"`        // JSON lines are appended to it; empty for none
	MaxJournalFile    int    `yaml:"max_journal_file"`    // records written to the file
	MaxJournal        int    `yaml:"max_journal"`         // records kept in memory; the oldest make room
	MaxOriginals      int    `yaml:"max_originals"`       // originals in the books; the oldest make room
	MaxConnections    int    `yaml:"max_connections"`     // further ones are closed at once
	MaxWaitingAnswers int    `yaml:"max_waiting_answers"` // answers held back at one time; further ones are dropped
}

// DefaultCardConfig is a scheme on a free port of the loopback interface that approves everything but the magic amounts.
func DefaultCardConfig() CardConfig {
	return CardConfig{
		Listen:              "127.0.0.1:0",
		Spec:                iso8583.DefaultSpecConfig(),
		Framing:             iso8583.DefaultFramingConfig(),
		SignOnRequired:      true,
		BeforeSignOn:        BeforeSignOnRefuse,
		NotSignedOnCode:     "58",
		UnknownOriginalCode: "25",
		NothingHeldCode:     "21",
		AlreadyReversedCode: "94",
		PartialReversal:     PartialByStandard,
		Balance:             "1000.00",
		LateAfter:           configs.Duration(3 * time.Second),
		ByteGap:             configs.Duration(200 * time.Microsecond),
		GlueWait:            configs.Duration(2 * time.Second),
		WriteTimeout:        configs.Duration(5 * time.Second),
		MagicAmounts:        true,
		MaxJournalFile:      1_000_000,
		MaxJournal:          100_000,
		MaxOriginals:        200_000,
		MaxConnections:      64,
		MaxWaitingAnswers:   4096,
	}
}

// LoadCard reads a simulator's YAML file over the defaults; the error is configs.Faults when the file can be read but is wrong.
func LoadCard(file string) (CardConfig, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return CardConfig{}, fmt.Errorf("read simulator configuration: %w", err)
	}
	cfg := DefaultCardConfig()
	faults := configs.Load(file, data, &cfg)
	cfg.Validate("", &faults)
	return cfg, faults.Locate(file, data).Err()
}

// Validate adds everything wrong with the configuration; path is where it stands in its file, "" for the whole file.
func (c CardConfig) Validate(path string, f *configs.Faults) {
	at := func(key string) string { return strings.TrimPrefix(path+"."+key, ".") }
	if c.Listen == "" {
		f.Add(at("listen"), "needs an address, like 127.0.0.1:8583", nil)
	}
	spec, err := c.Spec.Build()
	f.AddError(at("spec"), err)
	_, framingErr := c.Framing.Build()
	f.AddError(at("framing"), framingErr)
	if c.BeforeSignOn != BeforeSignOnRefuse && c.BeforeSignOn != BeforeSignOnIgnore {
		f.Add(at("before_sign_on"), "is refuse or ignore", c.BeforeSignOn)
	}
	if c.PartialReversal != PartialByStandard && c.PartialReversal != PartialByAmount {
		f.Add(at("partial_reversal"), "is standard or de4", c.PartialReversal)
	}
	for key, code := range map[string]string{"not_signed_on_code": c.NotSignedOnCode, "already_reversed_code": c.AlreadyReversedCode,
		"unknown_original_code": c.UnknownOriginalCode, "nothing_held_code": c.NothingHeldCode} {
		checkResponseCode(at(key), code, f)
	}
	if _, err := parseAmount(c.Balance); err != nil {
		f.Add(at("balance"), err.Error(), c.Balance)
	}
	for key, n := range map[string]int{"cutover_every": c.CutoverEvery, "hang_up_every": c.HangUpEvery} {
		if n < 0 {
			f.Add(at(key), "is not negative", n)
		}
	}
	if err == nil {
		c.Network.validate(at("network"), spec, f)
	}
	c.TLS.validate(at("tls"), f)
	for key, limit := range map[string]int{"max_journal_file": c.MaxJournalFile, "max_journal": c.MaxJournal,
		"max_originals": c.MaxOriginals, "max_connections": c.MaxConnections, "max_waiting_answers": c.MaxWaitingAnswers} {
		if limit < 1 {
			f.Add(at(key), "is at least 1", limit)
		}
	}
	if c.WriteTimeout <= 0 {
		f.Add(at("write_timeout"), "is more than 0s", c.WriteTimeout)
	}
	for i, r := range c.Rules {
		r.validate(at("rules."+strconv.Itoa(i)), f)
		if err == nil {
			r.validateElements(at("rules."+strconv.Itoa(i)), spec, f)
		}
	}
}

// allRules are the configured ones, with the magic amounts behind them.
func (c CardConfig) allRules() []Rule {
	if !c.MagicAmounts {
		return c.Rules
	}
	return slices.Concat(c.Rules, magicRules(c.LateAfter, c.NotSignedOnCode))
}

func checkResponseCode(path, code string, f *configs.Faults) {
	if len(code) < 2 || len(code) > 4 || strings.Trim(code, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		f.Add(path, "is a response code (DE 39): 2 digits or capital letters, up to 4 in later versions", code)
	}
}

// parseAmount reads "10.05" as the minor units of DE 4. The point always stands before the last two digits, whatever the currency.
func parseAmount(text string) (int64, error) {
	whole, cents, found := strings.Cut(text, ".")
	if !found || len(cents) != 2 || whole == "" || len(whole) > 10 || strings.Trim(whole+cents, "0123456789") != "" {
		return 0, errors.New("an amount has two decimals, like 10.05, and at most 12 digits")
	}
	return strconv.ParseInt(whole+cents, 10, 64)
}
