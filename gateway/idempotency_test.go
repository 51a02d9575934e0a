package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
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

// ask sends a body that says how long it would wait, nil for as long as it takes, under a context of the test's.
func ask(ctx context.Context, s *gatewaytest.Stand, key string, wait *time.Duration, body []byte) (gateway.Answer, error) {
	req, err := gateway.ParseAuthorizationRequest(body)
	if err != nil {
		return gateway.Answer{}, err
	}
	return s.Gateway.Authorize(ctx, gateway.AuthorizeCall{Tenant: gatewaytest.Tenant, IdempotencyKey: key, Request: req, Wait: wait})
}

// mustAnswer is the stored answer of a request that must have one.
func mustAnswer(t testing.TB, s *gatewaytest.Stand, key string, body []byte) gateway.Answer {
	t.Helper()
	answer, err := s.Authorize(t, key, body)
	if err != nil {
		t.Fatalf("authorize: %v", err)
	}
	return answer
}

// mustReplay repeats a request and holds its answer against the first one's bytes.
func mustReplay(t testing.TB, s *gatewaytest.Stand, key string, body []byte, first gateway.Answer) {
	t.Helper()
	again := mustAnswer(t, s, key, body)
	if !again.Replayed || again.Status != first.Status || !bytes.Equal(again.Body, first.Body) || again.Resource != first.Resource {
		t.Fatalf("repeat got %d %s, the first %d %s", again.Status, again.Body, first.Status, first.Body)
	}
}

// mustRefuse wants an error of a code, and gives it.
func mustRefuse(t testing.TB, err error, code gateway.Code, status int) *gateway.Error {
	t.Helper()
	var problem *gateway.Error
	if !errors.As(err, &problem) || problem.Code != code || problem.Status() != status {
		t.Fatalf("got %v, want %s (%d)", err, code, status)
	}
	return problem
}

// changed is a body with top-level members replaced.
func changed(t testing.TB, body []byte, changes map[string]any) []byte {
	t.Helper()
	var members map[string]any
	if err := json.Unmarshal(body, &members); err != nil {
		t.Fatal(err)
	}
	for name, value := range changes {
		members[name] = value
	}
	text, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// effects counts all that requests left behind.
func effects(t testing.TB, s *gatewaytest.Stand) string {
	t.Helper()
	text := fmt.Sprintf("sent %d", s.Sent(iso8583.MTIAuthorizationRequest))
	for _, table := range []string{"idempotency_claim", "card_authorization", "ledger_posting", "message", "state_history", "duty", "event", "exception"} {
		text += fmt.Sprintf(" %s %d", table, s.Count(t, `SELECT count(*) FROM `+table))
	}
	return text
}

// slow answers after a delay within the deadline, so that a test can look at a running authorisation.
func slow(delay time.Duration) func(*sim.CardConfig) {
	return scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: sim.Action{Delay: configs.Duration(delay)}})
}

func TestS05_CallerGoneTheAnswerIsStoredAndReplayed(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: slow(150 * time.Millisecond)})
	body := gatewaytest.Purchase("20.00", nil)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := ask(ctx, s, "key-1", nil, body)
		left <- err
	}()
	s.Eventually(t, "request at the scheme", func() bool { return s.Sent(iso8583.MTIAuthorizationRequest) == 1 })
	leave()
	if problem := mustRefuse(t, <-left, gateway.CodeOutcomeUnknown, 503); problem.Sent() != gateway.SentUnknown || problem.Retry() != gateway.RetrySameKey {
		t.Fatalf("sent %s, retry %s", problem.Sent(), problem.Retry())
	}
	s.Eventually(t, "approval stored", func() bool {
		return s.Count(t, `SELECT count(*) FROM card_authorization WHERE state = 'approved'`) == 1
	})
	answer := mustAnswer(t, s, "key-1", body)
	if v := gatewaytest.Decode(t, answer.Body); !answer.Replayed || answer.Status != 201 || v.State != "approved" || v.ResponseCode != "00" {
		t.Fatalf("repeat got %d %s", answer.Status, answer.Body)
	}
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != 1 {
		t.Fatalf("%d requests reached the scheme", n)
	}
	s.CheckBooks(t)
}

