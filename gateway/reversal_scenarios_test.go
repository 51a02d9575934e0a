package gateway_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
)

// TestS07_OrderHoldsWithinOneAuthorizationOnly: duties of one authorisation follow one another, with gaps of their own that grow; those of
// others do not wait.
func TestS07_OrderHoldsWithinOneAuthorizationOnly(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: []string{"0220", "0221"}, Amount: "5.00", First: 3}, Then: lost}),
		Link: func(c *gateway.LinkConfig) {
			patient(c)
			c.Silence.AnswerWithin, c.Silence.FirstGap, c.Silence.MaxGap = configs.Duration(200*time.Millisecond), configs.Duration(50*time.Millisecond), configs.Duration(time.Second)
		},
	})
	stuck := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	free := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("12.35", nil))
	if _, err := s.Gateway.Capture(t.Context(), gateway.CaptureCall{Tenant: gatewaytest.Tenant, IdempotencyKey: "capture-1", Authorization: stuck.ID,
		Request: gateway.CaptureRequest{ClientReference: "capture-1", Amount: "5.00"}}); err != nil {
		t.Fatal(err)
	}
	s.MustReverse(t, "undo-1", stuck.ID, map[string]any{"amount": "2.00"})
	s.MustReverse(t, "undo-2", free.ID, nil)
	s.AwaitState(t, free.ID, "reversed")
	if n := len(reversalsOf(s, stuck)); n != 0 {
		t.Fatalf("%d reversals overtook the completion before them", n)
	}
	s.Eventually(t, "the stuck one goes on", func() bool {
		return s.Count(t, `SELECT count(*) FROM duty WHERE authorization_id = $1 AND state = 'acknowledged'`, stuck.ID) == 2
	})
	completions, undone := s.Received(iso8583.MTIFinancialAdvice, iso8583.MTIFinancialAdviceRepeat), reversalsOf(s, stuck)
	if len(completions) < 4 || len(undone) != 1 || undone[0].At.Before(completions[len(completions)-1].At) {
		t.Fatalf("%d completions, %d reversals", len(completions), len(undone))
	}
	// After the n-th attempt's wait of 200 ms, at least four fifths of 50 ms doubled n-1 times pass.
	for n, least := range []int{240, 280, 360} {
		if short := s.Count(t, `SELECT count(*) FROM message m JOIN message r ON r.authorization_id = m.authorization_id AND r.mti = '0221' AND r.attempt = m.attempt + 1
			WHERE m.authorization_id = $1 AND m.mti IN ('0220', '0221') AND m.direction = 'out' AND m.attempt = $2 AND r.at - m.at < make_interval(secs => $3 / 1000.0)`,
			stuck.ID, n+1, least); short != 0 {
			t.Errorf("repeat %d came earlier than %d ms after the attempt before it", n+1, least)
		}
	}
}

// reversalsOf lists the reversals that reached the scheme about one authorisation, by RRN: their STANs may be their own.
func reversalsOf(s *gatewaytest.Stand, v gatewaytest.View) (records []sim.Record) {
	for _, r := range s.Received(iso8583.MTIReversalAdvice, iso8583.MTIReversalAdviceRepeat) {
		if r.RRN == v.RRN {
			records = append(records, r)
		}
	}
	return records
}

// TestS09_ClientReversalIsNeverDropped: past the threshold it is a person's matter, and goes on.
func TestS09_ClientReversalIsNeverDropped(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals}, Then: lost}),
		Link: func(c *gateway.LinkConfig) {
			patient(c)
			c.Silence.AnswerWithin, c.Silence.MaxGap, c.Silence.AttentionAttempts = configs.Duration(30*time.Millisecond), configs.Duration(20*time.Millisecond), 2
		},
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	r := s.MustReverse(t, "undo-1", v.ID, nil)
	s.Eventually(t, "far past the threshold", func() bool { return len(received(s, v.STAN, iso8583.MTIReversalAdviceRepeat)) >= 6 })
	now := s.Read(t, v.ID)
	if now.State != "approved" || now.Reversal.State != "owed" || !now.Reversal.NeedsAttention || openExceptions(t, s, r.ID, "reversal_unacknowledged") != 1 || held(t, s, v.ID) != 1234 {
		t.Fatalf("now %s, %+v, %d held", now.State, now.Reversal, held(t, s, v.ID))
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	setRules(t, s)
	s.Start(t)
	s.AwaitState(t, v.ID, "reversed")
	s.CheckBooks(t)
}

