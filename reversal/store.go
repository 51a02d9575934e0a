package reversal

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Kind is what a duty tells the scheme.
type Kind string

// The kinds: a reversal undoes, a capture completes (0220). Both are owed, repeated and acknowledged alike.
const (
	Reversal Kind = "reversal"
	Capture  Kind = "capture"
)

// Duty is one message that is owed, as a worker holds it.
type Duty struct {
	ID              uuid.UUID
	AuthorizationID uuid.UUID
	Tenant          string
	Link            string
	Kind            Kind
	Number          int16 // among the authorisation's duties; 0 is the reversal of the whole
	AmountMinor     int64 // captured or taken back, minor units; 0 for the reversal of the whole
	StandingMinor   int64 // of a partial reversal: what it leaves of the approved amount
	Final           bool  // of a capture: no other one follows
	Reason          Reason
	STAN            string    // DE 11 where it is not the original's; "" otherwise and before the first attempt
	Reopened        int16     // how often an approval came after "original not found", or after an attempt that may yet be answered so
	Attempt         int32     // from 1; the attempt this claim is for
	NextAt          time.Time // when the claim runs out; until then nobody else takes the duty
	CreatedAt       time.Time // DE 7 of the message, the same in every attempt
	Undoes          *Undone   // of a reversal: the capture it undoes, nil for none

	Premature Outcome // what keeps this attempt from being sent: unsent or withdrawn; "" for nothing
	Affinity  uint64  // of the card, see link.Call
	Body      []byte  // the encoded message of this attempt, nil when it could not be built
}

// Undone is the capture that a reversal undoes, as it was sent.
type Undone struct {
	ID        uuid.UUID
	Number    int16
	STAN      string
	CreatedAt time.Time
}

// Querier reads: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// WholeID is the id of the reversal of a whole authorisation: whoever owes it, and however often, it is the same duty.
func WholeID(authorization uuid.UUID) uuid.UUID {
	return uuid.NewSHA1(authorization, []byte("reversal"))
}

// OweFrom is the INSERT that owes the reversal of the whole for each row of a common table expression named source, as SQL text
// for the caller's own statement. The rows must have the columns
//
//	id uuid (WholeID), authorization_id uuid, tenant text, link text, reason text, next_at timestamptz, at timestamptz
//
// An authorisation that has one already, such as one its client asked for, keeps it. It returns those that are new.
func OweFrom(source string) string {
	return `
	INSERT INTO duty (id, authorization_id, kind, number, tenant, link, state, state_version, reason, next_at, created_at, updated_at)
	SELECT id, authorization_id, 'reversal', 0, tenant, link, 'owed', 1, reason, next_at, at, at FROM ` + source + `
	ON CONFLICT (authorization_id, number) DO NOTHING
	RETURNING id, authorization_id, reason, created_at`
}

