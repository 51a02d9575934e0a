package commit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/ledger/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	waitLimit    = 20 * time.Second
	pollInterval = 2 * time.Millisecond
)

const schema = `
CREATE TABLE commit_fence (id uuid PRIMARY KEY, fenced_at timestamptz NOT NULL);
CREATE TABLE claim (ref text PRIMARY KEY, owner uuid NOT NULL, amount bigint NOT NULL,
	CONSTRAINT claim_amount_positive CHECK (amount > 0));
-- No unique key: an effect applied twice must show.
CREATE TABLE entry (ref text NOT NULL, owner uuid NOT NULL);
CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL);
INSERT INTO counter SELECT g, 0 FROM generate_series(1, 9) g;`

// record claims a reference and books one entry if it won. winner is its result.
type record struct {
	ref    string
	owner  uuid.UUID
	amount int64
	winner uuid.UUID
}

func newRecord(ref string) *record { return &record{ref: ref, owner: uuid.New(), amount: 1} }

func (r *record) Kind() *Kind { return recordKind }
func (r *record) won() bool   { return r.winner == r.owner }

var recordKind = &Kind{
	Name:  "record",
	Order: 1,
	Less: func(a, b Step) bool {
		x, y := a.(*record), b.(*record)
		return cmp.Or(cmp.Compare(x.ref, y.ref), bytes.Compare(x.owner[:], y.owner[:])) < 0
	},
	Queue: queueRecords,
}

func queueRecords(b *pgx.Batch, steps []Step) {
	refs := make([]string, len(steps))
	owners := make(pgtype.FlatArray[pgtype.UUID], len(steps))
	amounts := make([]int64, len(steps))
	for i, s := range steps {
		r := s.(*record)
		r.winner = uuid.Nil
		refs[i], owners[i], amounts[i] = r.ref, pgtype.UUID{Bytes: r.owner, Valid: true}, r.amount
	}
	b.Queue(`WITH u AS (SELECT * FROM unnest($1::text[], $2::uuid[], $3::bigint[]) AS u (ref, owner, amount)),
		won AS (INSERT INTO claim (ref, owner, amount) SELECT ref, owner, amount FROM u ON CONFLICT DO NOTHING
			RETURNING ref, owner)
		INSERT INTO entry (ref, owner) SELECT ref, owner FROM won`, refs, owners, amounts)
	b.Queue(`SELECT ref, owner FROM claim WHERE ref = ANY($1::text[])`, refs).Query(func(rows pgx.Rows) error {
		winners := make(map[string]uuid.UUID, len(steps))
		var ref string
		var owner pgtype.UUID
		_, err := pgx.ForEachRow(rows, []any{&ref, &owner}, func() error {
			winners[ref] = owner.Bytes
			return nil
		})
		for _, s := range steps {
			s.(*record).winner = winners[s.(*record).ref]
		}
		return err
	})
}

// script is a step of a kind made for one test: it runs sql for each step, in the order they came in.
type script struct {
	kind *Kind
	args []any
	row  []any // where the first row of the last statement goes
}

func (s *script) Kind() *Kind { return s.kind }

func scriptKind(order int, sql ...string) *Kind {
	return &Kind{Name: "script", Order: order, Queue: func(b *pgx.Batch, steps []Step) {
		for _, step := range steps {
			s := step.(*script)
			for i, one := range sql {
				q := b.Queue(one, s.args...)
				if i == len(sql)-1 && s.row != nil {
					q.QueryRow(func(row pgx.Row) error { return row.Scan(s.row...) })
				}
			}
		}
	}}
}

// rig is a committer on a fresh database.
type rig struct {
	t    testing.TB
	pool *pgxpool.Pool
	url  string
	c    *Committer
	stop context.CancelFunc // ends Run's context
	ran  chan error         // Run's result, once
}

func testConfig() Config {
	cfg := DefaultConfig()
	cfg.Connections = 1
	return cfg
}

