package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// beginEpoch ends the epochs of this instance's former lives and begins a new one. formerStart is when the earliest of those began
// whose clock was last seen behind the sweep's mark: what it recorded may lie before the mark. It is zero when there was none.
func beginEpoch(ctx context.Context, tx pgx.Tx, instance string, now time.Time) (epoch int64, ended []int64, formerStart time.Time, err error) {
	rows, err := tx.Query(ctx, `UPDATE daemon SET ended_at = @now WHERE instance = @instance AND ended_at IS NULL RETURNING epoch, started_at,
		seen_at < coalesce((SELECT through_at FROM sweep_mark WHERE name = @mark), '-infinity')`,
		pgx.NamedArgs{"instance": instance, "now": now, "mark": authorizationMark})
	if err != nil {
		return 0, nil, time.Time{}, fmt.Errorf("end former epochs: %w", err)
	}
	var former int64
	var started time.Time
	var behind bool
	if _, err = pgx.ForEachRow(rows, []any{&former, &started, &behind}, func() error {
		ended = append(ended, former)
		if !behind {
			return nil
		}
		if formerStart.IsZero() || started.Before(formerStart) {
			formerStart = started
		}
		return nil
	}); err != nil {
		return 0, nil, time.Time{}, fmt.Errorf("end former epochs: %w", err)
	}
	err = tx.QueryRow(ctx, `INSERT INTO daemon (instance, started_at, seen_at) VALUES (@instance, @now, @now) RETURNING epoch`,
		pgx.NamedArgs{"instance": instance, "now": now}).Scan(&epoch)
	if err != nil {
		return 0, nil, time.Time{}, fmt.Errorf("insert epoch: %w", err)
	}
	return epoch, ended, formerStart, nil
}

// updateEpochSeen notes the epoch's clock and reports whether somebody has ended the epoch.
func updateEpochSeen(ctx context.Context, db querier, epoch int64, now time.Time) (ended bool, err error) {
	err = db.QueryRow(ctx, `UPDATE daemon SET seen_at = @now WHERE epoch = @epoch RETURNING ended_at IS NOT NULL`,
		pgx.NamedArgs{"epoch": epoch, "now": now}).Scan(&ended)
	if err != nil {
		return false, fmt.Errorf("update epoch: %w", err)
	}
	return ended, nil
}

// endEpoch notes an orderly end.
func endEpoch(ctx context.Context, db *pgxpool.Pool, epoch int64, now time.Time) error {
	if _, err := db.Exec(ctx, `UPDATE daemon SET ended_at = @now WHERE epoch = @epoch`, pgx.NamedArgs{"epoch": epoch, "now": now}); err != nil {
		return fmt.Errorf("end epoch: %w", err)
	}
	return nil
}

// maxEndedEpochs bounds how far back former lives are looked at; older ones have nothing open that the sweep did not take.
const maxEndedEpochs = 1000

// selectEndedEpochs lists the lives that are over, newest first.
func selectEndedEpochs(ctx context.Context, db querier) ([]int64, error) {
	rows, err := db.Query(ctx, `SELECT epoch FROM daemon WHERE ended_at IS NOT NULL ORDER BY epoch DESC LIMIT @limit`,
		pgx.NamedArgs{"limit": maxEndedEpochs})
	if err != nil {
		return nil, fmt.Errorf("select ended epochs: %w", err)
	}
	epochs, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("select ended epochs: %w", err)
	}
	return epochs, nil
}

// selectMark reads how far a sweep has come; the beginning of time when it never ran.
func selectMark(ctx context.Context, db querier, name string) (time.Time, error) {
	var through time.Time
	err := db.QueryRow(ctx, `SELECT through_at FROM sweep_mark WHERE name = $1`, name).Scan(&through)
	if isNoRows(err) {
		return time.Unix(0, 0), nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("select sweep mark: %w", err)
	}
	return through, nil
}

// updateMark moves a sweep's mark, forward only.
func updateMark(ctx context.Context, db *pgxpool.Pool, name string, through time.Time) error {
	_, err := db.Exec(ctx, `INSERT INTO sweep_mark AS m (name, through_at) VALUES (@name, @through)
		ON CONFLICT (name) DO UPDATE SET through_at = greatest(m.through_at, excluded.through_at)`,
		pgx.NamedArgs{"name": name, "through": through})
	if err != nil {
		return fmt.Errorf("update sweep mark: %w", err)
	}
	return nil
}

// deleteFences drops the fence rows of commits resolved long ago.
func deleteFences(ctx context.Context, db *pgxpool.Pool, before time.Time) error {
	if _, err := db.Exec(ctx, `DELETE FROM commit_fence WHERE fenced_at < $1`, before); err != nil {
		return fmt.Errorf("delete fences: %w", err)
	}
	return nil
}
