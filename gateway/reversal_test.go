package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

// Rules of the scheme that several tests use.
var (
	authorizations = []string{"0100"}
	reversals      = []string{"0420", "0421"}
	silent         = sim.Action{Deliver: sim.DeliverSilent}
	lost           = sim.Action{Answer: sim.AnswerLost}
)

func refused(code string) sim.Action {
	return sim.Action{Answer: sim.AnswerDecline, ResponseCode: code}
}

func setRules(t testing.TB, s *gatewaytest.Stand, rules ...sim.Rule) {
	t.Helper()
	if err := s.Scheme.SetRules(rules); err != nil {
		t.Fatal(err)
	}
}

func scheme(rules ...sim.Rule) func(*sim.CardConfig) {
	return func(c *sim.CardConfig) { c.Rules = rules }
}

func silence(change func(*reversal.Policy)) func(*gateway.LinkConfig) {
	return func(c *gateway.LinkConfig) { change(c.Silence) }
}

// authorizeAll sends one purchase for each amount at the same time and returns their answers in order.
func authorizeAll(t testing.TB, s *gatewaytest.Stand, amounts ...string) []gatewaytest.View {
	t.Helper()
	return authorizeOn(t, []*gatewaytest.Stand{s}, amounts...)[0]
}

// authorizeOn sends one purchase for each amount to each stand, all at the same time. The answers go by stand, then by amount.
func authorizeOn(t testing.TB, stands []*gatewaytest.Stand, amounts ...string) [][]gatewaytest.View {
	t.Helper()
	answers := make([]gateway.Answer, len(stands)*len(amounts))
	errs := make([]error, len(answers))
	var calls sync.WaitGroup
	for i := range answers {
		calls.Go(func() {
			answers[i], errs[i] = stands[i/len(amounts)].Authorize(t, uuid.NewString(), gatewaytest.Purchase(amounts[i%len(amounts)], nil))
		})
	}
	calls.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	views := make([][]gatewaytest.View, len(stands))
	for i, answer := range answers {
		views[i/len(amounts)] = append(views[i/len(amounts)], gatewaytest.Decode(t, answer.Body))
	}
	return views
}

// received lists the messages about one authorisation that reached the scheme, in their order.
func received(s *gatewaytest.Stand, stan string, mtis ...iso8583.MTI) []sim.Record {
	var records []sim.Record
	for _, r := range s.Received(mtis...) {
		if r.STAN == stan {
			records = append(records, r)
		}
	}
	return records
}

// checkReversals holds every message about a timed-out authorisation against the rules of identity: one 0100, then one 0420 and
// nothing but equal 0421s, all with the original's STAN and RRN, and DE 90 naming what was sent.
func checkReversals(t testing.TB, s *gatewaytest.Stand, v gatewaytest.View) []sim.Record {
	t.Helper()
	requests := received(s, v.STAN, iso8583.MTIAuthorizationRequest)
	if len(requests) != 1 || requests[0].RRN != v.RRN || requests[0].TransmissionDateTime != v.DateTime {
		t.Fatalf("requests %+v", requests)
	}
	sent := received(s, v.STAN, iso8583.MTIReversalAdvice, iso8583.MTIReversalAdviceRepeat)
	for i, r := range sent {
		want := iso8583.MTIReversalAdvice
		if i > 0 {
			want = iso8583.MTIReversalAdviceRepeat
		}
		if r.MTI != want.String() || r.RRN != v.RRN || r.TransmissionDateTime != sent[0].TransmissionDateTime {
			t.Fatalf("reversal %d of %d is %+v", i+1, len(sent), r)
		}
		if i > 1 && r.Digest != sent[1].Digest {
			t.Fatalf("repeat %d has other bytes than the first repeat", i+1)
		}
		original, err := iso8583.ParseOriginalDataElements(r.OriginalDataElements)
		if err != nil {
			t.Fatal(err)
		}
		if original.MTI != iso8583.MTIAuthorizationRequest || original.STAN != v.STAN || original.TransmissionDateTime != v.DateTime ||
			strings.TrimLeft(original.AcquirerID, "0") != "12345678901" {
			t.Fatalf("DE 90 names %+v", original)
		}
	}
	return sent
}

// held is what the ledger holds for one authorisation, in minor units.
func held(t testing.TB, s *gatewaytest.Stand, id uuid.UUID) int {
	t.Helper()
	return s.Count(t, `SELECT coalesce(sum(CASE step WHEN 1 THEN amount_minor WHEN 2 THEN -amount_minor END), 0) FROM ledger_posting WHERE intent = $1`, id)
}

