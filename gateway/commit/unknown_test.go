package commit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// firstThen gives the first transaction a fate and lets all others pass.
func firstThen(first fate) func(int) fate {
	return func(nth int) fate {
		if nth == 1 {
			return first
		}
		return pass
	}
}

func TestUnknownCommitIsResolvedAndAppliedOnce(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]fate{
		"lost before COMMIT":         loseTransaction,
		"answer lost":                loseAnswer,
		"no answer":                  swallow,
		"warning with the answer":    warn,
		"pooler reports a lost line": fail,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig()
			if first == swallow {
				cfg.AnswerTimeout = 3 * time.Second // far above what an answer takes on a busy machine
			}
			r, p := newProxiedRig(t, cfg, firstThen(first))
			all, steps := records(5)
			outcomes := r.submit(steps...)
			r.run()
			r.wantCommitted(all, outcomes)
			r.wantResolved(p, 1)
		})
	}
}

// wantResolved checks the traces of batches whose unknown outcome was resolved at the first try.
func (r *rig) wantResolved(p *proxy, times int) {
	r.t.Helper()
	r.wantMetric("unknown", r.c.metrics.Unknown, times)
	r.wantMetric("resolved", r.c.metrics.Resolved, times)
	r.wantMetric("halvings", r.c.metrics.Halvings, 0)
	if n := r.count(`SELECT count(*) FROM commit_fence`); n != times {
		r.t.Errorf("%d fences, want %d", n, times)
	}
	r.drain()
	if n := p.connections.Load(); n != int64(1+times) {
		r.t.Errorf("%d connections, want one more for each unknown outcome, %d", n, 1+times)
	}
	if n := p.cancels.Load(); n != 0 {
		r.t.Errorf("%d cancel requests", n)
	}
}

func TestUnknownCommitThatArrivesAfterItsRerun(t *testing.T) {
	t.Parallel()
	r, p := newProxiedRig(t, testConfig(), firstThen(delay))
	all, steps := records(3)
	outcomes := r.submit(steps...)
	r.run()
	r.wantCommitted(all, outcomes)
	p.release <- struct{}{}
	<-p.delivered
	p.release <- struct{}{}
	for _, s := range all {
		if n := r.entries(s.ref); n != 1 {
			t.Errorf("%s took effect %d times after the original arrived", s.ref, n)
		}
	}
	r.wantResolved(p, 1)
}

func TestUnknownCommitStillInProgressDuringItsRerun(t *testing.T) {
	t.Parallel()
	r, p := newProxiedRig(t, testConfig(), firstThen(delayCommit))
	all, steps := records(3)
	outcomes := r.submit(steps...)
	r.run()
	eventually(t, "the re-run waits for the original", func() bool {
		return r.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock'`) == 1
	})
	select {
	case err := <-outcomes[0]:
		t.Fatalf("outcome %v while the original was in progress", err)
	default:
	}
	p.release <- struct{}{}
	<-p.delivered
	p.release <- struct{}{}
	r.wantCommitted(all, outcomes)
	r.wantResolved(p, 1)
}

func TestUnknownStaysUnknownWhenNobodyAnswers(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.ResolveTimeout = 50 * time.Millisecond
	r, p := newProxiedRig(t, cfg, func(int) fate { return loseAnswer })
	r.run()
	err := r.c.Do(t.Context(), newRecord("silent"))
	if !errors.Is(err, ErrUnknown) || isNotCommitted(err) {
		t.Errorf("outcome %v, want ErrUnknown", err)
	}
	r.wantMetric("resolved", r.c.metrics.Resolved, 0)
	r.wantMetric("unknown steps", r.c.metrics.Steps.WithLabelValues(nameUnknown), 1)
	if n := r.entries("silent"); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
	r.drain()
	if n := p.cancels.Load(); n != 0 {
		t.Errorf("%d cancel requests", n)
	}
}

