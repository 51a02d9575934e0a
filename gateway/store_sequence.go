package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// inFlightReach is how long past its deadline an authorisation counts as in flight here; from then on its reversal is open.
const inFlightReach = 5 * time.Second

// leaseSequence takes leaseSize numbers. The hour's first number is kept beside the counter, so that a tail of six digits
// is refused before it could repeat within its hour.
func leaseSequence(ctx context.Context, tx pgx.Tx, link string, hour time.Time) (first int64, err error) {
	err = tx.QueryRow(ctx, `
		INSERT INTO link_sequence AS s (link, next_value, period, period_first)
		VALUES (@link, 1 + @size, @hour, 1)
		ON CONFLICT (link) DO UPDATE SET
			next_value   = s.next_value + @size,
			period       = greatest(s.period, excluded.period),
			period_first = CASE WHEN s.period < excluded.period THEN s.next_value ELSE s.period_first END
		WHERE s.period < excluded.period OR s.next_value - s.period_first + @size <= @room
		RETURNING next_value - @size`,
		pgx.NamedArgs{"link": link, "size": int64(leaseSize), "hour": hour, "room": int64(rrnModulus - rrnHeadroom)}).Scan(&first)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("%w: this hour's RRNs are used up", errReferencesExhausted)
	}
	return first, err
}

// selectUsedSTANs lists the STANs between low and high (which may wrap) that are in flight, belong to a duty that is still open, its own
// or its original's, or were used within the profile's window.
func selectUsedSTANs(ctx context.Context, tx pgx.Tx, link, low, high string, now time.Time, window time.Duration) (map[string]bool, error) {
	rows, err := tx.Query(ctx, `
		SELECT stan FROM (
			SELECT stan FROM card_authorization
			WHERE link = @link AND state = 'pending' AND deadline_at > @since::timestamptz
			UNION
			SELECT a.stan FROM duty r JOIN card_authorization a ON a.id = r.authorization_id
			WHERE r.link = @link AND r.state <> 'acknowledged'
			UNION
			SELECT stan FROM duty WHERE link = @link AND state <> 'acknowledged' AND stan IS NOT NULL
			UNION
			SELECT stan FROM duty
			WHERE @window_start::timestamptz < @now::timestamptz AND link = @link AND updated_at > @window_start::timestamptz AND stan IS NOT NULL
			AND CASE WHEN @low::text <= @high::text THEN stan >= @low AND stan <= @high ELSE stan >= @low OR stan <= @high END
			UNION
			SELECT stan FROM card_authorization
			WHERE @window_start::timestamptz < @now::timestamptz AND link = @link AND created_at > @window_start::timestamptz
			AND CASE WHEN @low::text <= @high::text THEN stan >= @low AND stan <= @high ELSE stan >= @low OR stan <= @high END
		) s
		WHERE CASE WHEN @low::text <= @high::text THEN stan BETWEEN @low AND @high ELSE stan >= @low OR stan <= @high END`,
		pgx.NamedArgs{"link": link, "low": low, "high": high, "now": now, "since": now.Add(-inFlightReach), "window_start": now.Add(-window)})
	if err != nil {
		return nil, fmt.Errorf("select used STANs: %w", err)
	}
	stans, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("select used STANs: %w", err)
	}
	used := make(map[string]bool, len(stans))
	for _, stan := range stans {
		used[stan] = true
	}
	return used, nil
}
