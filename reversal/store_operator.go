package reversal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// MaxPage is how many duties SelectOpen returns at most.
const MaxPage = 500

// Open is a duty that is not acknowledged, as an operator sees it.
type Open struct {
	ID              uuid.UUID
	AuthorizationID uuid.UUID
	Kind            Kind
	Link            string
	State           State
	Attempts        int32
	NextAt          time.Time // when it is due; without meaning while suspended
	ResponseCode    string    // DE 39 of the last answer, empty when none came
	CreatedAt       time.Time
}

// SelectOpen reads open duties in one state, or in both when it is empty: by link, the oldest first, those after the given one,
// or from the first when that is the zero value. Fewer than limit, which is at most MaxPage, are the last.
func SelectOpen(ctx context.Context, db Querier, state State, after Open, limit int) ([]Open, error) {
	rows, err := db.Query(ctx, `
		SELECT id, authorization_id, kind, link, state, attempts, next_at, coalesce(response_code, ''), created_at FROM duty
		WHERE state <> 'acknowledged' AND (@state = '' OR state = @state)
		AND (link, created_at, id) > (@link, @created_at::timestamptz, @id::uuid)
		ORDER BY link, created_at, id LIMIT @limit`,
		pgx.NamedArgs{"state": string(state), "link": after.Link, "created_at": after.CreatedAt, "id": after.ID, "limit": min(limit, MaxPage)})
	if err != nil {
		return nil, fmt.Errorf("select open reversals: %w", err)
	}
	open, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Open])
	if err != nil {
		return nil, fmt.Errorf("select open reversals: %w", err)
	}
	return open, nil
}

func selectStateForUpdate(ctx context.Context, tx pgx.Tx, id uuid.UUID) (state State, err error) {
	err = tx.QueryRow(ctx, `SELECT state FROM duty WHERE id = @id FOR UPDATE`, pgx.NamedArgs{"id": id}).Scan(&state)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", ErrNotFound
	case err != nil:
		return "", fmt.Errorf("select reversal: %w", err)
	}
	return state, nil
}

// updateResumed moves a locked duty, with its history and the end of its exceptions.
func updateResumed(ctx context.Context, tx pgx.Tx, id uuid.UUID, from, to State, reason string, now time.Time) error {
	tag, err := tx.Exec(ctx, `
		WITH resumed AS (
			UPDATE duty SET state = @to, state_version = state_version + 1, next_at = @now, claim_epoch = NULL, needs_attention = false, updated_at = greatest(@now, updated_at)
			WHERE id = @id AND state = @from
			RETURNING id, kind, state_version, updated_at
		), closed AS (
			UPDATE exception e SET closed_at = @now FROM resumed r WHERE e.subject_id = r.id AND e.closed_at IS NULL
		)
		INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, at)
		SELECT id, state_version, kind, @from, @to, @reason, updated_at FROM resumed`,
		pgx.NamedArgs{"id": id, "from": string(from), "to": string(to), "reason": reason, "now": now})
	if err != nil {
		return fmt.Errorf("resume reversal: %w", err)
	}
	if tag.RowsAffected() != 1 { // the row is locked, so this is a fault of ours
		return fmt.Errorf("resume reversal: %d rows moved, want 1", tag.RowsAffected())
	}
	return nil
}