func TestS51_RepeatOfARunningRequestIsInProgress(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: slow(2 * time.Second), Link: func(l *gateway.LinkConfig) {
		l.AnswerWithin, l.SendWithin = configs.Duration(5*time.Second), configs.Duration(time.Second)
	}})
	body := gatewaytest.Purchase("20.00", nil)
	first := begin(t, s, "key-1", body)
	s.Eventually(t, "request at the scheme", func() bool { return s.Sent(iso8583.MTIAuthorizationRequest) == 1 })
	before := effects(t, s)
	_, err := s.Authorize(t, "key-1", body)
	problem := mustRefuse(t, err, gateway.CodeInProgress, 409)
	if problem.Retry() != gateway.RetryAfter || problem.Sent() != gateway.SentUnknown || problem.RetryAfterSeconds < 3 || problem.RetryAfterSeconds > 6 || problem.Resource == "" {
		t.Fatalf("409 %+v, retry %s, sent %s", problem, problem.Retry(), problem.Sent())
	}
	// Other content or another key is refused the same while it runs as afterwards.
	_, err = s.Authorize(t, "key-1", changed(t, body, map[string]any{"amount": "21.00"}))
	mustRefuse(t, err, gateway.CodeKeyReuse, 422)
	_, err = s.Authorize(t, "key-2", body)
	mustRefuse(t, err, gateway.CodeDuplicateReference, 409)
	if after := effects(t, s); after != before {
		t.Fatalf("repeats left something: %s, before %s", after, before)
	}
	r := <-first
	if r.err != nil || r.answer.Replayed {
		t.Fatalf("first got %+v", r)
	}
	mustReplay(t, s, "key-1", body, r.answer)
}

func TestS53_KeyReuseForEveryFinalState(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	for state, amount := range map[string]string{"approved": "20.00", "declined": "10.05", "timed_out": "10.91"} {
		body := gatewaytest.Purchase(amount, map[string]any{"order_reference": "order-1"})
		first := mustAnswer(t, s, "key-"+state, body)
		v := gatewaytest.Decode(t, first.Body)
		if v.State != state {
			t.Fatalf("%s is %s", amount, v.State)
		}
		if state == "timed_out" {
			s.AwaitState(t, v.ID, "reversed")
		}
		mustReplay(t, s, "key-"+state, body, first)
		before := effects(t, s)
		for field, value := range map[string]any{
			"amount": "99.00", "currency": "USD", "client_reference": "other-" + state, "order_reference": "order-2", "type": "cash", "partial_approval": true, "acquirer_id": "99",
			"card": map[string]any{"pan": "4000000000000002", "expiry": "2912"}, "link": gatewaytest.LinkName,
			"merchant": map[string]any{"terminal_id": "TERM0002", "acceptor_id": "ACCEPTOR1", "mcc": "5411"}, "pos": map[string]any{"entry_mode": "051", "condition_code": "08"},
		} {
			answer, err := s.Authorize(t, "key-"+state, changed(t, body, map[string]any{field: value}))
			problem := mustRefuse(t, err, gateway.CodeKeyReuse, 422)
			if answer.Body != nil || strings.Contains(string(problem.Problem()), v.ID.String()) || strings.Contains(string(problem.Problem()), v.RRN) {
				t.Fatalf("%s with another %s shows the first answer: %s", state, field, problem.Problem())
			}
		}
		if after := effects(t, s); after != before {
			t.Fatalf("changed copies of %s left something: %s, before %s", state, after, before)
		}
		mustReplay(t, s, "key-"+state, body, first)
	}
	s.CheckBooks(t)
}

// The claim has no age: one of years ago is as good as one of today.
func TestS54_ClaimsNeverExpire(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	body := gatewaytest.Purchase("20.00", map[string]any{"client_reference": "ref-old"})
	first := mustAnswer(t, s, "key-old", body)
	for _, statement := range []string{`UPDATE idempotency_claim SET claimed_at = 'epoch'`, `DELETE FROM idempotency_claim`, `TRUNCATE idempotency_claim`} {
		if _, err := s.DB.Pool.Exec(t.Context(), statement); err == nil {
			t.Fatalf("taken: %s", statement)
		}
		owner, err := pgx.Connect(t.Context(), s.DB.URL)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := owner.Exec(t.Context(), statement); err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Fatalf("%s by the owner: %v", statement, err)
		}
		if err := owner.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// A claim of the same request as it would stand after twenty years, under another key and reference.
	if _, err := s.DB.Pool.Exec(t.Context(), `INSERT INTO idempotency_claim (tenant, endpoint, idempotency_key, client_reference, digest, resource_id, claimed_at)
		SELECT tenant, endpoint, 'key-ancient', 'ref-ancient', digest, resource_id, claimed_at - interval '20 years' FROM idempotency_claim`); err != nil {
		t.Fatal(err)
	}
	mustReplay(t, s, "key-ancient", body, first)
	before := effects(t, s)
	_, err := s.Authorize(t, "key-new", changed(t, body, map[string]any{"client_reference": "ref-ancient"}))
	problem := mustRefuse(t, err, gateway.CodeDuplicateReference, 409)
	if problem.Resource != first.Resource || problem.Retry() != gateway.RetryNever {
		t.Fatalf("names %s, retry %s", problem.Resource, problem.Retry())
	}
	if after := effects(t, s); after != before {
		t.Fatalf("a taken reference left something: %s, before %s", after, before)
	}
}