func connConfig(t testing.TB, url string) *pgx.ConnConfig {
	t.Helper()
	db, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func newDatabase(t testing.TB) *pgtest.DB {
	t.Helper()
	db := pgtest.NewEmptyDB(t)
	if _, err := db.Pool.Exec(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	return db
}

// newRig prepares a committer on a database of its own; run starts it.
func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	db := newDatabase(t)
	r := &rig{t: t, pool: db.Pool, url: db.URL}
	r.connect(cfg, connConfig(t, db.URL), zap.NewNop())
	return r
}

// newProxiedRig has p between the committer and its database.
func newProxiedRig(t testing.TB, cfg Config, plan func(nth int) fate) (*rig, *proxy) {
	t.Helper()
	db := newDatabase(t)
	config := connConfig(t, db.URL)
	p := newProxy(t, config, plan)
	r := &rig{t: t, pool: db.Pool, url: db.URL}
	r.connect(cfg, p.through(config), zap.NewNop())
	return r, p
}

func (r *rig) connect(cfg Config, db *pgx.ConnConfig, log *zap.Logger) {
	r.t.Helper()
	c, err := New(cfg, db, log, NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		r.t.Fatal(err)
	}
	r.c = c
}

func (r *rig) run() *rig {
	ctx, stop := context.WithCancel(context.Background())
	r.stop, r.ran = stop, make(chan error, 1)
	go func() { r.ran <- r.c.Run(ctx) }()
	r.t.Cleanup(r.drain)
	return r
}

// drain ends Run and waits for it. It may be called twice.
func (r *rig) drain() {
	r.stop()
	if err := <-r.ran; err != nil {
		r.t.Errorf("Run: %v", err)
	}
	r.ran <- nil
}

// submit queues steps in this order and returns where their outcomes will come. With the committer not yet running, or
// its only connection busy, they end up in one batch.
func (r *rig) submit(steps ...Step) []chan error {
	r.t.Helper()
	outcomes := make([]chan error, len(steps))
	before := len(r.c.queue)
	for i, s := range steps {
		outcomes[i] = make(chan error, 1)
		go func() { outcomes[i] <- r.c.Do(context.Background(), s) }()
		eventually(r.t, "step queued", func() bool { return len(r.c.queue) == before+i+1 })
	}
	return outcomes
}

func wait(t testing.TB, outcome chan error) error {
	t.Helper()
	select {
	case err := <-outcome:
		return err
	case <-time.After(waitLimit):
		t.Fatal("no outcome")
		return nil
	}
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(waitLimit); !holds(); time.Sleep(pollInterval) {
		if time.Now().After(end) {
			t.Fatalf("did not happen: %s", what)
		}
	}
}

func (r *rig) count(sql string, args ...any) int {
	r.t.Helper()
	var n int
	if err := r.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(context.Background(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

// entries is how often the reference took effect.
func (r *rig) entries(ref string) int {
	r.t.Helper()
	return r.count(`SELECT count(*) FROM entry WHERE ref = $1`, ref)
}

// blocker holds the lock that the steps of its kind wait for.
type blocker struct {
	conn *pgxpool.Conn
	t    testing.TB
	once sync.Once
}

const waiting = `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// gateKind's steps wait while a blocker is up.
var gateKind = scriptKind(0, `SELECT 1 FROM (SELECT pg_advisory_xact_lock_shared(7)) AS gate`)

func (r *rig) block() *blocker {
	r.t.Helper()
	conn, err := r.pool.Acquire(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := conn.Exec(context.Background(), `SELECT pg_advisory_lock(7)`); err != nil {
		r.t.Fatal(err)
	}
	b := &blocker{conn: conn, t: r.t}
	r.t.Cleanup(b.lift) // so that a test that failed ends all the same
	return b
}

func (b *blocker) lift() {
	b.once.Do(func() {
		if _, err := b.conn.Exec(context.Background(), `SELECT pg_advisory_unlock(7)`); err != nil {
			b.t.Errorf("lift blocker: %v", err)
		}
		b.conn.Release()
	})
}

// busy occupies the committer's only connection until the returned function is called.
func (r *rig) busy() (release func()) {
	r.t.Helper()
	b := r.block()
	outcome := make(chan error, 1)
	go func() { outcome <- r.c.Do(context.Background(), &script{kind: gateKind}) }()
	eventually(r.t, "gate reached", func() bool { return r.count(waiting) == 1 })
	return func() {
		b.lift()
		if err := wait(r.t, outcome); err != nil {
			r.t.Errorf("gate step: %v", err)
		}
	}
}

func metric(c prometheus.Collector) int { return int(testutil.ToFloat64(c)) }

func (r *rig) wantMetric(name string, c prometheus.Collector, want int) {
	r.t.Helper()
	if got := metric(c); got != want {
		r.t.Errorf("metric %s = %d, want %d", name, got, want)
	}
}

func (r *rig) wantCommitted(steps []*record, outcomes []chan error) {
	r.t.Helper()
	for i, s := range steps {
		if err := wait(r.t, outcomes[i]); err != nil {
			r.t.Errorf("step %s: %v", s.ref, err)
			continue
		}
		if !s.won() || r.entries(s.ref) != 1 {
			r.t.Errorf("step %s: won %v, entries %d, want true and 1", s.ref, s.won(), r.entries(s.ref))
		}
	}
}

func records(n int) ([]*record, []Step) {
	all, steps := make([]*record, n), make([]Step, n)
	for i := range all {
		all[i] = newRecord(fmt.Sprintf("ref-%05d", i))
		steps[i] = all[i]
	}
	return all, steps
}

func isNotCommitted(err error) bool {
	_, ok := errors.AsType[*NotCommittedError](err)
	return ok
}

// closedAddress is an address of this machine where nobody listens.
func closedAddress(t testing.TB) (host string, port uint16) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().(*net.TCPAddr)
	l.Close()
	return addr.IP.String(), uint16(addr.Port)
}
