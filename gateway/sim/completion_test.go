package sim

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// capture is the completion of a purchase under an approval code, with a STAN of its own.
func capture(stan, of int, minor int64, approval string) fields {
	f := purchase(of, minor)
	delete(f, 22)
	f[11], f[38] = fmt.Sprintf("%06d", stan), approval
	f[90] = fmt.Sprintf("0100%06d0102030405%011d%011d", of, 12345, 0)
	return f
}

// undoOf is a reversal with a STAN of its own of the message with a type and a STAN.
func undoOf(stan int, mti string, of int, minor int64) fields {
	f := undo(of, minor)
	f[11] = fmt.Sprintf("%06d", stan)
	f[37] = fmt.Sprintf("%012d", of)
	f[90] = fmt.Sprintf("%s%06d0102030405%011d%011d", mti, of, 12345, 0)
	return f
}

func approvedPurchase(t *testing.T, p *peer, stan int, minor int64) (approval string) {
	t.Helper()
	got := p.ask("0100", purchase(stan, minor))
	if got[39] != "00" || len(got[38]) != 6 {
		t.Fatalf("purchase: %v", got)
	}
	return got[38]
}

func noViolations(t *testing.T, card *Card) {
	t.Helper()
	for _, r := range card.Find(Query{Violations: true}) {
		t.Errorf("%s %s: %s", r.MTI, r.STAN, r.Violation)
	}
}

func lastViolation(card *Card) string {
	found := card.Find(Query{Violations: true})
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1].Violation
}

func TestCompletionsPostWhatTheyCapture(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	approval := approvedPurchase(t, p, 1, 2500)
	for i, minor := range []int64{1000, 500} {
		got := p.ask("0220", capture(10+i, 1, minor, approval))
		if got[0] != "0230" || got[39] != "00" || got[11] != fmt.Sprintf("%06d", 10+i) || got[90] == "" {
			t.Errorf("completion %d: %v", i, got)
		}
	}
	if h := holdOf(t, card, 1); h.Kind != KindHold || h.HeldMinor != 1000 || h.CapturedMinor != 1500 || h.PostedMinor != 1500 || h.Completions != 2 {
		t.Errorf("hold: %+v", h)
	}
	if got := p.ask("0221", capture(11, 1, 500, approval)); got[0] != "0230" || got[39] != "00" {
		t.Errorf("repeat: %v", got)
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 1000 || h.CapturedMinor != 1500 {
		t.Errorf("hold after a repeat: %+v", h)
	}
	want := Totals{HeldMinor: 1000, PostedMinor: 1500, CapturedMinor: 1500}
	if got := card.Books().Totals(); len(got) != 1 || got["978"] != want {
		t.Errorf("totals: %+v", got)
	}
	noViolations(t, card)
	original := HoldKey{MTI: 0x0100, STAN: "000001", TransmissionDateTime: "0102030405", AcquirerID: "00000012345", ForwarderID: "00000000000"}
	list := card.Books().CompletionsOf(original)
	if len(list) != 2 || list[0].PostedMinor != 1000 || list[1].Requests != 2 || list[1].Original != original {
		t.Errorf("completions: %+v", list)
	}
	if got := card.Find(Query{Original: original, Direction: In}); len(got) != 4 || got[0].MTI != "0100" || got[3].MTI != "0221" {
		t.Errorf("records about the original: %+v", got)
	}
	if got := card.Find(Query{STAN: "000011", MTI: "0230"}); len(got) != 2 || got[0].ResponseCode != "00" || got[0].Connection != 1 {
		t.Errorf("answers: %+v", got)
	}
}

func TestACompletionMayEndTheHold(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.CompletionEndsHold = true })
	p := signedOn(t, card)
	approval := approvedPurchase(t, p, 1, 2500)
	p.ask("0220", capture(10, 1, 1000, approval))
	if h := holdOf(t, card, 1); h.HeldMinor != 0 || h.PostedMinor != 1000 || h.ReleasedMinor != 1500 {
		t.Errorf("hold: %+v", h)
	}
	noViolations(t, card)
}

func TestWrongCompletionsAreAcceptedAndNoted(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change    fields
		minor     int64
		violation string
		posted    int64 // by completions of authorisations
		unmatched int64
	}{
		"too much":     {nil, 2501, "captures more than is held", 2501, 0},
		"approval":     {fields{38: "999999"}, 100, "another DE 38", 100, 0},
		"reference":    {fields{37: "000000000009"}, 100, "another DE 37", 100, 0},
		"currency":     {fields{49: "840"}, 100, "another DE 49", 100, 0},
		"card":         {fields{2: otherPAN}, 100, "another card", 100, 0},
		"no such one":  {fields{90: strings.Replace(capture(0, 1, 0, "")[90], "000001", "000077", 1)}, 100, "that we do not have", 0, 100},
		"declined one": {fields{90: strings.Replace(capture(0, 1, 0, "")[90], "000001", "000002", 1)}, 100, "was declined", 0, 100},
		"posted one":   {fields{90: strings.Replace(capture(0, 1, 0, "")[90], "0100000001", "0200000003", 1)}, 100, "holds nothing", 0, 100},
	} {
		card, _ := start(t, nil)
		p := signedOn(t, card)
		approval := approvedPurchase(t, p, 1, 2500)
		p.ask("0100", purchase(2, 1005))
		p.ask("0200", purchase(3, 300))
		f := capture(10, 1, tt.minor, approval)
		maps.Copy(f, tt.change)
		if got := p.ask("0220", f); got[39] != "00" {
			t.Errorf("%s: %v", name, got)
		}
		if got := lastViolation(card); !strings.Contains(got, tt.violation) || card.Counts().Violations != 1 {
			t.Errorf("%s: violation %q", name, got)
		}
		h := holdOf(t, card, 1)
		total := int64(0)
		for _, sum := range card.Books().Totals() {
			total += sum.PostedMinor
		}
		if h.PostedMinor != tt.posted || h.HeldMinor != max(0, 2500-tt.posted) || total != tt.posted+tt.unmatched+300 {
			t.Errorf("%s: hold %+v, posted %d", name, h, total)
		}
	}
}

