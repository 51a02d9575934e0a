package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/reversal"
)

const (
	// sweepInterval is how often what is past its deadline is looked for.
	sweepInterval = time.Second
	// sweepGrace is how long the process that runs an authorisation has to decide it by itself.
	sweepGrace = 2 * time.Second
	// sweepLimit is how many one look takes; a full look is followed by the next at once.
	sweepLimit = 500
	// sweepReach is how far the mark stays behind: no deadline older than that is ever recorded anew.
	sweepReach = time.Hour
	// fenceKept is how long the fence rows of resolved commits stay, for whoever looks into one.
	fenceKept = 7 * 24 * time.Hour
	// epochInterval is how often a daemon notes its clock and looks whether another one has taken its name.
	epochInterval = 2 * time.Second
	// backlogInterval is how often open duties are counted for the metrics.
	backlogInterval = 5 * time.Second
	// authorizationMark names the sweep's mark.
	authorizationMark = "card_authorization"
)

// recover begins this daemon's epoch, ends those of its former lives, and gives up what they left open: nobody can prove
// that its bytes did not leave. It is the same path as a live timeout.
func (g *Gateway) recover(ctx context.Context) error {
	now := g.now()
	var ended []int64
	err := pgx.BeginFunc(ctx, g.db, func(tx pgx.Tx) (err error) {
		if g.epoch, ended, g.formerStart, err = beginEpoch(ctx, tx, g.config.Instance, now); err != nil {
			return err
		}
		return reversal.ReleaseClaims(ctx, tx, ended, now)
	})
	if err != nil {
		return fmt.Errorf("begin epoch: %w", err)
	}
	g.log.Info("epoch began", zap.Int64("epoch", g.epoch), zap.Int("former_epochs", len(ended)))
	return nil
}

// recoverOrphans gives up what ended epochs left open. It needs the committer running.
func (g *Gateway) recoverOrphans(ctx context.Context) error {
	ended, err := selectEndedEpochs(ctx, g.db)
	if err != nil {
		return err
	}
	since, err := g.sweepFrom(ctx, g.now())
	if err != nil {
		return err
	}
	if !g.formerStart.IsZero() && g.formerStart.Before(since) {
		since = g.formerStart
	}
	total := 0
	for {
		open, err := selectOrphaned(ctx, g.db, g.linkNames, since, ended, sweepLimit)
		if err != nil {
			return err
		}
		n, err := g.giveUp(ctx, open, reversal.Recovered)
		total += n
		if err != nil {
			return err
		}
		if len(open) < sweepLimit || n == 0 {
			break
		}
	}
	if err := g.reportUnknownLinks(ctx, since); err != nil {
		return err
	}
	if total > 0 {
		g.log.Warn("recovered open authorizations of a former life", zap.Int("timed_out", total))
	}
	return nil
}