// A step that is refused in the re-run may have been committed before, as far as anybody knows.
func TestRefusedStepInUnknownBatchStaysUnknownAlone(t *testing.T) {
	t.Parallel()
	r, _ := newProxiedRig(t, testConfig(), firstThen(loseTransaction))
	all, steps := records(6)
	all[3].amount = -1
	outcomes := r.submit(steps...)
	r.run()
	if err := wait(t, outcomes[3]); !errors.Is(err, ErrUnknown) {
		t.Errorf("poison step: %v, want ErrUnknown", err)
	}
	r.wantCommitted(append(all[:3:3], all[4:]...), append(outcomes[:3:3], outcomes[4:]...))
	if n := r.entries(all[3].ref); n != 0 {
		t.Errorf("poison step has %d entries", n)
	}
}

func TestRollbackAnswerIsNeverSuccess(t *testing.T) {
	t.Parallel()
	r, _ := newProxiedRig(t, testConfig(), firstThen(answerRollback))
	r.run()
	if err := r.c.Do(t.Context(), newRecord("rolled back")); !isNotCommitted(err) {
		t.Errorf("COMMIT answered by ROLLBACK gave %v, want NotCommittedError", err)
	}
	r.wantMetric("committed steps", r.c.metrics.Steps.WithLabelValues(nameCommitted), 0)
}

