package gateway

import (
	"context"
	"time"

	"go.uber.org/zap"
)

const (
	// expiryInterval is how often holds past their time are looked for.
	expiryInterval = time.Minute
	// expiryLimit is how many one transaction takes; a full one is followed by the next at once.
	expiryLimit = 500
	// expiryTimeout bounds one transaction: the first look of all reads every authorisation's deadline.
	expiryTimeout = time.Minute
	// expiryReach is how far the mark stays behind the youngest hold that can have expired: what was decided late, or recorded under a
	// clock that far behind, still lies after it.
	expiryReach = time.Hour
	// expiryPatience is how long an expired hold waits for a partial reversal that is not acknowledged. Past it the rest is released
	// without: the part's own release comes with its acknowledgement. It ends well before the mark passes.
	expiryPatience = expiryReach / 2
	// expiryMark names a link's mark.
	expiryMark = "hold_expiry:"
	// eventExpired is a hold that ended because nobody captured it in time.
	eventExpired = "authorization.expired"
)

// sweepHolds ends approved holds past the profile's hold_expires_after until ctx ends.
func (g *Gateway) sweepHolds(ctx context.Context) error {
	ticker := time.NewTicker(expiryInterval)
	defer ticker.Stop()
	for {
		for _, name := range g.linkNames {
			if _, err := g.expireHolds(ctx, g.links[name], g.now()); err != nil && ctx.Err() == nil {
				g.log.Warn("expired holds not released", zap.String("link", name), zap.Error(err))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// expireHolds ends one link's holds that are past their time at now, and moves the mark behind them; n is how many. What remains of a
// hold is released; the authorisation is expired, or captured where something of it was. Holds that are to be reversed as a whole end
// with that reversal.
func (g *Gateway) expireHolds(ctx context.Context, l *cardLink, now time.Time) (n int, err error) {
	if l.config.HoldExpiresAfter == 0 {
		return 0, nil
	}
	look := expiryLook{link: l.name, createdBefore: now.Add(-l.config.HoldExpiresAfter.Std()), now: now}
	through := look.createdBefore.Add(-expiryReach)
	mark, err := selectMark(ctx, g.db, expiryMark+l.name)
	if err != nil {
		return 0, err
	}
	look.from = mark
	if through.Before(mark) { // the clock was set back, or holds live longer by now
		look.from = through
	}
	for {
		ended, err := g.endHolds(ctx, &look)
		n += ended
		if err != nil {
			return n, err
		}
		if ended < expiryLimit {
			break
		}
	}
	if n > 0 {
		g.log.Info("holds expired", zap.String("link", l.name), zap.Int("count", n))
	}
	if through.Sub(mark) <= expiryReach {
		return n, nil
	}
	if left, err := selectLeftHolds(ctx, g.db, look, mark, through); left || err != nil {
		return n, err
	}
	return n, updateMark(ctx, g.db, expiryMark+l.name, through)
}
