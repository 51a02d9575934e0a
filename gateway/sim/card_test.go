package sim

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/configs"
)

func TestApprovalHoldsAndItsReversalReleasesOnce(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	request := purchase(1, 2500)
	got := p.ask("0100", request)
	if got[0] != "0110" || got[39] != "00" || len(got[38]) != 6 {
		t.Errorf("approval: %v", got)
	}
	for _, number := range []int{2, 3, 4, 7, 11, 12, 13, 32, 37, 41, 42, 49} {
		if got[number] != request[number] {
			t.Errorf("DE %d is %q in the answer, %q in the request", number, got[number], request[number])
		}
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 2500 || h.ApprovedMinor != 2500 || h.Currency != "978" || h.Card != "411111******1111" || h.Reversed {
		t.Errorf("hold: %+v", h)
	}
	for i, mti := range []string{"0420", "0421", "0421"} {
		got := p.ask(mti, undo(1, 2500))
		if got[0] != "0430" || got[39] != "00" || got[90] != undo(1, 2500)[90] || got[11] != "000001" {
			t.Errorf("reversal %d: %v", i+1, got)
		}
		if h := holdOf(t, card, 1); h.HeldMinor != 0 || !h.Reversed || h.Reversals != i+1 || h.ApprovedMinor != 2500 {
			t.Errorf("hold after reversal %d: %+v", i+1, h)
		}
	}
	if got := card.Counts(); got.In[0x0100] != 1 || got.In[0x0420] != 1 || got.In[0x0421] != 2 || got.Out[0x0430] != 3 || got.Violations != 0 {
		t.Errorf("counts: %+v", got)
	}
}

func TestCopyOfARequestGetsTheSameAnswerAndHoldsOnce(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	first, second := p.ask("0100", purchase(1, 2500)), p.ask("0100", purchase(1, 2500))
	if first[38] != second[38] || second[39] != "00" || second[0] != "0110" || first[38] == "" {
		t.Errorf("answers %v and %v", first, second)
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 2500 || h.Requests != 2 {
		t.Errorf("hold: %+v", h)
	}
	if got := p.ask("0100", purchase(1, 9900)); got[39] != "94" {
		t.Errorf("changed copy: %v", got)
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 2500 || card.Counts().Violations != 1 {
		t.Errorf("hold after a changed copy: %+v, counts %+v", h, card.Counts())
	}
}

func TestReversalBeforeItsOriginalRefusesTheOriginal(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	for _, mti := range []string{"0420", "0421"} {
		if got := p.ask(mti, undo(7, 2500)); got[39] != "25" {
			t.Errorf("reversal of an unknown original: %v", got)
		}
	}
	for range 2 {
		if got := p.ask("0100", purchase(7, 2500)); got[39] != "05" || got[38] != "" {
			t.Errorf("original after its reversal: %v", got)
		}
	}
	if h := holdOf(t, card, 7); h.HeldMinor != 0 || h.ApprovedMinor != 0 || h.Requests != 2 || h.Reversals != 2 {
		t.Errorf("hold: %+v", h)
	}
}

func TestReversalThatContradictsItsOriginalReleasesNothing(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	p.ask("0100", purchase(1, 2500))
	for number, value := range map[int]string{2: otherPAN, 37: "000000000099", 4: "000000002501", 90: strings.Repeat("0", 42)} {
		f := undo(1, 2500)
		f[number] = value
		if got := p.ask("0420", f); got[39] == "00" {
			t.Errorf("reversal with another DE %d: %v", number, got)
		}
	}
	if h := holdOf(t, card, 1); h.HeldMinor != 2500 || h.Reversed || card.Counts().Violations < 3 {
		t.Errorf("hold: %+v, counts %+v", h, card.Counts())
	}
}

func TestReversalThatIsNoRepeatIsNoted(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	p.ask("0100", purchase(1, 2500))
	p.ask("0420", undo(1, 2500))
	p.ask("0421", undo(1, 2500))
	if got := card.Counts().Violations; got != 0 {
		t.Errorf("%d violations of a right repeat", got)
	}
	p.ask("0420", undo(1, 2500))
	other := undo(1, 2500)
	other[11] = "000099"
	if got := p.ask("0421", other); got[39] != "00" {
		t.Errorf("answer: %v", got)
	}
	for _, want := range []string{"the reversal came again without the repeat bit", "the reversal's repeat has another DE 11"} {
		if !hasRecord(card, func(r Record) bool { return r.Violation == want }) {
			t.Errorf("not noted: %s", want)
		}
	}
}

func TestCreditsAndInquiriesHoldNothing(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	for stan, code := range map[int]string{1: "200000", 2: "310000"} {
		f := purchase(stan, 2500)
		f[3] = code
		if got := p.ask("0100", f); got[39] != "00" {
			t.Errorf("DE 3 %s: %v", code, got)
		}
		if h := holdOf(t, card, stan); h.HeldMinor != 0 {
			t.Errorf("DE 3 %s holds %d", code, h.HeldMinor)
		}
	}
}

func TestFinancialTrafficNeedsASignOnPerConnection(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := dial(t, card)
	if got := p.ask("0100", purchase(1, 2500)); got[39] != "58" {
		t.Errorf("before sign-on: %v", got)
	}
	if len(card.Holds()) != 0 || card.Counts().Violations != 1 {
		t.Errorf("holds %v, counts %+v", card.Holds(), card.Counts())
	}
	signedOn(t, card)
	if got := p.ask("0420", undo(1, 2500)); got[39] != "58" {
		t.Errorf("another connection's sign-on counts: %v", got)
	}
	p.ask("0800", fields{70: "001", 11: "000002"})
	if got := p.ask("0100", purchase(2, 2500)); got[39] != "00" {
		t.Errorf("after sign-on: %v", got)
	}
	p.ask("0800", fields{70: "002", 11: "000003"})
	if got := p.ask("0100", purchase(3, 2500)); got[39] != "58" {
		t.Errorf("after sign-off: %v", got)
	}
	if got := p.ask("0800", fields{70: "999", 11: "000004"}); got[39] != "12" {
		t.Errorf("unknown DE 70: %v", got)
	}
}

func TestFinancialTrafficBeforeSignOnMayBeIgnored(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.BeforeSignOn = BeforeSignOnIgnore })
	p := dial(t, card)
	p.send("0100", purchase(1, 2500))
	p.nothingCame()
	if len(card.Holds()) != 0 || card.Counts().Violations != 1 {
		t.Errorf("holds %v, counts %+v", card.Holds(), card.Counts())
	}
}

func TestSignOnIsAnOption(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.SignOnRequired = false })
	if got := dial(t, card).ask("0100", purchase(1, 2500)); got[39] != "00" {
		t.Errorf("answer: %v", got)
	}
}

