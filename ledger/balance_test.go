package ledger

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// What each event posts, and what it does to the balances of both sides (posted, held, available).
func TestBalancesOfEachEvent(t *testing.T) {
	t.Parallel()
	type postings func(b *book, intent uuid.UUID) []Posting
	hold := func(b *book, intent uuid.UUID) Posting { return b.posting(intent, Hold, 1, Pending, 1000) }
	release := func(b *book, intent uuid.UUID, n int16, minor int64) Posting {
		return back(b.posting(intent, Release, n, Pending, minor))
	}
	tests := []struct {
		event                string
		postings             postings
		customer, settlement string
	}{
		{"recorded", func(b *book, i uuid.UUID) []Posting { return []Posting{hold(b, i)} },
			"0.00 10.00 -10.00", "0.00 10.00 -10.00"},
		{"partial approval", func(b *book, i uuid.UUID) []Posting { return []Posting{hold(b, i), release(b, i, 1, 400)} },
			"0.00 6.00 -6.00", "0.00 6.00 -6.00"},
		{"declined", func(b *book, i uuid.UUID) []Posting { return []Posting{hold(b, i), release(b, i, 1, 1000)} },
			"0.00 0.00 0.00", "0.00 0.00 0.00"},
		{"two captures, the last final", func(b *book, i uuid.UUID) []Posting {
			return []Posting{hold(b, i), release(b, i, 1, 300), b.posting(i, Debit, 1, Posted, 300),
				release(b, i, 2, 500), b.posting(i, Debit, 2, Posted, 500), release(b, i, 3, 200)}
		}, "-8.00 0.00 -8.00", "-8.00 0.00 -8.00"},
		{"0200 approved", func(b *book, i uuid.UUID) []Posting {
			return []Posting{hold(b, i), release(b, i, 1, 1000), b.posting(i, Debit, 1, Posted, 1000)}
		}, "-10.00 0.00 -10.00", "-10.00 0.00 -10.00"},
		{"refund", func(b *book, i uuid.UUID) []Posting { return []Posting{back(b.posting(i, Return, 1, Posted, 1000))} },
			"10.00 0.00 10.00", "10.00 0.00 10.00"},
		{"incoming money that is pending is not available",
			func(b *book, i uuid.UUID) []Posting { return []Posting{back(hold(b, i))} }, "0.00 -10.00 0.00", "0.00 -10.00 0.00"},
	}
	for _, tt := range tests {
		t.Run(tt.event, func(t *testing.T) {
			t.Parallel()
			b := newBook(t)
			b.post(noon, tt.postings(b, uuid.New())...)
			b.checkBalance(b.customer, time.Time{}, tt.customer)
			b.checkBalance(b.settlement, time.Time{}, tt.settlement)
			b.checkBalance(b.suspense, time.Time{}, "0.00 0.00 0.00")
			b.sealAll()
			b.checkBalance(b.customer, time.Time{}, tt.customer)
			b.checkBalance(b.settlement, time.Time{}, tt.settlement)
		})
	}
}

func TestAdviceWithoutHoldStandsInSuspense(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	p := b.posting(uuid.New(), Debit, 1, Posted, 1000)
	p.DebitAccount = b.suspense.ID
	b.post(noon, p)
	b.checkBalance(b.suspense, time.Time{}, "10.00 0.00 10.00")
	b.checkBalance(b.settlement, time.Time{}, "-10.00 0.00 -10.00")
	b.checkBalance(b.customer, time.Time{}, "0.00 0.00 0.00")
}