// ResolveFrom is the UPDATE that writes down what attempts came to, as SQL text for the caller's own statement. The rows of
// source must have the columns
//
//	id uuid, attempt int4, claimed_until timestamptz, outcome text, response_code text, next_at timestamptz, at timestamptz, attention bool
//
// and ids is the SQL of an array of their ids, by which the rows are found whatever the statistics say. Only the result of the
// claim that still stands moves the duty, and an acknowledgement of any attempt closes it. The attempt's number alone does not
// name a claim: an attempt of which nothing left gives its number back, so a result that is written down again after a COMMIT of
// unknown outcome could undo a later claim of that number. "Nothing to undo" closes a duty that was reopened only as the result of the
// claim that stands: said of an earlier attempt, it is older than the approval that reopened it. claimed_until is the claim's
// Duty.NextAt, NULL where no claim is known. The locked row decides, so that the plan needs nothing but the primary key. It returns the
// row as it now is, with the state it had in from_state.
func ResolveFrom(source, ids string) string {
	return `
	WITH was AS MATERIALIZED (SELECT id, state, attempts, next_at, reopened FROM duty WHERE id = ANY(` + ids + `) FOR NO KEY UPDATE)
	UPDATE duty r SET
		state = CASE WHEN u.outcome IN (` + closings + `) THEN 'acknowledged' WHEN u.outcome = 'refused' THEN 'suspended' ELSE r.state END,
		closed_as = CASE WHEN u.outcome IN (` + closings + `) THEN u.outcome END,
		state_version = r.state_version + CASE WHEN u.outcome IN (` + closings + `, 'refused') THEN 1 ELSE 0 END,
		attempts = r.attempts - CASE WHEN u.outcome IN ('unsent', 'withdrawn') THEN 1 ELSE 0 END,
		next_at = CASE WHEN u.outcome IN ('silence', 'unsent') THEN u.next_at ELSE r.next_at END,
		response_code = coalesce(u.response_code, r.response_code),
		needs_attention = u.outcome NOT IN (` + closings + `) AND (r.needs_attention OR u.attention),
		claim_epoch = NULL,
		updated_at = greatest(u.at, r.updated_at, r.created_at)
	FROM ` + source + ` u JOIN was ON was.id = u.id
	WHERE r.id = ANY(` + ids + `) AND r.id = u.id
	AND ((was.state IN ('owed', 'suspended') AND (u.outcome = 'acknowledged' OR (u.outcome = 'nothing_to_undo' AND was.reopened = 0)))
		OR (was.state = 'owed' AND was.attempts = u.attempt AND was.next_at = u.claimed_until))
	RETURNING r.id, r.authorization_id, r.kind, r.number, r.amount_minor, r.undoes, r.reopened, r.tenant, r.link, r.state, r.state_version,
		r.attempts, r.needs_attention, u.outcome, u.response_code, r.updated_at AS at, was.state AS from_state`
}

// closings are the outcomes that close a duty; each is kept as what it was closed as.
const closings = `'acknowledged', 'nothing_to_undo', 'withdrawn'`

// claimable is the condition on a duty r of a link that may be sent when its time comes: none of its authorisation's that was owed
// before it is still owed, and the capture that it undoes has been taken by the scheme. What undoes a capture that the scheme refused
// waits for the person who resumes that one: sent before, it would be answered with "not found", and mean nothing.
const claimable = `r.state = 'owed' AND r.link = @link
	AND NOT EXISTS (SELECT FROM duty e WHERE e.authorization_id = r.authorization_id AND e.state = 'owed' AND (e.created_at, e.number) < (r.created_at, r.number))
	AND NOT EXISTS (SELECT FROM duty c WHERE c.id = r.undoes AND c.state <> 'acknowledged')`

