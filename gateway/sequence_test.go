package gateway

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/ledger/pgtest"
)

// sequenceAt is a moment in the middle of an hour: day 335 of a year that ends in 6.
var sequenceAt = time.Date(2026, time.December, 1, 13, 30, 0, 0, time.UTC)

func newReferences(db *pgtest.DB) *references { return &references{link: "visa-a", db: db.Pool} }

// startSequence makes the next number of the link n.
func startSequence(t *testing.T, db *pgtest.DB, n int64) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), `INSERT INTO link_sequence (link, next_value, period, period_first) VALUES ('visa-a', $1, $2, $1)
		ON CONFLICT (link) DO UPDATE SET next_value = excluded.next_value, period_first = excluded.period_first, period = excluded.period`,
		n, sequenceAt.Truncate(time.Hour)); err != nil {
		t.Fatal(err)
	}
}

func mustNext(t testing.TB, r *references, now time.Time) (stan, rrn string) {
	t.Helper()
	stan, rrn, err := r.Next(context.Background(), now)
	if err != nil {
		t.Fatal(err)
	}
	return stan, rrn
}

// occupy puts authorisations with these STANs on the books, the last of them created at a moment and in a state.
func occupy(t *testing.T, b *bench, state State, at time.Time, stans ...string) {
	t.Helper()
	for i, stan := range stans {
		a := *b.original
		a.ID, a.STAN, a.RRN, a.ClientReference = newID(), stan, fmt.Sprintf("%s%06d", stan, i), "ref-"+stan+at.String()
		a.CreatedAt, a.UpdatedAt, a.DeadlineAt = at, at, at.Add(10*time.Second)
		b.run(t, queueRecords, &recordStep{authorization: &a, endpoint: endpointAuthorizations, idempotencyKey: a.ID.String(), digest: []byte{1},
			request: journalRow{id: newID(), at: at, kind: messageRequest, mti: "0100", image: "0100", digest: []byte{1}}})
		var step *decideStep
		var err error
		switch state {
		case Pending:
			continue
		case TimedOut:
			step, err = b.link.abandon(&a, "timeout", at, nil)
		default:
			step, err = decision(&a, EventDeclined, at)
			step.seal()
		}
		if err != nil {
			t.Fatal(err)
		}
		if b.run(t, queueDecisions, step); !step.won {
			t.Fatal("not decided")
		}
	}
}

func TestS38_STANsGoFrom1To999999AndRoundAgain(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{1: "000001", 2: "000002", 999_998: "999998", 999_999: "999999", 1_000_000: "000001", 1_000_001: "000002",
		2 * 999_999: "999999", 2*999_999 + 1: "000001", 1<<62 - 1: stanOf(1<<62 - 1)} {
		if got := stanOf(n); got != want || got == "000000" || len(got) != 6 {
			t.Errorf("STAN of %d is %s, want %s", n, got, want)
		}
	}
	for n := int64(1); n <= 2*stanModulus; n++ {
		if want := pad((n-1)%stanModulus+1, 6); stanOf(n) != want {
			t.Fatalf("STAN of %d is %s, want %s", n, stanOf(n), want)
		}
	}
}

func TestS38_WrapsAcrossLeases(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	startSequence(t, db, stanModulus-1499) // the second lease holds the turn
	r := newReferences(db)
	for i := range int64(2500) {
		stan, _ := mustNext(t, r, sequenceAt)
		if want := stanOf(stanModulus - 1499 + i); stan != want {
			t.Fatalf("STAN %s, want %s", stan, want)
		}
	}
}

func TestS38_SurvivesRestart(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	seen := map[string]bool{}
	for range 4 { // each life takes a few numbers and ends without a word
		r := newReferences(db)
		for range 10 {
			stan, rrn := mustNext(t, r, sequenceAt)
			if seen[stan] || seen[rrn] {
				t.Fatalf("STAN %s or RRN %s came again after a restart", stan, rrn)
			}
			seen[stan], seen[rrn] = true, true
		}
	}
}

func TestS38_TwoAllocatorsShareNoNumber(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	const callers, each = 8, 700
	allocators := []*references{newReferences(db), newReferences(db)}
	taken := make([][]string, callers)
	var calling sync.WaitGroup
	for i := range callers {
		calling.Go(func() {
			for range each {
				stan, rrn, err := allocators[i%2].Next(context.Background(), sequenceAt)
				if err != nil {
					t.Error(err)
					return
				}
				taken[i] = append(taken[i], stan, rrn)
			}
		})
	}
	calling.Wait()
	seen := map[string]bool{}
	for _, numbers := range taken {
		for _, number := range numbers {
			if seen[number] {
				t.Fatalf("%s was given twice", number)
			}
			seen[number] = true
		}
	}
	if len(seen) != 2*callers*each {
		t.Fatalf("%d numbers", len(seen))
	}
}

