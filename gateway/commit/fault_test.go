package commit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/schemegate/schemegate/ledger/localpg"
)

func TestPoisonInEveryPositionFailsAlone(t *testing.T) {
	t.Parallel()
	const size = 7
	unencodable := scriptKind(1, `SELECT $1::int`)
	unencodable.Name = "record" // sorts among the records of equal order
	for position := range size {
		t.Run(fmt.Sprint("refused by the database at ", position), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, testConfig())
			all, steps := records(size)
			all[position].amount = -1
			outcomes := r.submit(steps...)
			r.run()
			err := wait(t, outcomes[position])
			cause, ok := errors.AsType[*StatementError](err)
			if !isNotCommitted(err) || !ok || cause.SQLState != "23514" || cause.Constraint != "claim_amount_positive" {
				t.Errorf("poison step: %v, want NotCommittedError by the constraint", err)
			}
			if n := r.entries(all[position].ref); n != 0 {
				t.Errorf("poison step has %d entries", n)
			}
			r.wantCommitted(append(all[:position:position], all[position+1:]...),
				append(outcomes[:position:position], outcomes[position+1:]...))
			if n := metric(r.c.metrics.Halvings); n == 0 || n > 4 {
				t.Errorf("%d halvings, want 1 to 4", n)
			}
			r.wantMetric("refused", r.c.metrics.Steps.WithLabelValues(nameRefused), 1)
		})
		t.Run(fmt.Sprint("cannot be encoded at ", position), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, testConfig())
			all, steps := records(size)
			steps[position] = &script{kind: unencodable, args: []any{struct{}{}}}
			outcomes := r.submit(steps...)
			r.run()
			if err := wait(t, outcomes[position]); !isNotCommitted(err) {
				t.Errorf("poison step: %v, want NotCommittedError", err)
			}
			r.wantCommitted(append(all[:position:position], all[position+1:]...),
				append(outcomes[:position:position], outcomes[position+1:]...))
		})
	}
}

func TestStatementThatCannotBePreparedFailsAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	all, steps := records(4)
	outcomes := r.submit(append(steps, &script{kind: scriptKind(5, `SELECT no_such_column`)})...)
	r.run()
	err := wait(t, outcomes[4])
	cause, ok := errors.AsType[*StatementError](err)
	if !isNotCommitted(err) || !ok || cause.SQLState != "42703" || !strings.Contains(err.Error(), "no_such_column") {
		t.Errorf("broken statement: %v", err)
	}
	r.wantCommitted(all, outcomes[:4])
	r.wantMetric("unknown", r.c.metrics.Unknown, 0)
}

func wantNoDigits(t testing.TB, text string) {
	t.Helper()
	if strings.Contains(text, "4111") {
		t.Errorf("a step's value shows: %s", text)
	}
}

func TestErrorsAndLogsCarryNoValues(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.DebugLevel)
	r := newRig(t, testConfig())
	r.connect(testConfig(), connConfig(t, r.url), zap.New(core))
	var number int
	type card struct{ PAN string }
	steps := []Step{
		&script{kind: scriptKind(1, `SELECT ($1::text)::int`), args: []any{"4111111111111111x"}},
		&script{kind: scriptKind(1, `SELECT $1::int`), args: []any{card{"4111111111111111"}}},
		&script{kind: scriptKind(1, `SELECT $1::int`), args: []any{"4111111111111111"}},
		&script{kind: scriptKind(1, `SELECT $1::text`), args: []any{"4111111111111111"}, row: []any{&number}},
		&script{kind: scriptKind(1, `INSERT INTO claim VALUES ($1, gen_random_uuid(), -1)`), args: []any{"4111111111111111"}},
	}
	outcomes := r.submit(steps...)
	r.run()
	for i, o := range outcomes {
		err := wait(t, o)
		if err == nil {
			t.Errorf("step %d: no error", i)
			continue
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			wantNoDigits(t, fmt.Sprintf("%v %+v %#v", e, e, e))
		}
	}
	r.drain()
	if logs.Len() == 0 {
		t.Error("nothing was logged")
	}
	for _, entry := range logs.All() {
		wantNoDigits(t, fmt.Sprint(entry.Message, entry.ContextMap()))
	}
}

