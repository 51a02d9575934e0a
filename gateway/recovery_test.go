package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/link"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

// refuseSignOn makes the scheme let nobody in.
var refuseSignOn = sim.Rule{When: sim.Match{MTI: []string{"0800"}, NetworkCode: "001"}, Then: refused("05")}

// reply is what a call that runs beside the test came to.
type reply struct {
	answer gateway.Answer
	err    error
}

// begin starts a call and returns where its reply will be.
func begin(t testing.TB, s *gatewaytest.Stand, key string, body []byte) <-chan reply {
	replies := make(chan reply, 1)
	g := s.Gateway
	req, err := gateway.ParseAuthorizationRequest(body)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		answer, err := g.Authorize(context.Background(), gateway.AuthorizeCall{Tenant: gatewaytest.Tenant, IdempotencyKey: key, Request: req})
		replies <- reply{answer, err}
	}()
	return replies
}

// holdRecords keeps every record and decision from being committed until the returned function is called.
func holdRecords(t testing.TB, s *gatewaytest.Stand) (release func()) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.DB.URL)
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = conn.Close(ctx) })
	t.Cleanup(release)
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `LOCK TABLE card_authorization IN SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	return release
}

// awaitBlockedRecord waits until a record waits for holdRecords.
func awaitBlockedRecord(t testing.TB, s *gatewaytest.Stand) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), s.DB.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	s.Eventually(t, "record waits for its lock", func() bool {
		var n int
		err := conn.QueryRow(context.Background(), `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'card_authorization'::regclass`).Scan(&n)
		return err == nil && n == 1
	})
}

// checkNotSent holds a not_sent answer and all it left against the contract: 503, a new key, the hold let go, and the same bytes
// for a repeat.
func checkNotSent(t *testing.T, s *gatewaytest.Stand, key string, body []byte, r reply, reasons ...string) {
	t.Helper()
	if r.err != nil {
		t.Fatal(r.err)
	}
	text := string(r.answer.Body)
	if r.answer.Status != 503 || !strings.Contains(text, `"code":"not_sent"`) || !strings.Contains(text, `"retry":"new_key"`) || !strings.Contains(text, `"sent":"no"`) {
		t.Fatalf("answer %d %s", r.answer.Status, text)
	}
	id := uuid.MustParse(r.answer.Resource[strings.LastIndex(r.answer.Resource, "/")+1:])
	v := s.Read(t, id)
	if v.State != "not_sent" || v.Outcome != "failed" || v.Sent != "no" || v.Reversal != nil || !slices.Contains(reasons, v.Reason) {
		t.Fatalf("stored %+v", v)
	}
	if h := held(t, s, id); h != 0 || s.Count(t, `SELECT count(*) FROM ledger_posting WHERE intent = $1`, id) != 2 {
		t.Fatalf("%d minor units held", h)
	}
	again, err := s.Authorize(t, key, body)
	if err != nil || !again.Replayed || again.Status != 503 || !bytes.Equal(again.Body, r.answer.Body) {
		t.Fatalf("repeat got %d %s, %v", again.Status, again.Body, err)
	}
	if n := s.Sent(iso8583.MTIAuthorizationRequest) + s.Sent(iso8583.MTIReversalAdvice); n != 0 {
		t.Fatalf("%d messages reached the scheme", n)
	}
}

func TestS17_ExpiredAuthorizationIsNeverSent(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	release := holdRecords(t, s)
	body := gatewaytest.Purchase("12.34", nil)
	called := time.Now()
	replies := begin(t, s, "key-1", body)
	awaitBlockedRecord(t, s)
	sendWithin := s.Config.Links[gatewaytest.LinkName].SendWithin.Std()
	s.Eventually(t, "time to send over", func() bool { return time.Since(called) > sendWithin+10*time.Millisecond })
	release()
	checkNotSent(t, s, "key-1", body, <-replies, "send_time_passed")
	s.CheckBooks(t)
}

func TestS21_WriteNotBegunIsNotSent(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(c *gateway.LinkConfig) {
		c.AnswerWithin, c.SendWithin = configs.Duration(20*time.Second), configs.Duration(20*time.Second)
	}})
	release := holdRecords(t, s)
	body := gatewaytest.Purchase("12.34", nil)
	replies := begin(t, s, "key-1", body)
	awaitBlockedRecord(t, s)
	setRules(t, s, refuseSignOn)
	s.Scheme.TriggerHangUp()
	s.Eventually(t, "link down", func() bool { return s.Gateway.Links()[0].State != link.SignedOn })
	release()
	checkNotSent(t, s, "key-1", body, <-replies, "link_down", "link_not_signed_on")
	s.CheckBooks(t)
}

func TestS20_S21_LostConnectionAbandonsEachRequestAndResendsNone(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: silent}),
		Link: func(c *gateway.LinkConfig) {
			c.AnswerWithin, c.SendWithin = configs.Duration(30*time.Second), configs.Duration(30*time.Second)
		},
	})
	const calls = 5
	var replies []<-chan reply
	for range calls {
		replies = append(replies, begin(t, s, uuid.NewString(), gatewaytest.Purchase("20.00", nil)))
	}
	s.Eventually(t, "requests at the scheme", func() bool { return s.Sent(iso8583.MTIAuthorizationRequest) == calls })
	s.Scheme.TriggerHangUp()
	for _, waiting := range replies {
		r := <-waiting
		if r.err != nil {
			t.Fatal(r.err)
		}
		v := gatewaytest.Decode(t, r.answer.Body)
		if v.State != "timed_out" || v.Reason != "link_lost" || v.Sent != "unknown" || v.Reversal == nil || v.Reversal.Reason != "link_lost" {
			t.Fatalf("answer %+v", v)
		}
		s.AwaitState(t, v.ID, "reversed")
		checkReversals(t, s, v)
	}
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != calls {
		t.Fatalf("%d requests reached the scheme, want %d", n, calls)
	}
	s.CheckBooks(t)
}

// code is the code of a call's error.
func code(t testing.TB, err error) *gateway.Error {
	t.Helper()
	var e *gateway.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v", err)
	}
	return e
}

func TestS65_NoFinancialTrafficBeforeSignOn(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Unready: true, Scheme: scheme(refuseSignOn)})
	s.Eventually(t, "sign-on refused", func() bool { return len(s.Received(iso8583.MTINetworkManagementRequest)) > 0 })
	body := gatewaytest.Purchase("12.34", nil)
	_, err := s.Authorize(t, "key-1", body)
	if e := code(t, err); e.Code != gateway.CodeLinkUnavailable || e.Sent() != gateway.SentNo || e.Status() != 503 || e.RetryAfterSeconds < 1 {
		t.Fatalf("refused as %v", e)
	}
	rows := s.Count(t, `SELECT (SELECT count(*) FROM card_authorization) + (SELECT count(*) FROM idempotency_claim) + (SELECT count(*) FROM ledger_posting) + (SELECT count(*) FROM message)`)
	if rows != 0 || s.Sent(iso8583.MTIAuthorizationRequest) != 0 {
		t.Fatalf("the refusal left %d rows", rows)
	}
	setRules(t, s)
	s.AwaitSignedOn(t)
	if v := s.MustAuthorize(t, "key-1", body); v.State != "approved" {
		t.Fatalf("the same request after the sign-on is %+v", v)
	}
	s.CheckBooks(t)
}

func TestS65_NotSignedOnAnswerSignsOnAgainAndResendsNothing(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations, First: 1}, Then: refused("58")}),
		Link:   func(c *gateway.LinkConfig) { c.Spec.ResponseCodes = map[string]string{"58": "not_signed_on"} },
	})
	before := signOns(s)
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("12.34", nil))
	if v.State != "declined" || v.ResponseCode != "58" || v.Retry != "new_key" || v.Sent != "yes" {
		t.Fatalf("answer %+v", v)
	}
	s.Eventually(t, "signed on again", func() bool { return signOns(s) == before+1 })
	s.AwaitSignedOn(t)
	if n := s.Sent(iso8583.MTIAuthorizationRequest); n != 1 || held(t, s, v.ID) != 0 {
		t.Fatalf("%d requests, %d minor units held", n, held(t, s, v.ID))
	}
	if v := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("12.34", nil)); v.State != "approved" {
		t.Fatalf("a new attempt is %+v", v)
	}
	s.CheckBooks(t)
}

func signOns(s *gatewaytest.Stand) int {
	n := 0
	for _, r := range s.Received(iso8583.MTINetworkManagementRequest) {
		if r.NetworkCode == "001" {
			n++
		}
	}
	return n
}

func TestS17_ShutdownDrainsAndSendsNothingNew(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations, Amount: "20.00"}, Then: sim.Action{Delay: configs.Duration(700 * time.Millisecond)}}),
		Link: func(c *gateway.LinkConfig) {
			c.AnswerWithin, c.SendWithin = configs.Duration(10*time.Second), configs.Duration(10*time.Second)
		},
		Gateway: func(c *gateway.Config) { c.Drain = configs.Duration(10 * time.Second) },
	})
	first := begin(t, s, "key-1", gatewaytest.Purchase("20.00", nil))
	s.Eventually(t, "request at the scheme", func() bool { return s.Sent(iso8583.MTIAuthorizationRequest) == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop() }()
	s.Eventually(t, "intake closed", func() bool {
		_, err := s.Authorize(t, uuid.NewString(), gatewaytest.Purchase("21.00", nil))
		return err != nil && code(t, err).Code == gateway.CodeShuttingDown
	})
	r := <-first
	if r.err != nil {
		t.Fatal(r.err)
	}
	if v := gatewaytest.Decode(t, r.answer.Body); v.State != "approved" {
		t.Fatalf("in flight at the shutdown: %+v", v)
	}
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	recorded := s.Count(t, `SELECT count(*) FROM card_authorization`)
	if n := s.Count(t, `SELECT count(*) FROM card_authorization WHERE state = 'approved'`); n != recorded || s.Sent(iso8583.MTIAuthorizationRequest) != recorded {
		t.Fatalf("%d recorded, %d approved, %d sent", recorded, n, s.Sent(iso8583.MTIAuthorizationRequest))
	}
	if n := s.Count(t, `SELECT count(*) FROM daemon WHERE ended_at IS NULL`); n != 0 {
		t.Fatalf("%d epochs not ended", n)
	}
	s.CheckBooks(t)
}

func TestS17_RestartResumesReversalsOnly(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: silent}, sim.Rule{When: sim.Match{MTI: reversals}, Then: lost}),
		Link: func(c *gateway.LinkConfig) {
			c.AnswerWithin, c.SendWithin = configs.Duration(30*time.Second), configs.Duration(30*time.Second)
			c.Silence.FirstGap, c.Silence.MaxGap = configs.Duration(time.Hour), configs.Duration(time.Hour)
		},
		Gateway: func(c *gateway.Config) { c.Drain = configs.Duration(20 * time.Millisecond) },
	})
	replies := begin(t, s, "key-1", gatewaytest.Purchase("20.00", nil))
	s.Eventually(t, "request at the scheme", func() bool { return s.Sent(iso8583.MTIAuthorizationRequest) == 1 })
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	r := <-replies
	if r.err != nil {
		t.Fatal(r.err)
	}
	v := gatewaytest.Decode(t, r.answer.Body)
	if v.State != "timed_out" || v.Reason != "link_lost" || v.Reversal == nil || s.Sent(iso8583.MTIReversalAdvice) != 0 {
		t.Fatalf("cut off at the shutdown: %+v, %d reversals sent", v, s.Sent(iso8583.MTIReversalAdvice))
	}
	setRules(t, s)
	s.Start(t)
	s.AwaitState(t, v.ID, "reversed")
	if sent := checkReversals(t, s, v); len(sent) != 1 {
		t.Fatalf("%d reversals", len(sent))
	}
	s.CheckBooks(t)
}

func TestReversalSurvivesRestart(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals}, Then: lost}),
		Link:   silence(func(p *reversal.Policy) { p.AnswerWithin = configs.Duration(50 * time.Millisecond) }),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	s.Eventually(t, "two attempts", func() bool { return len(received(s, v.STAN, iso8583.MTIReversalAdviceRepeat)) > 0 })
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	sent := len(checkReversals(t, s, v))
	setRules(t, s)
	s.Start(t)
	done := s.AwaitState(t, v.ID, "reversed")
	after := checkReversals(t, s, v)
	if len(after) != sent+1 || done.Reversal.Attempts < len(after) {
		t.Fatalf("%d reversals before the restart and %d in all, %d counted", sent, len(after), done.Reversal.Attempts)
	}
	s.CheckBooks(t)
}

func TestReversalWaitsForTheLink(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: silence(func(p *reversal.Policy) { p.ReversalDelay = configs.Duration(300 * time.Millisecond) })})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	setRules(t, s, refuseSignOn)
	s.Scheme.TriggerHangUp()
	s.Eventually(t, "sign-on refused after the duty was due", func() bool {
		status := s.Gateway.Links()[0]
		return status.State != link.SignedOn && v.Reversal.NextAt.Add(300*time.Millisecond).Before(time.Now())
	})
	now := s.Read(t, v.ID)
	if now.Reversal.State != "owed" || now.Reversal.Attempts != 0 || s.Sent(iso8583.MTIReversalAdvice) != 0 {
		t.Fatalf("while the link was down: %+v", now.Reversal)
	}
	setRules(t, s)
	done := s.AwaitState(t, v.ID, "reversed")
	if sent := checkReversals(t, s, v); len(sent) != 1 || done.Reversal.Attempts != 1 {
		t.Fatalf("%d reversals, %d counted", len(sent), done.Reversal.Attempts)
	}
	s.CheckBooks(t)
}

// unending makes a daemon wait for answers for longer than any test.
func unending(c *gateway.LinkConfig) {
	c.AnswerWithin, c.SendWithin = configs.Duration(time.Minute), configs.Duration(300*time.Millisecond)
}

func TestRestartRecoversWhatAFormerLifeLeftOpen(t *testing.T) {
	t.Parallel()
	former := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: silent}), Link: unending,
		Gateway: func(c *gateway.Config) { c.Drain = configs.Duration(time.Millisecond) },
	})
	body := gatewaytest.Purchase("20.00", nil)
	begin(t, former, "key-1", body)
	former.Eventually(t, "request at the scheme", func() bool { return former.Sent(iso8583.MTIAuthorizationRequest) == 1 })

	// The same instance starts again while the former life hangs.
	s := gatewaytest.New(t, gatewaytest.Options{Beside: former})
	again, err := s.Authorize(t, "key-1", body)
	if err != nil || !again.Replayed {
		t.Fatalf("the repeat after the restart got %s, %v", again.Body, err)
	}
	v := gatewaytest.Decode(t, again.Body)
	if v.State != "timed_out" || v.Reason != "recovered_after_restart" || v.Reversal == nil {
		t.Fatalf("recovered as %+v", v)
	}
	s.AwaitState(t, v.ID, "reversed")
	if sent := checkReversals(t, s, v); len(sent) != 1 {
		t.Fatalf("%d reversals", len(sent))
	}
	if n := s.Count(t, `SELECT count(*) FROM daemon WHERE ended_at IS NOT NULL`); n != 1 {
		t.Fatalf("%d epochs ended, want the former one", n)
	}
	s.CheckBooks(t)
}

func TestSweepTakesWhatADeadDaemonLeft(t *testing.T) {
	t.Parallel()
	dead := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: silent}), Link: unending,
		Gateway: func(c *gateway.Config) { c.Instance, c.Drain = "dead", configs.Duration(time.Millisecond) },
	})
	waiting := begin(t, dead, "key-1", gatewaytest.Purchase("20.00", nil))
	dead.Eventually(t, "request at the scheme", func() bool { return dead.Sent(iso8583.MTIAuthorizationRequest) == 1 })
	s := gatewaytest.New(t, gatewaytest.Options{Beside: dead, Gateway: func(c *gateway.Config) { c.Instance = "alive" }})
	if n := s.Count(t, `SELECT count(*) FROM card_authorization WHERE state = 'pending'`); n != 1 {
		t.Fatal("another instance's start gave up what a living one runs")
	}
	// Nothing wakes the dead daemon; its request's deadline passes.
	if _, err := s.DB.Pool.Exec(context.Background(), `UPDATE card_authorization SET deadline_at = created_at - interval '10 s'`); err != nil {
		t.Fatal(err)
	}
	var id uuid.UUID
	if err := s.DB.Pool.QueryRow(context.Background(), `SELECT id FROM card_authorization`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	v := s.AwaitState(t, id, "reversed")
	if v.Reason != "swept_past_deadline" {
		t.Fatalf("swept as %+v", v)
	}
	if sent := checkReversals(t, s, v); len(sent) != 1 {
		t.Fatalf("%d reversals", len(sent))
	}
	// Should it wake after all, it tells its caller what the database says.
	if err := dead.Stop(); err != nil {
		t.Fatal(err)
	}
	r := <-waiting
	if r.err != nil {
		t.Fatal(r.err)
	}
	if told := gatewaytest.Decode(t, r.answer.Body); told.State != "timed_out" || told.Reason != "swept_past_deadline" {
		t.Fatalf("the dead daemon's caller heard %+v", told)
	}
	if n := s.Count(t, `SELECT count(*) FROM duty`); n != 1 {
		t.Fatalf("%d reversals", n)
	}
	s.CheckBooks(t)
}

func TestAnswerThatCameAfterTheSweepIsLate(t *testing.T) {
	t.Parallel()
	slow := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: authorizations}, Then: sim.Action{Delay: configs.Duration(4 * time.Second)}}), Link: unending,
		Gateway: func(c *gateway.Config) { c.Instance = "slow" },
	})
	waiting := begin(t, slow, "key-1", gatewaytest.Purchase("20.00", nil))
	slow.Eventually(t, "request at the scheme", func() bool { return slow.Sent(iso8583.MTIAuthorizationRequest) == 1 })
	s := gatewaytest.New(t, gatewaytest.Options{Beside: slow, Gateway: func(c *gateway.Config) { c.Instance = "other" }})
	if _, err := s.DB.Pool.Exec(context.Background(), `UPDATE card_authorization SET deadline_at = created_at - interval '10 s'`); err != nil {
		t.Fatal(err)
	}
	r := <-waiting
	if r.err != nil {
		t.Fatal(r.err)
	}
	v := gatewaytest.Decode(t, r.answer.Body)
	if v.State != "timed_out" || v.Reason != "swept_past_deadline" {
		t.Fatalf("the caller heard %+v", v)
	}
	s.Eventually(t, "the late answer is kept", func() bool { return journaled(t, s, v.ID, "0110", "late") == 1 })
	if n := s.Count(t, `SELECT count(*) FROM event WHERE kind = 'authorization.late_response' AND subject_id = $1`, v.ID); n != 1 || slow.Metric(t, "schemegate_late_responses_total") != 1 {
		t.Fatalf("%d events, counter at %v", n, slow.Metric(t, "schemegate_late_responses_total"))
	}
	s.AwaitState(t, v.ID, "reversed")
	s.CheckBooks(t)
}

func TestTwoDaemonsShareOneDatabase(t *testing.T) {
	t.Parallel()
	a := gatewaytest.New(t, gatewaytest.Options{Gateway: func(c *gateway.Config) { c.Instance = "a" }})
	b := gatewaytest.New(t, gatewaytest.Options{Beside: a, Gateway: func(c *gateway.Config) { c.Instance = "b" }})
	amounts := []string{"10.91", "10.05", "20.01", "20.02", "20.03", "20.04"}
	views := authorizeOn(t, []*gatewaytest.Stand{a, b}, amounts...)
	all := 2 * len(amounts)
	if n := a.Count(t, `SELECT count(DISTINCT stan) FROM card_authorization`); n != all {
		t.Fatalf("%d STANs for %d authorisations", n, all)
	}
	if n := a.Count(t, `SELECT count(DISTINCT owner_epoch) FROM card_authorization`); n != 2 {
		t.Fatalf("%d daemons had traffic", n)
	}
	lines := map[int]int{}
	for _, r := range a.Received(iso8583.MTIAuthorizationRequest) {
		lines[r.Connection]++
	}
	if len(lines) != 2 {
		t.Fatalf("requests by connection: %v", lines)
	}
	for i := range amounts {
		for s, v := range map[*gatewaytest.Stand]gatewaytest.View{a: views[1][i], b: views[0][i]} { // each reads the other's
			if v.State == "timed_out" {
				s.AwaitState(t, v.ID, "reversed")
				checkReversals(t, s, v)
			} else if now := s.Read(t, v.ID); now.State != v.State {
				t.Errorf("%s answered %s is %s for the other daemon", v.ID, v.State, now.State)
			}
		}
	}
	a.CheckBooks(t)
	b.CheckBooks(t)
}