func TestBalancesAtDates(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	day := func(d, hour int) time.Time { return time.Date(2026, 3, d, hour, 0, 0, 0, time.UTC) }
	book := func(at time.Time, minor int64) { b.post(at, b.posting(uuid.New(), Debit, 1, Posted, minor)) }
	check := func(when string) {
		t.Helper()
		t.Log(when)
		for _, tt := range []struct {
			at   time.Time
			want string
		}{
			{day(9, 23), "0.00 0.00 0.00"},
			{day(10, 8).Add(-time.Microsecond), "0.00 0.00 0.00"},
			{day(10, 8), "-0.01 0.00 -0.01"},
			{day(10, 12), "-0.01 0.00 -0.01"},
			{day(11, 0).Add(-time.Microsecond), "-0.11 0.00 -0.11"},
			{day(11, 0), "-1.11 0.00 -1.11"},
			{day(12, 12), "-1.11 0.00 -1.11"},
			{day(13, 5).In(time.FixedZone("UTC+14", 14*3600)), "-11.11 0.00 -11.11"},
			{day(30, 0), "-11.11 0.00 -11.11"},
			{time.Time{}, "-11.11 0.00 -11.11"},
		} {
			b.checkBalance(b.customer, tt.at, tt.want)
		}
	}
	book(day(10, 8), 1)
	book(day(11, 0), 100)
	b.sealAll()
	// The rest is booked on days that are sealed already, and is not sealed at first.
	book(day(10, 20), 10)
	book(day(13, 5), 1000)
	check("with an unsealed tail")
	b.sealAll()
	check("all sealed")
}

// While money moves and seals are written, every moment's projection must be what its postings sum up to.
func TestProjectionHoldsUnderConcurrentPostingAndSealing(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	const posters, rounds, batch = 3, 25, 8
	done := make(chan struct{})
	var posting, watching sync.WaitGroup
	for poster := range posters {
		random := rand.New(rand.NewPCG(uint64(poster), 42))
		posting.Go(func() {
			for range rounds {
				postings := make([]Posting, batch)
				for i := range postings {
					postings[i] = b.posting(uuid.New(), Debit, 1, Layer(1+random.IntN(2)), 1+random.Int64N(10000))
					if postings[i].Layer == Posted && random.IntN(2) == 0 {
						postings[i] = back(postings[i])
					}
				}
				at := noon.Add(time.Duration(random.IntN(96)) * time.Hour)
				err := pgx.BeginFunc(b.ctx, b.pool, func(tx pgx.Tx) error {
					_, err := Post(b.ctx, tx, postings, at)
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	watching.Go(func() {
		for {
			if _, err := b.sealer.SealOnce(b.ctx, time.Now()); err != nil {
				t.Error(err)
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	compared := 0
	watching.Go(func() {
		for {
			for _, at := range []time.Time{{}, noon.Add(30 * time.Hour), noon.Add(61 * time.Hour)} {
				compareInOneSnapshot(b, b.customer, at)
				compared++
			}
			if differences, err := Compare(b.ctx, b.pool); err != nil || len(differences) > 0 {
				t.Errorf("daily totals differ: %v (%v)", differences, err)
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	posting.Wait()
	close(done)
	watching.Wait()
	b.sealAll()
	report := b.verify()
	if !report.OK() || report.Postings != posters*rounds*batch {
		t.Errorf("%d postings verified, want %d; faults %v", report.Postings, posters*rounds*batch, report.Faults())
	}
	if report.Seals < 2 || compared < 6 {
		t.Errorf("%d seals and %d comparisons while posting: nothing ran side by side", report.Seals, compared)
	}
}

func compareInOneSnapshot(b *book, account Account, at time.Time) {
	var projected, recomputed []layerTotals
	err := readSnapshot(b.ctx, b.pool, func(tx pgx.Tx) error {
		head, err := selectHead(b.ctx, tx)
		if err != nil {
			return err
		}
		if projected, err = selectProjectedTotals(b.ctx, tx, account.ID, at, head); err != nil {
			return err
		}
		recomputed, err = selectRecomputedTotals(b.ctx, tx, account.ID, at)
		return err
	})
	if err != nil {
		b.t.Error(err)
	}
	if p, r := balanceOf(account, projected), balanceOf(account, recomputed); p != r {
		b.t.Errorf("at %s projected %v, recomputed %v", at, p, r)
	}
}
