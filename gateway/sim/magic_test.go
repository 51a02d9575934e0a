package sim

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/schemegate/schemegate/configs"
)

// Amounts of the table in minor units.
const (
	partialMinor      = 1010
	undoLostMinor     = 1080
	undoRefusedMinor  = 1081
	undoFormatMinor   = 1082
	undoUnlistedMinor = 1083
	undoSilentMinor   = 1084
	noTerminalMinor   = 1085
	otherRRNMinor     = 1086
	garbledMinor      = 1087
	declineLostMinor  = 1089
	lostMinor         = 1090
	silentMinor       = 1091
	lateMinor         = 1092
	twiceMinor        = 1093
	splitMinor        = 1094
	gluedMinor        = 1095
	hangBeforeMinor   = 1096
	hangAfterMinor    = 1097
	lateDeclineMinor  = 1098
)

func TestMagicDeclines(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	for minor, code := range map[int64]string{1005: "05", 1051: "51", 1054: "54", 1061: "61", 1066: "91", 1069: "Z9"} {
		if got := p.ask("0100", purchase(int(minor), minor)); got[39] != code || got[38] != "" {
			t.Errorf("%d: %v", minor, got)
		}
		if h := holdOf(t, card, int(minor)); h.HeldMinor != 0 || h.ApprovedMinor != 0 || h.ResponseCode != code {
			t.Errorf("%d: %+v", minor, h)
		}
	}
	if got := p.ask("0420", undo(1005, 1005)); got[39] != "21" {
		t.Errorf("reversal of a decline: %v", got)
	}
}

func TestMagicPartialApproval(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	if got := p.ask("0100", purchase(1, partialMinor)); got[39] != "10" || got[4] != "000000000505" || got[38] == "" {
		t.Errorf("answer: %v", got)
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 505 || h.RequestedMinor != partialMinor {
		t.Errorf("hold: %+v", h)
	}
	if got := p.ask("0100", purchase(1, partialMinor)); got[39] != "10" || got[4] != "000000000505" {
		t.Errorf("copy: %v", got)
	}
}

func TestMagicSilence(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	p.send("0100", purchase(1, silentMinor))
	p.send("0100", purchase(2, declineLostMinor))
	p.send("0100", purchase(3, lostMinor))
	p.nothingCame()
	if h := holdOf(t, card, 1); h.HeldMinor != silentMinor || h.ResponseCode != "00" {
		t.Errorf("approved without an answer: %+v", h)
	}
	if h := holdOf(t, card, 2); h.HeldMinor != 0 || h.ResponseCode != "05" {
		t.Errorf("declined without an answer: %+v", h)
	}
	if len(card.Holds()) != 2 {
		t.Errorf("the lost request is in the books: %v", card.Holds())
	}
	for stan, want := range map[int]struct {
		minor int64
		code  string
	}{1: {silentMinor, "00"}, 2: {declineLostMinor, "21"}, 3: {lostMinor, "25"}} {
		if got := p.ask("0420", undo(stan, want.minor)); got[39] != want.code {
			t.Errorf("reversal of %d: %v", stan, got)
		}
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 0 || !h.Reversed {
		t.Errorf("after the reversal: %+v", h)
	}
}

func TestMagicReversals(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	held := func(stan int) int64 { return holdOf(t, card, stan).HeldMinor }
	for i, minor := range []int64{undoLostMinor, undoRefusedMinor, undoFormatMinor, undoUnlistedMinor, undoSilentMinor, undoLostMinor} {
		p.send("0100", purchase(i+1, minor))
	}
	p.nothingCame()

	p.send("0420", undo(1, undoLostMinor))
	p.send("0421", undo(1, undoLostMinor))
	p.send("0420", undo(6, undoLostMinor)) // counted apart
	p.nothingCame()
	if held(1) != undoLostMinor {
		t.Error("a lost reversal released")
	}
	if got := p.ask("0421", undo(1, undoLostMinor)); got[39] != "00" || held(1) != 0 || held(6) != undoLostMinor {
		t.Errorf("third reversal: %v, held %d and %d", got, held(1), held(6))
	}

	for i, code := range []string{"96", "96", "00"} {
		before := held(2)
		if got := p.ask("0420", undo(2, undoRefusedMinor)); got[39] != code || (held(2) == 0) != (code == "00") {
			t.Errorf("reversal %d: %v, held %d then %d", i+1, got, before, held(2))
		}
	}
	for range 3 {
		if got := p.ask("0420", undo(3, undoFormatMinor)); got[39] != "30" || held(3) == 0 {
			t.Errorf("format error: %v, held %d", got, held(3))
		}
		if got := p.ask("0420", undo(4, undoUnlistedMinor)); got[39] != "Z9" || held(4) == 0 {
			t.Errorf("unlisted code: %v, held %d", got, held(4))
		}
	}
	p.send("0420", undo(5, undoSilentMinor))
	p.nothingCame()
	if held(5) != 0 {
		t.Error("a reversal whose answer is lost released nothing")
	}
	if got := p.ask("0421", undo(5, undoSilentMinor)); got[39] != "00" || holdOf(t, card, 5).Reversals != 2 {
		t.Errorf("its repeat: %v", got)
	}
}

func TestMagicWrongAnswers(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	if got := p.ask("0100", purchase(1, noTerminalMinor)); got[39] != "00" || got[41] != "" {
		t.Errorf("without DE 41: %v", got)
	}
	if got := p.ask("0100", purchase(2, otherRRNMinor)); got[39] != "00" || got[37] != "999999999999" {
		t.Errorf("another DE 37: %v", got)
	}
	p.send("0100", purchase(3, garbledMinor))
	if got, err := p.next(answerWait); err == nil || !strings.HasPrefix(err.Error(), "unpack: ") {
		t.Errorf("garbled: %v, %v", got, err)
	}
	p.nothingCame()
}

// TestMagicLateApproval lets the reversal overtake the answer.
func TestMagicLateApproval(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.LateAfter = configs.Duration(700 * time.Millisecond) })
	p := signedOn(t, card)
	p.send("0100", purchase(1, lateMinor))
	p.send("0100", purchase(2, lateDeclineMinor))
	if got := p.ask("0420", undo(1, lateMinor)); got[0] != "0430" || got[39] != "00" {
		t.Errorf("reversal: %v", got)
	}
	late := map[string]fields{}
	for range 2 {
		got := p.read()
		late[got[11]] = got
	}
	if a := late["000001"]; a[0] != "0110" || a[39] != "00" || a[38] == "" {
		t.Errorf("late approval: %v", a)
	}
	if d := late["000002"]; d[39] != "05" {
		t.Errorf("late decline: %v", d)
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 0 || !h.Reversed {
		t.Errorf("hold: %+v", h)
	}
}

func TestMagicTwiceAndSplit(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.ByteGap = configs.Duration(2 * time.Millisecond) })
	p := signedOn(t, card)
	first := p.ask("0100", purchase(1, twiceMinor))
	if diff := cmp.Diff(first, p.read()); diff != "" || first[39] != "00" {
		t.Errorf("copies differ: %s", diff)
	}
	p.nothingCame()

	p.send("0100", purchase(2, splitMinor))
	if got := p.read(); got[39] != "00" || got[11] != "000002" {
		t.Errorf("split: %v", got)
	}
	p.send("0100", purchase(3, splitMinor))
	// With a gap between bytes one read cannot have them all.
	buf := make([]byte, 4096)
	n, err := p.conn.Read(buf)
	if err != nil || n >= 100 {
		t.Errorf("one read has %d bytes, %v", n, err)
	}
}