// Two committers get the same rows in opposite orders. Each first batch is held until it has its first lock.
func TestOppositeOrders(t *testing.T) {
	t.Parallel()
	sql := []string{`UPDATE counter SET n = n + 1 WHERE id = $1`,
		`SELECT $1::int FROM (SELECT pg_advisory_xact_lock_shared(7)) AS gate`}
	t.Run("without Less deadlock and are retried", func(t *testing.T) {
		t.Parallel()
		kind := scriptKind(0, sql...)
		if n := meetInOppositeOrders(t, kind, 2); n == 0 {
			t.Error("no conflict was retried: the deadlock did not happen")
		}
	})
	t.Run("with Less wait for each other", func(t *testing.T) {
		t.Parallel()
		kind := scriptKind(0, sql...)
		kind.Less = func(a, b Step) bool { return a.(*script).args[0].(int) < b.(*script).args[0].(int) }
		if n := meetInOppositeOrders(t, kind, 1); n != 0 {
			t.Errorf("%d retries in sorted batches", n)
		}
	})
}

// meetInOppositeOrders returns the number of retries. atGate is how many batches get as far as the gate.
func meetInOppositeOrders(t *testing.T, kind *Kind, atGate int) (retries int) {
	r := newRig(t, testConfig())
	other := &rig{t: t, pool: r.pool, url: r.url}
	other.connect(testConfig(), connConfig(t, r.url), zap.NewNop())
	bump := func(id int) Step { return &script{kind: kind, args: []any{id}} }
	outcomes := append(r.submit(bump(1), bump(2)), other.submit(bump(2), bump(1))...)
	b := r.block()
	r.run()
	other.run()
	eventually(t, "both batches wait", func() bool {
		return r.count(waiting) == atGate && r.count(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 2
	})
	b.lift()
	for _, o := range outcomes {
		if err := wait(t, o); err != nil {
			t.Errorf("step: %v", err)
		}
	}
	if n := r.count(`SELECT count(*) FROM counter WHERE id <= 2 AND n = 2`); n != 2 {
		t.Errorf("%d counters are right, want 2", n)
	}
	for _, one := range []*rig{r, other} {
		one.wantMetric("halvings", one.c.metrics.Halvings, 0)
		retries += metric(one.c.metrics.Retries.WithLabelValues(nameConflict))
	}
	return retries
}

func TestConflictWithoutEndIsNotCommitted(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig()).run()
	r.exec(`CREATE FUNCTION conflict() RETURNS int LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = 'serialization_failure'; END $$`)
	err := r.c.Do(t.Context(), &script{kind: scriptKind(0, `SELECT conflict()`)})
	if !isNotCommitted(err) || !errors.Is(err, ErrConflict) {
		t.Errorf("outcome %v, want NotCommittedError by ErrConflict", err)
	}
	r.wantMetric("retries", r.c.metrics.Retries.WithLabelValues(nameConflict), maxConflicts)
}

func TestDatabaseAwayIsNotCommitted(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.UnavailableTimeout = 30 * time.Millisecond
	r := newRig(t, cfg)
	db := connConfig(t, r.url)
	db.Host, db.Port = closedAddress(t)
	r.connect(cfg, db, zap.NewNop())
	r.run()
	if err := r.c.Do(t.Context(), newRecord("away")); !isNotCommitted(err) || !errors.Is(err, ErrUnavailable) {
		t.Errorf("outcome %v, want NotCommittedError by ErrUnavailable", err)
	}
	if metric(r.c.metrics.Retries.WithLabelValues(nameAway)) == 0 {
		t.Error("an unreachable database was not tried again")
	}
}

func TestDrainDoesNotWaitForADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.UnavailableTimeout = time.Hour
	r := newRig(t, cfg)
	db := connConfig(t, r.url)
	db.Host, db.Port = closedAddress(t)
	r.connect(cfg, db, zap.NewNop())
	_, steps := records(5)
	outcomes := r.submit(steps...)
	r.run()
	r.drain()
	for _, o := range outcomes {
		if err := wait(t, o); !isNotCommitted(err) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("outcome %v, want NotCommittedError by ErrUnavailable", err)
		}
	}
}