func TestEchoOnDemand(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), answerWait)
	defer cancel()
	if err := card.SendEcho(ctx); !errors.Is(err, ErrNoConnection) {
		t.Errorf("without a connection: %v", err)
	}
	p := signedOn(t, card)
	done := make(chan error, 1)
	go func() { done <- card.SendEcho(ctx) }()
	echo := p.read()
	if echo[0] != "0800" || echo[70] != "301" || len(echo[11]) != 6 {
		t.Errorf("echo: %v", echo)
	}
	p.send("0810", fields{7: echo[7], 11: echo[11], 39: "00", 70: "301"})
	if err := <-done; err != nil {
		t.Error(err)
	}
	// The same answer once more answers nothing.
	p.send("0810", fields{7: echo[7], 11: echo[11], 39: "00", 70: "301"})
	eventually(t, "violation", func() bool { return card.Counts().Violations == 1 })

	short, cancelShort := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancelShort()
	if err := card.SendEcho(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without an answer: %v", err)
	}
	p.read()
	go func() { done <- card.SendEcho(ctx) }()
	p.read()
	p.conn.Close()
	if err := <-done; err == nil || ctx.Err() != nil {
		t.Errorf("on a lost connection: %v", err)
	}
}

func TestEchoByInterval(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.EchoInterval = configs.Duration(5 * time.Millisecond) })
	p := dial(t, card)
	stans := map[string]bool{}
	for range 3 {
		echo := p.read()
		if echo[0] != "0800" || echo[70] != "301" {
			t.Errorf("echo: %v", echo)
		}
		stans[echo[11]] = true
	}
	if len(stans) != 3 {
		t.Errorf("STANs: %v", stans)
	}
	eventually(t, "echoes end at the bound", func() bool {
		return hasRecord(card, func(r Record) bool { return r.Note == "echo not sent" })
	})
}

