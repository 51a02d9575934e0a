package ledger

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/schemegate/schemegate/ledger/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// waitLimit is how long a condition may take on a loaded machine.
const waitLimit = 30 * time.Second

// noon is when tests book, unless they care.
var noon = time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)

// book is a fresh ledger with one tenant's accounts in EUR.
type book struct {
	t                              *testing.T
	ctx                            context.Context
	url                            string
	pool                           *pgxpool.Pool // as schemegate_writer
	customer, settlement, suspense Account
	sealer                         *Sealer
}

func newBook(t *testing.T) *book {
	t.Helper()
	db := pgtest.NewDB(t)
	b := &book{t: t, ctx: t.Context(), url: db.URL, pool: db.Pool}
	accounts := NewAccounts(db.Pool)
	open := func(kind AccountKind) Account {
		id, err := accounts.ID(b.ctx, "acme", "visa", kind, currency(t, "EUR"))
		if err != nil {
			t.Fatal(err)
		}
		return Account{ID: id, Tenant: "acme", Link: "visa", Kind: kind, Currency: currency(t, "EUR")}
	}
	b.customer, b.settlement, b.suspense = open(Customer), open(Settlement), open(Suspense)
	b.sealer = &Sealer{Pool: db.Pool, Log: zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel)), Metrics: NewMetrics(prometheus.NewRegistry())}
	return b
}

// posting moves minor from the customer to the settlement account.
func (b *book) posting(intent uuid.UUID, step Step, number int16, layer Layer, minor int64) Posting {
	return Posting{
		Intent: intent, Step: step, Number: number, Layer: layer, DebitAccount: b.customer.ID, CreditAccount: b.settlement.ID,
		Money: Money{Minor: minor, Currency: b.customer.Currency}, ValueDate: noon, SourceRef: "authorization " + intent.String(),
		Tenant: "acme", ClientReference: "ref-" + intent.String(),
	}
}

// back is the posting with its sides exchanged.
func back(p Posting) Posting {
	p.DebitAccount, p.CreditAccount = p.CreditAccount, p.DebitAccount
	return p
}

func (b *book) post(at time.Time, postings ...Posting) {
	b.t.Helper()
	if hits := b.postHits(at, postings...); hits != 0 {
		b.t.Fatalf("%d of %d postings hit a unique index", hits, len(postings))
	}
}

func (b *book) postHits(at time.Time, postings ...Posting) (hits int) {
	b.t.Helper()
	b.inTx(func(tx pgx.Tx) (err error) {
		hits, err = Post(b.ctx, tx, postings, at)
		return err
	})
	return hits
}

func (b *book) inTx(fn func(tx pgx.Tx) error) {
	b.t.Helper()
	if err := pgx.BeginFunc(b.ctx, b.pool, fn); err != nil {
		b.t.Fatal(err)
	}
}

// owner connects as the database's owner, who has every privilege.
func (b *book) owner() *pgx.Conn {
	b.t.Helper()
	conn, err := pgx.Connect(b.ctx, b.url)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := conn.Close(context.Background()); err != nil {
			b.t.Errorf("close owner's connection: %v", err)
		}
	})
	return conn
}

// forger is an owner for whom the triggers are off.
func (b *book) forger() *pgx.Conn {
	b.t.Helper()
	conn := b.owner()
	mustExec(b.t, conn, `SET session_replication_role = replica`)
	return conn
}

func mustExec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", strings.TrimSpace(sql), err)
	}
}

// sealAll seals until no posting is left. Transactions of other tests in the same cluster hold the horizon for a while.
func (b *book) sealAll() {
	b.t.Helper()
	b.eventually("all postings are sealed", func() bool {
		if _, err := b.sealer.SealOnce(b.ctx, time.Now()); err != nil {
			b.t.Fatal(err)
		}
		return b.unsealed() == 0
	})
}

func (b *book) unsealed() (count int) {
	b.t.Helper()
	const query = `SELECT count(*) FROM ledger_posting WHERE (tx, id) > (SELECT through_tx, through_id FROM ledger_seal ORDER BY seq DESC LIMIT 1)`
	if err := b.pool.QueryRow(b.ctx, query).Scan(&count); err != nil {
		b.t.Fatal(err)
	}
	return count
}

func (b *book) eventually(what string, condition func() bool) {
	b.t.Helper()
	deadline := time.After(waitLimit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			b.t.Fatalf("not within %s: %s", waitLimit, what)
		case <-tick.C:
		}
	}
}

func (b *book) verify() Report {
	b.t.Helper()
	report, err := Verify(b.ctx, b.pool, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return report
}

// checkBalance compares with "posted held available", projected and recomputed.
func (b *book) checkBalance(account Account, at time.Time, want string) {
	b.t.Helper()
	for name, read := range map[string]func(context.Context, *pgxpool.Pool, Account, time.Time) (Balance, error){
		"projected": BalanceAt, "recomputed": RecomputedBalanceAt,
	} {
		balance, err := read(b.ctx, b.pool, account, at)
		if err != nil {
			b.t.Fatal(err)
		}
		if got := fmt.Sprintf("%s %s %s", balance.Posted.Text(), balance.Held.Text(), balance.Available.Text()); got != want {
			b.t.Errorf("%s balance of %s at %s is %q, want %q", name, account.Kind, at, got, want)
		}
	}
}
