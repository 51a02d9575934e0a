// Package commit makes many small durable steps share the cost of one COMMIT.
//
// Any number of goroutines hand a Step to Do. Each of a few connections repeats one round: it takes whatever has
// gathered while its last transaction was in flight, sorts it by kind and key, and sends BEGIN, the kinds' set-based
// statements and COMMIT as one pipelined round trip. A lone step leaves at once; only beside a transaction in flight does a batch
// gather, until it is as large or that one ends (gather.go).
//
// What it promises:
//   - A step that was taken off the queue always ends in an outcome: committed, certainly not committed
//     (NotCommittedError) or unknown (ErrUnknown). The caller's context counts only until the step is taken.
//   - Committed means that the server answered COMMIT with COMMIT and with no warning beside it.
//   - Certainly not committed means that no COMMIT can have reached the server, or that the server refused a statement
//     before it. A connection lost once the pipeline has been written is never counted as "not committed".
//   - An unknown outcome is resolved by running the same steps again, under the same ids and on a new connection,
//     together with one fence row, until a COMMIT comes back clean. A read-back would not do: it can miss a commit
//     that still waits for its standby, and a re-run that only meets conflicts has nothing to wait for.
//
// What it never does: send a cancel request (cancelling a COMMIT that waits for a synchronous standby makes it succeed
// without the standby), put a step's arguments into an error or a log line, or hold more than its named bounds.
//
// It knows nothing of payments. The SQL belongs to the kinds, and that SQL must be safe to run again under the same
// ids, since conflicts, lost connections and unknown outcomes all lead to a second run.
package commit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

// Step is one durable step of one intent. Its results are written by the callbacks that its kind registers, and belong
// to the caller again once Do has returned.
type Step interface {
	// Kind returns the step's kind: the same pointer for every step of that kind.
	Kind() *Kind
}

// Kind tells how the steps of one sort are written to the database.
type Kind struct {
	// Name stands in errors and log lines.
	Name string
	// Order is the kind's place within a transaction: kinds run in ascending order, equal ones by name.
	Order int
	// Less orders the steps of one batch by the keys they lock, so that two batches lock them in the same order.
	// Without it concurrent batches that touch the same rows deadlock and are retried.
	Less func(a, b Step) bool
	// Queue queues the set-based statements for steps, at least one, in the order of Less. The callbacks it registers
	// fill the steps' results. It may be called several times for one step and must start from clean results each
	// time; its SQL must have the same effect when it runs again under the same ids. It must not queue transaction
	// control. A callback that fails leaves the outcome unknown, since COMMIT travels in the same round trip.
	Queue func(b *pgx.Batch, steps []Step)
}

// Config holds the committer's bounds. Every field must be positive; see DefaultConfig.
type Config struct {
	// Connections is the number of connections, each with one transaction in flight.
	Connections int
	// MaxBatch is the largest number of steps in one transaction.
	MaxBatch int
	// MaxQueued is the number of steps that may wait to be taken; past it Do waits for room.
	MaxQueued int
	// ConnectTimeout bounds one attempt to open a connection, all hosts together.
	ConnectTimeout time.Duration
	// AnswerTimeout bounds one round trip. Past it the connection is given up and, if COMMIT was in it, the outcome
	// is unknown. A backend that hangs in COMMIT for want of its synchronous standby does not notice that and keeps
	// its place at the server until the standby is back: keep this long, the server's max_connections is the limit.
	AnswerTimeout time.Duration
	// UnavailableTimeout bounds how long a batch that has certainly not been committed is tried again while the
	// database is away. While Run drains there is one attempt only.
	UnavailableTimeout time.Duration
	// ResolveTimeout bounds how long a batch of unknown outcome is run again before its steps end in ErrUnknown.
	ResolveTimeout time.Duration
}

// DefaultConfig returns bounds measured on two cores: two connections beat one and four, batches of 128 to 256 beat
// smaller ones.
func DefaultConfig() Config {
	return Config{
		Connections:        2,
		MaxBatch:           256,
		MaxQueued:          4096,
		ConnectTimeout:     2 * time.Second,
		AnswerTimeout:      10 * time.Second,
		UnavailableTimeout: 5 * time.Second,
		ResolveTimeout:     30 * time.Second,
	}
}

// Validate reports every field that is not positive, all at once.
func (c Config) Validate() error {
	var faults []error
	for _, field := range []struct {
		name  string
		value int64
	}{
		{"Connections", int64(c.Connections)},
		{"MaxBatch", int64(c.MaxBatch)},
		{"MaxQueued", int64(c.MaxQueued)},
		{"ConnectTimeout", int64(c.ConnectTimeout)},
		{"AnswerTimeout", int64(c.AnswerTimeout)},
		{"UnavailableTimeout", int64(c.UnavailableTimeout)},
		{"ResolveTimeout", int64(c.ResolveTimeout)},
	} {
		if field.value <= 0 {
			faults = append(faults, fmt.Errorf("check committer configuration: %s must be positive", field.name))
		}
	}
	return errors.Join(faults...)
}