// Claim takes up to limit duties of one link that are due, oldest first, for one attempt each: the attempt is counted in the
// caller's transaction, before its message leaves. Duties of one authorisation go one after the other, in the order in which they
// were owed; those of others never wait for them. Until claimUntil nobody else takes what was claimed; that only spaces the
// attempts, since a duty sent twice is one duty.
func Claim(ctx context.Context, tx pgx.Tx, link string, epoch int64, now, claimUntil time.Time, limit int) ([]Duty, error) {
	rows, err := tx.Query(ctx, `
		WITH due AS MATERIALIZED (
			SELECT r.id, c.id AS capture_id, c.number AS capture_number, c.stan AS capture_stan, c.created_at AS capture_created_at
			FROM duty r LEFT JOIN duty c ON c.id = r.undoes
			WHERE `+claimable+` AND r.next_at <= @now
			ORDER BY r.next_at LIMIT @limit FOR NO KEY UPDATE OF r SKIP LOCKED
		)
		UPDATE duty d SET attempts = d.attempts + 1, next_at = @claim_until, claim_epoch = @epoch, updated_at = greatest(@now, d.updated_at)
		FROM due WHERE d.id = due.id
		RETURNING d.id, d.authorization_id, d.tenant, d.link, d.kind, d.number, coalesce(d.amount_minor, 0), coalesce(d.standing_minor, 0), d.final, d.reason,
			coalesce(d.stan, ''), d.reopened, d.attempts, d.next_at, d.created_at, due.capture_id, due.capture_number,
			coalesce(due.capture_stan, ''), due.capture_created_at`,
		pgx.NamedArgs{"link": link, "epoch": epoch, "now": now, "claim_until": claimUntil, "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("claim duties: %w", err)
	}
	duties, err := pgx.CollectRows(rows, scanDuty)
	if err != nil {
		return nil, fmt.Errorf("claim duties: %w", err)
	}
	return duties, nil
}

func scanDuty(row pgx.CollectableRow) (d Duty, err error) {
	var capture *uuid.UUID
	var number *int16
	var stan string
	var created *time.Time
	err = row.Scan(&d.ID, &d.AuthorizationID, &d.Tenant, &d.Link, &d.Kind, &d.Number, &d.AmountMinor, &d.StandingMinor, &d.Final, &d.Reason,
		&d.STAN, &d.Reopened, &d.Attempt, &d.NextAt, &d.CreatedAt, &capture, &number, &stan, &created)
	if err == nil && capture != nil {
		d.Undoes = &Undone{ID: *capture, Number: *number, STAN: stan, CreatedAt: *created}
	}
	return d, err
}

// FixSTANs writes down the STANs of claimed duties that have one of their own, before their first attempt leaves: every later
// attempt carries the same.
func FixSTANs(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, stans []string) error {
	tag, err := tx.Exec(ctx, `UPDATE duty d SET stan = u.stan FROM unnest(@ids::uuid[], @stans::text[]) AS u(id, stan)
		WHERE d.id = ANY(@ids::uuid[]) AND d.id = u.id AND d.stan IS NULL`, pgx.NamedArgs{"ids": ids, "stans": stans})
	if err != nil {
		return fmt.Errorf("fix STANs of duties: %w", err)
	}
	if int(tag.RowsAffected()) != len(ids) { // the rows are claimed in this transaction, so this is a fault of ours
		return fmt.Errorf("fix STANs of duties: %d of %d had none", tag.RowsAffected(), len(ids))
	}
	return nil
}

// ReleaseClaims makes what ended daemons had claimed due at once.
func ReleaseClaims(ctx context.Context, tx pgx.Tx, endedEpochs []int64, now time.Time) error {
	_, err := tx.Exec(ctx, `UPDATE duty SET next_at = @now, claim_epoch = NULL, updated_at = greatest(@now, updated_at)
		WHERE state = 'owed' AND claim_epoch = ANY(@epochs)`, pgx.NamedArgs{"now": now, "epochs": endedEpochs})
	if err != nil {
		return fmt.Errorf("release reversal claims: %w", err)
	}
	return nil
}

// NextDue is when the link's next duty is due that waits for no other; the zero time when none is owed.
func NextDue(ctx context.Context, db Querier, link string) (time.Time, error) {
	rows, err := db.Query(ctx, `SELECT r.next_at FROM duty r WHERE `+claimable+` ORDER BY r.next_at LIMIT 1`,
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
	Kind      Kind
	State     State
	Count     int64
	OldestAt  time.Time
	Attention int64 // of Count, those a person has been called for
}

// SelectBacklog counts open duties by link, kind and state.
func SelectBacklog(ctx context.Context, db Querier) ([]Backlog, error) {
	rows, err := db.Query(ctx, `SELECT link, kind, state, count(*), min(created_at), count(*) FILTER (WHERE needs_attention)
		FROM duty WHERE state <> 'acknowledged' GROUP BY link, kind, state ORDER BY link, kind, state`)
	if err != nil {
		return nil, fmt.Errorf("select reversal backlog: %w", err)
	}
	backlog, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Backlog])
	if err != nil {
		return nil, fmt.Errorf("select reversal backlog: %w", err)
	}
	return backlog, nil
}