func TestReadOnlyServerIsAway(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.UnavailableTimeout = 30 * time.Millisecond
	r := newRig(t, cfg)
	db := connConfig(t, r.url)
	db.RuntimeParams["default_transaction_read_only"] = "on"
	r.connect(cfg, db, zap.NewNop())
	_, steps := records(3)
	outcomes := r.submit(steps...)
	r.run()
	for _, o := range outcomes {
		if err := wait(t, o); !isNotCommitted(err) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("outcome %v, want NotCommittedError by ErrUnavailable", err)
		}
	}
	r.wantMetric("halvings", r.c.metrics.Halvings, 0)
}

func TestTargetSessionAttributesAreKept(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.UnavailableTimeout = 10 * time.Millisecond
	r := newRig(t, cfg)
	db := connConfig(t, r.url+"&target_session_attrs=read-write")
	db.RuntimeParams["default_transaction_read_only"] = "on"
	if _, err := dial(t.Context(), db, cfg); err == nil || !strings.Contains(err.Error(), "read only") {
		t.Errorf("connecting to a read-only server: %v", err)
	}
}

func TestFurtherHostsAreTried(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	db := connConfig(t, r.url)
	db.Fallbacks = []*pgconn.FallbackConfig{{Host: db.Host, Port: db.Port}}
	db.Host, db.Port = closedAddress(t)
	r.connect(testConfig(), db, zap.NewNop())
	r.run()
	if err := r.c.Do(t.Context(), newRecord("second host")); err != nil {
		t.Error(err)
	}
}

func TestChangedResultTypeOfAPreparedStatement(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig()).run()
	r.exec(`CREATE TABLE shape (a int)`)
	kind := scriptKind(0, `SELECT * FROM shape`)
	for _, change := range []string{``, `ALTER TABLE shape ALTER a TYPE text`} {
		r.exec(change)
		if err := r.c.Do(t.Context(), &script{kind: kind}); err != nil {
			t.Errorf("after %q: %v", change, err)
		}
	}
}

// traffic hands steps over from several goroutines until stop is called, which returns what each step came to.
func (r *rig) traffic(callers int) (done *atomic.Int64, stop func() map[string]error) {
	done = new(atomic.Int64)
	ctx, end := context.WithCancel(context.Background())
	var mu sync.Mutex
	outcomes := make(map[string]error)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				s := newRecord(fmt.Sprintf("%d-%d", i, n))
				err := r.c.Do(context.Background(), s)
				if err == nil && !s.won() {
					err = errors.New("committed, but another owner won")
				}
				mu.Lock()
				outcomes[s.ref] = err
				mu.Unlock()
				done.Add(1)
			}
		})
	}
	return done, func() map[string]error {
		end()
		all.Wait()
		return outcomes
	}
}

// wantTruth compares what callers were told with what the database holds.
func wantTruth(t *testing.T, pool *pgxpool.Pool, outcomes map[string]error) (committedSteps int) {
	t.Helper()
	rows, err := pool.Query(context.Background(), `SELECT ref, count(*) FROM entry GROUP BY ref`)
	if err != nil {
		t.Fatal(err)
	}
	entries := make(map[string]int)
	var ref string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&ref, &n}, func() error { entries[ref] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	for ref, err := range outcomes {
		switch {
		case err == nil && entries[ref] == 1:
			committedSteps++
		case isNotCommitted(err) && entries[ref] == 0:
		default:
			t.Errorf("%s: told %v, has %d entries", ref, err, entries[ref])
		}
	}
	return committedSteps
}