func TestHangUpOnDemand(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p, q := signedOn(t, card), dial(t, card)
	eventually(t, "two connections", func() bool { return card.Connections() == 2 })
	card.TriggerHangUp()
	p.ended()
	q.ended()
	signedOn(t, card)
}

func TestBlackHole(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	card.DropAll(true)
	p.send("0100", purchase(1, 2500))
	p.send("0800", fields{70: "301", 11: "000005"})
	eventually(t, "both thrown away", func() bool { c := card.Counts(); return c.In[0x0100] == 1 && c.In[0x0800] == 2 })
	q := dial(t, card) // is accepted
	q.send("0800", fields{70: "001", 11: "000006"})
	eventually(t, "its sign-on thrown away", func() bool { return card.Counts().In[0x0800] == 3 })
	card.DropAll(false)
	p.nothingCame()
	if len(card.Holds()) != 0 {
		t.Errorf("holds: %v", card.Holds())
	}
}

func TestMalformedMessageKeepsTheConnectionAndABadFrameEndsIt(t *testing.T) {
	t.Parallel()
	card, log := start(t, nil)
	p := signedOn(t, card)
	p.raw([]byte("\x00\x15010041111111111111110"))
	p.raw([]byte{0, 0}) // keep-alive
	p.nothingCame()
	if got := card.Counts(); got.Malformed != 1 || got.KeepAlives != 1 || got.Violations != 1 {
		t.Errorf("counts: %+v", got)
	}
	p.raw([]byte{0xff, 0xff})
	p.ended()
	eventually(t, "the bad frame noted", func() bool {
		return hasRecord(card, func(r Record) bool { return strings.HasPrefix(r.Note, "bad frame: ") })
	})
	if strings.Contains(log.String(), visaPAN) {
		t.Error("the log shows a card number")
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.MaxConnections = 1 })
	p := signedOn(t, card)
	dial(t, card).ended()
	p.nothingCame()
	p.conn.Close()
	eventually(t, "the place is free", func() bool { return card.Connections() == 0 })
	signedOn(t, card)
}

func TestJournalAndBooksAreBounded(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.MaxJournal, c.MaxOriginals = 5, 2 })
	p := signedOn(t, card)
	for stan := 1; stan <= 4; stan++ {
		p.ask("0100", purchase(stan, 2500))
	}
	records := card.Journal()
	if len(records) != 5 || records[4].STAN != "000004" || records[4].Direction != Out || records[3].Direction != In || records[0].STAN != "000002" {
		t.Errorf("journal: %+v", records)
	}
	if got := card.Counts(); got.Dropped != 6 || got.Forgotten != 2 {
		t.Errorf("counts: %+v", got)
	}
	if len(card.Holds()) != 2 || holdOf(t, card, 3).HeldMinor != 2500 || holdOf(t, card, 4).HeldMinor != 2500 {
		t.Errorf("holds: %+v", card.Holds())
	}
}

