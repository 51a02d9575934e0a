package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// controlRow is what was decided about one link.
type controlRow struct {
	link            string
	version         int32
	held, signedOff bool
	reason          string
	businessDate    time.Time
}

// selectControls reads what was decided about the links that have a row.
func selectControls(ctx context.Context, db querier, links []string) ([]controlRow, error) {
	rows, err := db.Query(ctx, `SELECT link, version, held, signed_off, reason, business_date FROM link_control WHERE link = ANY(@links)`,
		pgx.NamedArgs{"links": links})
	if err != nil {
		return nil, fmt.Errorf("select link controls: %w", err)
	}
	controls, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c controlRow, err error) {
		var day pgtype.Date
		err = row.Scan(&c.link, &c.version, &c.held, &c.signedOff, &c.reason, &day)
		c.businessDate = day.Time
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("select link controls: %w", err)
	}
	return controls, nil
}

// updateControl writes a decision and its history, and returns what now stands; one that changes nothing writes nothing.
func updateControl(ctx context.Context, tx pgx.Tx, link string, action LinkAction, reason string, now time.Time) (c controlRow, err error) {
	args := pgx.NamedArgs{"link": link, "action": string(action), "reason": reason, "now": now}
	if _, err := tx.Exec(ctx, `INSERT INTO link_control (link, version, reason, changed_at) VALUES (@link, 0, '', @now) ON CONFLICT DO NOTHING`, args); err != nil {
		return c, fmt.Errorf("insert link control: %w", err)
	}
	_, err = tx.Exec(ctx, `
		WITH decided AS (
			UPDATE link_control SET version = version + 1, reason = @reason, changed_at = @now,
				held = CASE @action WHEN 'hold' THEN true WHEN 'resume' THEN false ELSE held END,
				signed_off = CASE @action WHEN 'sign_off' THEN true WHEN 'sign_on' THEN false ELSE signed_off END
			WHERE link = @link AND CASE @action WHEN 'hold' THEN NOT held WHEN 'resume' THEN held WHEN 'sign_off' THEN NOT signed_off WHEN 'sign_on' THEN signed_off END
			RETURNING link, version, held, signed_off, reason, changed_at
		)
		INSERT INTO link_control_history (link, version, held, signed_off, reason, at)
		SELECT link, version, held, signed_off, reason, changed_at FROM decided`, args)
	if err != nil {
		return c, fmt.Errorf("update link control: %w", err)
	}
	controls, err := selectControls(ctx, tx, []string{link})
	if err != nil {
		return c, err
	}
	return controls[0], nil // the row is there by now
}

// updateBusinessDate keeps the date of a cutover notice; dates go forward only.
func updateBusinessDate(ctx context.Context, db *pgxpool.Pool, link string, day, now time.Time) error {
	_, err := db.Exec(ctx, `
		INSERT INTO link_control AS c (link, version, reason, changed_at, business_date) VALUES (@link, 0, '', @now, @day)
		ON CONFLICT (link) DO UPDATE SET business_date = greatest(c.business_date, excluded.business_date)`,
		pgx.NamedArgs{"link": link, "day": pgDate(day), "now": now})
	if err != nil {
		return fmt.Errorf("update business date: %w", err)
	}
	return nil
}