// TestS11_RefusedThenSilentReversalBlocksNothing: it ends in a defined state, and its terminal goes on.
func TestS11_RefusedThenSilentReversalBlocksNothing(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals, Amount: "12.34", First: 1}, Then: refused("96")},
			sim.Rule{When: sim.Match{MTI: reversals, Amount: "12.34"}, Then: lost}),
		Link: func(c *gateway.LinkConfig) {
			patient(c)
			c.Silence.AnswerWithin, c.Silence.AttentionAttempts = configs.Duration(50*time.Millisecond), 3
		},
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	r := s.MustReverse(t, "undo-1", v.ID, nil)
	s.Eventually(t, "exception", func() bool { return openExceptions(t, s, r.ID, "reversal_unacknowledged") == 1 })
	if now := s.Read(t, v.ID); now.State != "approved" || now.Reversal.State != "owed" || now.Reversal.ResponseCode != "96" {
		t.Fatalf("now %s, %+v", now.State, now.Reversal)
	}
	for i := range 5 { // the same terminal and card
		next := s.MustAuthorize(t, fmt.Sprintf("next-%d", i), gatewaytest.Purchase("20.00", nil))
		if next.State != "approved" {
			t.Fatalf("the terminal's next one: %+v", next)
		}
		s.MustReverse(t, fmt.Sprintf("undo-next-%d", i), next.ID, nil)
		s.AwaitState(t, next.ID, "reversed")
	}
}

// TestS14_RepeatedReversalsHaveOneEffect: the client repeats itself under one key and under many, and the answers of the scheme are lost;
// one 0420, repeats of it, and one release come of it.
func TestS14_RepeatedReversalsHaveOneEffect(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals, First: 2}, Then: silent}),
		Link: func(c *gateway.LinkConfig) {
			patient(c)
			c.Silence.AnswerWithin = configs.Duration(200 * time.Millisecond)
		},
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	bodies := map[string]bool{}
	for range 3 {
		answer, err := s.Reverse("undo-1", v.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		bodies[string(answer.Body)] = true
		s.MustReverse(t, uuid.NewString(), uuid.Nil, map[string]any{"client_reference": v.ClientReference})
	}
	s.AwaitState(t, v.ID, "reversed")
	s.MustReverse(t, uuid.NewString(), v.ID, nil)
	sent := checkReversals(t, s, v)
	releases := s.Count(t, `SELECT count(*) FROM ledger_posting WHERE intent = $1 AND step = 2`, v.ID)
	if len(bodies) != 1 || len(sent) != 3 || wholes(t, s, v.ID) != 1 || releases != 1 {
		t.Fatalf("%d answers, %d messages, %d duties, %d releases", len(bodies), len(sent), wholes(t, s, v.ID), releases)
	}
	s.CheckBooks(t)
}

// twin makes a second authorisation look like the first to an answer: the same STAN.
func twin(t *testing.T, s *gatewaytest.Stand, of, v gatewaytest.View) {
	t.Helper()
	if _, err := s.DB.Pool.Exec(t.Context(), `UPDATE card_authorization SET stan = @stan, transmission_date_time = @dt WHERE id = @id`,
		pgx.NamedArgs{"stan": of.STAN, "dt": of.DateTime, "id": v.ID}); err != nil {
		t.Fatal(err)
	}
}