func TestS54_AStoredBodyThatExpiredIsGoneAndSendsNothing(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	body := gatewaytest.Purchase("20.00", nil)
	first := mustAnswer(t, s, "key-1", body)
	if _, err := s.DB.Pool.Exec(t.Context(), `UPDATE card_authorization SET answer_body = NULL`); err != nil {
		t.Fatal(err)
	}
	_, err := s.Authorize(t, "key-1", body)
	if problem := mustRefuse(t, err, gateway.CodeAnswerExpired, 410); problem.Resource != first.Resource {
		t.Fatalf("names %s", problem.Resource)
	}
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != 1 {
		t.Fatalf("%d requests reached the scheme", n)
	}
}

func TestS55_EqualSecondPurchaseIsANewIntent(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	body := gatewaytest.Purchase("20.00", map[string]any{"order_reference": "order-1"})
	first := s.MustAuthorize(t, "key-1", body)
	second := s.MustAuthorize(t, "key-2", changed(t, body, map[string]any{"client_reference": "ref-second"}))
	if first.ID == second.ID || first.STAN == second.STAN || first.RRN == second.RRN || second.State != "approved" {
		t.Fatalf("first %+v, second %+v", first, second)
	}
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != 2 {
		t.Fatalf("%d requests reached the scheme", n)
	}
	s.CheckBooks(t)
}

func TestKeysAndReferencesBelongToATenant(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	body := gatewaytest.Purchase("20.00", nil)
	mustAnswer(t, s, "key-1", body)
	req, err := gateway.ParseAuthorizationRequest(body)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := s.Gateway.Authorize(t.Context(), gateway.AuthorizeCall{Tenant: "bank-b", IdempotencyKey: "key-1", Request: req})
	if err != nil || answer.Replayed || answer.Status != 201 {
		t.Fatalf("another tenant's same key and reference got %+v, %v", answer, err)
	}
	id := uuid.MustParse(answer.Resource[strings.LastIndex(answer.Resource, "/")+1:])
	if _, err := s.Gateway.Authorization(t.Context(), gatewaytest.Tenant, id); err == nil {
		t.Fatal("one tenant reads another's authorization")
	}
}

// Two bodies that mean the same are the same content.
func TestDigestIsOfTheMeaning(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	const form = `{"client_reference":"ref-1","type":"purchase","amount":"10.50","currency":"EUR","card":{"pan":"4111111111111111","expiry":"2912"},` +
		`"merchant":{"terminal_id":"TERM0001","acceptor_id":"ACCEPTOR1"},"pos":{"entry_mode":"051","condition_code":"00"}}`
	first := mustAnswer(t, s, "key-1", []byte(form))
	for name, body := range map[string]string{
		"amount form": strings.Replace(form, "10.50", "10.5", 1),
		"spacing":     strings.NewReplacer(",", " ,\n\t", ":", " : ").Replace(form),
		"escapes":     strings.Replace(form, "purchase", `\u0070urchase`, 1),
		"order": `{"pos":{"condition_code":"00","entry_mode":"051"},"merchant":{"acceptor_id":"ACCEPTOR1","terminal_id":"TERM0001"},` +
			`"card":{"expiry":"2912","pan":"4111111111111111"},"currency":"EUR","amount":"10.50","type":"purchase","client_reference":"ref-1"}`,
		"default spelled out": strings.Replace(form, `"type"`, `"partial_approval":false,"elements":{},"type"`, 1),
	} {
		t.Run(name, func(t *testing.T) { mustReplay(t, s, "key-1", []byte(body), first) })
	}
}

