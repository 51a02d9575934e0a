package sim

import (
	"fmt"
	"strings"
	"testing"
)

// leaving is a partial reversal that leaves an amount standing (DE 95).
func leaving(stan, of int, approved, standing int64) fields {
	f := undoOf(stan, "0100", of, approved)
	f[95] = fmt.Sprintf("%012d%s", standing, strings.Repeat("0", 30))
	return f
}

func TestPartialReversalsLeaveTheNewAmount(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	approval := approvedPurchase(t, p, 1, 2500)
	for _, mti := range []string{"0420", "0421"} {
		if got := p.ask(mti, leaving(20, 1, 2500, 1500)); got[39] != "00" {
			t.Errorf("%s: %v", mti, got)
		}
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 1500 || h.ReversedMinor != 1000 || h.Reversed {
		t.Errorf("hold: %+v", h)
	}
	p.ask("0220", capture(10, 1, 400, approval))
	if got := p.ask("0420", leaving(21, 1, 2500, 700)); got[39] != "00" {
		t.Errorf("second: %v", got)
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 300 || h.PostedMinor != 400 || h.ReversedMinor != 1800 {
		t.Errorf("hold: %+v", h)
	}
	noViolations(t, card)
	for standing, why := range map[int64]string{399: "below what is captured", 700: "takes back nothing", 800: "more than stands"} {
		if got := p.ask("0420", leaving(int(30+standing), 1, 2500, standing)); got[39] != "13" {
			t.Errorf("%s: %v", why, got)
		}
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 300 || card.Counts().Violations != 3 {
		t.Errorf("hold: %+v", h)
	}
	// DE 95 of zero takes back all that is left.
	if got := p.ask("0420", leaving(40, 1, 2500, 0)); got[39] != "00" {
		t.Errorf("whole: %v", got)
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 0 || h.ReversedMinor != 2100 || !h.Reversed {
		t.Errorf("hold: %+v", h)
	}
}

func TestPartialReversalByItsAmountAlone(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.PartialReversal = PartialByAmount })
	p := signedOn(t, card)
	approvedPurchase(t, p, 1, 2500)
	p.ask("0420", undoOf(20, "0100", 1, 1000))
	if h := holdOf(t, card, 1); h.HeldMinor != 1500 || h.ReversedMinor != 1000 || h.Reversed {
		t.Errorf("hold: %+v", h)
	}
	p.ask("0420", undoOf(21, "0100", 1, 2500))
	if h := holdOf(t, card, 1); h.HeldMinor != 0 || h.ReversedMinor != 2500 || !h.Reversed {
		t.Errorf("hold: %+v", h)
	}
	noViolations(t, card)
}

func TestAnotherReversalOfWhatIsReversed(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"94", "00"} {
		card, _ := start(t, func(c *CardConfig) { c.AlreadyReversedCode, c.UnknownOriginalCode = code, "76" })
		p := signedOn(t, card)
		approvedPurchase(t, p, 1, 2500)
		p.ask("0420", undoOf(20, "0100", 1, 2500))
		for _, mti := range []string{"0420", "0421"} {
			if got := p.ask(mti, undoOf(21, "0100", 1, 2500)); got[39] != code {
				t.Errorf("%s: %v", mti, got)
			}
		}
		if got := lastViolation(card); got != "the original is reversed already" || card.Counts().Violations != 1 {
			t.Errorf("violation: %q", got)
		}
		if got := p.ask("0421", undoOf(20, "0100", 1, 2500)); got[39] != "00" {
			t.Errorf("the first one's repeat: %v", got)
		}
		if got := p.ask("0420", undoOf(22, "0100", 9, 2500)); got[39] != "76" {
			t.Errorf("unknown original: %v", got)
		}
		if h := holdOf(t, card, 1); h.ReversedMinor != 2500 || h.HeldMinor != 0 {
			t.Errorf("hold: %+v", h)
		}
	}
}

func TestRepeatsCarryWhatTheirFirstSendingHad(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		refresh bool
		change  fields
		want    string
	}{
		"same":             {false, nil, ""},
		"time":             {false, fields{7: "0102030406"}, "the repeat is not its first sending: DE 7"},
		"time refreshed":   {true, fields{7: "0102030406"}, ""},
		"terminal":         {true, fields{41: "TERM0002", 18: "5999"}, "the repeat is not its first sending: DE 18, 41"},
		"approval appears": {false, fields{38: "000001"}, "the repeat is not its first sending: DE 38"},
	} {
		card, _ := start(t, func(c *CardConfig) { c.RepeatsRefreshTime = tt.refresh })
		// The first one is lost on its way to the issuer, and counts all the same.
		lost := Rule{When: Match{MTI: []string{"0420"}}, Then: Action{Answer: AnswerLost}}
		if err := card.SetRules([]Rule{lost}); err != nil {
			t.Fatal(err)
		}
		p := signedOn(t, card)
		approvedPurchase(t, p, 1, 2500)
		p.send("0420", undo(1, 2500))
		repeat := undo(1, 2500)
		for number, value := range tt.change {
			repeat[number] = value
		}
		if got := p.ask("0421", repeat); got[39] != "00" {
			t.Errorf("%s: %v", name, got)
		}
		if got := lastViolation(card); got != tt.want {
			t.Errorf("%s: violation %q", name, got)
		}
	}
}

