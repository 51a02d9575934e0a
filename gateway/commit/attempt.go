package commit

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// outcome is what one attempt at one transaction came to.
type outcome int

const (
	// committed: COMMIT was answered by COMMIT, and no warning came with it.
	committed outcome = iota
	// refused: certainly rolled back, because of a step.
	refused
	// conflicted: certainly rolled back, because of a concurrent transaction.
	conflicted
	// away: certainly not committed, because of the database or the way there.
	away
	// unclear: COMMIT may have taken effect.
	unclear
)

// verdict is an outcome with its reason.
type verdict struct {
	outcome outcome
	err     error
	// divisible: one step may be the reason of an unclear outcome, so parts of the batch may fare better.
	divisible bool
}

const (
	txIdle   = 'I' // ReadyForQuery's transaction status: in no transaction
	txFailed = 'E' // in a failed transaction
)

// attempt runs steps in one transaction, in one round trip. With fence it adds a row of its own, so that the COMMIT
// has something to make durable even when every step finds its effect already there.
func (l *line) attempt(ctx context.Context, steps []*request, fence bool) verdict {
	batch := &pgx.Batch{}
	batch.Queue("BEGIN")
	queueSteps(batch, steps)
	if fence {
		batch.Queue(insertFence, pgtype.UUID{Bytes: uuid.New(), Valid: true}, time.Now())
	}
	batch.Queue("COMMIT")

	l.expectAnswer()
	defer l.settled()
	if err := l.prepare(ctx, batch); err != nil {
		return l.judgePrepare(err)
	}
	l.wire.written.Store(0)
	return l.read(l.conn.SendBatch(ctx, batch), batch.QueuedQueries)
}

// queueSteps lets each kind queue its statements for its own run of the sorted steps.
func queueSteps(batch *pgx.Batch, steps []*request) {
	all := make([]Step, len(steps))
	for i, r := range steps {
		all[i] = r.step
	}
	for from := 0; from < len(steps); {
		kind, to := steps[from].kind, from+1
		for to < len(steps) && steps[to].kind == kind {
			to++
		}
		kind.Queue(batch, all[from:to:to])
		from = to
	}
}

// read takes the answers in the order of queries: BEGIN, the steps' statements, COMMIT. An answer's place decides what
// an error means, since the server answers in order and skips everything after the first error.
func (l *line) read(results pgx.BatchResults, queries []*pgx.QueuedQuery) verdict {
	last := len(queries) - 1
	for i, q := range queries[:last] {
		if err := readResult(results, q); err != nil {
			results.Close() // reads up to ReadyForQuery, which tells the transaction's status
			return l.judgeStatement(err, i == 0)
		}
	}
	l.atCommit, l.warned = true, false
	tag, err := results.Exec()
	results.Close() // decides nothing: the answer to COMMIT has been read
	l.atCommit = false
	return l.judgeCommit(tag.String(), err)
}

func readResult(results pgx.BatchResults, q *pgx.QueuedQuery) error {
	if q.Fn != nil {
		return q.Fn(results)
	}
	_, err := results.Exec()
	return err
}

// judgePrepare judges an error from before BEGIN was sent: nothing can have been committed.
func (l *line) judgePrepare(err error) verdict {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return verdict{outcome: classify(pg), err: withoutValues("prepare statement", err)}
	}
	if fromServerOrWire(err) || l.conn.IsClosed() {
		return verdict{outcome: away, err: withoutValues("prepare statement", err)}
	}
	return verdict{outcome: refused, err: withoutValues("prepare statement", err)}
}

// judgeStatement judges an error in the place of an answer before COMMIT's. results have been closed.
func (l *line) judgeStatement(err error, atBegin bool) verdict {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		v := verdict{outcome: classify(pg), err: withoutValues("run statement", err)}
		// The server skips COMMIT after an error, and says at the end that the transaction has failed. Without that
		// word it is a lost connection like any other: a proxy in between also reports one as an error.
		if !l.failed(atBegin) {
			v.divisible = v.outcome == refused
			v.outcome = unclear
		}
		return v
	}
	if _, ok := errors.AsType[pgx.ErrPreprocessingBatch](err); ok && atBegin {
		// pgx encodes every argument before it writes, and COMMIT comes last. What it may still write while it gives
		// the connection up ends before the statement that could not be encoded.
		return verdict{outcome: refused, err: withoutValues("encode step arguments", err)}
	}
	if l.wire.written.Load() == 0 {
		return verdict{outcome: away, err: withoutValues("write transaction", err)}
	}
	if l.conn.IsClosed() {
		return verdict{outcome: unclear, err: withoutValues("read answer", err)}
	}
	// A callback could not read its result. The server knows nothing of that and has most likely committed.
	v := verdict{outcome: unclear, err: withoutValues("read step results", err), divisible: true}
	if l.failed(atBegin) {
		v.outcome = refused
	}
	return v
}

// failed reports whether the server has confirmed that the transaction failed, or was never begun.
func (l *line) failed(atBegin bool) bool {
	if l.conn.IsClosed() {
		return false
	}
	status := l.conn.PgConn().TxStatus()
	return status == txFailed || atBegin && status == txIdle
}

// judgeCommit judges the answer to COMMIT. Every error there is unclear, whatever its SQLSTATE: the server may have
// been interrupted between taking effect and saying so.
func (l *line) judgeCommit(tag string, err error) verdict {
	switch {
	case err != nil:
		pg, ok := errors.AsType[*pgconn.PgError](err)
		return verdict{
			outcome:   unclear,
			err:       withoutValues("commit", err),
			divisible: ok && classify(pg) == refused,
		}
	case tag == "ROLLBACK":
		return verdict{outcome: refused, err: errors.New("commit: the server answered ROLLBACK")}
	case tag != "COMMIT":
		return verdict{outcome: unclear, err: errors.New("commit: the server answered something else"), divisible: true}
	case l.warned:
		return verdict{outcome: unclear, err: errors.New("commit: the server warned, it may be committed locally only")}
	default:
		return verdict{outcome: committed}
	}
}

// classify tells whose fault an error that rolled the transaction back is.
func classify(pg *pgconn.PgError) outcome {
	switch pg.Code {
	case "40001", "40P01", "55P03": // serialization failure, deadlock, lock timeout
		return conflicted
	case "25006": // read-only: the server has become a standby
		return away
	case "26000": // the prepared statement is gone
		return away
	}
	if pg.SeverityUnlocalized == "FATAL" || pg.SeverityUnlocalized == "PANIC" {
		return away
	}
	if pg.Code == "0A000" && pg.Routine == "RevalidateCachedQuery" { // a migration changed a prepared statement's result
		return away
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "08", "53", "57", "58": // connection, resources, operator intervention, system
		return away
	}
	return refused
}
