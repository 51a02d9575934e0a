package reversal

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// claimLimit is how many duties one claim takes at most.
	claimLimit = 50
	// maxPoll is how long a worker waits at most before it looks again: what another daemon owed reaches it that way.
	maxPoll = time.Second
	// retryPause follows a failed look at the database.
	retryPause = 500 * time.Millisecond
	// ClaimMargin is what a claim outlives the attempt's deadline by, so that its result is written first.
	ClaimMargin = 2 * time.Second
)

// Outcome is what one attempt came to.
type Outcome string

// The outcomes of an attempt, as ResolveFrom takes them. Unsent is an attempt of which certainly nothing left; it is not counted,
// and neither is one that was withdrawn, since its original was declined or never left.
const (
	AttemptAcknowledged  Outcome = "acknowledged"
	AttemptNothingToUndo Outcome = "nothing_to_undo"
	AttemptWithdrawn     Outcome = "withdrawn"
	AttemptRefused       Outcome = "refused"
	AttemptSilent        Outcome = "silence"
	AttemptUnsent        Outcome = "unsent"
)

// Closes tells whether the outcome acknowledges the duty.
func (o Outcome) Closes() bool {
	return o == AttemptAcknowledged || o == AttemptNothingToUndo || o == AttemptWithdrawn
}

// Worker delivers the duties of one link. Gateway gives it the three steps and owns their transactions.
type Worker struct {
	Link   string
	Policy Policy
	Log    *zap.Logger

	// Ready tells whether the link takes traffic; while it does not, nothing is claimed and no attempt counted.
	Ready func() bool
	// Claim takes up to limit due duties and journals their messages, in one transaction.
	Claim func(ctx context.Context, limit int) ([]Duty, error)
	// Deliver sends one claimed duty's message, waits, and writes down what came of it.
	Deliver func(ctx context.Context, duty Duty)
	// NextDue is when the next duty of the link is due, the zero time when none is owed.
	NextDue func(ctx context.Context) (time.Time, error)
	// Wake tells that a duty may be due earlier than known.
	Wake <-chan struct{}
}

// Run delivers until ctx ends, then waits for the attempts on the wire, which end by their own deadlines or when the link
// falls. Each attempt has a goroutine of its own, at most Policy.InFlight at once, so a poison duty delays nobody.
func (w *Worker) Run(ctx context.Context) error {
	var attempts sync.WaitGroup
	defer attempts.Wait()
	slots := make(chan struct{}, w.Policy.InFlight)
	done := make(chan struct{}, 1)
	for ctx.Err() == nil {
		n, err := w.runOnce(ctx, slots, &attempts, done)
		pause := retryPause
		switch {
		case err != nil && ctx.Err() == nil:
			w.Log.Warn("reversals not claimed", zap.String("link", w.Link), zap.Error(err))
		case err == nil && n > 0:
			continue // there may be more
		case err == nil:
			pause = w.pause(ctx, len(slots) == cap(slots))
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-w.Wake:
		case <-done:
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// runOnce claims what is due and starts its attempts; n is how many.
func (w *Worker) runOnce(ctx context.Context, slots chan struct{}, attempts *sync.WaitGroup, done chan<- struct{}) (n int, err error) {
	free := min(cap(slots)-len(slots), claimLimit)
	if free == 0 || !w.Ready() {
		return 0, nil
	}
	duties, err := w.Claim(ctx, free)
	if err != nil {
		return 0, err
	}
	for _, duty := range duties {
		slots <- struct{}{}
		attempts.Go(func() {
			// The attempt is counted; shutdown must not leave it without a result.
			w.Deliver(context.WithoutCancel(ctx), duty)
			<-slots
			select {
			case done <- struct{}{}:
			default:
			}
		})
	}
	return len(duties), nil
}

// pause is how long to wait when nothing was claimed. With every slot taken, the end of an attempt wakes the worker.
func (w *Worker) pause(ctx context.Context, full bool) time.Duration {
	if full {
		return maxPoll
	}
	if !w.Ready() {
		return maxPoll / 4
	}
	due, err := w.NextDue(ctx)
	if err != nil || due.IsZero() {
		return maxPoll
	}
	return min(max(time.Until(due), time.Millisecond), maxPoll)
}