func TestARefreshedCompletionIsStillOne(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.RepeatsRefreshTime = true })
	p := signedOn(t, card)
	approval := approvedPurchase(t, p, 1, 2500)
	p.ask("0220", capture(10, 1, 1000, approval))
	repeat := capture(10, 1, 1000, approval)
	repeat[7] = "0102030500"
	if got := p.ask("0221", repeat); got[39] != "00" {
		t.Errorf("repeat: %v", got)
	}
	if h := holdOf(t, card, 1); h.PostedMinor != 1000 || h.Completions != 1 {
		t.Errorf("hold: %+v", h)
	}
	noViolations(t, card)
}

// TestSTANsComeRound sends another exchange under a STAN that was used before.
func TestSTANsComeRound(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	p.ask("0420", undoOf(20, "0100", 1, 2500))
	later := undoOf(20, "0100", 2, 900)
	later[7] = "0102040000"
	p.ask("0420", later)
	p.ask("0421", later)
	noViolations(t, card)
}

// TestARefreshedRequestIsStillOne repeats an authorisation under a new DE 7; its reversal names the first one's.
func TestARefreshedRequestIsStillOne(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) {
		c.RepeatsRefreshTime = true
		c.Spec.MTIs = []string{"0100", "0101", "0110", "0420", "0421", "0430", "0800", "0810"}
	})
	p := signedOn(t, card)
	approval := approvedPurchase(t, p, 1, 2500)
	repeat := purchase(1, 2500)
	repeat[7] = "0102030500"
	if got := p.ask("0101", repeat); got[0] != "0110" || got[39] != "00" || got[38] != approval || got[7] != "0102030500" {
		t.Errorf("repeat: %v", got)
	}
	if h := holdOf(t, card, 1); h.Requests != 2 || len(card.Holds()) != 1 {
		t.Errorf("hold: %+v", h)
	}
	if got := p.ask("0420", undo(1, 2500)); got[39] != "00" || holdOf(t, card, 1).HeldMinor != 0 {
		t.Errorf("reversal: %v", got)
	}
	noViolations(t, card)
}

func TestFirstSendingsAreBounded(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.MaxOriginals = 3 })
	p := signedOn(t, card)
	for stan := range 5 {
		p.ask("0420", undoOf(stan+1, "0100", stan+1, 2500))
	}
	card.repeats.mu.Lock()
	defer card.repeats.mu.Unlock()
	if n, m := len(card.repeats.firsts), len(card.repeats.order); n != 3 || m != 3 {
		t.Errorf("%d and %d", n, m)
	}
}

func TestReversalsOfOneOriginalAreBounded(t *testing.T) {
	t.Parallel()
	h := &Hold{Kind: KindHold, ResponseCode: "00", ApprovedMinor: 2500, HeldMinor: 2500, Requests: 1, undone: make([]undone, maxUndone)}
	card, _ := start(t, nil)
	m := card.NewMessage(0x0420)
	if v := card.books.takeBack(h, m); v.code != "96" || h.HeldMinor != 2500 {
		t.Errorf("%+v", v)
	}
}