func TestS38_AFailedLeaseGivesNoNumbers(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	r := newReferences(db)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := r.Next(gone, sequenceAt); err == nil {
		t.Fatal("a number without a lease")
	}
	if r.next != r.end {
		t.Fatal("a lease that was not committed is used")
	}
	if stan, _ := mustNext(t, r, sequenceAt); stan != "000001" {
		t.Fatalf("STAN %s, want 000001", stan)
	}
}

func TestS38_SkipsWhatIsInFlightOrHasAnOpenReversalAtTheTurn(t *testing.T) {
	t.Parallel()
	b := newBench(t) // STAN 000001 is in flight since now
	now := b.original.CreatedAt
	occupy(t, b, Pending, now, "999999", "000003")
	occupy(t, b, TimedOut, now.Add(-240*time.Hour), "999998", "000005")
	occupy(t, b, Declined, now, "999997", "000006") // over, so free
	occupy(t, b, Pending, now, "500000")            // outside the lease
	startSequence(t, b.db, stanModulus-4)
	if _, err := b.db.Pool.Exec(t.Context(), `UPDATE link_sequence SET period = $1`, now.Truncate(time.Hour)); err != nil {
		t.Fatal(err)
	}
	r := newReferences(b.db)
	for _, want := range []string{"999995", "999996", "999997", "000002", "000004", "000006", "000007"} {
		if stan, _ := mustNext(t, r, now); stan != want {
			t.Fatalf("STAN %s, want %s", stan, want)
		}
	}
}

func TestS40_UniquenessWindowOfTheProfile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	now := b.original.CreatedAt
	occupy(t, b, Declined, now.Add(-time.Hour), "000002")
	occupy(t, b, Declined, now.Add(-25*time.Hour), "000003")
	startSequence(t, b.db, 2+stanModulus)
	if _, err := b.db.Pool.Exec(t.Context(), `UPDATE link_sequence SET period = $1`, now.Truncate(time.Hour)); err != nil {
		t.Fatal(err)
	}
	r := newReferences(b.db)
	r.uniqueWithin = 24 * time.Hour
	if stan, _ := mustNext(t, r, now); stan != "000003" {
		t.Fatalf("STAN %s, want the first that is a day old", stan)
	}
	startSequence(t, b.db, 2+stanModulus)
	other := newReferences(b.db) // without a window only what is open counts
	if stan, _ := mustNext(t, other, now); stan != "000002" {
		t.Fatalf("STAN %s, want 000002", stan)
	}
}

func TestRRNLayout(t *testing.T) {
	t.Parallel()
	berlin := time.FixedZone("+01", 3600)
	for _, test := range []struct {
		n    int64
		at   time.Time
		want string
	}{
		{42, sequenceAt, "633513000042"}, {1, time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), "000100000001"}, {999_999, sequenceAt, "633513999999"},
		{1_000_000, sequenceAt, "633513000000"}, {1_234_567, sequenceAt, "633513234567"}, {7, time.Date(2028, 12, 31, 23, 59, 59, 0, time.UTC), "836623000007"},
		{7, time.Date(2027, 1, 1, 0, 30, 0, 0, berlin), "636523000007"}, // UTC, whatever the zone of the clock
	} {
		if got := rrnOf(test.n, test.at); got != test.want || len(got) != 12 {
			t.Errorf("RRN of %d at %s is %s, want %s", test.n, test.at, got, test.want)
		}
	}
}

func TestHourWithoutFreeRRNsIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	startSequence(t, db, 5_000_001)
	if _, err := db.Pool.Exec(t.Context(), `UPDATE link_sequence SET next_value = period_first + $1`, rrnModulus-rrnHeadroom-leaseSize); err != nil {
		t.Fatal(err)
	}
	r := newReferences(db)
	for range leaseSize {
		mustNext(t, r, sequenceAt)
	}
	if _, _, err := r.Next(t.Context(), sequenceAt); !errors.Is(err, errReferencesExhausted) {
		t.Fatalf("got %v, want the hour exhausted", err)
	}
	if problem := AsError(beforeRecord(errReferencesExhausted)); problem.Code != CodeReferenceExhausted || problem.Status() != 503 || problem.Sent() != SentNo || problem.RetryAfterSeconds == 0 {
		t.Fatalf("a client hears %+v", problem)
	}
	if _, rrn := mustNext(t, r, sequenceAt.Add(time.Hour)); rrn[:6] != "633514" {
		t.Fatalf("RRN %s, want one of the next hour", rrn)
	}
}