func TestCommitRefusedByDeferredConstraint(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.exec(`CREATE TABLE parent (id int PRIMARY KEY);
		CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
	kind := scriptKind(3, `INSERT INTO child VALUES ($1)`)
	all, steps := records(4)
	outcomes := r.submit(append(steps, &script{kind: kind, args: []any{7}})...)
	r.run()
	if err := wait(t, outcomes[4]); !errors.Is(err, ErrUnknown) {
		t.Errorf("step refused by COMMIT: %v, want ErrUnknown", err)
	}
	r.wantCommitted(all, outcomes[:4])
}

func TestUnreadableResultIsUnknownAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	var number int
	unreadable := &script{kind: scriptKind(0, `SELECT 'not a number 4111111111111111'`), row: []any{&number}}
	all, steps := records(5)
	outcomes := r.submit(append(steps, unreadable)...)
	r.run()
	err := wait(t, outcomes[5])
	if !errors.Is(err, ErrUnknown) {
		t.Errorf("step with an unreadable result: %v, want ErrUnknown", err)
	}
	wantNoDigits(t, err.Error())
	r.wantCommitted(all, outcomes[:5])
}

func TestKindThatEndsTheTransactionIsNotTrusted(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string][]string{
		"rollback":              {`ROLLBACK`},
		"commit and then error": {`COMMIT`, `SELECT 1/0`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig()
			cfg.ResolveTimeout = 50 * time.Millisecond
			r := newRig(t, cfg).run()
			if err := r.c.Do(t.Context(), &script{kind: scriptKind(0, sql...)}); !errors.Is(err, ErrUnknown) {
				t.Errorf("outcome %v, want ErrUnknown", err)
			}
		})
	}
}

// pgx sends a cancel request of its own accord whenever it gives a connection up. The first half of this test shows
// that the proxy would see it.
func TestNoCancelRequestEverLeaves(t *testing.T) {
	t.Parallel()
	t.Run("a plain connection sends one", func(t *testing.T) {
		t.Parallel()
		config := connConfig(t, newDatabase(t).URL)
		p := newProxy(t, config, func(int) fate { return pass })
		conn, err := pgx.ConnectConfig(t.Context(), p.through(config))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := conn.Exec(ctx, `SELECT pg_sleep(30)`); err == nil {
			t.Fatal("the query was not cut off")
		}
		<-conn.PgConn().CleanupDone()
		eventually(t, "cancel request", func() bool { return p.cancels.Load() == 1 })
	})
	t.Run("a committer connection sends none", func(t *testing.T) {
		t.Parallel()
		cfg := testConfig()
		cfg.AnswerTimeout = 3 * time.Second
		r, p := newProxiedRig(t, cfg, func(nth int) fate {
			return []fate{swallow, pass, loseAnswer, pass, loseTransaction, pass, fail, pass}[min(nth-1, 7)]
		})
		r.run()
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 4 {
			if i == 3 {
				time.AfterFunc(time.Millisecond, cancel)
			}
			if err := r.c.Do(ctx, newRecord(fmt.Sprint("step", i))); err != nil && !errors.Is(err, ErrNotTaken) {
				t.Errorf("step %d: %v", i, err)
			}
		}
		cancel()
		r.drain()
		if n := p.cancels.Load(); n != 0 {
			t.Errorf("%d cancel requests", n)
		}
		if n := p.connections.Load(); n < 4 || n > 5 {
			t.Errorf("%d connections, want 4 or 5: the first and one for each unknown outcome", n)
		}
	})
	t.Run("not even when asked", func(t *testing.T) {
		t.Parallel()
		config := connConfig(t, newDatabase(t).URL)
		p := newProxy(t, config, func(int) fate { return pass })
		l, err := dial(t.Context(), p.through(config), testConfig())
		if err != nil {
			t.Fatal(err)
		}
		defer l.close(t.Context())
		if err := l.conn.PgConn().CancelRequest(t.Context()); !errors.Is(err, errNoCancel) {
			t.Errorf("CancelRequest: %v, want %v", err, errNoCancel)
		}
		// A caller's own dialler is refused the same way.
		marked := context.WithValue(t.Context(), dialAllowed{}, true)
		if err := l.conn.PgConn().CancelRequest(marked); !errors.Is(err, errNoCancel) {
			t.Errorf("CancelRequest under a connecting context: %v, want %v", err, errNoCancel)
		}
		if p.connections.Load() != 1 {
			t.Errorf("%d connections, want 1", p.connections.Load())
		}
	})
}

// Nothing written is the one case in which a broken connection proves that nothing was committed.
func TestConnectionThatBreaksBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	config := connConfig(t, newDatabase(t).URL)
	l, err := dial(t.Context(), config, testConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer l.close(t.Context())
	s := newRecord("warm")
	steps := []*request{{step: s, kind: s.Kind()}}
	if v := l.attempt(t.Context(), steps, false); v.outcome != committed {
		t.Fatalf("first attempt: %+v", v)
	}
	l.wire.Conn = brokenConn{l.wire.Conn}
	if v := l.attempt(t.Context(), steps, false); v.outcome != away {
		t.Errorf("attempt that could not write: %+v, want away", v)
	}
}

type brokenConn struct{ net.Conn }

func (brokenConn) Write([]byte) (int, error) { return 0, net.ErrClosed }

func TestVerdictOnStatementErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pg   pgconn.PgError
		want outcome
	}{
		{pgconn.PgError{Code: "40001", SeverityUnlocalized: "ERROR"}, conflicted},
		{pgconn.PgError{Code: "40P01", SeverityUnlocalized: "ERROR"}, conflicted},
		{pgconn.PgError{Code: "55P03", SeverityUnlocalized: "ERROR"}, conflicted},
		{pgconn.PgError{Code: "25006", SeverityUnlocalized: "ERROR"}, away},
		{pgconn.PgError{Code: "57P01", SeverityUnlocalized: "FATAL"}, away},
		{pgconn.PgError{Code: "53100", SeverityUnlocalized: "ERROR"}, away},
		{pgconn.PgError{Code: "57014", SeverityUnlocalized: "ERROR"}, away},
		{pgconn.PgError{Code: "XX000", SeverityUnlocalized: "PANIC"}, away},
		{pgconn.PgError{Code: "0A000", Routine: "RevalidateCachedQuery", SeverityUnlocalized: "ERROR"}, away},
		{pgconn.PgError{Code: "0A000", SeverityUnlocalized: "ERROR"}, refused},
		{pgconn.PgError{Code: "23505", SeverityUnlocalized: "ERROR"}, refused},
		{pgconn.PgError{Code: "", SeverityUnlocalized: "ERROR"}, refused},
	} {
		if got := classify(&c.pg); got != c.want {
			t.Errorf("SQLSTATE %q %s: %d, want %d", c.pg.Code, c.pg.SeverityUnlocalized, got, c.want)
		}
	}
}