func TestMagicGlued(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.GlueWait = configs.Duration(time.Minute) })
	p := signedOn(t, card)
	p.send("0100", purchase(1, gluedMinor))
	eventually(t, "noted as glued", func() bool { return hasRecord(card, func(r Record) bool { return r.Note == "glued" }) })
	p.send("0100", purchase(2, 2500))
	if a := p.read(); a[11] != "000001" || p.r.Buffered() == 0 {
		t.Errorf("glued: %v, %d bytes behind it in the same read", a, p.r.Buffered())
	}
	if b := p.read(); b[11] != "000002" {
		t.Errorf("behind it: %v", b)
	}
}

func TestTwoGluedGoTogether(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.GlueWait = configs.Duration(time.Minute) })
	p := signedOn(t, card)
	p.send("0100", purchase(1, gluedMinor))
	p.send("0100", purchase(2, gluedMinor))
	if a := p.read(); a[11] != "000001" || p.r.Buffered() == 0 {
		t.Errorf("glued: %v, %d bytes behind it in the same read", a, p.r.Buffered())
	}
	if b := p.read(); b[11] != "000002" {
		t.Errorf("behind it: %v", b)
	}
}

func TestGluedGoesAloneAfterTheWait(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.GlueWait = configs.Duration(5 * time.Millisecond) })
	p := signedOn(t, card)
	if got := p.ask("0100", purchase(1, gluedMinor)); got[39] != "00" {
		t.Errorf("answer: %v", got)
	}
}

func TestMagicHangUps(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	p.send("0100", purchase(1, hangBeforeMinor))
	if got, err := p.next(answerWait); !errors.Is(err, io.EOF) {
		t.Errorf("instead of the end: %v, %v", got, err)
	}
	p = signedOn(t, card)
	if got := p.ask("0100", purchase(2, hangAfterMinor)); got[39] != "00" {
		t.Errorf("answer: %v", got)
	}
	if got, err := p.next(answerWait); !errors.Is(err, io.EOF) {
		t.Errorf("instead of the end: %v, %v", got, err)
	}
	if a, b := holdOf(t, card, 1), holdOf(t, card, 2); a.HeldMinor != hangBeforeMinor || b.HeldMinor != hangAfterMinor {
		t.Errorf("holds %+v and %+v", a, b)
	}
	p = signedOn(t, card)
	if got := p.ask("0420", undo(1, hangBeforeMinor)); got[39] != "00" {
		t.Errorf("reversal on the next connection: %v", got)
	}
}

// TestMagicTableHasEveryAmount holds the help text against the rules.
func TestMagicTableHasEveryAmount(t *testing.T) {
	t.Parallel()
	table := MagicTable()
	for _, r := range magicRules(DefaultCardConfig().LateAfter, "58") {
		if !strings.Contains(table, "\n  "+r.When.Amount+"  ") {
			t.Errorf("%s is not in the table", r.When.Amount)
		}
	}
	if !strings.Contains(table, "10.92  approved, the answer comes late (3s)") {
		t.Errorf("table:\n%s", table)
	}
}
