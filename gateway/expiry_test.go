package gateway_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/configs"
	"github.com/schemegate/schemegate/gateway"
	"github.com/schemegate/schemegate/gateway/gatewaytest"
	"github.com/schemegate/schemegate/gateway/sim"
	"github.com/schemegate/schemegate/reversal"
)

// expire looks for expired holds as if what was recorded just now were past its time by that much.
func expire(t testing.TB, s *gatewaytest.Stand, past time.Duration) int {
	t.Helper()
	lives := s.Config.Links[gatewaytest.LinkName].HoldExpiresAfter.Std()
	n, err := s.Gateway.ExpireHolds(context.Background(), gatewaytest.LinkName, time.Now().UTC().Add(lives+past))
	if err != nil {
		t.Fatalf("expire holds: %v", err)
	}
	return n
}

func TestHoldsExpireInTheirTime(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	untouched := s.MustAuthorize(t, "key-1", twenty(nil))
	inPart := s.MustAuthorize(t, "key-2", twenty(nil))
	mustCapture(t, s, inPart.ID, "5.00", nil)
	reduced := s.MustAuthorize(t, "key-3", twenty(nil))
	mustReverse(t, s, reduced.ID, `"amount":"8.00"`)
	captured := s.MustAuthorize(t, "key-4", twenty(nil))
	mustCapture(t, s, captured.ID, "", nil)
	awaitDuties(t, s, reduced.ID)
	if n := expire(t, s, -time.Minute); n != 0 {
		t.Fatalf("%d expired before their time", n)
	}
	if n := expire(t, s, time.Minute); n != 3 {
		t.Fatalf("%d expired, want 3", n)
	}
	if n := expire(t, s, time.Minute); n != 0 {
		t.Fatalf("%d expired again", n)
	}
	for id, want := range map[uuid.UUID]string{untouched.ID: "expired", inPart.ID: "captured", reduced.ID: "expired", captured.ID: "captured"} {
		if m := readMoney(t, s, id); m.State != want || m.RemainingAmount != "" {
			t.Errorf("%s, want %s: %+v", m.State, want, m)
		}
	}
	wantPostings(t, s, untouched.ID, heldTwenty, "release 2 pending settlement>customer 2000")
	wantPostings(t, s, inPart.ID, heldTwenty, "release 3 pending settlement>customer 500", "debit 1 posted customer>settlement 500", "release 2 pending settlement>customer 1500")
	wantPostings(t, s, reduced.ID, heldTwenty, "release 3 pending settlement>customer 800", "release 2 pending settlement>customer 1200")
	if n := s.Count(t, `SELECT count(*) FROM event WHERE kind = 'authorization.expired'`); n != 3 {
		t.Fatalf("%d events", n)
	}
	if n := s.Count(t, `SELECT count(*) FROM state_history WHERE reason = 'hold_expired' AND from_state = 'approved' AND subject = 'authorization'`); n != 3 {
		t.Fatalf("%d rows of history", n)
	}
	_, err := capture(t.Context(), s, untouched.ID, "late", captureBody("", nil))
	mustRefuse(t, err, gateway.CodeAuthorizationExpired, 409)
	awaitDuties(t, s, inPart.ID)
	verifyLedger(t, s)
}

