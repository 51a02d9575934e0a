package sim

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/schemegate/schemegate/configs"
)

// shortLate makes the times of magic amounts short.
func shortLate(c *CardConfig) { c.LateAfter = configs.Duration(20 * time.Millisecond) }

func TestMagicWrongKeyFields(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	for minor, want := range map[int64]struct {
		number int
		value  string
	}{1101: {11, "999999"}, 1102: {7, "0101000001"}, 1103: {41, "WRONG001"}, 1104: {4, "000000009900"}, 1105: {49, "999"}, 1109: {39, "94"}} {
		request := purchase(int(minor), minor)
		got := p.ask("0100", request)
		if got[want.number] != want.value || (want.number != 39 && got[39] != "00") {
			t.Errorf("%d: %v", minor, got)
		}
		for _, number := range []int{2, 3, 4, 7, 11, 37, 41, 49} {
			if number != want.number && got[number] != request[number] {
				t.Errorf("%d: DE %d is %q too", minor, number, got[number])
			}
		}
		if h := holdOf(t, card, int(minor)); h.HeldMinor != minor || h.ResponseCode != "00" {
			t.Errorf("%d: %+v", minor, h)
		}
	}
	if got := p.ask("0100", purchase(1, 1113)); got[39] != "58" || holdOf(t, card, 1).HeldMinor != 0 {
		t.Errorf("not signed on: %v", got)
	}
}

func TestMagicDamage(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	p.send("0100", purchase(1, 1106))
	if got, err := p.next(answerWait); err == nil || !strings.HasPrefix(err.Error(), "unpack: ") {
		t.Errorf("bitmap: %v, %v", got, err)
	}
	if got := p.ask("0100", purchase(2, 1107)); got[0] != "9910" {
		t.Errorf("message type: %v", got)
	}
	p.send("0100", purchase(3, 1108))
	if got, err := p.next(answerWait); err == nil || !strings.Contains(err.Error(), "field 49") {
		t.Errorf("flipped: %v, %v", got, err)
	}
	p.nothingCame()
	for stan := 1; stan <= 3; stan++ {
		if h := holdOf(t, card, stan); h.ResponseCode != "00" || h.HeldMinor == 0 {
			t.Errorf("%d: %+v", stan, h)
		}
	}
}

func TestMagicReverseOrder(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	p.send("0100", purchase(1, 1110))
	p.nothingCame()
	p.send("0100", purchase(2, 1110))
	if a, b := p.read(), p.read(); a[11] != "000002" || b[11] != "000001" {
		t.Errorf("answers %v and %v", a, b)
	}
}

func TestReverseOrderIsGivenUpInTime(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.GlueWait = configs.Duration(5 * time.Millisecond) })
	if err := card.SetRules([]Rule{{When: Match{MTI: []string{"0100"}}, Then: Action{Deliver: DeliverReversed, Batch: 9}}}); err != nil {
		t.Fatal(err)
	}
	p := signedOn(t, card)
	for stan := range 3 {
		p.send("0100", purchase(stan+1, 2500))
	}
	seen := map[string]bool{}
	for range 3 {
		seen[p.read()[11]] = true
	}
	if len(seen) != 3 {
		t.Errorf("answers: %v", seen)
	}
}

func TestMagicInterimAnswers(t *testing.T) {
	t.Parallel()
	card, _ := start(t, shortLate)
	p := signedOn(t, card)
	p.send("0100", purchase(1, 1111))
	for _, want := range []string{"09", "09", "00"} {
		got := p.read()
		if got[39] != want || got[11] != "000001" || (got[38] != "") != (want == "00") {
			t.Errorf("want %s: %v", want, got)
		}
	}
	p.send("0100", purchase(2, 1112))
	for range 3 {
		if got := p.read(); got[39] != "09" {
			t.Errorf("interim: %v", got)
		}
	}
	p.nothingCame()
	if h := holdOf(t, card, 2); h.HeldMinor != 1112 {
		t.Errorf("hold: %+v", h)
	}
}

func TestMagicTrickle(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.LateAfter = configs.Duration(150 * time.Millisecond) })
	p := signedOn(t, card)
	began := time.Now()
	if got := p.ask("0100", purchase(1, 1114)); got[39] != "00" || time.Since(began) < 150*time.Millisecond {
		t.Errorf("after %v: %v", time.Since(began), got)
	}
}