// A lease kept over the hour could hold numbers that have come round in another daemon's hands.
func TestLeaseEndsWithItsHour(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDB(t)
	idle, busy := newReferences(db), newReferences(db)
	if stan, _ := mustNext(t, idle, sequenceAt); stan != "000001" {
		t.Fatalf("STAN %s", stan)
	}
	if _, err := db.Pool.Exec(t.Context(), `UPDATE link_sequence SET next_value = 1000001, period_first = 1000001, period = $1`, sequenceAt.Add(time.Hour).Truncate(time.Hour)); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range 2 * leaseSize { // the other daemon has gone round; its tails are the idle one's
		_, rrn := mustNext(t, busy, sequenceAt.Add(time.Hour))
		seen[rrn] = true
	}
	for range leaseSize {
		stan, rrn := mustNext(t, idle, sequenceAt.Add(time.Hour))
		if seen[rrn] {
			t.Fatalf("RRN %s was given by two daemons", rrn)
		}
		if n, err := strconv.Atoi(stan); err != nil || n < leaseSize {
			t.Fatalf("STAN %s is of the old lease", stan)
		}
	}
	if _, rrn := mustNext(t, idle, sequenceAt.Add(59*time.Minute)); rrn[:6] != "633514" {
		t.Fatalf("RRN %s", rrn)
	}
}

// One range after another in use is an end, not a search without one.
func TestSearchForAFreeSTANIsBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	now := b.original.CreatedAt
	owner, err := pgx.Connect(t.Context(), b.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close(context.Background())
	if _, err := owner.Exec(t.Context(), `INSERT INTO card_authorization (id, tenant, client_reference, link, type, state, state_version, mti, stan, rrn, transmission_date_time,
			amount_minor, currency, pan_masked, pan_sealed, pan_key_id, pan_hash, elements, customer_account, settlement_account, owner_epoch, created_at, deadline_at, updated_at)
		SELECT gen_random_uuid(), tenant, 'r' || n, link, type, state, state_version, mti, lpad(n::text, 6, '0'), lpad(n::text, 12, '0'), transmission_date_time,
			amount_minor, currency, pan_masked, pan_sealed, pan_key_id, pan_hash, elements, customer_account, settlement_account, owner_epoch, created_at, $1, updated_at
		FROM card_authorization, generate_series(2, $2::int) n`, now.Add(time.Minute), (maxLeases+1)*leaseSize); err != nil {
		t.Fatal(err)
	}
	if _, _, err := newReferences(b.db).Next(t.Context(), now); !errors.Is(err, errReferencesExhausted) {
		t.Fatalf("got %v, want no free STAN", err)
	}
}

// TestS38_STANsOfDutiesAreNotUsedTwice: a duty's own STAN is taken while the duty is open, and within the window after it moved last.
func TestS38_STANsOfDutiesAreNotUsedTwice(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.run(t, queueDecisions, b.giveUp(t))
	own := func(stan, state, closedAs string, movedAt time.Time) {
		t.Helper()
		if _, err := b.db.Pool.Exec(t.Context(), `UPDATE duty SET stan = $1, state = $2, closed_as = nullif($3, ''), updated_at = $4`, stan, state, closedAs, movedAt); err != nil {
			t.Fatal(err)
		}
	}
	next := func(window time.Duration) string {
		t.Helper()
		startSequence(t, b.db, 100)
		r := newReferences(b.db)
		r.uniqueWithin = window
		stan, _ := mustNext(t, r, sequenceAt)
		return stan
	}
	for _, c := range []struct {
		state, closedAs string
		moved           time.Time
		window          time.Duration
		want            string
	}{
		{"owed", "", sequenceAt.Add(-48 * time.Hour), 0, "000101"},
		{"suspended", "", sequenceAt.Add(-48 * time.Hour), 0, "000101"},
		{"acknowledged", "acknowledged", sequenceAt.Add(-30 * time.Minute), time.Hour, "000101"},
		{"acknowledged", "acknowledged", sequenceAt.Add(-2 * time.Hour), time.Hour, "000100"},
		{"acknowledged", "acknowledged", sequenceAt.Add(-30 * time.Minute), 0, "000100"},
	} {
		own("000100", c.state, c.closedAs, c.moved)
		if got := next(c.window); got != c.want {
			t.Errorf("%s since %s within %s: got %s, want %s", c.state, sequenceAt.Sub(c.moved), c.window, got, c.want)
		}
	}
}
