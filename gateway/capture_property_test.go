package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
)

// holdModel is one approved hold as the rules say it stands, in a few lines of arithmetic.
type holdModel struct {
	id                                     uuid.UUID
	approved, captured, reversed, returned int64
	final, whole, expired                  bool
	captures                               []modelCapture
}

type modelCapture struct {
	id     uuid.UUID
	minor  int64
	undone bool
}

func (m *holdModel) remains() int64 {
	if m.final || m.whole || m.expired {
		return 0
	}
	return m.approved - m.captured - m.reversed
}

// state is where the authorisation stands once every message is acknowledged.
func (m *holdModel) state() string {
	switch {
	case m.whole:
		return "reversed"
	case m.final, m.expired && m.captured > 0:
		return "captured"
	case m.expired:
		return "expired"
	case m.remains() > 0:
		return "approved"
	case m.captured > 0:
		return "captured"
	}
	return "reversed"
}

// refusals are the codes that an amount which is not there may be refused with; which of them depends on what is acknowledged by then.
func (m *holdModel) refusals() []gateway.Code {
	codes := []gateway.Code{gateway.CodeAmountExceedsRemaining}
	if m.remains() == 0 {
		codes = append(codes, gateway.Code("authorization_"+m.state()))
	}
	if m.whole {
		codes = append(codes, gateway.CodeReversalOwed)
	}
	return codes
}

func minorText(minor int64) string { return fmt.Sprintf("%d.%02d", minor/100, minor%100) }

// holdRun is a model beside the real thing.
type holdRun struct {
	*rapid.T
	t *testing.T
	s *gatewaytest.Stand
	m holdModel
	n int // keys so far
}

func (r *holdRun) key() string {
	r.n++
	return fmt.Sprintf("%s-%d", r.m.id, r.n)
}

// expect holds what a call came to against whether it should be taken.
func (r *holdRun) expect(what string, err error, taken bool, codes ...gateway.Code) {
	r.Helper()
	var problem *gateway.Error
	if (err == nil) != taken || err != nil && (!errors.As(err, &problem) || !slices.Contains(codes, problem.Code)) {
		r.Fatalf("%s came to %v, taken should be %t or one of %v; model %+v", what, err, taken, codes, r.m)
	}
}

func (r *holdRun) capture() {
	minor := rapid.Int64Range(0, 900).Draw(r.T, "capture") // 0 is what remains
	final := rapid.SampledFrom([]*bool{nil, nil, new(true), new(false)}).Draw(r.T, "final")
	remains, text := r.m.remains(), ""
	if minor > 0 {
		text = minorText(minor)
	}
	answer, err := capture(context.Background(), r.s, r.m.id, r.key(), captureBody(text, final))
	if minor == 0 {
		minor = remains
	}
	r.expect("capture", err, remains > 0 && minor <= remains, r.m.refusals()...)
	if err == nil {
		r.m.captured += minor
		r.m.final = minor == remains || final != nil && *final
		r.m.captures = append(r.m.captures, modelCapture{id: uuid.MustParse(answer.Resource[len(answer.Resource)-36:]), minor: minor})
	}
}

func (r *holdRun) takeBack() {
	minor := rapid.Int64Range(1, 900).Draw(r.T, "take back")
	_, err := askReversal(context.Background(), r.s, r.m.id, r.key(), `"amount":"`+minorText(minor)+`"`)
	r.expect("partial reversal", err, minor <= r.m.remains(), r.m.refusals()...)
	if err == nil {
		r.m.reversed += minor
	}
}

func (r *holdRun) undo() {
	i := rapid.IntRange(-1, len(r.m.captures)-1).Draw(r.T, "undo")
	id := uuid.New()
	if i >= 0 {
		id = r.m.captures[i].id
	}
	_, err := askReversal(context.Background(), r.s, r.m.id, r.key(), `"capture_id":"`+id.String()+`"`)
	r.expect("reversal of a capture", err, i >= 0, gateway.CodeNotFound)
	if i >= 0 && !r.m.captures[i].undone {
		r.m.captures[i].undone = true
		r.m.returned += r.m.captures[i].minor
	}
}

func (r *holdRun) reverseWhole() {
	awaitDuties(r.t, r.s, r.m.id) // what is acknowledged decides what there is to undo
	state := r.m.state()
	_, err := askReversal(context.Background(), r.s, r.m.id, r.key(), "")
	r.expect("reversal of the whole", err, r.m.whole || state == "approved" && r.m.captured == 0, gateway.CodeCaptured, gateway.CodeNothingToUndo)
	r.m.whole = r.m.whole || err == nil
}

func (r *holdRun) expire() {
	awaitDuties(r.t, r.s, r.m.id)
	expire(r.t, r.s, 10*time.Minute)
	r.m.expired = r.m.expired || r.m.state() == "approved"
}

func (r *holdRun) rest() {
	awaitDuties(r.t, r.s, r.m.id)
	got := checkSums(r.t, r.s, r.m.id)
	checkScheme(r.t, r.s, r.m.id)
	if got.state != r.m.state() || got.captured != r.m.captured || got.reversed != r.m.reversed || got.returned != r.m.returned {
		r.Fatalf("at rest %+v, want %s of %+v", got, r.m.state(), r.m)
	}
}

// TestHoldFollowsItsModel: whatever is asked of a hold in whatever order, each request is taken or refused as the arithmetic says, and
// row, history and ledger end where it does.
func TestHoldFollowsItsModel(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	rapid.Check(t, func(rt *rapid.T) {
		v := s.MustAuthorize(t, uuid.NewString(), gatewaytest.Purchase("10.00", nil))
		r := &holdRun{T: rt, t: t, s: s, m: holdModel{id: v.ID, approved: 1000}}
		operations := []func(){r.capture, r.capture, r.takeBack, r.undo, r.reverseWhole, r.expire, r.rest}
		for range rapid.IntRange(2, 8).Draw(rt, "operations") {
			operations[rapid.IntRange(0, len(operations)-1).Draw(rt, "operation")]()
		}
		r.rest()
		if t.Failed() {
			rt.FailNow()
		}
	})
	verifyLedger(t, s)
}