func openExceptions(t testing.TB, s *gatewaytest.Stand, subject uuid.UUID, kind string) int {
	t.Helper()
	return s.Count(t, `SELECT count(*) FROM exception WHERE subject_id = $1 AND kind = $2 AND closed_at IS NULL`, subject, kind)
}

func TestS01_DutyCommitsWithTheTimeoutBeforeTheCallerHears(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: silence(func(p *reversal.Policy) { p.ReversalDelay = configs.Duration(time.Hour) })})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	if v.State != "timed_out" || v.Outcome != "unknown" || v.Retry != "never" || v.Sent != "unknown" || v.Reason != "timeout" ||
		v.Reversal == nil || v.Reversal.State != "owed" || v.Reversal.Attempts != 0 || v.Reversal.NextAt == nil {
		t.Fatalf("answer %+v", v)
	}
	n := s.Count(t, `SELECT count(*) FROM card_authorization a JOIN duty r ON r.authorization_id = a.id AND r.xmin = a.xmin
		WHERE a.id = $1 AND r.id = $2 AND a.state = 'timed_out' AND r.state = 'owed' AND a.answer_body IS NOT NULL`, v.ID, v.Reversal.ID)
	if n != 1 {
		t.Fatal("the timeout and its duty are not of one transaction")
	}
	if n := s.Count(t, `SELECT count(DISTINCT xmin::text) FROM state_history WHERE subject_id = $1 AND state_version = 2 OR subject_id = $2`, v.ID, v.Reversal.ID); n != 1 {
		t.Fatalf("history of timeout and duty lies in %d transactions", n)
	}
	if h := held(t, s, v.ID); h != 1091 {
		t.Fatalf("%d minor units held while the outcome is unknown", h)
	}
	s.CheckBooks(t)
}

func TestS06_PoisonReversalDelaysNoOther(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals, Amount: "66.66"}, Then: lost}, sim.Rule{When: sim.Match{MTI: authorizations}, Then: silent}),
		Link:   silence(func(p *reversal.Policy) { p.InFlight, p.MaxGap = 2, configs.Duration(20*time.Millisecond) }),
	})
	views := authorizeAll(t, s, "66.66", "20.01", "20.02", "20.03", "20.04", "20.05", "20.06", "20.07", "20.08")
	for _, v := range views[1:] {
		s.AwaitState(t, v.ID, "reversed")
		checkReversals(t, s, v)
	}
	poison := s.Read(t, views[0].ID)
	if poison.State != "timed_out" || poison.Reversal.State != "owed" {
		t.Fatalf("the poison one is %+v", poison)
	}
	setRules(t, s)
	s.AwaitState(t, poison.ID, "reversed")
	s.CheckBooks(t)
}

func TestS06_ReversalThatCannotBeBuiltCallsAPersonAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: silence(func(p *reversal.Policy) {
		p.InFlight, p.ReversalDelay, p.MaxGap = 1, configs.Duration(300*time.Millisecond), configs.Duration(20*time.Millisecond)
	})})
	broken := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	_, err := s.DB.Pool.Exec(context.Background(), `UPDATE card_authorization SET pan_sealed = 'x' WHERE id = $1`, broken.ID)
	if err != nil {
		t.Fatal(err)
	}
	v := s.MustAuthorize(t, "key-2", gatewaytest.Purchase("10.91", nil))
	s.AwaitState(t, v.ID, "reversed")
	s.Eventually(t, "exception", func() bool { return openExceptions(t, s, broken.Reversal.ID, "reversal_unbuildable") == 1 })
	now := s.Read(t, broken.ID)
	if now.State != "timed_out" || now.Reversal.State != "owed" || now.Reversal.Attempts > 1 || !now.Reversal.NeedsAttention {
		t.Fatalf("the broken one is %+v with reversal %+v", now, now.Reversal)
	}
	if sent := received(s, broken.STAN, iso8583.MTIReversalAdvice); len(sent) != 0 || held(t, s, broken.ID) != 1091 {
		t.Fatalf("%d messages of the broken one, %d minor units held", len(sent), held(t, s, broken.ID))
	}
}