func TestMagicAnswerOnAnotherConnection(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	if got := p.ask("0100", purchase(1, 1115)); got[39] != "00" {
		t.Errorf("with one connection: %v", got)
	}
	q := signedOn(t, card)
	p.send("0100", purchase(2, 1115))
	if got := q.read(); got[11] != "000002" || got[39] != "00" {
		t.Errorf("on the other: %v", got)
	}
	p.nothingCame()
	if got := card.Find(Query{Direction: Out, STAN: "000002"}); len(got) != 1 || got[0].Connection != 2 {
		t.Errorf("records: %+v", got)
	}
}

func TestMagicKeepAlivesAndEchoStorm(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	if got := p.ask("0100", purchase(1, 1124)); got[39] != "00" {
		t.Errorf("answer: %v", got)
	}
	for range 5 {
		header := make([]byte, 2)
		if _, err := io.ReadFull(p.r, header); err != nil || header[0]+header[1] != 0 {
			t.Fatalf("keep-alive: %v, %v", header, err)
		}
	}
	p.send("0100", purchase(2, 1125))
	if got := p.read(); got[39] != "00" {
		t.Errorf("answer: %v", got)
	}
	stans := map[string]bool{}
	for range 50 {
		echo := p.read()
		if echo[0] != "0800" || echo[70] != "301" {
			t.Fatalf("echo: %v", echo)
		}
		stans[echo[11]] = true
		p.send("0810", fields{7: echo[7], 11: echo[11], 39: "00", 70: "301"})
	}
	p.nothingCame()
	if len(stans) != 50 {
		t.Errorf("%d STANs", len(stans))
	}
	noViolations(t, card)
}

func TestMagicStall(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.LateAfter = configs.Duration(150 * time.Millisecond) })
	p := signedOn(t, card)
	if got := p.ask("0100", purchase(1, 1123)); got[39] != "00" {
		t.Errorf("answer: %v", got)
	}
	began := time.Now()
	if got := p.ask("0100", purchase(2, 2500)); got[39] != "00" || time.Since(began) < 100*time.Millisecond {
		t.Errorf("after %v: %v", time.Since(began), got)
	}
}

func TestStallReading(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	card.StallReading(150 * time.Millisecond)
	began := time.Now()
	if got := p.ask("0100", purchase(1, 2500)); got[39] != "00" || time.Since(began) < 100*time.Millisecond {
		t.Errorf("after %v: %v", time.Since(began), got)
	}
	card.StallReading(time.Hour)
	p.send("0100", purchase(2, 2500))
	p.conn.Close()
	q := signedOn(t, card) // another connection is not stalled
	q.nothingCame()
	if len(card.Holds()) != 1 {
		t.Errorf("holds: %v", card.Holds())
	}
	card.HangUpAll()
	q.ended()
}

func TestFlapping(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.HangUpEvery = 3 })
	for range 2 {
		p := signedOn(t, card)
		p.ask("0100", purchase(1, 2500))
		if got := p.ask("0100", purchase(2, 2500)); got[39] != "00" {
			t.Errorf("last answer: %v", got)
		}
		p.ended()
	}
	timed, _ := start(t, func(c *CardConfig) { c.HangUpAfter = configs.Duration(20 * time.Millisecond) })
	dial(t, timed).ended()
}

func TestKeepAlivesByInterval(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.KeepAliveInterval = configs.Duration(5 * time.Millisecond) })
	p := dial(t, card)
	for range 3 {
		header := []byte{1, 1}
		if _, err := io.ReadFull(p.r, header); err != nil || header[0]+header[1] != 0 {
			t.Fatalf("keep-alive: %v, %v", header, err)
		}
	}
}

func TestMagicReversalsAfterAnApproval(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	for minor, code := range map[int64]string{1130: "30", 1131: "25"} {
		approvedPurchase(t, p, int(minor), minor)
		for range 2 {
			if got := p.ask("0420", undo(int(minor), minor)); got[39] != code || holdOf(t, card, int(minor)).HeldMinor != minor {
				t.Errorf("%d: %v", minor, got)
			}
		}
	}
	approvedPurchase(t, p, 1, 1132)
	p.send("0420", undo(1, 1132))
	p.nothingCame()
	if holdOf(t, card, 1).HeldMinor != 0 {
		t.Error("a reversal whose answer is lost released nothing")
	}
	if got := p.ask("0421", undo(1, 1132)); got[39] != "00" {
		t.Errorf("repeat: %v", got)
	}
	noViolations(t, card)
}

