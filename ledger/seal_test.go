package ledger

import (
	"context"
	"encoding/hex"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap/zaptest"
)

// The encoding is for ever: a chain sealed today must verify with tomorrow's program.
func TestSealHashIsFixed(t *testing.T) {
	t.Parallel()
	e := Entry{ID: 42, Tx: 1234, BookedAt: noon, Posting: Posting{
		Intent: uuid.MustParse("0190b5a8-0000-7000-8000-000000000001"), Transaction: 3, Step: Debit, Number: 2, Layer: Posted,
		DebitAccount: 7, CreditAccount: 8, Money: Money{Minor: 1050, Currency: currency(t, "EUR")},
		ValueDate: time.Date(2026, 3, 16, 0, 0, 0, 0, time.UTC), SourceRef: "authorization", Tenant: "acme", ClientReference: "ref-1",
	}}
	const wantEntry = "00000000000004d2" + "000000000000002a" + "0190b5a8000070008000000000000001" +
		"0003" + "0003" + "0002" + "0002" + "00000007" + "00000008" + "000000000000041a" + "0000000069b74800" + "00064cfab99ef000" + "00" +
		"00000003" + "455552" + "0000000d" + "617574686f72697a6174696f6e" + "00000004" + "61636d65" + "00000005" + "7265662d31"
	if got := hex.EncodeToString(appendEntry(nil, e)); got != wantEntry {
		t.Errorf("entry is encoded as\n%s, want\n%s", got, wantEntry)
	}
	h := newSealHash(make([]byte, 32), 1, noon)
	h.add(e)
	const wantHash = "d3ec368a38baa5e00ad4114cf32fa9c7c942acb47a048283a313af29f99c2ec9"
	if got := hex.EncodeToString(h.finish()); got != wantHash {
		t.Errorf("seal hash is %s, want %s", got, wantHash)
	}
}

func TestNeighbouringTextsDoNotRunTogether(t *testing.T) {
	t.Parallel()
	a, b := Entry{}, Entry{}
	a.SourceRef, a.Tenant, a.ClientReference = "ab", "c", "d"
	b.SourceRef, b.Tenant, b.ClientReference = "a", "bc", "d"
	if string(appendEntry(nil, a)) == string(appendEntry(nil, b)) {
		t.Error("two entries have the same bytes")
	}
}

func TestSealCoversWhatWasPostedOnce(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	if n, err := b.sealer.SealOnce(b.ctx, noon); n != 0 || err != nil {
		t.Fatalf("an empty ledger seals %d (%v)", n, err)
	}
	for range 3 {
		b.post(noon, b.posting(uuid.New(), Hold, 1, Pending, 1), b.posting(uuid.New(), Debit, 1, Posted, 2))
		b.sealAll()
	}
	report := b.verify()
	if !report.OK() || report.Postings != 6 || report.Seals < 3 || report.Unsealed != 0 || report.Head != report.Seals {
		t.Errorf("verified %d postings under %d seals, head %d, unsealed %d, faults %v", report.Postings, report.Seals,
			report.Head, report.Unsealed, report.Faults())
	}
	if got := testutil.ToFloat64(b.sealer.Metrics.sealedPostings); got != 6 {
		t.Errorf("sealed postings metric is %v, want 6", got)
	}
	if n, err := b.sealer.SealOnce(b.ctx, noon); n != 0 || err != nil {
		t.Errorf("a sealed ledger seals %d more (%v)", n, err)
	}
}

func TestOneSealIsBounded(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	const total = maxPostingsPerSeal + 500
	for posted := 0; posted < total; {
		postings := make([]Posting, min(maxPostingsPerStatement, total-posted))
		for i := range postings {
			postings[i] = b.posting(uuid.New(), Debit, 1, Posted, 1)
		}
		b.post(noon, postings...)
		posted += len(postings)
	}
	first := 0
	b.eventually("something is sealed", func() (sealed bool) {
		n, err := b.sealer.SealOnce(b.ctx, noon)
		if err != nil {
			t.Fatal(err)
		}
		first = n
		return n > 0
	})
	if first > maxPostingsPerSeal {
		t.Errorf("one seal covers %d postings, want at most %d", first, maxPostingsPerSeal)
	}
	b.sealAll()
	if report := b.verify(); !report.OK() || report.Postings != total || report.Seals < 2 {
		t.Errorf("verified %d postings under %d seals, want %d under more than one; faults %v", report.Postings, report.Seals, total, report.Faults())
	}
	b.checkBalance(b.customer, time.Time{}, "-45.96 0.00 -45.96")
}