// sweep looks for what is past its deadline until ctx ends.
func (g *Gateway) sweep(ctx context.Context) error {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		for {
			n, err := g.sweepOnce(ctx, g.now())
			if err != nil && ctx.Err() == nil {
				g.log.Warn("sweep failed", zap.Error(err))
			}
			if err != nil || n < sweepLimit {
				break
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// sweepOnce gives up pending authorisations whose deadline is more than the grace ago, and moves the mark behind them.
func (g *Gateway) sweepOnce(ctx context.Context, now time.Time) (n int, err error) {
	since, err := g.sweepFrom(ctx, now)
	if err != nil {
		return 0, err
	}
	overdue, err := selectOverdue(ctx, g.db, g.linkNames, since, now.Add(-sweepGrace), sweepLimit)
	if err != nil {
		return 0, err
	}
	if len(overdue) > 0 {
		return g.giveUp(ctx, overdue, reversal.Swept)
	}
	if now.Sub(since) > 2*sweepReach {
		if err := deleteFences(ctx, g.db, now.Add(-fenceKept)); err != nil {
			return 0, err
		}
		return 0, updateMark(ctx, g.db, authorizationMark, now.Add(-sweepReach))
	}
	return 0, nil
}

// sweepFrom is where a look begins: at the mark, or before it when the clock was set back and new deadlines lie there again.
func (g *Gateway) sweepFrom(ctx context.Context, now time.Time) (time.Time, error) {
	since, err := selectMark(ctx, g.db, authorizationMark)
	if err != nil {
		return time.Time{}, err
	}
	if reach := now.Add(-sweepReach); reach.Before(since) {
		since = reach
	}
	return since, nil
}

// reportUnknownLinks calls a person for what belongs to links that this daemon does not have: open authorisations that no sweep
// of it takes, and reversals that no worker of it delivers. Another daemon may have them.
func (g *Gateway) reportUnknownLinks(ctx context.Context, since time.Time) error {
	open, err := selectOpenOfOtherLinks(ctx, g.db, g.linkNames, since)
	if err != nil {
		return err
	}
	for _, other := range open {
		g.log.Error("open work of a link that is not configured here", zap.String("link", other.link), zap.Int64("pending", other.pending), zap.Int64("reversals", other.reversals))
	}
	return nil
}

// errSuperseded ends a daemon whose instance name another one has taken.
var errSuperseded = errors.New("another daemon has begun under this instance name: each needs its own (instance)")

// watchEpoch ends the daemon in order when its epoch was ended by another one: both would give up each other's work.
func (g *Gateway) watchEpoch(ctx context.Context, supersede context.CancelCauseFunc) error {
	ticker := time.NewTicker(epochInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if ended, err := updateEpochSeen(ctx, g.db, g.epoch, g.now()); err == nil && ended {
			g.log.Error("epoch ended by another daemon", zap.Int64("epoch", g.epoch), zap.String("instance", g.config.Instance))
			supersede(errSuperseded)
			return nil
		}
	}
}

// giveUp takes each authorisation the way of a live timeout; n is how many this call moved. They go to the committer
// together, so they share its transactions.
func (g *Gateway) giveUp(ctx context.Context, open []*Authorization, reason reversal.Reason) (n int, err error) {
	steps := make([]*decideStep, 0, len(open))
	for _, a := range open {
		if a.OwnerEpoch == g.epoch && g.flights.has(a.ID) {
			continue // it has a timer of its own, which no step of the wall clock moves
		}
		l := g.links[a.Link]
		if l == nil {
			g.log.Error("open authorization of a link that is not configured", zap.Stringer("authorization_id", a.ID), zap.String("link", a.Link))
			continue
		}
		step, err := l.abandon(a, reason, g.now(), nil)
		if err != nil {
			return 0, err
		}
		steps = append(steps, step)
	}
	errs := make([]error, len(steps))
	var committing sync.WaitGroup
	for i, step := range steps {
		committing.Go(func() { errs[i] = g.committer.Do(ctx, step) })
	}
	committing.Wait()
	for i, step := range steps {
		if errs[i] != nil {
			err = errs[i]
			continue
		}
		if step.won {
			n++
			g.noteDecision(step)
		}
	}
	return n, err
}

// callAttention calls a person for duties that are owed too long, however few their attempts: a link that is down makes none.
func (g *Gateway) callAttention(ctx context.Context, l *cardLink) error {
	now := g.now()
	var n int
	err := pgx.BeginFunc(ctx, g.db, func(tx pgx.Tx) (err error) {
		n, err = reversal.CallAttention(ctx, tx, l.name, l.config.Silence.AttentionBefore(now), now)
		return err
	})
	if n > 0 && err == nil {
		g.log.Warn("reversals need attention: owed too long", zap.String("link", l.name), zap.Int("count", n))
	}
	return err
}

// watchBacklog counts open duties for the metrics, and calls attention to old ones, until ctx ends.
func (g *Gateway) watchBacklog(ctx context.Context) error {
	ticker := time.NewTicker(backlogInterval)
	defer ticker.Stop()
	for {
		if backlog, err := reversal.SelectBacklog(ctx, g.db); err == nil {
			g.metrics.setBacklog(backlog, g.linkNames, time.Now())
		} else if ctx.Err() == nil {
			g.log.Warn("open reversals not counted", zap.Error(err))
		}
		for _, name := range g.linkNames {
			if err := g.callAttention(ctx, g.links[name]); err != nil && ctx.Err() == nil {
				g.log.Warn("old reversals not examined", zap.String("link", name), zap.Error(err))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