// Sensitive authentication data is in no digest: not its value, and not whether it was there, since a client that asks again
// after a crash of its own does not have it any more.
func TestDigestLeavesSensitiveDataOut(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) { l.StoredElements = []iso8583.Element{104} }})
	card := map[string]any{"pan": gatewaytest.PAN, "expiry": "2912", "track2": gatewaytest.PAN + "=29121010000000000000", "pin_block": "0123456789ABCDEF", "icc": "9F3303E0F8C8"}
	body := gatewaytest.Purchase("20.00", map[string]any{"card": card, "elements": map[string]any{"48": "92CVV123", "104": "stored"}})
	first := mustAnswer(t, s, "key-1", body)
	for name, other := range map[string]map[string]any{
		"other values": {"card": map[string]any{"pan": gatewaytest.PAN, "expiry": "2912", "track2": gatewaytest.PAN + "=29121019999999999999", "pin_block": "FEDCBA9876543210", "icc": "9F3303E0F8C9"},
			"elements": map[string]any{"48": "92CVV999", "104": "stored"}},
		"none of them": {"card": map[string]any{"pan": gatewaytest.PAN, "expiry": "2912"}, "elements": map[string]any{"104": "stored"}},
	} {
		t.Run(name, func(t *testing.T) { mustReplay(t, s, "key-1", changed(t, body, other), first) })
	}
	_, err := s.Authorize(t, "key-1", changed(t, body, map[string]any{"elements": map[string]any{"48": "92CVV123", "104": "other"}}))
	mustRefuse(t, err, gateway.CodeKeyReuse, 422)
}

func TestPreferWaitGivesAProvisionalThenTheStoredAnswer(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: slow(300 * time.Millisecond), Link: func(l *gateway.LinkConfig) { l.AnswerWithin = configs.Duration(5 * time.Second) }})
	body := gatewaytest.Purchase("20.00", nil)
	var none, long time.Duration = 0, 10 * time.Second
	first, err := ask(t.Context(), s, "key-1", &none, body)
	if err != nil || first.Status != 202 || first.Replayed {
		t.Fatalf("first got %+v, %v", first, err)
	}
	v := gatewaytest.Decode(t, first.Body)
	if v.State != "pending" || v.Outcome != "unknown" || v.Retry != "same_key" || v.STAN == "" {
		t.Fatalf("provisional %s", first.Body)
	}
	second, err := ask(t.Context(), s, "key-1", &none, body)
	if err != nil || second.Status != 202 || !bytes.Equal(second.Body, first.Body) {
		t.Fatalf("repeat of a running one got %d %s, %v", second.Status, second.Body, err)
	}
	final, err := ask(t.Context(), s, "key-1", &long, body)
	if err != nil || final.Status != 201 || !final.Replayed || gatewaytest.Decode(t, final.Body).State != "approved" || gatewaytest.Decode(t, final.Body).ID != v.ID {
		t.Fatalf("repeat that waits got %d %s, %v", final.Status, final.Body, err)
	}
	mustReplay(t, s, "key-1", body, final) // the wait is no part of the content
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != 1 {
		t.Fatalf("%d requests reached the scheme", n)
	}
}

func TestReplayWhileTheLinkIsDown(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	body := gatewaytest.Purchase("20.00", nil)
	first := mustAnswer(t, s, "key-1", body)
	setRules(t, s, refuseSignOn)
	s.Scheme.TriggerHangUp()
	other := gatewaytest.Purchase("20.00", nil)
	s.Eventually(t, "link down", func() bool {
		_, err := s.Authorize(t, "key-"+uuid.NewString(), changed(t, other, map[string]any{"client_reference": uuid.NewString()}))
		return err != nil && gateway.AsError(err).Code == gateway.CodeLinkUnavailable
	})
	mustReplay(t, s, "key-1", body, first)
	_, err := s.Authorize(t, "key-1", changed(t, body, map[string]any{"amount": "21.00"}))
	mustRefuse(t, err, gateway.CodeKeyReuse, 422)
	_, err = s.Authorize(t, "key-2", body)
	mustRefuse(t, err, gateway.CodeDuplicateReference, 409)
	_, err = s.Authorize(t, "key-3", other)
	if problem := mustRefuse(t, err, gateway.CodeLinkUnavailable, 503); problem.Sent() != gateway.SentNo || problem.RetryAfterSeconds == 0 {
		t.Fatalf("refused with %+v", problem)
	}
	if n := s.Count(t, `SELECT count(*) FROM idempotency_claim WHERE idempotency_key IN ('key-2', 'key-3')`); n != 0 {
		t.Fatal("a refusal left a claim")
	}
}

