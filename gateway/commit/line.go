package commit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

const (
	// maxPrepared bounds the statements prepared on one connection. Kinds use constant SQL, so it is not reached
	// unless a kind builds its SQL anew each time; then all are dropped and the memory stays flat.
	maxPrepared = 256
	// closeTimeout bounds the farewell on a connection that is given up.
	closeTimeout = time.Second
)

// dialAllowed marks the context of an attempt to connect. pgx dials cancel requests under contexts of its own.
type dialAllowed struct{}

var errNoCancel = errors.New("dial: a committer connection sends no cancel request")

// line is one connection to the database, used by one worker.
type line struct {
	conn     *pgx.Conn
	wire     *wire
	prepared map[string]struct{}
	timeout  time.Duration // for one round trip

	// atCommit is true while the answer to COMMIT is read; warned is set by a warning that came meanwhile. Notices
	// are delivered by the goroutine that reads, so neither needs a lock.
	atCommit bool
	warned   bool
}

// wire counts what has been handed to the operating system. Under TLS it lies below the encryption, where nothing
// written still means that nothing was sent.
type wire struct {
	net.Conn
	written atomic.Int64
}

func (w *wire) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	w.written.Add(int64(n))
	return n, err
}

// dial opens a connection from which no cancel request can ever leave: pgx sends one whenever it gives a connection
// up, whatever its context handler does, and it does so through DialFunc. See the package comment for the harm.
func dial(ctx context.Context, db *pgx.ConnConfig, cfg Config) (*line, error) {
	l := &line{prepared: make(map[string]struct{}), timeout: cfg.AnswerTimeout}
	var connected atomic.Bool
	own := db.Copy()
	own.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	own.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: c.Conn()}
	}
	own.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if connected.Load() || ctx.Value(dialAllowed{}) == nil {
			return nil, errNoCancel
		}
		c, err := db.DialFunc(ctx, network, address)
		if err != nil {
			return nil, err
		}
		l.wire = &wire{Conn: c}
		return l.wire, nil
	}
	own.OnNotice = func(c *pgconn.PgConn, n *pgconn.Notice) {
		if l.atCommit && n.SeverityUnlocalized == "WARNING" {
			l.warned = true
		}
		if db.OnNotice != nil {
			db.OnNotice(c, n)
		}
	}
	// A server or role that filters warnings would hide "committed locally, but might not have been replicated".
	own.RuntimeParams["client_min_messages"] = "warning"

	ctx, stop := context.WithTimeout(context.WithValue(ctx, dialAllowed{}, true), cfg.ConnectTimeout)
	defer stop()
	conn, err := pgx.ConnectConfig(ctx, own)
	connected.Store(true)
	if err != nil {
		return nil, fmt.Errorf("connect to database: %w", err)
	}
	l.conn = conn
	return l, nil
}

// prepare resolves named arguments and prepares each statement that is new to this connection, in round trips of their
// own and outside any transaction: so the pipeline that follows has a single synchronisation point, and an error here
// cannot be mistaken for one after COMMIT.
func (l *line) prepare(ctx context.Context, batch *pgx.Batch) error {
	for _, q := range batch.QueuedQueries {
		if len(q.Arguments) > 0 {
			if rewriter, ok := q.Arguments[0].(pgx.QueryRewriter); ok {
				sql, args, err := rewriter.RewriteQuery(ctx, l.conn, q.SQL, q.Arguments[1:])
				if err != nil {
					return err
				}
				q.SQL, q.Arguments = sql, args
			}
		}
		if _, ok := l.prepared[q.SQL]; ok {
			continue
		}
		if len(l.prepared) >= maxPrepared+len(batch.QueuedQueries) {
			if err := l.conn.DeallocateAll(ctx); err != nil {
				return err
			}
			clear(l.prepared)
			return l.prepare(ctx, batch)
		}
		if _, err := l.conn.Prepare(ctx, q.SQL, q.SQL); err != nil {
			return err
		}
		l.prepared[q.SQL] = struct{}{}
	}
	return nil
}

// expectAnswer starts the clock of one round trip; settled stops it.
func (l *line) expectAnswer() { l.wire.SetDeadline(time.Now().Add(l.timeout)) }
func (l *line) settled()      { l.wire.SetDeadline(time.Time{}) }

// reset ends a failed transaction. It reports whether the connection can be used again.
func (l *line) reset(ctx context.Context) bool {
	if l.conn.IsClosed() {
		return false
	}
	if l.conn.PgConn().TxStatus() == txIdle {
		return true
	}
	l.expectAnswer()
	defer l.settled()
	_, err := l.conn.Exec(ctx, "ROLLBACK")
	return err == nil && l.conn.PgConn().TxStatus() == txIdle
}

// close gives the connection up and waits until pgx has let go of it. The socket is closed by force, since pgx would
// otherwise linger on a server that does not answer.
func (l *line) close(ctx context.Context) {
	l.wire.SetDeadline(time.Now().Add(closeTimeout))
	l.conn.Close(ctx) // its error is of no use: the socket is closed next in any case
	l.wire.Close()
	<-l.conn.PgConn().CleanupDone()
}
