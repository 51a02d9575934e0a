package sim

import (
	"fmt"
	"strings"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// magic is an amount that makes the scheme do something special, with the rules that do it.
type magic struct {
	amount string
	what   string
	answer Action  // to the authorisation
	undo   *Action // to the first reversals, where they are answered specially
	undoes int     // how many reversals of one original; 0 is all
}

// magicAmounts is the one table of built-in behaviour: the rules are made from it, and the help text is.
func magicAmounts(late configs.Duration) []magic {
	silent := Action{Deliver: DeliverSilent}
	decline := func(code string) Action { return Action{Answer: AnswerDecline, ResponseCode: code} }
	return []magic{
		{amount: "10.05", what: "declined, do not honour (RC 05)", answer: decline("05")},
		{amount: "10.51", what: "declined, insufficient funds (RC 51)", answer: decline("51")},
		{amount: "10.54", what: "declined, expired card (RC 54)", answer: decline("54")},
		{amount: "10.61", what: "declined, limit exceeded (RC 61)", answer: decline("61")},
		{amount: "10.66", what: "declined, issuer inoperative (RC 91)", answer: decline("91")},
		{amount: "10.69", what: "answered with a response code no table lists (RC Z9)", answer: decline("Z9")},
		{amount: "10.10", what: "approved for half the amount (RC 10)", answer: Action{Answer: AnswerPartial, Percent: 50}},
		{amount: "10.80", what: "approved, no answer; the first 2 reversals are lost", answer: silent, undo: &Action{Answer: AnswerLost}, undoes: 2},
		{amount: "10.81", what: "approved, no answer; the first 2 reversals are refused (RC 96)", answer: silent, undo: ptr(decline("96")), undoes: 2},
		{amount: "10.82", what: "approved, no answer; reversals get a format error (RC 30)", answer: silent, undo: ptr(decline("30"))},
		{amount: "10.83", what: "approved, no answer; reversals get a code no table lists (RC Z9)", answer: silent, undo: ptr(decline("Z9"))},
		{amount: "10.84", what: "approved, no answer; the first reversal's answer is lost", answer: silent, undo: &silent, undoes: 1},
		{amount: "10.85", what: "approved, the answer has no DE 41", answer: Action{Drop: []iso8583.Element{iso8583.TerminalID}}},
		{amount: "10.86", what: "approved, the answer has another DE 37", answer: Action{Set: map[iso8583.Element]string{iso8583.RRN: "999999999999"}}},
		{amount: "10.87", what: "approved, the answer's end is cut off", answer: Action{Garble: true}},
		{amount: "10.89", what: "declined (RC 05), no answer", answer: Action{Answer: AnswerDecline, ResponseCode: "05", Deliver: DeliverSilent}},
		{amount: "10.90", what: "lost on the way to the issuer, no answer", answer: Action{Answer: AnswerLost}},
		{amount: "10.91", what: "approved, no answer", answer: silent},
		{amount: "10.92", what: "approved, the answer comes late (" + late.String() + ")", answer: Action{Delay: late}},
		{amount: "10.93", what: "approved, answered twice", answer: Action{Deliver: DeliverTwice}},
		{amount: "10.94", what: "approved, the answer comes byte by byte", answer: Action{Deliver: DeliverSplit}},
		{amount: "10.95", what: "approved, the answer is glued to the next one", answer: Action{Deliver: DeliverGlued}},
		{amount: "10.96", what: "approved, hangs up instead of answering", answer: Action{Deliver: DeliverHangUpBefore}},
		{amount: "10.97", what: "approved, answers and hangs up", answer: Action{Deliver: DeliverHangUpAfter}},
		{amount: "10.98", what: "declined late (RC 05, " + late.String() + ")", answer: Action{Answer: AnswerDecline, ResponseCode: "05", Delay: late}},
	}
}

func ptr(a Action) *Action { return &a }

// magicRules are the built-in rules.
func magicRules(late configs.Duration) []Rule {
	var rules []Rule
	for _, m := range magicAmounts(late) {
		rules = append(rules, Rule{Name: "magic " + m.amount, Then: m.answer,
			When: Match{MTI: []string{"0100", "0101", "0200", "0201"}, Amount: m.amount}})
		if m.undo != nil {
			rules = append(rules, Rule{Name: "magic " + m.amount + " reversal", Then: *m.undo,
				When: Match{MTI: []string{"0400", "0401", "0420", "0421"}, Amount: m.amount, First: m.undoes, Per: PerOriginal}})
		}
	}
	return rules
}

// MagicTable is the table of magic amounts for people, one line each; every other amount is approved.
func MagicTable() string {
	var b strings.Builder
	b.WriteString("Magic amounts (DE 4, the point before the last two digits; every other amount is approved):\n")
	for _, m := range magicAmounts(DefaultCardConfig().LateAfter) {
		fmt.Fprintf(&b, "  %s  %s\n", m.amount, m.what)
	}
	return b.String()
}