// Committer is the one queue and its connections. Make it with New, run it with Run, hand it steps with Do.
type Committer struct {
	cfg     Config
	db      *pgx.ConnConfig
	log     *zap.Logger
	metrics *Metrics

	queue    chan *request
	flying   flying
	running  atomic.Bool
	draining chan struct{} // closed when Run's context ends: no step is accepted any more
	stopped  chan struct{} // closed when the last worker is gone: what is queued now will never be taken
}

// New checks cfg and prepares a committer that will connect by db, which is copied. The copy keeps
// target_session_attrs, TLS and run-time parameters; execution mode, dialling and notices are the committer's own.
func New(cfg Config, db *pgx.ConnConfig, log *zap.Logger, metrics *Metrics) (*Committer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Committer{
		cfg:      cfg,
		db:       db.Copy(),
		log:      log,
		metrics:  metrics,
		queue:    make(chan *request, cfg.MaxQueued),
		flying:   flying{changed: make(chan struct{})},
		draining: make(chan struct{}),
		stopped:  make(chan struct{}),
	}, nil
}

// Run works until ctx ends, then accepts nothing more, finishes what is queued or taken, closes its connections and
// returns nil. It is called once; a second call returns an error at once.
func (c *Committer) Run(ctx context.Context) error {
	if !c.running.CompareAndSwap(false, true) {
		return errors.New("run committer: it was run before")
	}
	// ctx ends the intake. Past here no context with an end goes near pgx: it would answer the end with a cancel
	// request.
	endless := context.WithoutCancel(ctx)
	var workers sync.WaitGroup
	for i := range c.cfg.Connections {
		w := &worker{
			c:     c,
			log:   c.log.With(zap.Int("connection", i)),
			batch: make([]*request, 0, c.cfg.MaxBatch),
		}
		workers.Go(func() { w.run(endless) })
	}
	<-ctx.Done()
	close(c.draining)
	workers.Wait()
	close(c.stopped)
	c.metrics.QueueLength.Set(0)
	return nil
}

// Do hands s over and waits for its outcome. ctx counts only until s is taken off the queue.
//
//   - nil: committed, the results are in s.
//   - ErrNotTaken, with ctx's cause if ctx ended: certainly not committed, no statement was run.
//   - *NotCommittedError: certainly not committed.
//   - ErrUnknown: committed or not, nobody could find out within Config.ResolveTimeout.
//
// s must not be touched by the caller until Do returns.
func (c *Committer) Do(ctx context.Context, s Step) error {
	r := &request{step: s, kind: s.Kind(), done: make(chan error, 1)}
	if err := c.enqueue(ctx, r); err != nil {
		return err
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		if r.moveFrom(queued, abandoned) {
			return fmt.Errorf("%w: %w", ErrNotTaken, context.Cause(ctx))
		}
	case <-c.stopped:
		if r.moveFrom(queued, abandoned) {
			return fmt.Errorf("%w: committer has stopped", ErrNotTaken)
		}
	}
	return <-r.done
}

func (c *Committer) enqueue(ctx context.Context, r *request) error {
	// A select picks at random among what is ready, so the refusals are looked at by themselves first.
	select {
	case <-c.draining:
		return fmt.Errorf("%w: committer is draining", ErrNotTaken)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNotTaken, context.Cause(ctx))
	default:
	}
	select {
	case c.queue <- r:
		c.metrics.QueueLength.Set(float64(len(c.queue)))
		return nil
	case <-c.draining:
		return fmt.Errorf("%w: committer is draining", ErrNotTaken)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNotTaken, context.Cause(ctx))
	}
}

// take blocks until at least one step can be taken and then takes all that has gathered, up to MaxBatch. It returns
// an empty batch when the committer drains and nothing is queued.
func (c *Committer) take(batch []*request) []*request {
	for len(batch) == 0 {
		select {
		case r := <-c.queue:
			batch = appendTaken(batch, r)
		case <-c.draining:
			select {
			case r := <-c.queue:
				batch = appendTaken(batch, r)
			default:
				return batch
			}
		}
	}
	return c.gather(batch)
}

// A request is queued until a worker takes it or its caller abandons it; whoever comes first decides.
const (
	queued int32 = iota
	taken
	abandoned
)

// request is one step on its way, with the place where its caller waits.
type request struct {
	step  Step
	kind  *Kind
	state atomic.Int32
	done  chan error // holds one outcome, so that the worker never waits for a caller
}

func (r *request) moveFrom(from, to int32) bool { return r.state.CompareAndSwap(from, to) }

func appendTaken(batch []*request, r *request) []*request {
	if r.moveFrom(queued, taken) {
		return append(batch, r)
	}
	return batch
}