// answerOf is a message from the scheme that nobody waits for, with what it brings of the key.
func answerOf(t *testing.T, s *gatewaytest.Stand, mti iso8583.MTI, elements map[iso8583.Element]string) []byte {
	t.Helper()
	spec := s.Gateway.Spec(gatewaytest.LinkName)
	m := spec.NewMessage(mti)
	for e, value := range elements {
		if err := m.Set(e, value); err != nil {
			t.Fatal(err)
		}
	}
	body, err := spec.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// TestS37_ResponseThatFitsSeveralIsAnException, and is taken for none of them.
func TestS37_ResponseThatFitsSeveralIsAnException(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals}, Then: lost}), Link: func(c *gateway.LinkConfig) {
		patient(c)
		c.Silence.AnswerWithin, c.Silence.FirstGap, c.Silence.MaxGap = configs.Duration(50*time.Millisecond), configs.Duration(time.Hour), configs.Duration(time.Hour)
	}})
	first := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	second := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("12.34", nil))
	for i, v := range []gatewaytest.View{first, second} {
		s.MustReverse(t, fmt.Sprintf("undo-%d", i), v.ID, nil)
		s.Eventually(t, "sent", func() bool {
			return s.Count(t, `SELECT count(*) FROM duty WHERE authorization_id = $1 AND attempts = 1 AND claim_epoch IS NULL`, v.ID) == 1
		})
	}
	twin(t, s, first, second)
	ambiguous := func() int {
		return s.Count(t, `SELECT count(*) FROM exception e JOIN message m ON m.id = e.subject_id WHERE e.kind = 'answer_ambiguous' AND m.kind = 'unmatched'`)
	}

	// By the STAN alone, a 0430 fits both reversals.
	s.Gateway.TakeLate(gatewaytest.LinkName, answerOf(t, s, iso8583.MTIReversalAdviceResponse, map[iso8583.Element]string{iso8583.STAN: first.STAN, iso8583.ResponseCode: "00"}))
	s.Eventually(t, "exception", func() bool { return ambiguous() == 1 })
	// By STAN and DE 7, a 0110 fits both authorisations.
	s.Gateway.TakeLate(gatewaytest.LinkName, answerOf(t, s, iso8583.MTIAuthorizationResponse,
		map[iso8583.Element]string{iso8583.STAN: first.STAN, iso8583.TransmissionDateTime: first.DateTime, iso8583.ResponseCode: "05"}))
	s.Eventually(t, "exception", func() bool { return ambiguous() == 2 })
	for _, v := range []gatewaytest.View{first, second} {
		if now := s.Read(t, v.ID); now.State != "approved" || now.Reversal.State != "owed" {
			t.Fatalf("now %s, %+v", now.State, now.Reversal)
		}
	}
	// The RRN tells them apart, and does without the STAN.
	s.Gateway.TakeLate(gatewaytest.LinkName, answerOf(t, s, iso8583.MTIReversalAdviceResponse,
		map[iso8583.Element]string{iso8583.STAN: first.STAN, iso8583.RRN: first.RRN, iso8583.ResponseCode: "00"}))
	s.AwaitState(t, first.ID, "reversed")
	s.Gateway.TakeLate(gatewaytest.LinkName, answerOf(t, s, iso8583.MTIReversalAdviceResponse, map[iso8583.Element]string{iso8583.RRN: second.RRN, iso8583.ResponseCode: "00"}))
	s.AwaitState(t, second.ID, "reversed")
	if n := ambiguous(); n != 2 {
		t.Fatalf("%d exceptions", n)
	}
}