// The stored answer is what the caller was told then; reading shows what is now.
func TestReplayWhenTheResourceHasMovedOn(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	body := gatewaytest.Purchase("10.91", nil)
	first := mustAnswer(t, s, "key-1", body)
	v := gatewaytest.Decode(t, first.Body)
	if first.Status != 201 || v.State != "timed_out" || v.Retry != "never" || v.Outcome != "unknown" {
		t.Fatalf("answer %d %s", first.Status, first.Body)
	}
	s.AwaitState(t, v.ID, "reversed")
	mustReplay(t, s, "key-1", body, first)
	if now := s.Read(t, v.ID); now.State != "reversed" || now.Outcome != "failed" || now.Reversal.State != "acknowledged" || now.StateVersion != v.StateVersion+1 {
		t.Fatalf("reads %+v", now)
	}
	mustReplay(t, s, "key-1", body, first)
}

func TestReplayAfterARestart(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	bodies := map[string][]byte{"20.00": nil, "10.05": nil, "10.91": nil}
	answers := map[string]gateway.Answer{}
	for amount := range bodies {
		bodies[amount] = gatewaytest.Purchase(amount, nil)
		answers[amount] = mustAnswer(t, s, "key-"+amount, bodies[amount])
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s.Start(t)
	for amount, body := range bodies {
		mustReplay(t, s, "key-"+amount, body, answers[amount])
	}
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != 3 {
		t.Fatalf("%d requests reached the scheme", n)
	}
}

func TestADeclineBurnsItsKeyAndReference(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	body := gatewaytest.Purchase("10.05", map[string]any{"order_reference": "order-1"})
	first := mustAnswer(t, s, "key-1", body)
	if v := gatewaytest.Decode(t, first.Body); first.Status != 201 || v.State != "declined" || v.Retry != "new_key" || v.Sent != "yes" {
		t.Fatalf("answer %d %s", first.Status, first.Body)
	}
	setRules(t, s, sim.Rule{When: sim.Match{MTI: authorizations}}) // from now on everything is approved
	mustReplay(t, s, "key-1", body, first)
	_, err := s.Authorize(t, "key-2", body)
	mustRefuse(t, err, gateway.CodeDuplicateReference, 409)
	if v := s.MustAuthorize(t, "key-2", changed(t, body, map[string]any{"client_reference": "attempt-2"})); v.State != "approved" {
		t.Fatalf("new attempt of the same order is %s", v.State)
	}
}

func TestManyCopiesOfOneRequest(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: slow(500 * time.Millisecond), Link: func(l *gateway.LinkConfig) {
		l.AnswerWithin, l.SendWithin = configs.Duration(20*time.Second), configs.Duration(20*time.Second)
	}})
	const copies = 500
	body := gatewaytest.Purchase("20.00", nil)
	answers, errs := make([]gateway.Answer, copies), make([]error, copies)
	var sending sync.WaitGroup
	for i := range copies {
		sending.Go(func() { answers[i], errs[i] = ask(t.Context(), s, "key-1", nil, body) })
	}
	sending.Wait()
	final := mustAnswer(t, s, "key-1", body)
	if v := gatewaytest.Decode(t, final.Body); v.State != "approved" {
		t.Fatalf("the original is %s: %s", v.State, v.Reason)
	}
	originals := 0
	for i := range copies {
		if errs[i] != nil {
			mustRefuse(t, errs[i], gateway.CodeInProgress, 409)
			continue
		}
		if answers[i].Status != 201 || !bytes.Equal(answers[i].Body, final.Body) {
			t.Fatalf("copy %d got %d %s", i, answers[i].Status, answers[i].Body)
		}
		if !answers[i].Replayed {
			originals++
		}
	}
	if originals != 1 {
		t.Fatalf("%d of %d copies were the original", originals, copies)
	}
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != 1 {
		t.Fatalf("%d requests reached the scheme", n)
	}
	if n := s.Count(t, `SELECT count(*) FROM ledger_posting`); n != 1 {
		t.Fatalf("%d postings, want one hold", n)
	}
	s.CheckBooks(t)
}

func TestTwoKeysWithOneReferenceOneWins(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	for round := range 20 {
		body := gatewaytest.Purchase("20.00", nil)
		var sending sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			sending.Go(func() { _, errs[i] = ask(t.Context(), s, fmt.Sprintf("key-%d-%d", round, i), nil, body) })
		}
		sending.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
				continue
			}
			mustRefuse(t, err, gateway.CodeDuplicateReference, 409)
		}
		if won != 1 {
			t.Fatalf("%d of %d keys won one reference", won, len(errs))
		}
	}
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != 20 {
		t.Fatalf("%d requests reached the scheme", n)
	}
	s.CheckBooks(t)
}
