package reversal

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Duty is one reversal that is owed, as a worker holds it.
type Duty struct {
	ID              uuid.UUID
	AuthorizationID uuid.UUID
	Tenant          string
	Link            string
	Reason          Reason
	Attempt         int32     // from 1; the attempt this claim is for
	NextAt          time.Time // when the claim runs out; until then nobody else takes the duty
	CreatedAt       time.Time // DE 7 of the reversal, the same in every attempt

	Body []byte // the encoded message of this attempt, nil when it could not be built
}

// Querier reads: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// OweFrom is the INSERT that owes a reversal for each row of a common table expression named source, as SQL text for the
// caller's own statement. The rows must have the columns
//
//	id uuid, authorization_id uuid, tenant text, link text, reason text, next_at timestamptz, at timestamptz
//
// An authorisation that has a reversal already keeps it.
func OweFrom(source string) string {
	return `
	INSERT INTO reversal (id, authorization_id, tenant, link, state, state_version, reason, next_at, created_at, updated_at)
	SELECT id, authorization_id, tenant, link, 'owed', 1, reason, next_at, at, at FROM ` + source + `
	ON CONFLICT (authorization_id) DO NOTHING
	RETURNING authorization_id`
}

// ResolveFrom is the UPDATE that writes down what attempts came to, as SQL text for the caller's own statement. The rows of
// source must have the columns
//
//	id uuid, attempt int4, claimed_until timestamptz, outcome text, response_code text, next_at timestamptz, at timestamptz, attention bool
//
// and ids is the SQL of an array of their ids, by which the rows are found whatever the statistics say. Only the result of the
// claim that still stands moves the duty, and an acknowledgement of any attempt closes it. The attempt's number alone does not
// name a claim: an attempt of which nothing left gives its number back, so a result that is written down again after a COMMIT of
// unknown outcome could undo a later claim of that number. claimed_until is the claim's Duty.NextAt; it may be NULL where the
// outcome is acknowledged. The locked row decides, so that the plan needs nothing but the primary key. It returns the row as it
// now is, with the state it had in from_state.
func ResolveFrom(source, ids string) string {
	return `
	WITH was AS MATERIALIZED (SELECT id, state, attempts, next_at FROM reversal WHERE id = ANY(` + ids + `) FOR UPDATE)
	UPDATE reversal r SET
		state = CASE u.outcome WHEN 'acknowledged' THEN 'acknowledged' WHEN 'refused' THEN 'suspended' ELSE r.state END,
		state_version = r.state_version + CASE WHEN u.outcome IN ('acknowledged', 'refused') THEN 1 ELSE 0 END,
		attempts = r.attempts - CASE WHEN u.outcome = 'unsent' THEN 1 ELSE 0 END,
		next_at = CASE WHEN u.outcome IN ('silence', 'unsent') THEN u.next_at ELSE r.next_at END,
		response_code = coalesce(u.response_code, r.response_code),
		needs_attention = u.outcome <> 'acknowledged' AND (r.needs_attention OR u.attention),
		claim_epoch = NULL,
		updated_at = u.at
	FROM ` + source + ` u JOIN was ON was.id = u.id
	WHERE r.id = ANY(` + ids + `) AND r.id = u.id
	AND ((was.state = 'owed' AND (u.outcome = 'acknowledged' OR (was.attempts = u.attempt AND was.next_at = u.claimed_until)))
		OR (was.state = 'suspended' AND u.outcome = 'acknowledged'))
	RETURNING r.id, r.authorization_id, r.tenant, r.link, r.state, r.state_version, r.attempts, r.needs_attention, u.outcome, u.response_code, u.at, was.state AS from_state`
}

// Claim takes up to limit duties of one link that are due, oldest first, for one attempt each: the attempt is counted in the
// caller's transaction, before its message leaves. Until claimUntil nobody else takes them; that only spaces the attempts,
// since a reversal sent twice is one reversal.
func Claim(ctx context.Context, tx pgx.Tx, link string, epoch int64, now, claimUntil time.Time, limit int) ([]Duty, error) {
	rows, err := tx.Query(ctx, `
		UPDATE reversal SET attempts = attempts + 1, next_at = @claim_until, claim_epoch = @epoch, updated_at = @now
		WHERE id = ANY(ARRAY(
			SELECT id FROM reversal WHERE state = 'owed' AND link = @link AND next_at <= @now
			ORDER BY next_at LIMIT @limit FOR UPDATE SKIP LOCKED))
		RETURNING id, authorization_id, tenant, link, reason, attempts, next_at, created_at`,
		pgx.NamedArgs{"link": link, "epoch": epoch, "now": now, "claim_until": claimUntil, "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("claim reversals: %w", err)
	}
	duties, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Duty, err error) {
		return d, row.Scan(&d.ID, &d.AuthorizationID, &d.Tenant, &d.Link, &d.Reason, &d.Attempt, &d.NextAt, &d.CreatedAt)
	})
	if err != nil {
		return nil, fmt.Errorf("claim reversals: %w", err)
	}
	return duties, nil
}

// ReleaseClaims makes what ended daemons had claimed due at once.
func ReleaseClaims(ctx context.Context, tx pgx.Tx, endedEpochs []int64, now time.Time) error {
	_, err := tx.Exec(ctx, `UPDATE reversal SET next_at = @now, claim_epoch = NULL, updated_at = @now
		WHERE state = 'owed' AND claim_epoch = ANY(@epochs)`, pgx.NamedArgs{"now": now, "epochs": endedEpochs})
	if err != nil {
		return fmt.Errorf("release reversal claims: %w", err)
	}
	return nil
}

// NextDue is when the link's next duty is due; the zero time when none is owed.
func NextDue(ctx context.Context, db Querier, link string) (time.Time, error) {
	rows, err := db.Query(ctx, `SELECT next_at FROM reversal WHERE state = 'owed' AND link = @link ORDER BY next_at LIMIT 1`,
		pgx.NamedArgs{"link": link})
	if err != nil {
		return time.Time{}, fmt.Errorf("select next reversal: %w", err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil {
		return time.Time{}, fmt.Errorf("select next reversal: %w", err)
	}
	if len(due) == 0 {
		return time.Time{}, nil
	}
	return due[0], nil
}

// Backlog is what one link still has to undo.
type Backlog struct {
	Link      string
	State     State
	Count     int64
	OldestAt  time.Time
	Attention int64 // of Count, those a person has been called for
}

// SelectBacklog counts open duties by link and state.
func SelectBacklog(ctx context.Context, db Querier) ([]Backlog, error) {
	rows, err := db.Query(ctx, `SELECT link, state, count(*), min(created_at), count(*) FILTER (WHERE needs_attention)
		FROM reversal WHERE state <> 'acknowledged' GROUP BY link, state ORDER BY link, state`)
	if err != nil {
		return nil, fmt.Errorf("select reversal backlog: %w", err)
	}
	backlog, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Backlog])
	if err != nil {
		return nil, fmt.Errorf("select reversal backlog: %w", err)
	}
	return backlog, nil
}