// TestHoldThatIsBeingReversedDoesNotExpire: one of the whole ends the hold itself; a partial one is waited for, but not past half of what
// the mark stays behind.
func TestHoldThatIsBeingReversedDoesNotExpire(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals}, Then: lost}),
		Link:   silence(func(p *reversal.Policy) { p.AnswerWithin = configs.Duration(50 * time.Millisecond) }),
	})
	whole := s.MustAuthorize(t, "key-1", twenty(nil))
	mustReverse(t, s, whole.ID, "")
	inPart := s.MustAuthorize(t, "key-2", twenty(nil))
	mustReverse(t, s, inPart.ID, `"amount":"8.00"`)
	allOfIt := s.MustAuthorize(t, "key-3", twenty(nil))
	mustReverse(t, s, allOfIt.ID, `"amount":"20.00"`)
	if n := expire(t, s, 29*time.Minute); n != 0 {
		t.Fatalf("%d expired while their reversals are owed", n)
	}
	if n := expire(t, s, 31*time.Minute); n != 1 {
		t.Fatalf("%d expired, want the one that a partial reversal held up", n)
	}
	wantPostings(t, s, inPart.ID, heldTwenty, "release 2 pending settlement>customer 1200")
	setRules(t, s)
	s.AwaitState(t, whole.ID, "reversed")
	s.AwaitState(t, allOfIt.ID, "reversed")
	awaitDuties(t, s, inPart.ID)
	if m := readMoney(t, s, inPart.ID); m.State != "expired" {
		t.Fatalf("authorization %+v", m)
	}
	wantPostings(t, s, inPart.ID, heldTwenty, "release 2 pending settlement>customer 1200", "release 3 pending settlement>customer 800")
	wantPostings(t, s, whole.ID, heldTwenty, "release 2 pending settlement>customer 2000")
	verifyLedger(t, s)
}

// TestExpiryMarkNeverPassesWhatMayStillExpire: the mark follows at a distance, goes no further than its reach allows, and a hold that was
// recorded by a clock far behind is still found.
func TestExpiryMarkNeverPassesWhatMayStillExpire(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	lives := s.Config.Links[gatewaytest.LinkName].HoldExpiresAfter.Std()
	mark := func() (at time.Time) {
		err := s.DB.Pool.QueryRow(t.Context(), `SELECT through_at FROM sweep_mark WHERE name = 'hold_expiry:visa-a'`).Scan(&at)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	start := time.Now()
	if n := expire(t, s, 0); n != 0 {
		t.Fatalf("%d of nothing expired", n)
	}
	first := mark()
	if behind := start.Sub(first); behind < time.Hour-time.Minute || behind > time.Hour+time.Minute {
		t.Fatalf("the mark is %s behind the youngest that can have expired", behind)
	}
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	if _, err := s.DB.Pool.Exec(t.Context(), `UPDATE card_authorization SET created_at = created_at - interval '50 minutes', deadline_at = deadline_at - interval '50 minutes' WHERE id = $1`, v.ID); err != nil {
		t.Fatal(err)
	}
	if n := expire(t, s, 0); n != 1 {
		t.Fatalf("%d expired, want the one under a clock that was behind", n)
	}
	if n := expire(t, s, 3*time.Hour); n != 0 || !mark().After(first) {
		t.Fatalf("%d expired, mark %s after %s", n, mark(), first)
	}
	// The clock was set back: what is recorded now lies before the mark.
	w := s.MustAuthorize(t, "key-2", twenty(nil))
	if n, err := s.Gateway.ExpireHolds(t.Context(), gatewaytest.LinkName, time.Now().Add(lives+time.Minute)); n != 1 || err != nil {
		t.Fatalf("%d expired after the clock was set back, %v", n, err)
	}
	if m := readMoney(t, s, w.ID); m.State != "expired" {
		t.Fatalf("authorization %+v", m)
	}
}

func TestHoldsWithoutAnEndNeverExpire(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{Link: func(l *gateway.LinkConfig) { l.HoldExpiresAfter = 0 }})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	if n := expire(t, s, 10*365*24*time.Hour); n != 0 || readMoney(t, s, v.ID).State != "approved" {
		t.Fatalf("%d expired", n)
	}
}

// TestManyHoldsExpireInOneLook: more than one transaction takes, the last of them not full.
func TestManyHoldsExpireInOneLook(t *testing.T) {
	t.Parallel()
	const copies = 1_003
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	if _, err := s.DB.Pool.Exec(t.Context(), `INSERT INTO card_authorization
		SELECT (jsonb_populate_record(a, jsonb_build_object('id', gen_random_uuid(), 'rrn', lpad(n::text, 12, '0'), 'client_reference', 'copy-' || n))).*
		FROM card_authorization a, generate_series(1, @copies::int) n WHERE a.id = @id`, pgx.NamedArgs{"id": v.ID, "copies": copies}); err != nil {
		t.Fatal(err)
	}
	if n := expire(t, s, time.Minute); n != copies+1 {
		t.Fatalf("%d expired, want %d", n, copies+1)
	}
	if n := s.Count(t, `SELECT count(*) FROM ledger_posting WHERE step = 2 AND number = 2`); n != copies+1 {
		t.Fatalf("%d releases", n)
	}
}

