package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// Rule says what the scheme does with the messages it matches.
type Rule struct {
	Name string `yaml:"name"` // shown in the journal
	When Match  `yaml:"when"`
	Then Action `yaml:"then"`
	// Mix, in the place of Then, draws one of several actions for each sending of a message: by the configuration's seed, the rule's
	// name, and the message's own type, STAN and RRN, so that the order in which messages come changes nothing.
	Mix []Share `yaml:"mix"`
}

// Share is one action of a mix. Weights are relative to each other.
type Share struct {
	Weight int    `yaml:"weight"`
	Then   Action `yaml:"then"`
}

// Match is what a message must be for a rule; what is left out matches everything. The count comes last: only messages that
// match the rest are counted.
type Match struct {
	MTI         []string `yaml:"mti"`                      // like ["0100", "0200"]
	Amount      string   `yaml:"amount"`                   // DE 4, like "10.05": the point stands before the last two digits
	AmountFrom  string   `yaml:"amount_from"`              // DE 4, inclusive
	AmountTo    string   `yaml:"amount_to"`                // DE 4, inclusive
	PANPrefix   string   `yaml:"pan_prefix" secret:"true"` // first digits of DE 2
	PANFrom     string   `yaml:"pan_from" secret:"true"`   // first digits of DE 2, inclusive, as many as PANTo has
	PANTo       string   `yaml:"pan_to" secret:"true"`     // first digits of DE 2, inclusive
	NetworkCode string   `yaml:"network_code"`             // DE 70, like "301"
	First       int      `yaml:"first"`                    // only the first n
	After       int      `yaml:"after"`                    // only those after the first n
	Every       int      `yaml:"every"`                    // only each nth (of those left by After)
	Per         string   `yaml:"per"`                      // what is counted apart: PerRule or PerOriginal
}

// What a rule's count is kept for.
const (
	PerRule     = "rule"     // all messages together; the default
	PerOriginal = "original" // the messages of one original apart: an authorisation, and the reversals that name it in DE 90
)

// Action is what the scheme does with a message: what the issuer decides, and how the answer travels.
type Action struct {
	Answer       string           `yaml:"answer"`        // one of the Answer constants; empty is AnswerApprove
	ResponseCode string           `yaml:"response_code"` // DE 39; required for a decline
	Amount       string           `yaml:"amount"`        // of a partial approval
	Percent      int              `yaml:"percent"`       // of a partial approval, where Amount is empty; rounded down
	Delay        configs.Duration `yaml:"delay"`         // before the answer, or before hanging up
	Deliver      string           `yaml:"deliver"`       // one of the Deliver constants; empty is DeliverOnce
	Copies       int              `yaml:"copies"`        // of DeliverTwice; 0 is 2
	Batch        int              `yaml:"batch"`         // of DeliverReversed: how many are collected; 0 is 2
	Pause        configs.Duration `yaml:"pause"`         // of DeliverTrickle: in the middle of the frame
	Interim      int              `yaml:"interim"`       // answers with RC 09 before the one that counts
	InterimGap   configs.Duration `yaml:"interim_gap"`   // behind each of them

	Also  string           `yaml:"also"`  // one of the Also constants: what happens behind the answer
	For   configs.Duration `yaml:"for"`   // of AlsoStall and AlsoBounce: how long
	Times int              `yaml:"times"` // of AlsoKeepAlive and AlsoEchoStorm: how many; 0 is 1

	Drop   []iso8583.Element          `yaml:"drop"`   // elements left out of the answer
	Set    map[iso8583.Element]string `yaml:"set"`    // elements of the answer that are not what the request had
	Garble bool                       `yaml:"garble"` // the answer's end is cut off inside an intact frame
	Damage string                     `yaml:"damage"` // one of the Damage constants: how the answer is made unreadable otherwise
}

