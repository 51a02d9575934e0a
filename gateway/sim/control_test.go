package sim

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/iso8583"
)

// answering answers one request of the scheme's and gives it back.
func (p *peer) answering(code string) fields {
	p.t.Helper()
	request := p.read()
	p.send("0810", fields{7: request[7], 11: request[11], 39: code, 70: request[70]})
	return request
}

func TestSignOffAndSignOnOfPeers(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), answerWait)
	defer cancel()
	if err := card.SignOffPeers(ctx); !errors.Is(err, ErrNoConnection) {
		t.Errorf("without a connection: %v", err)
	}
	p := signedOn(t, card)
	done := make(chan error, 1)
	go func() { done <- card.SignOffPeers(ctx) }()
	request := p.read()
	if request[0] != "0800" || request[70] != "002" {
		t.Errorf("sign-off: %v", request)
	}
	// What is on the wire before the answer is taken.
	if got := p.ask("0100", purchase(1, 2500)); got[39] != "00" {
		t.Errorf("before the answer: %v", got)
	}
	p.send("0810", fields{7: request[7], 11: request[11], 39: "00", 70: "002"})
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := p.ask("0100", purchase(2, 2500)); got[39] != "58" {
		t.Errorf("after it: %v", got)
	}
	go func() { done <- card.SignOnPeers(ctx) }()
	if request := p.answering("00"); request[70] != "001" {
		t.Errorf("sign-on: %v", request)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := p.ask("0100", purchase(3, 2500)); got[39] != "00" {
		t.Errorf("after sign-on: %v", got)
	}
	noViolations(t, card)
	go func() { done <- card.SignOnPeers(ctx) }()
	p.answering("12")
	if err := <-done; err == nil || !strings.Contains(err.Error(), "connection 1: refused with DE 39 = \"12\"") {
		t.Errorf("refused: %v", err)
	}
}

func TestCutover(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.CutoverEvery = 2 })
	ctx, cancel := context.WithTimeout(context.Background(), answerWait)
	defer cancel()
	p := signedOn(t, card)
	done := make(chan error, 1)
	go func() { done <- card.Cutover(ctx, time.Date(2026, 12, 30, 0, 0, 0, 0, time.UTC)) }()
	if got := p.answering("00"); got[0] != "0800" || got[70] != "201" || got[15] != "1230" {
		t.Errorf("notice: %v", got)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	p.ask("0100", purchase(1, 2500))
	p.ask("0100", purchase(2, 2500))
	if got := p.answering("00"); got[70] != "201" || got[15] != "1231" {
		t.Errorf("notice by count: %v", got)
	}
	p.ask("0100", purchase(3, 1120)) // magic
	if got := p.answering("00"); got[70] != "201" || got[15] != "0101" {
		t.Errorf("notice by amount: %v", got)
	}
	noViolations(t, card)
	if got := card.Find(Query{Direction: Out, MTI: "0800"}); len(got) != 3 || got[2].BusinessDate != "0101" {
		t.Errorf("records: %+v", got)
	}
}

func TestMagicSignOffAndOn(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.LateAfter = configs.Duration(10 * time.Millisecond) })
	p := signedOn(t, card)
	p.ask("0100", purchase(1, 1121))
	if got := p.answering("00"); got[70] != "002" {
		t.Errorf("sign-off: %v", got)
	}
	if got := p.ask("0100", purchase(2, 2500)); got[39] != "58" {
		t.Errorf("after it: %v", got)
	}
	p = signedOn(t, card)
	p.ask("0100", purchase(3, 1122))
	if got := p.answering("00"); got[70] != "002" {
		t.Errorf("sign-off: %v", got)
	}
	if got := p.answering("00"); got[70] != "001" {
		t.Errorf("sign-on: %v", got)
	}
	if got := p.ask("0100", purchase(4, 2500)); got[39] != "00" {
		t.Errorf("after both: %v", got)
	}
	noViolations(t, card)
}

func TestNetworkCodesOfTheProfile(t *testing.T) {
	t.Parallel()
	card, _ := start(t, func(c *CardConfig) { c.Network = NetworkConfig{SignOn: "061", SignOff: "062", Echo: "270"} })
	p := dial(t, card)
	if got := p.ask("0800", fields{70: "061", 11: "000001"}); got[39] != "00" || got[70] != "061" {
		t.Errorf("sign-on: %v", got)
	}
	if got := p.ask("0100", purchase(1, 2500)); got[39] != "00" {
		t.Errorf("answer: %v", got)
	}
	if got := p.ask("0800", fields{70: "001", 11: "000002"}); got[39] != "12" {
		t.Errorf("the standard's code: %v", got)
	}
	for _, n := range []NetworkConfig{{RequestMTI: "0100"}, {RequestMTI: "08"}, {Echo: "12"}} {
		cfg := DefaultCardConfig()
		cfg.Network = n
		var faults configs.Faults
		if cfg.Validate("", &faults); len(faults) != 1 || !strings.HasPrefix(faults[0].Path, "network.") {
			t.Errorf("%+v: %v", n, faults)
		}
	}
}

func TestInjectedAndRawMessages(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	if err := card.SendRaw(0, nil); !errors.Is(err, ErrNoConnection) {
		t.Errorf("raw without a connection: %v", err)
	}
	p := signedOn(t, card)
	q := signedOn(t, card)
	m := card.NewMessage(iso8583.MTIAuthorizationResponse)
	if err := errors.Join(m.Set(iso8583.STAN, "000123"), m.Set(iso8583.ResponseCode, "00")); err != nil {
		t.Fatal(err)
	}
	if err := card.Inject(1, m); err != nil {
		t.Error(err)
	}
	if got := p.read(); got[0] != "0110" || got[11] != "000123" {
		t.Errorf("injected: %v", got)
	}
	if err := card.SendRaw(0, packed(t, "0110", fields{11: "000124", 39: "05"})); err != nil {
		t.Error(err)
	}
	if got := q.read(); got[11] != "000124" {
		t.Errorf("raw: %v", got)
	}
	if err := card.Inject(9, m); !errors.Is(err, ErrNoConnection) {
		t.Errorf("on no connection: %v", err)
	}
	if err := card.Inject(0, card.NewMessage(0x9999)); err == nil {
		t.Error("a message type of no dialect is sent")
	}
}

func TestFindTakesEveryCondition(t *testing.T) {
	t.Parallel()
	card, _ := start(t, nil)
	p, q := signedOn(t, card), signedOn(t, card)
	p.ask("0100", purchase(1, 2500))
	q.ask("0100", purchase(2, 2500))
	p.ask("0420", undo(1, 2501))
	original := card.Find(Query{STAN: "000001", MTI: "0100"})[0].Key
	for _, tt := range []struct {
		query Query
		want  int
	}{
		{Query{}, 12}, {Query{Direction: Event}, 2}, {Query{Violations: true}, 1}, {Query{Connection: 2}, 5}, {Query{RRN: "000000000001"}, 4},
		{Query{MTI: "0110"}, 2}, {Query{STAN: "000002", Direction: Out}, 1}, {Query{Original: original}, 4}, {Query{STAN: "999999"}, 0},
	} {
		if got := card.Find(tt.query); len(got) != tt.want {
			t.Errorf("%+v: %d records, want %d", tt.query, len(got), tt.want)
		}
	}
}