// TestHoldsExpireUnderTwoDaemonsOnce: both look at the same time, and each hold ends once.
func TestHoldsExpireUnderTwoDaemonsOnce(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	other := gatewaytest.New(t, gatewaytest.Options{Beside: s, Gateway: func(c *gateway.Config) { c.Instance = "other" }})
	views := authorizeAll(t, s, "20.00", "20.00", "20.00", "20.00", "20.00", "20.00", "20.00", "20.00")
	ended := make([]int, 6)
	for _, err := range together(len(ended), func(i int) (err error) {
		ended[i], err = []*gatewaytest.Stand{s, other}[i%2].Gateway.ExpireHolds(context.Background(), gatewaytest.LinkName, time.Now().Add(7*24*time.Hour+time.Minute))
		return err
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	sum := expire(t, s, time.Minute) // what one look left to another
	for _, n := range ended {
		sum += n
	}
	if sum != len(views) || s.Count(t, `SELECT count(*) FROM event WHERE kind = 'authorization.expired'`) != len(views) {
		t.Fatalf("%d ends of %d holds: %v", sum, len(views), ended)
	}
	for _, v := range views {
		wantPostings(t, s, v.ID, heldTwenty, "release 2 pending settlement>customer 2000")
	}
	verifyLedger(t, s)
}

// TestHoldThatMovedBetweenLookAndEndStays: what a capture or a reversal took after a look had found it does not expire.
func TestHoldThatMovedBetweenLookAndEndStays(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{
		Scheme: scheme(sim.Rule{When: sim.Match{MTI: reversals}, Then: lost}),
		Link:   silence(func(p *reversal.Policy) { p.AnswerWithin = configs.Duration(50 * time.Millisecond) }),
	})
	still := s.MustAuthorize(t, "key-1", twenty(nil))
	captured := s.MustAuthorize(t, "key-2", twenty(nil))
	mustCapture(t, s, captured.ID, "", nil)
	whole := s.MustAuthorize(t, "key-3", twenty(nil))
	mustReverse(t, s, whole.ID, "")
	inPart := s.MustAuthorize(t, "key-4", twenty(nil))
	mustReverse(t, s, inPart.ID, `"amount":"8.00"`)
	n, err := s.Gateway.EndHolds(t.Context(), []uuid.UUID{still.ID, captured.ID, whole.ID, inPart.ID}, time.Now())
	if n != 1 || err != nil {
		t.Fatalf("%d ended, %v", n, err)
	}
	for id, want := range map[uuid.UUID]string{still.ID: "expired", captured.ID: "captured", whole.ID: "approved", inPart.ID: "approved"} {
		if m := readMoney(t, s, id); m.State != want {
			t.Errorf("%s, want %s", m.State, want)
		}
	}
	setRules(t, s)
	awaitDuties(t, s, whole.ID)
	awaitDuties(t, s, inPart.ID)
	verifyLedger(t, s)
}

// TestHoldThatALookFoundLockedExpiresWithTheNext: the mark does not pass it.
func TestHoldThatALookFoundLockedExpiresWithTheNext(t *testing.T) {
	t.Parallel()
	s := gatewaytest.New(t, gatewaytest.Options{})
	v := s.MustAuthorize(t, "key-1", twenty(nil))
	tx, err := s.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM card_authorization WHERE id = $1 FOR NO KEY UPDATE`, v.ID); err != nil {
		t.Fatal(err)
	}
	if n := expire(t, s, 24*time.Hour); n != 0 {
		t.Fatalf("%d expired under another's lock", n)
	}
	if n := s.Count(t, `SELECT count(*) FROM sweep_mark WHERE name = 'hold_expiry:visa-a' AND through_at > now()`); n != 0 {
		t.Fatal("the mark has passed a hold that was left")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := expire(t, s, 24*time.Hour); n != 1 {
		t.Fatalf("%d expired afterwards", n)
	}
	verifyLedger(t, s)
}
