package commit

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"
)

const (
	// maxConflicts bounds the retries of a batch that meets serialization failures or deadlocks.
	maxConflicts = 20
	// pauseMin and pauseMax bound the pause between two attempts; it doubles, and half of it is jitter.
	pauseMin = 2 * time.Millisecond
	pauseMax = 256 * time.Millisecond
)

// worker is one connection's round: take a batch, bring every step in it to an outcome, again.
type worker struct {
	c     *Committer
	log   *zap.Logger
	line  *line // nil while there is none
	batch []*request
}

func (w *worker) run(ctx context.Context) {
	defer w.hangUp(ctx)
	// Early, so that the first step need not wait for it. If it fails now, the first batch tries again.
	if err := w.connect(ctx); err != nil {
		w.log.Warn("committer connection failed", zap.Error(err))
	}
	for {
		batch := w.c.take(w.batch[:0])
		if len(batch) == 0 {
			return
		}
		started := time.Now()
		w.c.metrics.QueueLength.Set(float64(len(w.c.queue)))
		w.c.metrics.Batches.Inc()
		w.c.metrics.BatchSize.Observe(float64(len(batch)))
		slices.SortStableFunc(batch, compare)
		w.commit(ctx, batch)
		w.c.flying.land(len(batch))
		w.c.metrics.Duration.Observe(time.Since(started).Seconds())
		clear(batch) // so that finished steps can be collected while the worker waits
	}
}

// compare orders a batch: by kind, then by the kind's own key.
func compare(a, b *request) int {
	if a.kind != b.kind {
		return cmp.Or(cmp.Compare(a.kind.Order, b.kind.Order), cmp.Compare(a.kind.Name, b.kind.Name))
	}
	switch less := a.kind.Less; {
	case less == nil:
		return 0
	case less(a.step, b.step):
		return -1
	case less(b.step, a.step):
		return 1
	default:
		return 0
	}
}

// commit brings every step of a sorted batch to an outcome.
func (w *worker) commit(ctx context.Context, steps []*request) {
	giveUpAt := time.Now().Add(w.c.cfg.UnavailableTimeout)
	conflicts := 0
	for try := 0; ; try++ {
		v := w.attempt(ctx, steps, false)
		switch v.outcome {
		case committed:
			w.finish(steps, nameCommitted, nil)
			return
		case refused:
			if len(steps) > 1 {
				left, right := w.halve(steps, v)
				w.commit(ctx, left)
				w.commit(ctx, right)
				return
			}
			w.log.Error("step refused by the database", zap.String("kind", steps[0].kind.Name), zap.Error(v.err))
			w.finish(steps, nameRefused, &NotCommittedError{Cause: v.err})
			return
		case conflicted:
			if conflicts++; conflicts > maxConflicts {
				w.finish(steps, nameRefused, &NotCommittedError{Cause: fmt.Errorf("%w: %w", ErrConflict, v.err)})
				return
			}
			w.c.metrics.Retries.WithLabelValues(nameConflict).Inc()
		case away:
			if w.draining() || time.Now().After(giveUpAt) {
				w.finish(steps, nameRefused, &NotCommittedError{Cause: fmt.Errorf("%w: %w", ErrUnavailable, v.err)})
				return
			}
			w.c.metrics.Retries.WithLabelValues(nameAway).Inc()
		case unclear:
			w.c.metrics.Unknown.Inc()
			w.log.Warn("commit outcome unknown", zap.Int("steps", len(steps)), zap.Error(v.err))
			w.resolve(ctx, steps, v, time.Now().Add(w.c.cfg.ResolveTimeout))
			return
		}
		pause(try)
	}
}

// resolve runs steps of unknown outcome again, with a fence, until a COMMIT comes back clean. A step refused now is
// not thereby known to have been refused before, so it stays unknown.
func (w *worker) resolve(ctx context.Context, steps []*request, reason verdict, giveUpAt time.Time) {
	for try := 0; time.Now().Before(giveUpAt); try++ {
		v := w.attempt(ctx, steps, true)
		if v.outcome == committed {
			w.c.metrics.Resolved.Inc()
			w.log.Info("commit outcome resolved", zap.Int("steps", len(steps)))
			w.finish(steps, nameCommitted, nil)
			return
		}
		reason = v
		if v.outcome == refused || v.divisible {
			if len(steps) == 1 {
				break
			}
			left, right := w.halve(steps, v)
			w.resolve(ctx, left, v, giveUpAt)
			w.resolve(ctx, right, v, giveUpAt)
			return
		}
		pause(try)
	}
	w.log.Error("commit outcome stays unknown", zap.Int("steps", len(steps)),
		zap.String("first_kind", steps[0].kind.Name), zap.Error(reason.err))
	w.finish(steps, nameUnknown, fmt.Errorf("%w: %w", ErrUnknown, reason.err))
}

// attempt runs steps once, on a new connection if the last one was given up. Whatever is left in doubt or in a failed
// transaction gives the connection up.
func (w *worker) attempt(ctx context.Context, steps []*request, fence bool) verdict {
	if w.line == nil {
		if err := w.connect(ctx); err != nil {
			return verdict{outcome: away, err: err}
		}
	}
	v := w.line.attempt(ctx, steps, fence)
	if v.outcome == away || v.outcome == unclear || !w.line.reset(ctx) {
		w.hangUp(ctx)
	}
	return v
}

func (w *worker) halve(steps []*request, v verdict) (left, right []*request) {
	w.c.metrics.Halvings.Inc()
	w.log.Error("batch halved: a step was refused", zap.Int("steps", len(steps)), zap.Error(v.err))
	middle := len(steps) / 2
	return steps[:middle], steps[middle:]
}

func (w *worker) finish(steps []*request, outcome string, err error) {
	w.c.metrics.Steps.WithLabelValues(outcome).Add(float64(len(steps)))
	for _, r := range steps {
		r.done <- err
	}
}

func (w *worker) connect(ctx context.Context) error {
	l, err := dial(ctx, w.c.db, w.c.cfg)
	if err != nil {
		return err
	}
	w.line = l
	return nil
}

func (w *worker) hangUp(ctx context.Context) {
	if w.line != nil {
		w.line.close(ctx)
		w.line = nil
	}
}

func (w *worker) draining() bool {
	select {
	case <-w.c.draining:
		return true
	default:
		return false
	}
}

// pause waits before another attempt, so that two batches in conflict do not meet again at once.
func pause(try int) {
	full := min(pauseMin<<min(try, 16), pauseMax)
	time.Sleep(full/2 + rand.N(full/2))
}