func TestS08_SilentHostIsCountedRepeatedAndReported(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals}, Then: lost}),
		Link: silence(func(p *reversal.Policy) {
			p.AnswerWithin, p.MaxGap, p.AttentionAttempts = configs.Duration(30*time.Millisecond), configs.Duration(20*time.Millisecond), 3
		}),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	s.Eventually(t, "attempts beyond the threshold", func() bool { return len(received(s, v.STAN, iso8583.MTIReversalAdviceRepeat)) >= 5 })
	sent := checkReversals(t, s, v)
	now := s.Read(t, v.ID)
	if now.Reversal.State != "owed" || !now.Reversal.NeedsAttention || now.Reversal.Attempts < len(sent)-1 {
		t.Fatalf("%d messages arrived, reversal is %+v", len(sent), now.Reversal)
	}
	if n := openExceptions(t, s, v.Reversal.ID, "reversal_unacknowledged"); n != 1 {
		t.Fatalf("%d exceptions, want 1 for all attempts", n)
	}
	if n := s.Count(t, `SELECT count(*) FROM event WHERE kind = 'reversal.needs_attention' AND subject_id = $1`, v.Reversal.ID); n != 1 {
		t.Fatalf("%d events, want 1", n)
	}
	attempts := s.Count(t, `SELECT count(*) FROM message WHERE authorization_id = $1 AND direction = 'out' AND attempt IS NOT NULL`, v.ID)
	if last := s.Count(t, `SELECT max(attempt) FROM message WHERE authorization_id = $1`, v.ID); attempts < len(sent) || last > attempts {
		t.Fatalf("%d messages arrived, %d stand in the journal up to attempt %d", len(sent), attempts, last)
	}
	setRules(t, s)
	done := s.AwaitState(t, v.ID, "reversed")
	if done.Reversal.NeedsAttention || openExceptions(t, s, v.Reversal.ID, "reversal_unacknowledged") != 0 {
		t.Fatalf("attention outlived the acknowledgement: %+v", done.Reversal)
	}
	s.CheckBooks(t)
}

func TestS19_ExhaustedAttemptsLeaveTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals}, Then: lost}),
		Link: silence(func(p *reversal.Policy) {
			p.AnswerWithin, p.AttentionAttempts = configs.Duration(30*time.Millisecond), 1
		}),
	})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	s.Eventually(t, "exception", func() bool { return openExceptions(t, s, v.Reversal.ID, "reversal_unacknowledged") == 1 })
	now := s.Read(t, v.ID)
	if now.State != "timed_out" || now.Outcome != "unknown" || !now.Reversal.NeedsAttention || held(t, s, v.ID) != 1091 {
		t.Fatalf("now %+v, %d minor units held", now, held(t, s, v.ID))
	}
	list, err := s.Gateway.Exceptions(context.Background(), gatewaytest.Tenant, uuid.Nil, 10)
	if err != nil || len(list) != 1 || list[0].SubjectID != v.Reversal.ID || list[0].OpenedAt.IsZero() {
		t.Fatalf("exceptions %+v, %v", list, err)
	}
}

func TestS16_ReversalDelayIsObeyed(t *testing.T) {
	t.Parallel()
	const delay = 700 * time.Millisecond
	s := gatewaytest.New(t, gatewaytest.Options{Link: silence(func(p *reversal.Policy) { p.ReversalDelay = configs.Duration(delay) })})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	s.AwaitState(t, v.ID, "reversed")
	var abandonedAt time.Time
	err := s.DB.Pool.QueryRow(context.Background(), `SELECT created_at FROM duty WHERE id = $1`, v.Reversal.ID).Scan(&abandonedAt)
	if err != nil {
		t.Fatal(err)
	}
	sent := checkReversals(t, s, v)
	if len(sent) != 1 || sent[0].At.Sub(abandonedAt) < delay {
		t.Fatalf("%d reversals, the first %s after the timeout, want %s", len(sent), sent[0].At.Sub(abandonedAt), delay)
	}
	if v.Reversal.NextAt == nil || v.Reversal.NextAt.Sub(abandonedAt) != delay {
		t.Fatalf("the caller was told %v for a timeout at %s", v.Reversal.NextAt, abandonedAt)
	}
}

func TestS16_ReferenceUniqueForIsValidated(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Down: true})
	for value, wrong := range map[time.Duration]bool{-time.Second: true, 180 * 24 * time.Hour: false, 11 * 365 * 24 * time.Hour: true} {
		link := s.Config.Links[gatewaytest.LinkName]
		link.ReferenceUniqueFor = configs.Duration(value)
		var faults configs.Faults
		link.Validate("links.x", &faults)
		if got := len(faults) == 1 && faults[0].Path == "links.x.reference_unique_for"; got != wrong || len(faults) > 1 {
			t.Errorf("%s gives %v", value, faults)
		}
	}
}