func TestMagicCompletions(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	// Each sending's code, "" for silence; and what is posted after it.
	for minor, sendings := range map[int64][]struct {
		code   string
		posted int64
	}{
		1140: {{"30", 0}, {"30", 0}},
		1141: {{"", 0}, {"", 0}, {"00", 1141}},
		1142: {{"", 1142}, {"00", 1142}},
		1143: {{"96", 0}, {"96", 0}, {"00", 1143}},
		1144: {{"Z9", 0}, {"Z9", 0}},
		1145: {{"94", 1145}, {"00", 1145}},
	} {
		stan := int(minor)
		approval := approvedPurchase(t, p, stan, minor)
		mti := "0220"
		for i, want := range sendings {
			p.send(mti, capture(stan+1000, stan, minor, approval))
			mti = "0221"
			if want.code == "" {
				p.nothingCame()
			} else if got := p.read(); got[0] != "0230" || got[39] != want.code {
				t.Errorf("%d, sending %d: %v", minor, i+1, got)
			}
			if h := holdOf(t, card, stan); h.PostedMinor != want.posted || h.HeldMinor != minor-want.posted {
				t.Errorf("%d, sending %d: %+v", minor, i+1, h)
			}
		}
	}
	noViolations(t, card)
}

// TestAMixDecidesBySeedAndMessage sends the same messages in two orders, and under another seed.
func TestAMixDecidesBySeedAndMessage(t *testing.T) {
	t.Parallel()
	mix := []Share{{Weight: 50}, {Weight: 30, Then: Action{Answer: AnswerDecline, ResponseCode: "05"}},
		{Weight: 20, Then: Action{Answer: AnswerPartial, Amount: "1.00"}}}
	decisions := func(seed uint64, backwards bool) string {
		card, _ := start(t, func(c *CardConfig) { c.Seed = seed })
		if err := card.SetRules([]Rule{{Name: "mix", When: Match{MTI: []string{"0100"}}, Mix: mix}}); err != nil {
			t.Fatal(err)
		}
		p := signedOn(t, card)
		codes := make([]string, 100)
		for i := range codes {
			if backwards {
				i = len(codes) - 1 - i
			}
			codes[i] = p.ask("0100", purchase(i+1, 2500))[39]
		}
		return strings.Join(codes, " ")
	}
	first := decisions(7, false)
	if again := decisions(7, true); again != first {
		t.Errorf("the order changes the decisions:\n%s\n%s", first, again)
	}
	if other := decisions(8, false); other == first {
		t.Error("another seed decides the same")
	}
	for code, most := range map[string]int{"00": 70, "05": 50, "10": 40} {
		if n := strings.Count(first, code); n < most-40 || n > most {
			t.Errorf("%d of 100 are %s", n, code)
		}
	}
}

// TestAMixDrawsForEachSending lets a repeat have another fate than its first sending.
func TestAMixDrawsForEachSending(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.Seed = 1 })
	mix := []Share{{Weight: 1}, {Weight: 1, Then: Action{Answer: AnswerDecline, ResponseCode: "96"}}}
	if err := card.SetRules([]Rule{{When: Match{MTI: []string{"0420", "0421"}}, Mix: mix}}); err != nil {
		t.Fatal(err)
	}
	p := signedOn(t, card)
	approvedPurchase(t, p, 1, 2500)
	mti, seen := "0420", map[string]bool{}
	for range 40 {
		seen[p.ask(mti, undo(1, 2500))[39]] = true
		mti = "0421"
	}
	if !seen["00"] || !seen["96"] {
		t.Errorf("answers: %v", seen)
	}
}

func TestHangUpAfterTheAnswerThrowsAwayWhatComes(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	p.ask("0100", purchase(1, hangAfterMinor))
	p.raw(packed(t, "0100", purchase(2, 2500)))
	if got, err := p.next(answerWait); !errors.Is(err, io.EOF) {
		t.Errorf("instead of the end: %v, %v", got, err)
	}
	eventually(t, "thrown away", func() bool {
		return len(card.Find(Query{STAN: "000002"})) == 1 && len(card.Holds()) == 1
	})
}
