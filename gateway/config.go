package gateway

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway/link"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

// Limits of the configuration.
const (
	maxLinks           = 200
	maxAnswerWithin    = 5 * time.Minute
	maxReferenceUnique = 10 * 365 * 24 * time.Hour // the RRN's year digit repeats after ten years
	maxSTANUnique      = 7 * 24 * time.Hour
	minHoldExpiry      = time.Minute
	maxHoldExpiry      = 366 * 24 * time.Hour
)

// Config is the gateway's piece of the configuration.
type Config struct {
	Instance    string                `yaml:"instance"`     // names this daemon among those on one database
	DefaultLink string                `yaml:"default_link"` // takes requests that name no link
	Links       map[string]LinkConfig `yaml:"links"`
	Vault       VaultConfig           `yaml:"vault"`
	Commit      CommitConfig          `yaml:"commit"`
	MaxInFlight int                   `yaml:"max_in_flight"` // authorisations at once; more are refused with sent: no
	Drain       configs.Duration      `yaml:"drain_timeout"`
}

// CommitConfig bounds the group committer.
type CommitConfig struct {
	Connections int `yaml:"connections"`
	MaxBatch    int `yaml:"max_batch"`
	MaxQueued   int `yaml:"max_queued"`
}

// LinkConfig is one link profile: how to reach a scheme, how it speaks, and what silence means to it.
type LinkConfig struct {
	link.Config `yaml:",inline"`

	AcquirerID         string                           `yaml:"acquirer_id"`          // DE 32 when the request names none
	ForwarderID        string                           `yaml:"forwarder_id"`         // DE 33, empty when the scheme wants none
	AnswerWithin       configs.Duration                 `yaml:"answer_within"`        // from the call's entry to its answer's deadline
	SendWithin         configs.Duration                 `yaml:"send_within"`          // past it an unsent authorisation becomes not_sent
	TimeZone           string                           `yaml:"time_zone"`            // of DE 12 and 13
	Types              map[AuthorizationType]TypeConfig `yaml:"types"`                // what this scheme takes
	STANUniqueWithin   configs.Duration                 `yaml:"stan_unique_within"`   // a STAN is not used twice within it
	ReferenceUniqueFor configs.Duration                 `yaml:"reference_unique_for"` // how long the scheme wants an RRN to be unique; the layout and a unique index keep ten years
	StoredElements     []iso8583.Element                `yaml:"stored_elements"`      // of `elements`, those that may be stored and repeated in a reversal
	SendSettlementDate bool                             `yaml:"send_settlement_date"` // DE 15, once the scheme has named a business date
	InterimMost        configs.Duration                 `yaml:"interim_most"`         // from the call's entry to the latest answer, however often the peer says that it is still working; 0: answer_within
	HoldExpiresAfter   configs.Duration                 `yaml:"hold_expires_after"`   // from the request to the end of an approved hold that nobody captured; 0: never
	Reversal           ReversalConfig                   `yaml:"reversal"`
	Captures           CaptureConfig                    `yaml:"captures"`
	Silence            *reversal.Policy                 `yaml:"silence"`
}

// TypeConfig is what one authorisation type is on this scheme's wire.
type TypeConfig struct {
	MTI              string `yaml:"mti"`                // class 1 holds the amount, class 2 moves it with the approval
	ProcessingCode   string `yaml:"processing_code"`    // DE 3
	FunctionCode     string `yaml:"function_code"`      // DE 24, 1993 edition only
	ReverseOnSilence bool   `yaml:"reverse_on_silence"` // of a balance inquiry, which moves nothing: undo it all the same
}

// ReversalConfig is how a reversal stands on this scheme's wire.
type ReversalConfig struct {
	MTI     string `yaml:"mti"`     // 0420 or 0400, in the 1993 edition 1420 or 1400; repeats get the repeat digit
	STAN    string `yaml:"stan"`    // DE 11: original or new
	Partial string `yaml:"partial"` // how a partial reversal names its amount: de95, de30 or de4; refuse when the scheme takes none
}

// Values of ReversalConfig. DE 95 carries the amount that stands, beside DE 4 as approved; with de30 DE 4 carries it and DE 30 the
// approved one; with de4 DE 4 carries what is taken back.
const (
	stanOriginal       = "original"
	stanNew            = "new"
	partialReplacement = "de95"
	partialOriginal    = "de30"
	partialAmount      = "de4"
	partialRefuse      = "refuse"
)

// CaptureConfig is how a completion stands on this scheme's wire.
type CaptureConfig struct {
	MTI          string   `yaml:"mti"`           // 0220, in the 1993 edition 1220; repeats get the repeat digit
	FunctionCode string   `yaml:"function_code"` // DE 24, 1993 edition only
	DoneCodes    []string `yaml:"done_codes"`    // further response codes that say that the capture was taken before, such as 94
}

// DefaultConfig has no links and no keys: those have no sensible default.
func DefaultConfig() Config {
	return Config{
		Instance:    "schemegate",
		Commit:      CommitConfig{Connections: 2, MaxBatch: 256, MaxQueued: 4096},
		MaxInFlight: 4096,
		Drain:       configs.Duration(15 * time.Second),
	}
}