func TestS22_NoReversalWithoutAnOriginalAndOnePerAuthorization(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.91", nil))
	insert := func(original uuid.UUID) string {
		_, err := s.DB.Pool.Exec(context.Background(), `INSERT INTO duty
			(id, authorization_id, kind, tenant, link, state, state_version, reason, next_at, created_at, updated_at)
			VALUES (@id, @original, 'reversal', 'bank-a', 'visa-a', 'owed', 1, 'timeout', now(), now(), now())`,
			pgx.NamedArgs{"id": uuid.New(), "original": original})
		var violation *pgconn.PgError
		if !errors.As(err, &violation) {
			t.Fatalf("insert gave %v", err)
		}
		return violation.ConstraintName
	}
	if name := insert(uuid.New()); name != "duty_has_original" {
		t.Errorf("without an original: %s", name)
	}
	if name := insert(v.ID); name != "duty_once" {
		t.Errorf("a second one: %s", name)
	}
}

// TestAnswersThatCannotBeUsedAreReversed: whatever came back that is no answer, the authorisation is undone and its message kept.
func TestAnswersThatCannotBeUsedAreReversed(t *testing.T) {
	t.Parallel()
	set := func(amount string, e iso8583.Element, value string) sim.Rule {
		return sim.Rule{When: sim.Match{MTI: authorizations, Amount: amount}, Then: sim.Action{Set: map[iso8583.Element]string{e: value}}}
	}
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(
		set("30.01", iso8583.AmountTransaction, "000000003000"), set("30.02", iso8583.AmountTransaction, "000000009999"),
		set("30.03", iso8583.AmountTransaction, "000000000000"), set("30.04", iso8583.CurrencyTransaction, "840"),
		sim.Rule{When: sim.Match{MTI: authorizations, Amount: "30.05"}, Then: sim.Action{Drop: []iso8583.Element{iso8583.ResponseCode}}},
	)})
	for name, c := range map[string]struct{ amount, reason, kind string }{
		"unlisted code":             {"10.69", "response_code_unlisted", "response"},
		"no code":                   {"30.05", "response_code_unlisted", "response"},
		"lower amount, no partial":  {"30.01", "response_contradicts_request", "mismatch"},
		"higher amount":             {"30.02", "response_contradicts_request", "mismatch"},
		"approval of nothing":       {"30.03", "response_contradicts_request", "mismatch"},
		"another currency":          {"30.04", "response_contradicts_request", "mismatch"},
		"another RRN":               {"10.86", "timeout", "mismatch"},
		"cut off inside its frame":  {"10.87", "timeout", "malformed"},
		"without its key's element": {"10.85", "timeout", "unmatched"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := s.MustAuthorize(t, uuid.NewString(), gatewaytest.Purchase(c.amount, nil))
			if v.State != "timed_out" || v.Outcome != "unknown" || v.Reason != c.reason || v.Reversal == nil || v.Reversal.Reason != c.reason {
				t.Fatalf("answer %+v", v)
			}
			s.AwaitState(t, v.ID, "reversed")
			checkReversals(t, s, v)
			s.Eventually(t, "message kept", func() bool {
				return s.Count(t, `SELECT count(*) FROM message WHERE direction = 'in' AND kind = $1 AND (authorization_id = $2 OR $1 = 'malformed')`, c.kind, v.ID) >= 1
			})
			if h := held(t, s, v.ID); h != 0 {
				t.Fatalf("%d minor units still held", h)
			}
		})
	}
}

