package gateway

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// stanModulus is how many STANs there are: 000001 to 999999. 000000 is never used.
	stanModulus = 999_999
	// rrnModulus is how many values the RRN's six-digit tail has within one hour.
	rrnModulus = 1_000_000
	// leaseSize is how many numbers one round trip takes from the database. A crash leaves at most this many unused.
	leaseSize = 1000
	// rrnHeadroom keeps the leases that several daemons take at the end of an hour from meeting that hour's own numbers. A
	// lease is used within its hour only.
	rrnHeadroom = 100 * leaseSize
	// maxLeases ends a search for a free number that could go on for a whole range of used ones.
	maxLeases = 8
)

// errReferencesExhausted means that the link has no unused STAN or RRN at this time: nothing was sent.
var errReferencesExhausted = errors.New("no free STAN or RRN")

// references allocates STANs and RRNs for one link from ranges leased in PostgreSQL, so that they survive a restart and are
// never shared by two daemons. It is gap-tolerant: what a lease leaves unused is lost. Safe for concurrent use.
type references struct {
	link         string
	uniqueWithin time.Duration
	db           *pgxpool.Pool

	mu   sync.Mutex // protects the following
	next int64
	end  int64           // first value not leased
	hour time.Time       // of the lease
	used map[string]bool // STANs of the lease that are in flight, have an open reversal or lie in the uniqueness window
}

// Next gives a STAN and an RRN, the RRN laid out as Y DDD HH NNNNNN in UTC: last digit of the year, day of the year, hour,
// and a tail that does not repeat within the hour (DE 11, DE 37).
func (r *references) Next(ctx context.Context, now time.Time) (stan, rrn string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hour.Before(now.UTC().Truncate(time.Hour)) {
		r.next = r.end // an old lease's numbers may have come round again, in another daemon's hands
	}
	for leases := 0; ; {
		for r.next < r.end {
			n := r.next
			r.next++
			if stan := stanOf(n); !r.used[stan] {
				return stan, rrnOf(n, now), nil
			}
		}
		if leases++; leases > maxLeases {
			return "", "", fmt.Errorf("allocate STAN for link %s: %w: %d leased ranges in a row are in use", r.link, errReferencesExhausted, maxLeases)
		}
		if err := r.lease(ctx, now); err != nil {
			return "", "", fmt.Errorf("lease STANs for link %s: %w", r.link, err)
		}
	}
}

// lease takes the next range and learns which of its STANs must not be used now. The range is ours once that is committed.
func (r *references) lease(ctx context.Context, now time.Time) error {
	var first int64
	var used map[string]bool
	hour := now.UTC().Truncate(time.Hour)
	err := pgx.BeginFunc(ctx, r.db, func(tx pgx.Tx) (err error) {
		if first, err = leaseSequence(ctx, tx, r.link, hour); err != nil {
			return err
		}
		used, err = selectUsedSTANs(ctx, tx, r.link, stanOf(first), stanOf(first+leaseSize-1), now, r.uniqueWithin)
		return err
	})
	if err != nil {
		return err
	}
	r.next, r.end, r.hour, r.used = first, first+leaseSize, hour, used
	return nil
}

// stanOf maps the ever-growing sequence (from 1) onto 000001 to 999999.
func stanOf(n int64) string {
	return pad(n-1-(n-1)/stanModulus*stanModulus+1, 6)
}

func rrnOf(n int64, now time.Time) string {
	now = now.UTC()
	return pad(int64(now.Year()%10), 1) + pad(int64(now.YearDay()), 3) + pad(int64(now.Hour()), 2) + pad(n%rrnModulus, 6)
}

// pad writes n with leading zeros.
func pad(n int64, width int) string {
	text := strconv.FormatInt(n, 10)
	for len(text) < width {
		text = "0" + text
	}
	return text
}
