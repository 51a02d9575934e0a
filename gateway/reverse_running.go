package gateway

import (
	"context"

	"go.uber.org/zap"
)

// carryReversal puts the reversal that the client asked for while the authorisation was running into the answer of its decision. The
// database says whether it stands. A decline carries none: nothing of it will be sent.
func (g *Gateway) carryReversal(step *decideStep) {
	a := step.authorization
	if a.State == Declined || a.State == NotSent {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	now, err := selectAuthorization(ctx, g.db, a.Tenant, a.ID)
	if err != nil || now == nil {
		g.log.Warn("reversal of a running authorization not read", zap.Stringer("authorization_id", a.ID), zap.Error(err))
		return
	}
	if now.Reversal == nil {
		return
	}
	due := a.UpdatedAt
	a.Reversal = now.Reversal
	a.Reversal.Attempts, a.Reversal.NextAt = 0, &due // while it is pending none is made, only looked at
	step.seal()
}

// hastenReversal makes the reversal due that waited for the decision; without it the worker finds it a little later. It is sent after an
// approval and after silence, and withdrawn after a decline.
func (g *Gateway) hastenReversal(a *Authorization) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	if err := updateDue(ctx, g.db, a.ID, g.now()); err != nil {
		g.log.Warn("reversal of a decided authorization waits for its time", zap.Stringer("authorization_id", a.ID), zap.Error(err))
		return
	}
	g.wake(a.Link)
}
