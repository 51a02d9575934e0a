package gateway

import (
	"context"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
)

const (
	// selfCheckEvery is how often the books are held against the duties.
	selfCheckEvery = 24 * time.Hour
	// selfCheckLook is how often a daemon looks whether a self-check is due; the mark says when the last one was, by whatever daemon.
	selfCheckLook = 10 * time.Minute
	// selfCheckGrace is how far past its deadline an authorisation may be pending before it is a finding.
	selfCheckGrace = time.Minute
	// selfCheckSlack is how much further a self-check looks back than the longest hold lives.
	selfCheckSlack = 2 * selfCheckEvery
	// selfCheckReach is how far it looks back on a link whose holds never expire.
	selfCheckReach = 30 * 24 * time.Hour
	// maxFindings bounds what one self-check reports of each kind.
	maxFindings = 1000
	// selfCheckMark names its mark.
	selfCheckMark = "self_check"
	// selfCheckTimeout bounds one link's queries.
	selfCheckTimeout = 5 * time.Minute
)

// The kinds of findings, which are also the kinds of the exceptions they become.
const (
	FindingUnreversed = "self_check_unreversed" // given up, and neither reversed nor a person's matter
	FindingPending    = "self_check_pending"    // pending past its deadline
	FindingHeld       = "self_check_held"       // over, and not all of its hold let go
)

// Finding is one authorisation that is not as it must be: a fault of ours that no other guard has caught.
type Finding struct {
	Kind            string
	AuthorizationID uuid.UUID
	Tenant          string
	Link            string
	Detail          string
}

// SelfCheck holds the books of this daemon's links against their duties: whatever timed out has an acknowledged reversal, one that is
// on its way, or an open exception; nothing is pending past its deadline; nothing is held for an authorisation that is over. Each finding
// is opened as an exception, once. Findings before an error stand.
func (g *Gateway) SelfCheck(ctx context.Context) ([]Finding, error) {
	var all []Finding
	for _, name := range g.linkNames {
		found, err := g.checkLink(ctx, g.links[name], g.now())
		all = append(all, found...)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

func (g *Gateway) checkLink(ctx context.Context, l *cardLink, now time.Time) ([]Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, selfCheckTimeout)
	defer cancel()
	reach := selfCheckReach
	if expires := l.config.HoldExpiresAfter.Std(); expires > 0 {
		reach = expires + selfCheckSlack
	}
	look := selfCheckWindow{link: l.name, since: now.Add(-reach), overdue: now.Add(-selfCheckGrace), unattended: l.config.Silence.AttentionBefore(now).Add(-selfCheckGrace)}
	found, err := selectFindings(ctx, g.db, look)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		g.log.Error("self-check finding", zap.String("kind", f.Kind), zap.Stringer("authorization_id", f.AuthorizationID), zap.String("link", f.Link))
	}
	return found, insertFindings(ctx, g.db, found, now)
}

// watchBooks runs the self-check once a day until ctx ends.
func (g *Gateway) watchBooks(ctx context.Context) error {
	ticker := time.NewTicker(selfCheckLook)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := g.checkWhenDue(ctx, g.now()); err != nil && ctx.Err() == nil {
			g.log.Warn("self-check failed", zap.Error(err))
		}
	}
}

func (g *Gateway) checkWhenDue(ctx context.Context, now time.Time) error {
	last, err := selectMark(ctx, g.db, selfCheckMark)
	if err != nil || now.Sub(last) < selfCheckEvery {
		return err
	}
	found, err := g.SelfCheck(ctx)
	if err != nil {
		return err
	}
	g.log.Info("self-check done", zap.Int("findings", len(found)))
	return updateMark(ctx, g.db, selfCheckMark, now)
}
