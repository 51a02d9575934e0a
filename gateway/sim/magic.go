package sim

import (
	"fmt"
	"strings"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// magic is an amount that makes the scheme do something special, with the rules that do it.
type magic struct {
	amount    string
	what      string
	answer    Action  // to the authorisation
	undo      *Action // to the first reversals, where they are answered specially
	undoes    int     // how many reversals of one original; 0 is all
	complete  *Action // to the first completions, where they are answered specially
	completes int     // how many of one original; 0 is all
}

// magicAmounts is the one table of built-in behaviour: the rules are made from it, and the help text is.
func magicAmounts(late configs.Duration, notSignedOn string) []magic {
	return append(magicDecisions(late), magicFaults(late, notSignedOn)...)
}

func decline(code string) Action { return Action{Answer: AnswerDecline, ResponseCode: code} }

func set(e iso8583.Element, value string) Action {
	return Action{Set: map[iso8583.Element]string{e: value}}
}

// magicDecisions are the amounts 10.xx: what the issuer decides, and answers that do not come as they should.
func magicDecisions(late configs.Duration) []magic {
	silent := Action{Deliver: DeliverSilent}
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

// magicFaults are the amounts 11.xx: what completions and reversals meet, wrong answers, and connections that misbehave.
func magicFaults(late configs.Duration, notSignedOn string) []magic {
	silent, fine := Action{Deliver: DeliverSilent}, Action{}
	return []magic{
		{amount: "11.01", what: "approved, the answer has another DE 11", answer: set(iso8583.STAN, "999999")},
		{amount: "11.02", what: "approved, the answer has another DE 7", answer: set(iso8583.TransmissionDateTime, "0101000001")},
		{amount: "11.03", what: "approved, the answer has another DE 41", answer: set(iso8583.TerminalID, "WRONG001")},
		{amount: "11.04", what: "approved, the answer has a higher DE 4", answer: set(iso8583.AmountTransaction, "000000009900")},
		{amount: "11.05", what: "approved, the answer has another DE 49", answer: set(iso8583.CurrencyTransaction, "999")},
		{amount: "11.06", what: "approved, the answer's bitmap is wrong", answer: Action{Damage: DamageBitmap}},
		{amount: "11.07", what: "approved, the answer's message type is none", answer: Action{Damage: DamageMTI}},
		{amount: "11.08", what: "approved, one bit of the answer is another", answer: Action{Damage: DamageFlip}},
		{amount: "11.09", what: "approved, answered as a duplicate (RC 94)", answer: Action{Set: map[iso8583.Element]string{iso8583.ResponseCode: "94"}, Drop: []iso8583.Element{iso8583.ApprovalCode}}},
		{amount: "11.10", what: "approved, two such answers come in reverse order", answer: Action{Deliver: DeliverReversed}},
		{amount: "11.11", what: "approved after 2 interim answers (RC 09, " + late.String() + " apart)", answer: Action{Interim: 2, InterimGap: late}},
		{amount: "11.12", what: "approved, 3 interim answers (RC 09, " + late.String() + " apart) and no other", answer: Action{Interim: 3, InterimGap: late, Deliver: DeliverSilent}},
		{amount: "11.13", what: "declined, not signed on", answer: decline(notSignedOn)},
		{amount: "11.14", what: "approved, half of the answer comes late (" + late.String() + "), byte by byte", answer: Action{Deliver: DeliverTrickle, Pause: late}},
		{amount: "11.15", what: "approved, answered on another connection of the same host", answer: Action{Deliver: DeliverOtherConnection}},
		{amount: "11.20", what: "approved, then a cutover notice to every peer", answer: Action{Also: AlsoCutover}},
		{amount: "11.21", what: "approved, then the scheme signs the peer off", answer: Action{Also: AlsoSignOff}},
		{amount: "11.22", what: "approved, then the scheme signs the peer off and on again (" + late.String() + ")", answer: Action{Also: AlsoBounce, For: late}},
		{amount: "11.23", what: "approved, then the scheme stops reading (" + late.String() + ")", answer: Action{Also: AlsoStall, For: late}},
		{amount: "11.24", what: "approved, then 5 keep-alive frames", answer: Action{Also: AlsoKeepAlive, Times: 5}},
		{amount: "11.25", what: "approved, then 50 echo tests at once", answer: Action{Also: AlsoEchoStorm, Times: 50}},
		{amount: "11.30", what: "approved; reversals get a format error (RC 30)", answer: fine, undo: ptr(decline("30"))},
		{amount: "11.31", what: "approved; reversals are told that nothing is known (RC 25), and release nothing", answer: fine, undo: ptr(decline("25"))},
		{amount: "11.32", what: "approved; the first reversal is undone, its answer lost", answer: fine, undo: &silent, undoes: 1},
		{amount: "11.40", what: "approved; completions get a format error (RC 30)", answer: fine, complete: ptr(decline("30"))},
		{amount: "11.41", what: "approved; the first 2 completions are lost", answer: fine, complete: &Action{Answer: AnswerLost}, completes: 2},
		{amount: "11.42", what: "approved; the first completion is posted, its answer lost", answer: fine, complete: &silent, completes: 1},
		{amount: "11.43", what: "approved; the first 2 completions are refused (RC 96)", answer: fine, complete: ptr(decline("96")), completes: 2},
		{amount: "11.44", what: "approved; completions get a code no table lists (RC Z9)", answer: fine, complete: ptr(decline("Z9"))},
		{amount: "11.45", what: "approved; the first completion is posted, answered as a duplicate (RC 94)", answer: fine, complete: ptr(set(iso8583.ResponseCode, "94")), completes: 1},
	}
}

func ptr(a Action) *Action { return &a }

// inBothEditions are message types of 1987 and the same of 1993.
func inBothEditions(mtis ...string) []string {
	for _, mti := range mtis {
		mtis = append(mtis, "1"+mti[1:])
	}
	return mtis
}

// magicRules are the built-in rules. The response codes are those of 1987, which the answer writes as its edition does.
func magicRules(late configs.Duration, notSignedOn string) []Rule {
	var rules []Rule
	for _, m := range magicAmounts(late, notSignedOn) {
		rules = append(rules, Rule{Name: "magic " + m.amount, Then: m.answer,
			When: Match{MTI: inBothEditions("0100", "0101", "0200", "0201"), Amount: m.amount}})
		if m.undo != nil {
			rules = append(rules, Rule{Name: "magic " + m.amount + " reversal", Then: *m.undo,
				When: Match{MTI: inBothEditions("0400", "0401", "0420", "0421"), Amount: m.amount, First: m.undoes, Per: PerOriginal}})
		}
		if m.complete != nil {
			rules = append(rules, Rule{Name: "magic " + m.amount + " completion", Then: *m.complete,
				When: Match{MTI: inBothEditions("0120", "0121", "0220", "0221"), Amount: m.amount, First: m.completes, Per: PerOriginal}})
		}
	}
	return rules
}

// MagicTable is the table of magic amounts for people, one line each; every other amount is approved.
func MagicTable() string {
	var b strings.Builder
	defaults := DefaultCardConfig()
	b.WriteString("Magic amounts (DE 4, the point before the last two digits; every other amount is approved):\n")
	for _, m := range magicAmounts(defaults.LateAfter, defaults.NotSignedOnCode) {
		fmt.Fprintf(&b, "  %s  %s\n", m.amount, m.what)
	}
	return b.String()
}