// TestReversalCodes: what DE 39 of the 0430 does to the duty.
func TestReversalCodes(t *testing.T) {
	t.Parallel()
	rule := func(amount, code string, first int) sim.Rule {
		return sim.Rule{When: sim.Match{MTI: reversals, Amount: amount, First: first, Per: sim.PerOriginal}, Then: refused(code)}
	}
	cases := map[string]struct {
		amount, code string
		first        int // attempts that get the code
		suspended    bool
	}{
		"21 nothing to undo":      {"40.21", "21", 0, false},
		"25 original not found":   {"40.25", "25", 0, false},
		"76 original not found":   {"40.76", "76", 0, false},
		"94 reversed before":      {"40.94", "94", 0, false},
		"91 is tried again later": {"40.91", "91", 2, false},
		"96 is tried again later": {"40.96", "96", 2, false},
		"30 format error":         {"40.30", "30", 0, true},
		"Z9 unlisted":             {"40.99", "Z9", 0, true},
	}
	rules := []sim.Rule{{When: sim.Match{MTI: authorizations}, Then: silent}}
	for _, c := range cases {
		rules = append(rules, rule(c.amount, c.code, c.first))
	}
	s := gatewaytest.New(t, gatewaytest.Options{Scheme: scheme(rules...)})
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := s.MustAuthorize(t, uuid.NewString(), gatewaytest.Purchase(c.amount, nil))
			if !c.suspended {
				done := s.AwaitState(t, v.ID, "reversed")
				want := c.code
				if c.first > 0 {
					want = "00"
				}
				if done.Reversal.State != "acknowledged" || done.Reversal.ResponseCode != want || done.Reversal.Attempts != c.first+1 || held(t, s, v.ID) != 0 {
					t.Fatalf("closed as %+v, %d held", done.Reversal, held(t, s, v.ID))
				}
				if sent := checkReversals(t, s, v); len(sent) != c.first+1 {
					t.Fatalf("%d reversals, want %d", len(sent), c.first+1)
				}
				return
			}
			s.Eventually(t, "suspended", func() bool { return s.Read(t, v.ID).Reversal.State == "suspended" })
			now := s.Read(t, v.ID)
			if now.State != "timed_out" || now.Reversal.ResponseCode != c.code || !now.Reversal.NeedsAttention || held(t, s, v.ID) == 0 {
				t.Fatalf("suspended as %+v, %d held", now.Reversal, held(t, s, v.ID))
			}
			if n := openExceptions(t, s, v.Reversal.ID, "reversal_refused"); n != 1 {
				t.Fatalf("%d exceptions", n)
			}
			if n := s.Count(t, `SELECT count(*) FROM state_history WHERE subject_id = $1 AND from_state = 'owed' AND to_state = 'suspended' AND response_code = $2`, v.Reversal.ID, c.code); n != 1 {
				t.Fatalf("%d rows of history", n)
			}
			if sent := checkReversals(t, s, v); len(sent) != 1 {
				t.Fatalf("%d reversals sent, want no repeat", len(sent))
			}
		})
	}
}

func TestUnrequestedPartialApprovalIsReversedWithTheApprovedAmount(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.10", nil))
	if v.State != "timed_out" || v.Outcome == "succeeded" || v.Reason != "unrequested_partial_approval" || v.Reversal == nil {
		t.Fatalf("answer %+v", v)
	}
	s.AwaitState(t, v.ID, "reversed")
	if sent := checkReversals(t, s, v); len(sent) != 1 || sent[0].AmountMinor != 505 {
		t.Fatalf("reversals %+v", sent)
	}
	if h := held(t, s, v.ID); h != 0 {
		t.Fatalf("%d minor units still held", h)
	}
	s.CheckBooks(t)
}

func TestRequestedPartialApprovalReleasesTheDifference(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", gatewaytest.Purchase("10.10", map[string]any{"partial_approval": true}))
	if v.State != "approved" || v.Outcome != "succeeded" || v.ApprovedAmount != "5.05" || v.Amount != "10.10" || v.ResponseCode != "10" || v.Reversal != nil {
		t.Fatalf("answer %+v", v)
	}
	if h := held(t, s, v.ID); h != 505 {
		t.Fatalf("%d minor units held, want the approved 505", h)
	}
	if n := s.Sent(iso8583.MTIReversalAdvice); n != 0 {
		t.Fatalf("%d reversals", n)
	}
	s.CheckBooks(t)
}

// TestBooksBalanceAfterEverything sends every magic amount at once and then looks at both sides' books.
func TestBooksBalanceAfterEverything(t *testing.T) {
	t.Parallel()
	const patience = 1500 * time.Millisecond // so that a busy machine makes no silence of its own
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: func(c *sim.CardConfig) { c.LateAfter = configs.Duration(2 * patience) },
		Link: func(c *gateway.LinkConfig) {
			c.AnswerWithin, c.SendWithin = configs.Duration(patience), configs.Duration(patience)
		},
	})
	amounts := []string{"10.10", "10.80", "10.81", "10.84", "10.85", "10.86", "10.87", "10.89", "10.90", "10.91", "10.92", "10.93",
		"10.94", "10.95", "10.05", "10.51", "10.66", "10.69", "10.98"}
	for i := range 20 {
		amounts = append(amounts, fmt.Sprintf("50.%02d", i))
	}
	views := authorizeAll(t, s, amounts...)
	s.Eventually(t, "quiet", func() bool {
		return s.Count(t, `SELECT count(*) FROM card_authorization WHERE state IN ('pending', 'timed_out')`) == 0
	})
	for _, v := range views {
		now := s.Read(t, v.ID)
		if (v.Reversal == nil) != (now.State != "reversed") {
			t.Errorf("%s for %s: answered %s, now %s", v.ID, v.Amount, v.State, now.State)
		}
		checkReversals(t, s, v)
	}
	s.CheckBooks(t)
}