// TestS42_LookUpByReusedReferencesIsAListWithDates: never the newest alone.
func TestS42_LookUpByReusedReferencesIsAListWithDates(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: patient})
	first := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	second := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("12.35", nil))
	twin(t, s, first, second)
	// Another link's RRNs are its own.
	if _, err := s.DB.Pool.Exec(t.Context(), `UPDATE card_authorization SET rrn = $1, link = 'mc-b' WHERE id = $2`, first.RRN, second.ID); err != nil {
		t.Fatal(err)
	}
	for what, filter := range map[string]gateway.Filter{"STAN": {STAN: first.STAN, Limit: 10}, "RRN": {RRN: first.RRN, Limit: 10}} {
		list, err := s.Gateway.Authorizations(t.Context(), gatewaytest.Tenant, filter)
		if err != nil || len(list) != 2 || list[0].ID != second.ID || list[1].ID != first.ID {
			t.Fatalf("by %s: %d found, %v", what, len(list), err)
		}
		for _, a := range list {
			if a.CreatedAt.IsZero() || !strings.Contains(string(a.JSON()), `"created_at":"2`) || !strings.Contains(string(a.JSON()), `"transmission_date_time":"`+first.DateTime) {
				t.Errorf("by %s: no date in %s", what, a.JSON())
			}
		}
	}
}

// TestS90_SelfCheckFindsWhatNoOtherGuardCaught, once each.
func TestS90_SelfCheckFindsWhatNoOtherGuardCaught(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(c *gateway.LinkConfig) { c.Silence.ReversalDelay = configs.Duration(time.Hour) }})
	views := authorizeAll(t, s, "10.91", "10.91", "10.91", "10.05", "12.34", "12.35")
	approved := views[4]
	if found, err := s.Gateway.SelfCheck(t.Context()); err != nil || len(found) != 0 {
		t.Fatalf("books in order: %v, %v", found, err)
	}
	if err := s.Stop(); err != nil { // its sweep would put things right
		t.Fatal(err)
	}
	change := func(statement string, id uuid.UUID) {
		t.Helper()
		if _, err := s.DB.Pool.Exec(t.Context(), statement, id); err != nil {
			t.Fatal(err)
		}
	}
	change(`UPDATE duty SET state = 'suspended' WHERE authorization_id = $1`, views[0].ID)
	change(`UPDATE duty SET state = 'acknowledged', closed_as = 'acknowledged' WHERE authorization_id = $1`, views[1].ID)
	change(`UPDATE card_authorization SET state = 'pending', answer_status = NULL, answer_body = NULL, deadline_at = deadline_at - interval '5 minutes' WHERE id = $1`, approved.ID)
	change(`UPDATE card_authorization SET state = 'declined' WHERE id = $1`, views[5].ID)
	want := map[uuid.UUID]string{views[0].ID: gateway.FindingUnreversed, views[1].ID: gateway.FindingUnreversed, approved.ID: gateway.FindingPending, views[5].ID: gateway.FindingHeld}
	for look := range 2 {
		found, err := s.Gateway.SelfCheck(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := map[uuid.UUID]string{}
		for _, f := range found {
			got[f.AuthorizationID] = f.Kind
			if f.Tenant != gatewaytest.Tenant || f.Link != gatewaytest.LinkName || f.Detail == "" {
				t.Errorf("finding %+v", f)
			}
		}
		if look == 0 && !maps.Equal(got, want) {
			t.Fatalf("found %v, want %v", got, want)
		}
		for id, kind := range want {
			if n := openExceptions(t, s, id, kind); n != 1 {
				t.Errorf("%d exceptions of kind %s", n, kind)
			}
		}
	}
}

// TestS90_SelfCheckRunsOnceADay, by whatever daemon.
func TestS90_SelfCheckRunsOnceADay(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	now := time.Now().UTC().Truncate(time.Second)
	ran := func() int {
		return s.Logs.FilterMessage("self-check done").Len()
	}
	for _, look := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {time.Hour, 1}, {25 * time.Hour, 2}, {26 * time.Hour, 2}} {
		if err := s.Gateway.CheckWhenDue(t.Context(), now.Add(look.after)); err != nil {
			t.Fatal(err)
		}
		if got := ran(); got != look.want {
			t.Fatalf("after %s it ran %d times, want %d", look.after, got, look.want)
		}
	}
}
