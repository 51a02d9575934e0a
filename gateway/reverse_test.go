package gateway_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

// answerDelay makes the scheme answer authorisations after a while that is well within their deadline.
const answerDelay = 300 * time.Millisecond

// patient gives authorisations time, so that a busy machine makes no silence of its own.
func patient(c *gateway.LinkConfig) {
	c.AnswerWithin, c.SendWithin = configs.Duration(5*time.Second), configs.Duration(5*time.Second)
}

// refusal runs a reversal that must be refused.
func refusal(t testing.TB, s *gatewaytest.Stand, id uuid.UUID, body map[string]any) *gateway.Error {
	t.Helper()
	answer, err := s.Reverse(uuid.NewString(), id, body)
	if err == nil {
		t.Fatalf("reversal taken: %s", answer.Body)
	}
	return code(t, err)
}

// wholes counts the reversals of the whole of one authorisation, and their histories' beginnings.
func wholes(t testing.TB, s *gatewaytest.Stand, id uuid.UUID) int {
	t.Helper()
	return s.Count(t, `SELECT count(*) FROM duty d JOIN state_history h ON h.subject_id = d.id AND h.state_version = 1
		WHERE d.authorization_id = $1 AND d.number = 0 AND d.kind = 'reversal'`, id)
}

func TestApprovedHoldIsReversedOnceAndRepeatsAreReplayed(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: patient})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	answer, err := s.Reverse("undo-1", v.ID, map[string]any{"reason": "answer_undelivered"})
	if err != nil {
		t.Fatal(err)
	}
	r := gatewaytest.DecodeReversal(t, answer)
	if r.ID != reversal.WholeID(v.ID) || r.AuthorizationID != v.ID || r.State != "owed" || r.Reason != "answer_undelivered" || r.NextAt == nil ||
		answer.Resource != "/v1/authorizations/"+v.ID.String()+"/reversals/"+r.ID.String() {
		t.Fatalf("answer %s, resource %s", answer.Body, answer.Resource)
	}
	done := s.AwaitState(t, v.ID, "reversed")
	if done.Reversal.ClosedAs != "acknowledged" || held(t, s, v.ID) != 0 || done.StateVersion != v.StateVersion+2 {
		t.Fatalf("ended as %+v with %+v, %d held", done, done.Reversal, held(t, s, v.ID))
	}
	if n := s.Count(t, `SELECT count(*) FROM state_history WHERE subject_id = $1`, v.ID); n != done.StateVersion {
		t.Fatalf("%d rows of history for version %d", n, done.StateVersion)
	}
	again, err := s.Reverse("undo-1", v.ID, map[string]any{"reason": "answer_undelivered"})
	if err != nil || !again.Replayed || !bytes.Equal(again.Body, answer.Body) || again.Status != answer.Status {
		t.Fatalf("repeat got %d %s, %v", again.Status, again.Body, err)
	}
	if _, err := s.Reverse("undo-1", v.ID, nil); code(t, err).Code != gateway.CodeKeyReuse {
		t.Fatalf("other content: %v", err)
	}
	if joined := s.MustReverse(t, "undo-2", v.ID, nil); joined.ID != r.ID || joined.State != "acknowledged" || joined.ClosedAs != "acknowledged" || joined.Reason != r.Reason {
		t.Fatalf("joined %+v", joined)
	}
	if joined := s.MustReverse(t, "undo-3", uuid.Nil, map[string]any{"client_reference": v.ClientReference}); joined.ID != r.ID {
		t.Fatalf("by reference %+v", joined)
	}
	if sent := checkReversals(t, s, v); len(sent) != 1 || wholes(t, s, v.ID) != 1 {
		t.Fatalf("%d messages, %d duties", len(sent), wholes(t, s, v.ID))
	}
	s.CheckBooks(t)
}

