package gateway

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ExpireHolds is one look for expired holds of a link, at a moment of the test's.
func (g *Gateway) ExpireHolds(ctx context.Context, link string, now time.Time) (int, error) {
	return g.expireHolds(ctx, g.links[link], now)
}

// EndHolds is the second half of a look: the end of holds that the first half found, whatever happened to them since. n is how many ended.
func (g *Gateway) EndHolds(ctx context.Context, ids []uuid.UUID, now time.Time) (n int, err error) {
	err = pgx.BeginFunc(ctx, g.db, func(tx pgx.Tx) error {
		n, _, err = updateExpired(ctx, tx, ids, expiryLook{createdBefore: now, now: now})
		return err
	})
	return n, err
}