// What the issuer decides.
const (
	AnswerApprove = "approve" // RC 00: an authorisation holds, a reversal releases, a sign-on signs on
	AnswerDecline = "decline" // ResponseCode, without effect
	AnswerPartial = "partial" // RC 10 and a lower amount
	AnswerLost    = "lost"    // the message never reaches the issuer: no effect, no answer
)

// How the answer travels. The issuer's decision stands whatever becomes of its answer.
const (
	DeliverOnce         = "once"
	DeliverSilent       = "silent"         // decided, never sent
	DeliverTwice        = "twice"          // Copies times
	DeliverSplit        = "split"          // byte by byte
	DeliverGlued        = "glued"          // held until the next answer on the connection, both in one write
	DeliverHangUpBefore = "hang_up_before" // the connection is closed instead
	DeliverHangUpAfter  = "hang_up_after"  // the connection is closed after it

	DeliverTrickle         = "trickle"          // byte by byte, with Pause in the middle
	DeliverReversed        = "reversed"         // collected until there are Batch on the connection, then the last one first
	DeliverOtherConnection = "other_connection" // on another connection from the same host, where there is one
)

// How an answer is damaged inside an intact frame.
const (
	DamageCut    = "cut"    // its end is cut off
	DamageBitmap = "bitmap" // its bitmap says that everything is there
	DamageMTI    = "mti"    // its message type is none
	DamageFlip   = "flip"   // one bit of its last byte is another
)

// What happens on a connection behind an answer.
const (
	AlsoCutover   = "cutover"    // every peer is told of the next business date
	AlsoSignOff   = "sign_off"   // the peer is asked to sign off
	AlsoSignOn    = "sign_on"    // the peer is asked to sign on
	AlsoBounce    = "bounce"     // the one, and after For the other
	AlsoStall     = "stall"      // nothing is read for For
	AlsoKeepAlive = "keep_alive" // Times frames without a message
	AlsoEchoStorm = "echo_storm" // Times echo tests at once
)

const (
	partiallyApproved = "10"
	approved          = "00"
	// maxCopies bounds an answer sent more than once.
	maxCopies = 100
	// maxRules bounds a rule set; each message walks it.
	maxRules = 1000
	// maxInterim, maxBatch, maxShares and maxWeight bound what one rule may want.
	maxInterim = 100
	maxBatch   = 1000
	maxShares  = 100
	maxWeight  = 1_000_000
)

// rule is a Rule made ready: texts parsed, counts kept.
type rule struct {
	Rule
	mtis        []iso8583.MTI
	bounded     bool            // by amount
	least, most int64           // minor units
	partial     int64           // of a partial approval in minor units; 0 when it goes by percent
	partials    []int64         // the same for each of Mix
	weights     uint64          // of Mix together
	counts      map[HoldKey]int // messages that matched, by original; under the zero key for PerRule
}

// ruleSet is every rule in force, in order. It is not safe for concurrent use: Card.mu guards it.
type ruleSet []*rule

// compileRules checks the rules and makes them ready, all counts at 0.
func compileRules(rules []Rule) (ruleSet, error) {
	if len(rules) > maxRules {
		return nil, fmt.Errorf("compile rules: at most %d", maxRules)
	}
	var faults configs.Faults
	for i, r := range rules {
		r.validate("rules."+strconv.Itoa(i), &faults)
	}
	if err := faults.Err(); err != nil {
		return nil, fmt.Errorf("compile rules: %w", err)
	}
	set := make(ruleSet, 0, len(rules))
	for _, r := range rules {
		c, err := compileRule(r)
		if err != nil {
			return nil, fmt.Errorf("compile rules: %s: %w", r.Name, err)
		}
		set = append(set, c)
	}
	return set, nil
}