func TestReversalIsRefusedWhereNothingIsToUndo(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(c *gateway.LinkConfig) {
		patient(c)
		c.Silence.ReversalDelay = configs.Duration(time.Hour)
	}})
	declined := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.05", nil))
	captured := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("12.00", nil))
	inquiry := s.MustAuthorize(t, "key-3", gatewaytest.Purchase("", map[string]any{"type": "balance_inquiry", "amount": nil}))
	expired := s.MustAuthorize(t, "key-4", gatewaytest.Purchase("13.00", nil))
	capture := func(amount string, final bool) {
		t.Helper()
		_, err := s.Gateway.Capture(t.Context(), gateway.CaptureCall{Tenant: gatewaytest.Tenant, IdempotencyKey: uuid.NewString(), Authorization: captured.ID,
			Request: gateway.CaptureRequest{ClientReference: uuid.NewString(), Amount: amount, Final: &final}})
		if err != nil {
			t.Fatal(err)
		}
	}
	capture("2.00", false)
	if e := refusal(t, s, captured.ID, nil); e.Code != gateway.CodeCaptured || e.Status() != 409 || !strings.Contains(e.Detail, "capture_id") {
		t.Errorf("captured in part: %v", e)
	}
	capture("3.00", true)
	if e := refusal(t, s, captured.ID, nil); e.Code != gateway.CodeCaptured {
		t.Errorf("captured: %v", e)
	}
	if _, err := s.Gateway.ExpireHolds(t.Context(), gatewaytest.LinkName, time.Now().Add(30*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]gatewaytest.View{"declined": declined, "inquiry": inquiry, "expired": expired} {
		if e := refusal(t, s, v.ID, nil); e.Code != gateway.CodeNothingToUndo || e.Status() != 409 {
			t.Errorf("%s: %v", name, e)
		}
	}
	if e := refusal(t, s, uuid.New(), nil); e.Code != gateway.CodeNotFound {
		t.Errorf("unknown id: %v", e)
	}
	if _, err := s.Reverse("undo "+gatewaytest.PAN, declined.ID, nil); code(t, err).Code != gateway.CodeKeyMalformed {
		t.Errorf("a key with the card number: %v", err)
	}
	if n := s.Count(t, `SELECT count(*) FROM duty WHERE kind = 'reversal'`) + s.Count(t, `SELECT count(*) FROM idempotency_claim WHERE endpoint = 'reversals'`); n != 0 {
		t.Errorf("%d traces of what was refused", n)
	}
}