func TestTerminatedBackendsLoseNothing(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Connections = 2
	r := newRig(t, cfg)
	r.exec(`ALTER TABLE claim SET (autovacuum_enabled = off)`)
	db := connConfig(t, r.url)
	db.RuntimeParams["application_name"] = "committer"
	r.connect(cfg, db, zap.NewNop())
	r.run()
	done, stop := r.traffic(24)
	for range 15 {
		seen := done.Load()
		eventually(t, "progress", func() bool { return done.Load() > seen+30 })
		r.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE application_name = 'committer' AND datname = current_database()`)
	}
	if n := wantTruth(t, r.pool, stop()); n < 15*30 {
		t.Errorf("only %d steps were committed", n)
	}
	if metric(r.c.metrics.Unknown)+metric(r.c.metrics.Retries.WithLabelValues(nameAway)) == 0 {
		t.Error("no connection was lost in mid-traffic")
	}
	r.wantMetric("halvings", r.c.metrics.Halvings, 0)
}

// ownServer is a server that the test may stop and configure.
func ownServer(t *testing.T) (config localpg.Config, start func() *localpg.Server) {
	t.Helper()
	dir, err := os.MkdirTemp("", "schemegate-commit-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // the server's user passes through
		t.Fatal(err)
	}
	config = localpg.Config{DataDir: dir, MaxConnections: 40, DieWithParent: true}
	return config, func() *localpg.Server {
		t.Helper()
		server, err := localpg.Start(context.Background(), config, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		return server
	}
}

func stopServer(t *testing.T, s *localpg.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Errorf("stop server: %v", err)
	}
}

func newPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func TestServerRestartInMidTraffic(t *testing.T) {
	t.Parallel()
	_, start := ownServer(t)
	server := start()
	pool := newPool(t, server.URL())
	defer pool.Close()
	cfg := testConfig()
	cfg.Connections = 2
	cfg.UnavailableTimeout = waitLimit
	r := &rig{t: t, pool: pool, url: server.URL()}
	r.exec(schema)
	r.connect(cfg, connConfig(t, server.URL()), zap.NewNop())
	r.run()
	done, stop := r.traffic(16)
	for range 2 {
		seen := done.Load()
		eventually(t, "progress", func() bool { return done.Load() > seen+50 })
		stopServer(t, server)
		server = start()
	}
	seen := done.Load()
	eventually(t, "progress after the restarts", func() bool { return done.Load() > seen+50 })
	outcomes := stop()
	pool.Reset()
	if n := wantTruth(t, pool, outcomes); n != len(outcomes) {
		t.Errorf("%d of %d steps were committed, want all: the server came back in time", n, len(outcomes))
	}
	r.drain()
	pool.Close()
	stopServer(t, server)
}

// The real thing behind the warning: the synchronous standby is missing, COMMIT hangs, somebody cancels the backend.
func TestCommittedLocallyIsUnknownUntilTheStandbyIsBack(t *testing.T) {
	t.Parallel()
	_, start := ownServer(t)
	server := start()
	defer func() { stopServer(t, server) }()
	// The test's own sessions do not wait for the standby.
	pool := newPool(t, server.URL()+"&synchronous_commit=local")
	defer pool.Close()
	r := &rig{t: t, pool: pool, url: server.URL()}
	r.exec(schema)
	r.connect(testConfig(), connConfig(t, server.URL()), zap.NewNop())
	r.run()
	r.exec(`ALTER SYSTEM SET synchronous_standby_names = 'missing'`)
	r.exec(`SELECT pg_reload_conf()`)
	const hanging = `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`

	// The server takes a moment to notice: the first COMMIT that hangs is the one that counts.
	var s *record
	outcome := make(chan error, 1)
	eventually(t, "COMMIT hangs", func() bool {
		s = newRecord(uuid.NewString())
		go func() { outcome <- r.c.Do(context.Background(), s) }()
		for {
			select {
			case err := <-outcome:
				if err != nil {
					t.Fatalf("before the standby was missed: %v", err)
				}
				return false
			case <-time.After(pollInterval):
				if r.count(hanging) == 1 {
					return true
				}
			}
		}
	})
	r.exec(`SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
	eventually(t, "warning taken for unknown", func() bool { return metric(r.c.metrics.Unknown) == 1 })
	eventually(t, "re-run hangs on its fence", func() bool { return r.count(hanging) == 1 })
	select {
	case err := <-outcome:
		t.Fatalf("outcome %v while no standby has the commit", err)
	default:
	}
	r.exec(`ALTER SYSTEM RESET synchronous_standby_names`)
	r.exec(`SELECT pg_reload_conf()`)
	r.wantCommitted([]*record{s}, []chan error{outcome})
	r.wantMetric("resolved", r.c.metrics.Resolved, 1)
	if n := r.count(`SELECT count(*) FROM commit_fence`); n != 1 {
		t.Errorf("%d fences, want 1", n)
	}
	r.drain()
}