func compileRule(r Rule) (*rule, error) {
	c := &rule{Rule: r, most: 1<<63 - 1, counts: map[HoldKey]int{}}
	var errs []error
	for _, text := range r.When.MTI {
		mti, err := iso8583.ParseMTI(text)
		errs = append(errs, err)
		c.mtis = append(c.mtis, mti)
	}
	for _, bound := range []struct {
		text string
		to   []*int64
	}{
		{r.When.Amount, []*int64{&c.least, &c.most}},
		{r.When.AmountFrom, []*int64{&c.least}},
		{r.When.AmountTo, []*int64{&c.most}},
		{r.Then.Amount, []*int64{&c.partial}},
	} {
		if bound.text == "" {
			continue
		}
		minor, err := parseAmount(bound.text)
		errs = append(errs, err)
		for _, to := range bound.to {
			*to = minor
		}
	}
	for _, share := range r.Mix {
		partial := int64(0)
		if share.Then.Amount != "" {
			var err error
			partial, err = parseAmount(share.Then.Amount)
			errs = append(errs, err)
		}
		c.partials, c.weights = append(c.partials, partial), c.weights+uint64(share.Weight)
	}
	c.bounded = r.When.Amount+r.When.AmountFrom+r.When.AmountTo != ""
	return c, errors.Join(errs...)
}

// pick draws an action of the mix for one sending of a message, and gives the amount of a partial approval.
func (r *rule) pick(seed uint64, m *iso8583.Message, sendings int) (Action, int64) {
	text := fmt.Sprintf("%d|%s|%s|%s|%s|%d", seed, r.Name, m.MTI().WithoutRepeat(), m.Get(iso8583.STAN), m.Get(iso8583.RRN), sendings)
	sum := sha256.Sum256([]byte(text))
	drawn := binary.BigEndian.Uint64(sum[:]) % r.weights
	for i, share := range r.Mix {
		if weight := uint64(share.Weight); drawn >= weight {
			drawn -= weight
			continue
		}
		return share.Then, r.partials[i]
	}
	return Action{}, 0 // not reached: what is drawn is below the sum
}

// maxCounted bounds the originals a rule counts apart; past it its counting starts anew.
const maxCounted = 100_000

// seen is what rules look at in a message.
type seen struct {
	mti         iso8583.MTI
	amount      int64 // DE 4; -1 when absent
	pan         string
	networkCode string
	original    HoldKey // the message's own key, or for a reversal the one DE 90 names
}

// find gives the first rule that matches, nil when none does, and counts the message for each rule it was counted against.
func (s ruleSet) find(m seen) *rule {
	for _, r := range s {
		if r.matches(m) && r.count(m.original) {
			return r
		}
	}
	return nil
}

func (r *rule) matches(m seen) bool {
	w := &r.When
	switch {
	case len(r.mtis) > 0 && !slices.Contains(r.mtis, m.mti):
	case r.bounded && (m.amount < r.least || m.amount > r.most):
	case !strings.HasPrefix(m.pan, w.PANPrefix):
	case w.PANFrom != "" && !within(m.pan, w.PANFrom, w.PANTo):
	case w.NetworkCode != "" && w.NetworkCode != m.networkCode:
	default:
		return true
	}
	return false
}

// within compares as many first digits as the range has.
func within(pan, from, to string) bool {
	if len(pan) < len(from) {
		return false
	}
	head := pan[:len(from)]
	return head >= from && head <= to
}

// count counts the message and tells whether the rule is for one of its number.
func (r *rule) count(original HoldKey) bool {
	w := &r.When
	if w.First == 0 && w.After == 0 && w.Every == 0 {
		return true
	}
	if w.Per != PerOriginal {
		original = HoldKey{}
	}
	if _, known := r.counts[original]; !known && len(r.counts) >= maxCounted {
		clear(r.counts)
	}
	r.counts[original]++
	n := r.counts[original]
	switch {
	case n <= w.After:
		return false
	case w.First > 0 && n-w.After > w.First:
		return false
	case w.Every > 0 && (n-w.After)%w.Every != 0:
		return false
	}
	return true
}
