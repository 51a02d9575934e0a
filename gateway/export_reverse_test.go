package gateway

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/gateway/commit"
	"github.com/schemegate/schemegate/gateway/link"
	"github.com/schemegate/schemegate/iso8583"
	"github.com/schemegate/schemegate/reversal"
)

// Spec is a link's spec.
func (g *Gateway) Spec(name string) *iso8583.Spec { return g.links[name].spec }

// TakeLate takes a message as a link's reader gives it on when nobody waits for it.
func (g *Gateway) TakeLate(name string, body []byte) {
	g.takeUnmatched(link.Unmatched{Link: name, ReceivedAt: time.Now(), Kind: link.Late, Body: body})
}

// CutOver is a scheme's cutover notice with this business date.
func (g *Gateway) CutOver(name, date string) { g.cutOver(g.links[name], date) }

// CheckWhenDue runs the daily self-check if it is due at a moment of the test's.
func (g *Gateway) CheckWhenDue(ctx context.Context, now time.Time) error {
	return g.checkWhenDue(ctx, now)
}

// DropLease makes a link's next number need a lease.
func (g *Gateway) DropLease(name string) {
	r := g.links[name].references
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = r.end
}

// ResolveTogether writes down in one batch what the standing attempts of duties came to.
func (g *Gateway) ResolveTogether(ctx context.Context, outcomes map[uuid.UUID]reversal.Outcome) error {
	return pgx.BeginFunc(ctx, g.db, func(tx pgx.Tx) error {
		steps := make([]commit.Step, 0, len(outcomes))
		for id, outcome := range outcomes {
			s := &resolveStep{duty: reversal.Duty{ID: id}, outcome: outcome, at: g.now(), nextAt: g.now().Add(time.Hour)}
			err := tx.QueryRow(ctx, `SELECT authorization_id, attempts, next_at FROM duty WHERE id = $1`, id).Scan(&s.duty.AuthorizationID, &s.duty.Attempt, &s.duty.NextAt)
			if err != nil {
				return err
			}
			steps = append(steps, s)
		}
		var batch pgx.Batch
		queueResolutions(&batch, steps)
		return tx.SendBatch(ctx, &batch).Close()
	})
}