func TestReversalRequestIsValidated(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{}`: "client_reference", `{"client_reference":"r","amount":"1.0.0"}`: "amount", `{"client_reference":"r","amount":"0.00"}`: "amount",
		`{"client_reference":"r","capture_id":"x"}`: "capture_id", `{"client_reference":"r","reason":"whim"}`: "reason",
		`{"client_reference":"r","amount":"1.00","capture_id":"` + uuid.NewString() + `"}`: "capture_id", `{"client_reference":"r","pan":"1"}`: "pan",
	} {
		_, err := gateway.ParseReversalRequest([]byte(body), true)
		if e := code(t, err); e.Code != gateway.CodeValidationFailed || len(e.Faults) != 1 || e.Faults[0].Field != want {
			t.Errorf("%s gives %v with %v", body, e, e.Faults)
		}
	}
	_, err := gateway.ParseReversalRequest([]byte(`{"client_reference":"r"}`), false)
	if e := code(t, err); len(e.Faults) != 1 {
		t.Errorf("by id with a reference: %v", e)
	}
	for text, want := range map[string]string{"10.50": "10.5", "010": "10", "0.10": "0.1", "100": "100", "1.00": "1"} {
		req, err := gateway.ParseReversalRequest([]byte(`{"amount":"`+text+`"}`), false)
		if err != nil || req.Amount != want || req.Reason != reversal.Customer {
			t.Errorf("%s is read as %+v, %v", text, req, err)
		}
	}
}

// TestReversalOfPostedAmountsMirrorsThem: a financial approval and a refund are undone by corrections.
func TestReversalOfPostedAmountsMirrorsThem(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(c *gateway.LinkConfig) {
		patient(c)
		c.Types[gateway.Purchase] = gateway.TypeConfig{MTI: "0200", ProcessingCode: "000000"}
	}})
	for name, changes := range map[string]map[string]any{"purchase": nil, "refund": {"type": "refund"}} {
		v := s.MustAuthorize(t, name, gatewaytest.Purchase("12.34", changes))
		if v.State != "approved" {
			t.Fatalf("%s: %+v", name, v)
		}
		s.MustReverse(t, "undo-"+name, v.ID, nil)
		s.AwaitState(t, v.ID, "reversed")
		if n := s.Count(t, `SELECT count(*) FROM ledger_posting WHERE intent = $1 AND layer = 2 AND correction AND amount_minor = 1234`, v.ID); n != 1 {
			t.Errorf("%s: %d corrections", name, n)
		}
		if sum := s.Count(t, `SELECT sum(CASE WHEN p.debit_account = a.customer_account THEN p.amount_minor ELSE -p.amount_minor END)
			FROM ledger_posting p JOIN card_authorization a ON a.id = p.intent WHERE p.intent = $1`, v.ID); sum != 0 {
			t.Errorf("%s: %d minor units left with the customer", name, sum)
		}
		sent := received(s, v.STAN, iso8583.MTIReversalAdvice)
		if len(sent) != 1 || !strings.HasPrefix(sent[0].OriginalDataElements, "0200") {
			t.Errorf("%s: sent %+v", name, sent)
		}
	}
}

// pendingOn begins an authorisation whose answer takes a while, and waits until it is recorded.
func pendingOn(t *testing.T, s *gatewaytest.Stand, amount string) (reference string, id uuid.UUID, replies <-chan reply) {
	t.Helper()
	reference = "ref-" + uuid.NewString()
	replies = begin(t, s, "key-"+reference, gatewaytest.Purchase(amount, map[string]any{"client_reference": reference}))
	s.Eventually(t, "recorded and sent", func() bool {
		return s.DB.Pool.QueryRow(t.Context(), `SELECT id FROM card_authorization WHERE client_reference = $1`, reference).Scan(&id) == nil &&
			len(s.Received(iso8583.MTIAuthorizationRequest)) > 0
	})
	return reference, id, replies
}

// TestReversalWhileTheAuthorizationRuns, asked for here and in a daemon beside: it is committed at once, waits for the answer, is sent
// after an approval, joined by silence and withdrawn by a decline.
func TestReversalWhileTheAuthorizationRuns(t *testing.T) {
	t.Parallel()
	slow := func(a sim.Action) sim.Rule {
		a.Delay = configs.Duration(answerDelay)
		return sim.Rule{When: sim.Match{MTI: authorizations}, Then: a}
	}
	for name, c := range map[string]struct {
		rule     sim.Rule
		answered string // the state that the caller hears
		closedAs string
		sent     int
	}{
		"approved": {slow(sim.Action{}), "approved", "acknowledged", 1},
		"declined": {slow(refused("51")), "declined", "withdrawn", 0},
		"silence":  {sim.Rule{When: sim.Match{MTI: authorizations}, Then: silent}, "timed_out", "acknowledged", 1},
	} {
		for _, elsewhere := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, asked for elsewhere %t", name, elsewhere), func(t *testing.T) {
				t.Parallel()
				s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(c.rule), Link: func(l *gateway.LinkConfig) {
					l.AnswerWithin, l.SendWithin = configs.Duration(1500*time.Millisecond), configs.Duration(1500*time.Millisecond)
				}})
				asked := s
				if elsewhere {
					asked = gatewaytest.New(t, gatewaytest.Options{Beside: s, Gateway: func(c *gateway.Config) { c.Instance = "daemon-b" }})
				}
				reference, id, replies := pendingOn(t, s, "12.34")
				r := asked.MustReverse(t, "undo-1", uuid.Nil, map[string]any{"client_reference": reference})
				if r.ID != reversal.WholeID(id) || r.State != "owed" || r.Attempts != 0 || r.NextAt == nil {
					t.Fatalf("answer %+v", r)
				}
				told := <-replies
				if told.err != nil {
					t.Fatal(told.err)
				}
				v := gatewaytest.Decode(t, told.answer.Body)
				if v.State != c.answered || v.StateVersion != 2 {
					t.Fatalf("the caller heard %s", told.answer.Body)
				}
				if carried := v.Reversal != nil && v.Reversal.Reason == "customer_cancellation"; !elsewhere && carried != (c.answered != "declined") {
					t.Fatalf("the caller heard of the reversal: %s", told.answer.Body)
				}
				s.Eventually(t, "reversal closed", func() bool { return s.Read(t, id).Reversal.State == "acknowledged" })
				now := s.Read(t, id)
				want := map[bool]string{true: "declined", false: "reversed"}[c.answered == "declined"]
				if now.State != want || now.Reversal.ClosedAs != c.closedAs || now.Reversal.Reason != "customer_cancellation" || held(t, s, id) != 0 {
					t.Fatalf("ended as %s, %+v, %d held", now.State, now.Reversal, held(t, s, id))
				}
				sent := checkReversals(t, s, v)
				if len(sent) != c.sent || wholes(t, s, id) != 1 {
					t.Fatalf("%d messages, %d duties", len(sent), wholes(t, s, id))
				}
				for _, answer := range sentBack(s, v.STAN, iso8583.MTIAuthorizationResponse) {
					if len(sent) > 0 && answer.At.After(sent[0].At) {
						t.Error("the reversal overtook the answer")
					}
				}
				s.CheckBooks(t)
			})
		}
	}
}

// TestReversalOutlivesTheDaemonThatRanTheAuthorization: what was asked for while it ran is joined by the recovery.
func TestReversalOutlivesTheDaemonThatRanTheAuthorization(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: silent}), Link: patient,
		Gateway: func(c *gateway.Config) { c.Drain = configs.Duration(10 * time.Millisecond) }})
	reference, id, replies := pendingOn(t, s, "12.34")
	s.MustReverse(t, "undo-1", uuid.Nil, map[string]any{"client_reference": reference})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	<-replies
	s.Start(t)
	now := s.AwaitState(t, id, "reversed")
	if now.Reversal.Reason != "customer_cancellation" || wholes(t, s, id) != 1 {
		t.Fatalf("%+v, %d duties", now.Reversal, wholes(t, s, id))
	}
	s.CheckBooks(t)
}

func TestTimedOutIsJoined(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: silence(func(p *reversal.Policy) { p.ReversalDelay = configs.Duration(time.Hour) })})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	r := s.MustReverse(t, "undo-1", v.ID, nil)
	if r.ID != v.Reversal.ID || r.State != "owed" || r.Reason != "timeout" || wholes(t, s, v.ID) != 1 {
		t.Fatalf("joined %+v", r)
	}
}

// TestRepeatOutlivesTheLinkOfItsReversal: what was answered is answered again, also by a daemon whose configuration has lost the link.
func TestRepeatOutlivesTheLinkOfItsReversal(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: patient})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	answer, err := s.Reverse("undo-1", v.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s.Config.Links = map[string]gateway.LinkConfig{"another": s.Config.Links[gatewaytest.LinkName]}
	s.Config.DefaultLink = "another"
	s.Start(t)
	again, err := s.Reverse("undo-1", v.ID, nil)
	if err != nil || !again.Replayed || !bytes.Equal(again.Body, answer.Body) {
		t.Fatalf("repeat got %d %s, %v", again.Status, again.Body, err)
	}
	if _, err := s.Reverse("undo-2", v.ID, nil); code(t, err).Code != gateway.CodeUnknownLink {
		t.Fatalf("another one: %v", err)
	}
}
