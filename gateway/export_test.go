package gateway

import (
	"context"
	"time"
)

// ExpireHolds is one look for expired holds of a link, at a moment of the test's.
func (g *Gateway) ExpireHolds(ctx context.Context, link string, now time.Time) (int, error) {
	return g.expireHolds(ctx, g.links[link], now)
}