func TestCompletionWithoutAnOriginalIsAFormatError(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	f := capture(10, 1, 100, "000001")
	delete(f, 90)
	if got := p.ask("0220", f); got[39] != "30" || len(card.Books().Completions) != 0 || card.Counts().Violations != 1 {
		t.Errorf("answer %v, books %+v", got, card.Books())
	}
}

func TestReversalOfACompletionReturnsWhatItPosted(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	approval := approvedPurchase(t, p, 1, 2500)
	p.ask("0220", capture(10, 1, 1000, approval))
	p.ask("0220", capture(11, 1, 500, approval))
	undoing := undoOf(20, "0220", 10, 1000)
	undoing[37] = purchase(1, 0)[37]
	for _, mti := range []string{"0420", "0421"} {
		if got := p.ask(mti, undoing); got[0] != "0430" || got[39] != "00" {
			t.Errorf("%s: %v", mti, got)
		}
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 1000 || h.PostedMinor != 500 || h.CapturedMinor != 500 || h.Reversed {
		t.Errorf("hold: %+v", h)
	}
	if list := card.Books().CompletionsOf(card.Find(Query{STAN: "000001", MTI: "0100"})[0].Key); !list[0].Reversed || list[0].PostedMinor != 0 || list[1].Reversed {
		t.Errorf("completions: %+v", list)
	}
	noViolations(t, card)
	// What the completions left goes with the authorisation's own reversal; what stands posted stays.
	if got := p.ask("0420", undo(1, 2500)); got[39] != "00" {
		t.Errorf("reversal of the authorisation: %v", got)
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 0 || h.PostedMinor != 500 || h.ReversedMinor != 1000 || !h.Reversed {
		t.Errorf("hold: %+v", h)
	}
	noViolations(t, card)
}

func TestReversalBeforeItsCompletionPostsNothing(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	approval := approvedPurchase(t, p, 1, 2500)
	undoing := undoOf(20, "0220", 10, 1000)
	undoing[37] = purchase(1, 0)[37]
	if got := p.ask("0420", undoing); got[39] != "25" {
		t.Errorf("reversal: %v", got)
	}
	if got := p.ask("0220", capture(10, 1, 1000, approval)); got[39] != "00" {
		t.Errorf("completion: %v", got)
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 2500 || h.PostedMinor != 0 {
		t.Errorf("hold: %+v", h)
	}
}

func TestFinancialRequestsPostAtOnce(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	if got := p.ask("0200", purchase(1, 2500)); got[0] != "0210" || got[39] != "00" || got[38] == "" {
		t.Errorf("answer: %v", got)
	}
	cash := purchase(2, 700)
	cash[3] = "010000"
	p.ask("0200", cash)
	if got := card.Books().Totals()["978"]; got != (Totals{PostedMinor: 3200}) {
		t.Errorf("totals: %+v", got)
	}
	for i, mti := range []string{"0400", "0401"} {
		if got := p.ask(mti, undoOf(20, "0200", 1, 2500)); got[0] != "0410" || got[39] != "00" {
			t.Errorf("reversal %d: %v", i, got)
		}
	}
	if got := card.Books().Totals()["978"]; got != (Totals{PostedMinor: 700, ReversedMinor: 2500}) {
		t.Errorf("totals: %+v", got)
	}
	noViolations(t, card)
}

func TestRefundsCreditAndAreReversed(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	for i, mti := range []string{"0100", "0200"} {
		f := purchase(i+1, 2500)
		f[3] = "200000"
		if got := p.ask(mti, f); got[39] != "00" {
			t.Errorf("refund: %v", got)
		}
	}
	if got := card.Books().Totals()["978"]; got != (Totals{CreditedMinor: 5000}) {
		t.Errorf("totals: %+v", got)
	}
	p.ask("0420", undoOf(20, "0200", 2, 2500))
	if got := card.Books().Totals()["978"]; got != (Totals{CreditedMinor: 2500, ReversedMinor: 2500}) {
		t.Errorf("totals: %+v", got)
	}
	noViolations(t, card)
}

func TestInquiriesMoveNothingAndShowBalances(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.Balance = "1234.56" })
	p := signedOn(t, card)
	for stan, code := range map[int]string{1: "301000", 2: "312000"} {
		f := purchase(stan, 0)
		f[3] = code
		delete(f, 4)
		account := code[2:4]
		if got := p.ask("0100", f); got[39] != "00" || got[54] != account+"01978C000000123456"+account+"02978C000000123456" {
			t.Errorf("inquiry: %v", got)
		}
		if h := holdOf(t, card, stan); h.Kind != KindInquiry || h.HeldMinor != 0 || h.PostedMinor != 0 {
			t.Errorf("hold: %+v", h)
		}
	}
	refused := purchase(3, 1005)
	refused[3] = "310000"
	if got := p.ask("0100", refused); got[39] != "05" || got[54] != "" {
		t.Errorf("refused inquiry: %v", got)
	}
	if got := card.Books().Totals()["978"]; got != (Totals{}) {
		t.Errorf("totals: %+v", got)
	}
}
