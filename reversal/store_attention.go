package reversal

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// attentionLimit is how many duties one call of CallAttention takes at most.
const attentionLimit = 500

// unacknowledged ends the kind of exception about a duty that the peer does not acknowledge.
const unacknowledged = "_unacknowledged"

// Unacknowledged is the kind of exception about a duty of this kind that the peer does not acknowledge.
func (k Kind) Unacknowledged() string { return string(k) + unacknowledged }

// CallAttention calls a person for up to attentionLimit duties of one link that are owed since before the given time, however
// few their attempts: a link that is down makes none, so counting them would never tell. It marks them, and opens for each the
// exception and the event, in the caller's transaction; n is how many it marked. A duty that needs attention already is left
// alone, one that is being claimed or resolved at this moment is taken by the next call, and its schedule never moves.
//
// A resumed duty is owed since it was resumed, or the person who did it would be called again at once.
func CallAttention(ctx context.Context, tx pgx.Tx, link string, before, now time.Time) (n int, err error) {
	due, err := selectUnattended(ctx, tx, link, before)
	if err != nil || len(due) == 0 {
		return 0, err
	}
	exceptions := make([]uuid.UUID, len(due))
	for i := range exceptions {
		if exceptions[i], err = uuid.NewV7(); err != nil {
			return 0, fmt.Errorf("make exception id: %w", err)
		}
	}
	return updateAttention(ctx, tx, due, exceptions, now)
}

// selectUnattended locks the duties that CallAttention takes, oldest first. The history row of a duty's current version says
// since when it is owed.
func selectUnattended(ctx context.Context, tx pgx.Tx, link string, before time.Time) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		SELECT r.id FROM duty r
		WHERE r.state = 'owed' AND r.link = @link AND r.created_at < @before AND NOT r.needs_attention
		AND NOT EXISTS (SELECT FROM state_history h
			WHERE h.subject_id = r.id AND h.state_version = r.state_version AND h.at >= @before)
		ORDER BY r.created_at LIMIT @limit FOR UPDATE OF r SKIP LOCKED`,
		pgx.NamedArgs{"link": link, "before": before, "limit": attentionLimit})
	if err != nil {
		return nil, fmt.Errorf("select unattended reversals: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("select unattended reversals: %w", err)
	}
	return ids, nil
}

// updateAttention marks locked duties and opens what tells of them; n is how many it marked.
func updateAttention(ctx context.Context, tx pgx.Tx, ids, exceptions []uuid.UUID, now time.Time) (n int, err error) {
	err = tx.QueryRow(ctx, `
		WITH u AS (
			SELECT * FROM unnest(@ids::uuid[], @exceptions::uuid[]) AS u(id, exception_id)
		), marked AS (
			UPDATE duty r SET needs_attention = true, updated_at = greatest(@now, r.updated_at) FROM u WHERE r.id = ANY(@ids::uuid[]) AND r.id = u.id
			RETURNING r.id, r.kind, u.exception_id, r.tenant, r.link, r.attempts, r.created_at
		), opened AS (
			INSERT INTO exception (id, kind, tenant, link, subject_id, detail, opened_at)
			SELECT exception_id, kind || @suffix, tenant, link, id, 'not acknowledged since ' || to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
				|| ', longer than attention_after allows; attempts so far: ' || attempts || '; they go on', @now FROM marked
			ON CONFLICT (kind, subject_id) WHERE closed_at IS NULL DO NOTHING
			RETURNING tenant, subject_id, kind
		), called AS (
			INSERT INTO event (at, tenant, kind, subject_id, detail)
			SELECT @now, tenant, split_part(kind, '_', 1) || '.needs_attention', subject_id, kind FROM opened
		)
		SELECT count(*) FROM marked`,
		pgx.NamedArgs{"ids": ids, "exceptions": exceptions, "suffix": unacknowledged, "now": now}).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("call attention to reversals: %w", err)
	}
	return n, nil
}