// SetDefaults gives a link named by the file its defaults; it gives no silence policy, which every profile must state.
func (c *LinkConfig) SetDefaults() {
	c.Config = link.DefaultConfig()
	c.AnswerWithin = configs.Duration(10 * time.Second)
	c.SendWithin = configs.Duration(2 * time.Second)
	c.TimeZone = "UTC"
	c.ReferenceUniqueFor = configs.Duration(180 * 24 * time.Hour)
	c.HoldExpiresAfter = configs.Duration(7 * 24 * time.Hour)
	c.Reversal = ReversalConfig{MTI: "0420", STAN: stanOriginal, Partial: partialReplacement}
	c.Captures = CaptureConfig{MTI: "0220", DoneCodes: []string{"94"}}
	c.Types = map[AuthorizationType]TypeConfig{
		Purchase:         {MTI: "0100", ProcessingCode: "000000"},
		Preauthorization: {MTI: "0100", ProcessingCode: "000000"},
		Cash:             {MTI: "0100", ProcessingCode: "010000"},
		Refund:           {MTI: "0200", ProcessingCode: "200000"},
		BalanceInquiry:   {MTI: "0100", ProcessingCode: "310000"},
	}
}

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// Validate names every fault of the gateway's configuration.
func (c Config) Validate(path string, f *configs.Faults) {
	dot := func(key string) string {
		if path == "" {
			return key
		}
		return path + "." + key
	}
	if !nameForm.MatchString(c.Instance) {
		f.Add(dot("instance"), "1 to 32 lower-case letters, digits or -", c.Instance)
	}
	if len(c.Links) == 0 || len(c.Links) > maxLinks {
		f.Add(dot("links"), fmt.Sprintf("needs 1 to %d links", maxLinks), len(c.Links))
	}
	if _, ok := c.Links[c.DefaultLink]; !ok && (c.DefaultLink != "" || len(c.Links) > 1) {
		f.Add(dot("default_link"), "must name one of the links", c.DefaultLink)
	}
	between(f, dot("commit.connections"), c.Commit.Connections, 1, 16)
	between(f, dot("commit.max_batch"), c.Commit.MaxBatch, 1, 1000)
	between(f, dot("commit.max_queued"), c.Commit.MaxQueued, 1, 1<<20)
	between(f, dot("max_in_flight"), c.MaxInFlight, 1, 1<<20)
	if c.Drain < 0 || c.Drain > configs.Duration(maxAnswerWithin) {
		f.Add(dot("drain_timeout"), fmt.Sprintf("0s to %s", maxAnswerWithin), c.Drain)
	}
	c.Vault.Validate(dot("vault"), f)
	for _, name := range slices.Sorted(maps.Keys(c.Links)) {
		if !nameForm.MatchString(name) {
			f.Add(dot("links."+name), "a link's name has 1 to 32 lower-case letters, digits or -", name)
		}
		c.Links[name].Validate(dot("links."+name), f)
	}
}

func between(f *configs.Faults, path string, n, low, high int) {
	if n < low || n > high {
		f.Add(path, fmt.Sprintf("%d to %d", low, high), n)
	}
}

// Validate names every fault of one link profile.
func (c LinkConfig) Validate(path string, f *configs.Faults) {
	c.Config.Validate(path, f)
	if !upToEleven.MatchString(c.AcquirerID) {
		f.Add(path+".acquirer_id", "1 to 11 digits (DE 32, also part of DE 90)", c.AcquirerID)
	}
	if c.ForwarderID != "" && !upToEleven.MatchString(c.ForwarderID) {
		f.Add(path+".forwarder_id", "1 to 11 digits (DE 33)", c.ForwarderID)
	}
	if c.AnswerWithin <= 0 || time.Duration(c.AnswerWithin) > maxAnswerWithin {
		f.Add(path+".answer_within", fmt.Sprintf("above 0s and at most %s", maxAnswerWithin), c.AnswerWithin)
	}
	if c.SendWithin <= 0 || c.SendWithin > c.AnswerWithin {
		f.Add(path+".send_within", "above 0s and at most answer_within", c.SendWithin)
	}
	if _, err := time.LoadLocation(c.TimeZone); err != nil || c.TimeZone == "" || c.TimeZone == "Local" {
		f.Add(path+".time_zone", "an IANA time zone, such as UTC or Europe/Berlin", c.TimeZone)
	}
	if c.STANUniqueWithin < 0 || time.Duration(c.STANUniqueWithin) > maxSTANUnique {
		f.Add(path+".stan_unique_within", fmt.Sprintf("0s to %s", maxSTANUnique), c.STANUniqueWithin)
	}
	if c.ReferenceUniqueFor < 0 || time.Duration(c.ReferenceUniqueFor) > maxReferenceUnique {
		f.Add(path+".reference_unique_for", fmt.Sprintf("at most %s: an RRN's year digit repeats after ten years", maxReferenceUnique), c.ReferenceUniqueFor)
	}
	if c.InterimMost != 0 && c.InterimMost < c.AnswerWithin || time.Duration(c.InterimMost) > maxAnswerWithin {
		f.Add(path+".interim_most", fmt.Sprintf("0s, or answer_within to %s", maxAnswerWithin), c.InterimMost)
	}
	if c.HoldExpiresAfter != 0 && time.Duration(c.HoldExpiresAfter) < minHoldExpiry || time.Duration(c.HoldExpiresAfter) > maxHoldExpiry {
		f.Add(path+".hold_expires_after", fmt.Sprintf("0s for never, or %s to %s", minHoldExpiry, maxHoldExpiry), c.HoldExpiresAfter)
	}
	c.validateWire(path, f)
	for i, e := range c.StoredElements {
		if e < 2 || e > 128 || ownedElements[e] || unstorable[e] || e == 65 {
			f.Add(fmt.Sprintf("%s.stored_elements.%d", path, i), "an element from 2 to 128 that is neither the gateway's own nor card data (34, 36, 45, 53)", e)
		}
	}
	if c.Silence == nil {
		f.Add(path+".silence", "every link needs a silence policy: what is done when an answer does not come", nil)
		return
	}
	c.Silence.Validate(path+".silence", f)
}

// unstorable are elements that hold card or sensitive authentication data by their definition.
var unstorable = map[iso8583.Element]bool{34: true, 36: true, 45: true, 53: true}

var sixDigits = digits("6")
