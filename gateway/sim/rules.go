package sim

import (
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

	Drop   []iso8583.Element          `yaml:"drop"`   // elements left out of the answer
	Set    map[iso8583.Element]string `yaml:"set"`    // elements of the answer that are not what the request had
	Garble bool                       `yaml:"garble"` // the answer's end is cut off inside an intact frame
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
)

const (
	partiallyApproved = "10"
	approved          = "00"
	// maxCopies bounds an answer sent more than once.
	maxCopies = 100
	// maxRules bounds a rule set; each message walks it.
	maxRules = 1000
)

func (r Rule) validate(path string, f *configs.Faults) {
	r.When.validate(path+".when", f)
	r.Then.validate(path+".then", f)
}

func (m Match) validate(path string, f *configs.Faults) {
	for i, mti := range m.MTI {
		if _, err := iso8583.ParseMTI(mti); err != nil {
			f.Add(path+".mti."+strconv.Itoa(i), "is a message type of 4 digits, like 0100", mti)
		}
	}
	for key, text := range map[string]string{"amount": m.Amount, "amount_from": m.AmountFrom, "amount_to": m.AmountTo} {
		if _, err := parseAmount(text); err != nil && text != "" {
			f.Add(path+"."+key, err.Error(), text)
		}
	}
	for key, digits := range map[string]string{"pan_prefix": m.PANPrefix, "pan_from": m.PANFrom, "pan_to": m.PANTo} {
		if strings.Trim(digits, "0123456789") != "" {
			f.Add(path+"."+key, "is the first digits of a card number", nil)
		}
	}
	if len(m.PANFrom) != len(m.PANTo) {
		f.Add(path+".pan_from", "has as many digits as pan_to", nil)
	}
	for key, n := range map[string]int{"first": m.First, "after": m.After, "every": m.Every} {
		if n < 0 {
			f.Add(path+"."+key, "is not negative", n)
		}
	}
	if m.Per != "" && m.Per != PerRule && m.Per != PerOriginal {
		f.Add(path+".per", "is rule or original", m.Per)
	}
}

func (a Action) validate(path string, f *configs.Faults) {
	switch a.Answer {
	case AnswerLost:
	case "", AnswerApprove:
		if a.ResponseCode != "" && (!isApproval(a.ResponseCode) || a.ResponseCode == partiallyApproved) {
			f.Add(path+".response_code", "of an approval is 00, 08, 11 or 16; for others the answer is decline", a.ResponseCode)
		}
	case AnswerDecline:
		if a.ResponseCode == "" {
			f.Add(path+".response_code", "is needed for a decline", nil)
		}
		if isApproval(a.ResponseCode) {
			f.Add(path+".response_code", "of a decline is none that approves", a.ResponseCode)
		}
	case AnswerPartial:
		if a.ResponseCode != "" && a.ResponseCode != partiallyApproved {
			f.Add(path+".response_code", "of a partial approval is 10", a.ResponseCode)
		}
		if _, err := parseAmount(a.Amount); a.Amount != "" && err != nil {
			f.Add(path+".amount", err.Error(), a.Amount)
		}
		if a.Amount == "" && (a.Percent < 1 || a.Percent > 99) {
			f.Add(path+".percent", "is 1 to 99, or an amount is given", a.Percent)
		}
	default:
		f.Add(path+".answer", "is approve, decline, partial or lost", a.Answer)
	}
	if a.ResponseCode != "" {
		checkResponseCode(path+".response_code", a.ResponseCode, f)
	}
	switch a.Deliver {
	case "", DeliverOnce, DeliverSilent, DeliverTwice, DeliverSplit, DeliverGlued, DeliverHangUpBefore, DeliverHangUpAfter:
	default:
		f.Add(path+".deliver", "is once, silent, twice, split, glued, hang_up_before or hang_up_after", a.Deliver)
	}
	if a.Copies < 0 || a.Copies > maxCopies {
		f.Add(path+".copies", fmt.Sprintf("is 0 to %d", maxCopies), a.Copies)
	}
}

// validateElements holds the elements to set against the dialect.
func (a Action) validateElements(path string, spec *iso8583.Spec, f *configs.Faults) {
	m := spec.NewMessage(iso8583.MTINetworkManagementRequest)
	for e, value := range a.Set {
		if err := m.Set(e, value); err != nil {
			f.Add(fmt.Sprintf("%s.set.%d", path, e), err.Error(), nil)
		}
	}
}

// rule is a Rule made ready: texts parsed, counts kept.
type rule struct {
	Rule
	mtis        []iso8583.MTI
	bounded     bool            // by amount
	least, most int64           // minor units
	partial     int64           // of a partial approval in minor units; 0 when it goes by percent
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
	c.bounded = r.When.Amount+r.When.AmountFrom+r.When.AmountTo != ""
	return c, errors.Join(errs...)
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
	w := r.When
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
	w := r.When
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