// A transaction that stays open holds the horizon: what committed after it began waits, and nothing is skipped.
func TestLongOpenTransactionHoldsTheHorizon(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.post(noon, b.posting(uuid.New(), Hold, 1, Pending, 1))
	b.sealAll()
	slow, err := b.pool.Begin(b.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Rollback(context.Background()) //nolint:errcheck // an error after the commit below means nothing
	if _, err := Post(b.ctx, slow, []Posting{b.posting(uuid.New(), Hold, 1, Pending, 10)}, noon); err != nil {
		t.Fatal(err)
	}
	b.post(noon, b.posting(uuid.New(), Hold, 1, Pending, 100))
	for range 3 {
		if n, err := b.sealer.SealOnce(b.ctx, noon.Add(time.Minute)); n != 0 || err != nil {
			t.Fatalf("sealed %d postings past an open transaction (%v)", n, err)
		}
	}
	if lag := testutil.ToFloat64(b.sealer.Metrics.sealLagSeconds); lag != 60 {
		t.Errorf("seal lag is %v s, want 60", lag)
	}
	// Balances do not wait for seals.
	b.checkBalance(b.customer, time.Time{}, "0.00 1.01 -1.01")
	if err := slow.Commit(b.ctx); err != nil {
		t.Fatal(err)
	}
	b.sealAll()
	if lag := testutil.ToFloat64(b.sealer.Metrics.sealLagSeconds); lag != 0 {
		t.Errorf("seal lag is %v s when all is sealed, want 0", lag)
	}
	if report := b.verify(); !report.OK() || report.Postings != 3 {
		t.Errorf("verified %d postings, want 3; faults %v", report.Postings, report.Faults())
	}
	b.checkBalance(b.customer, time.Time{}, "0.00 1.11 -1.11")
}

func TestAbortedPostingLeavesNoHole(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.post(noon, b.posting(uuid.New(), Hold, 1, Pending, 1))
	tx, err := b.pool.Begin(b.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Post(b.ctx, tx, []Posting{b.posting(uuid.New(), Hold, 1, Pending, 10)}, noon); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(b.ctx); err != nil {
		t.Fatal(err)
	}
	b.post(noon, b.posting(uuid.New(), Hold, 1, Pending, 100))
	b.sealAll()
	if report := b.verify(); !report.OK() || report.Postings != 2 {
		t.Errorf("verified %d postings, want 2; faults %v", report.Postings, report.Faults())
	}
}

// The other sealer holds the next number when ours tries it; ours waits, loses, and continues behind the other's seal.
func TestLoserOfTwoSealersContinuesBehindTheWinner(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.post(noon, b.posting(uuid.New(), Hold, 1, Pending, 1))
	var winner pgx.Tx
	var head, next seal
	b.eventually("the winner has something to seal", func() bool {
		var err error
		if winner, err = b.pool.Begin(b.ctx); err != nil {
			t.Fatal(err)
		}
		if head, err = selectHead(b.ctx, winner); err != nil {
			t.Fatal(err)
		}
		entries, err := selectSealable(b.ctx, winner, head)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			if err := winner.Rollback(b.ctx); err != nil {
				t.Fatal(err)
			}
			return false
		}
		next = nextSeal(head, entries, noon)
		return true
	})
	if err := insertSeal(b.ctx, winner, next); err != nil {
		t.Fatal(err)
	}
	type result struct {
		n   int
		err error
	}
	loser := make(chan result, 1)
	go func() {
		n, err := b.sealer.SealOnce(b.ctx, noon)
		loser <- result{n, err}
	}()
	b.eventually("the loser waits for the winner", func() (waiting bool) {
		const query = `
			SELECT EXISTS (SELECT FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
			WHERE NOT l.granted AND a.datname = current_database())`
		if err := b.pool.QueryRow(b.ctx, query).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		return waiting
	})
	if err := addDailyTotals(b.ctx, winner, head, next); err != nil {
		t.Fatal(err)
	}
	if err := winner.Commit(b.ctx); err != nil {
		t.Fatal(err)
	}
	if r := <-loser; r.n != 0 || r.err != nil {
		t.Errorf("the loser sealed %d (%v), want nothing left", r.n, r.err)
	}
	b.post(noon, b.posting(uuid.New(), Hold, 1, Pending, 10))
	b.sealAll()
	if report := b.verify(); !report.OK() || report.Postings != 2 {
		t.Errorf("verified %d postings, want 2; faults %v", report.Postings, report.Faults())
	}
}

func TestManySealersSealEachPostingOnce(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	const sealers, postings = 3, 40
	done := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	sealed := 0
	for range sealers {
		wg.Go(func() {
			sealer := &Sealer{Pool: b.pool, Log: b.sealer.Log, Metrics: NewMetrics(prometheus.NewRegistry())}
			for {
				n, err := sealer.SealOnce(b.ctx, noon)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				sealed += n
				mu.Unlock()
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for range postings {
		b.post(noon, b.posting(uuid.New(), Debit, 1, Posted, 1))
	}
	b.eventually("all is sealed", func() bool { return b.unsealed() == 0 })
	close(done)
	wg.Wait()
	if sealed != postings {
		t.Errorf("the sealers sealed %d postings, want %d", sealed, postings)
	}
	if report := b.verify(); !report.OK() || report.Postings != postings {
		t.Errorf("verified %d postings, want %d; faults %v", report.Postings, postings, report.Faults())
	}
}

func TestRunSealsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	sealer := &Sealer{Pool: b.pool, Interval: 10 * time.Millisecond, Log: zaptest.NewLogger(t), Metrics: NewMetrics(prometheus.NewRegistry())}
	ctx, cancel := context.WithCancel(b.ctx)
	ended := make(chan error, 1)
	go func() { ended <- sealer.Run(ctx) }()
	for range 3 {
		b.post(noon, b.posting(uuid.New(), Hold, 1, Pending, 1))
		b.eventually("the posting is sealed", func() bool { return b.unsealed() == 0 })
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run ends with %v", err)
	}
}

// A dump restored into a younger cluster: postings made now would sort before sealed ones, so sealing and reading refuse.
func TestChainAheadOfTheServerIsRefused(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.post(noon, b.posting(uuid.New(), Hold, 1, Pending, 1))
	b.sealAll()
	mustExec(t, b.forger(), `UPDATE ledger_seal SET through_tx = '9000000000000' WHERE seq = (SELECT max(seq) FROM ledger_seal)`)
	_, sealErr := b.sealer.SealOnce(b.ctx, noon)
	_, balanceErr := BalanceAt(b.ctx, b.pool, b.customer, time.Time{})
	_, verifyErr := Verify(b.ctx, b.pool, 0)
	for what, err := range map[string]error{"sealing": sealErr, "reading": balanceErr, "verifying": verifyErr} {
		if err == nil || !strings.Contains(err.Error(), ErrSealAhead.Error()) {
			t.Errorf("%s gives %v, want ErrSealAhead", what, err)
		}
	}
}