// TestJournalFileShowsNoCardData also reads the log and the memory of a run that had card numbers everywhere.
func TestJournalFileShowsNoCardData(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "journal.jsonl")
	card, log := start(t, func(c *CardConfig) { c.JournalFile, c.MaxJournalFile = name, 8 })
	p := signedOn(t, card)
	p.ask("0100", purchase(1, 2500))
	p.ask("0420", undo(1, 2500))
	p.ask("0421", undo(1, 2500))
	content, err := os.ReadFile(name) // while the scheme runs
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	var records []Record
	for _, line := range lines {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		records = append(records, r)
	}
	// connected, sign-on and answer, request and answer, reversal and answer, repeat; its answer is past the bound.
	if len(records) != 8 || card.Counts().FileFull != 1 {
		t.Fatalf("%d records, counts %+v", len(records), card.Counts())
	}
	request, reversal, repeat := records[3], records[5], records[7]
	if request.Card != "411111******1111" || request.AmountMinor != 2500 || request.STAN != "000001" || request.RRN != "000000000001" ||
		request.TerminalID != "TERM0001" || request.TransmissionDateTime != "0102030405" || request.MTI != "0100" || request.Connection != 1 {
		t.Errorf("request: %+v", request)
	}
	if records[4].ResponseCode != "00" || reversal.OriginalDataElements != undo(1, 2500)[90] || reversal.Note != "released" {
		t.Errorf("answer %+v, reversal %+v", records[4], reversal)
	}
	if repeat.Note != "repeat: released" || repeat.Digest == reversal.Digest || len(repeat.Digest) != 32 {
		t.Errorf("reversal %+v, repeat %+v", reversal, repeat)
	}
	if strings.Contains(string(content)+log.String(), visaPAN) {
		t.Error("a clear card number is shown")
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestEqualBytesHaveEqualDigests(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	p.ask("0421", undo(1, 2500))
	p.ask("0421", undo(1, 2500))
	var digests []string
	for _, r := range card.Journal() {
		if r.Direction == In && r.MTI == "0421" {
			digests = append(digests, r.Digest)
		}
	}
	if len(digests) != 2 || digests[0] != digests[1] {
		t.Errorf("digests: %v", digests)
	}
}

func TestConcurrentPeers(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	var wg sync.WaitGroup
	const peers, each = 4, 50
	for n := range peers {
		p := signedOn(t, card)
		wg.Go(func() {
			for i := range each {
				stan := n*each + i + 1
				p.send("0100", purchase(stan, 2500))
				if got, err := p.next(answerWait); err != nil || got[39] != "00" {
					t.Errorf("answer %v, %v", got, err)
					return
				}
			}
		})
	}
	wg.Wait()
	held := int64(0)
	for _, h := range card.Holds() {
		held += h.HeldMinor
	}
	if held != peers*each*2500 {
		t.Errorf("held %d", held)
	}
}

func TestRunEndsWithAnswersHeldBack(t *testing.T) {
	t.Parallel()
	cfg := DefaultCardConfig()
	cfg.LateAfter = configs.Duration(time.Hour)
	card, err := NewCard(cfg, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- card.Run(ctx) }()
	p := signedOn(t, card)
	p.send("0100", purchase(1, 1092))
	p.nothingCame()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(answerWait):
		t.Fatal("Run does not end")
	}
	if _, err := net.Dial("tcp", card.Addr().String()); err == nil {
		t.Error("the listener is open")
	}
}

func TestNewCardRefusesWhatCannotRun(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*CardConfig){
		"listen":        func(c *CardConfig) { c.Listen = "" },
		"address":       func(c *CardConfig) { c.Listen = "127.0.0.1:notaport" },
		"journal":       func(c *CardConfig) { c.JournalFile = "/nonexistent/journal" },
		"before":        func(c *CardConfig) { c.BeforeSignOn = "shrug" },
		"code":          func(c *CardConfig) { c.NotSignedOnCode = "!" },
		"bound":         func(c *CardConfig) { c.MaxConnections = 0 },
		"write timeout": func(c *CardConfig) { c.WriteTimeout = 0 },
		"rule":          func(c *CardConfig) { c.Rules = []Rule{{Then: Action{Answer: "maybe"}}} },
	} {
		cfg := DefaultCardConfig()
		change(&cfg)
		if _, err := NewCard(cfg, zap.NewNop()); err == nil || !strings.HasPrefix(err.Error(), "make card scheme: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSplitAndGluedRequestsAreRead sends a request byte by byte and two requests in one write.
func TestSplitAndGluedRequestsAreRead(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p := signedOn(t, card)
	both := append(packed(t, "0100", purchase(1, 2500)), packed(t, "0100", purchase(2, 2500))...)
	for _, b := range both[:len(both)/2] {
		p.raw([]byte{b})
	}
	p.raw(both[len(both)/2:])
	if a, b := p.read(), p.read(); a[11] != "000001" || b[11] != "000002" {
		t.Errorf("answers %v and %v", a, b)
	}
}
