package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/reversal"
)

// repeatedDateTime is how far apart two uses of one STAN and DE 7 are when DE 7, which has no year, has come round again.
const repeatedDateTime = 300 * 24 * time.Hour

// selectOriginals finds the authorisations that a response off the wire may belong to, newest first: by STAN and DE 7, where that is
// empty by STAN and RRN, without a STAN by the RRN, and by the STAN alone only since a time.
func selectOriginals(ctx context.Context, db querier, link, stan, transmissionDateTime, rrn string, since time.Time) ([]*Authorization, error) {
	return collectAuthorizations(db.Query(ctx, `SELECT `+authorizationColumns+authorizationFrom+`
		WHERE a.link = @link AND (
			(@stan <> '' AND a.stan = @stan AND CASE WHEN @dt <> '' THEN a.transmission_date_time = @dt
				WHEN @rrn <> '' THEN a.rrn = @rrn ELSE a.created_at > @since END)
			OR (@stan = '' AND @rrn <> '' AND a.rrn = @rrn))
		ORDER BY a.created_at DESC LIMIT @limit`,
		pgx.NamedArgs{"link": link, "stan": stan, "dt": transmissionDateTime, "rrn": rrn, "since": since, "limit": maxCandidates}))
}

// selectAnswered finds the duties of a kind, of which something was sent, that a response off the wire may belong to: by their own STAN, by
// their original's where they have none, or without a STAN by the RRN alone. Without an RRN only those are taken that moved since a time.
func selectAnswered(ctx context.Context, db querier, link string, kind reversal.Kind, stan, rrn string, since time.Time) ([]lateDuty, error) {
	rows, err := db.Query(ctx, `
		WITH candidate AS (
			SELECT d.id FROM duty d WHERE d.link = @link AND d.stan = @stan
			UNION
			SELECT d.id FROM card_authorization a JOIN duty d ON d.authorization_id = a.id
			WHERE a.link = @link AND @stan <> '' AND a.stan = @stan AND d.stan IS NULL
			UNION
			SELECT d.id FROM card_authorization a JOIN duty d ON d.authorization_id = a.id
			WHERE a.link = @link AND @stan = '' AND @rrn <> '' AND a.rrn = @rrn
		)
		SELECT d.id, d.authorization_id, d.tenant, d.kind, d.number, d.attempts, coalesce(d.stan, ''), d.state, c.id, c.number
		FROM duty d JOIN card_authorization a ON a.id = d.authorization_id LEFT JOIN duty c ON c.id = d.undoes
		WHERE d.id IN (SELECT id FROM candidate) AND d.kind = @kind AND d.attempts > 0
		AND CASE WHEN @rrn <> '' THEN a.rrn = @rrn ELSE d.updated_at > @since END
		ORDER BY d.created_at DESC LIMIT @limit`,
		pgx.NamedArgs{"link": link, "kind": string(kind), "stan": stan, "rrn": rrn, "since": since, "limit": maxCandidates})
	if err != nil {
		return nil, fmt.Errorf("select answered duties: %w", err)
	}
	duties, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d lateDuty, err error) {
		var capture *uuid.UUID
		var number *int16
		err = row.Scan(&d.ID, &d.AuthorizationID, &d.Tenant, &d.Kind, &d.Number, &d.Attempt, &d.STAN, &d.state, &capture, &number)
		if capture != nil {
			d.Undoes = &reversal.Undone{ID: *capture, Number: *number}
		}
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("select answered duties: %w", err)
	}
	return duties, nil
}

// insertLateMessage journals a late message with its event in tx; fresh is false when an earlier attempt of this has committed.
func insertLateMessage(ctx context.Context, tx pgx.Tx, s *noteStep) (fresh bool, err error) {
	err = tx.QueryRow(ctx, `
		WITH journal AS (
			INSERT INTO message (id, at, link, direction, kind, mti, stan, rrn, authorization_id, response_code, image, digest, note)
			VALUES (@id, @at, @link, 'in', @kind, @mti, @stan, @rrn, @authorization, @code, @image, @digest, @note)
			ON CONFLICT DO NOTHING RETURNING id
		), told AS (
			INSERT INTO event (at, tenant, kind, subject_id, detail)
			SELECT @at, @tenant, @event, @authorization, @detail FROM journal
		)
		SELECT EXISTS (SELECT FROM journal)`,
		pgx.NamedArgs{"id": s.message.id, "at": s.message.at, "link": s.link, "kind": s.message.kind, "mti": pgTextOrNull(s.message.mti),
			"stan": pgTextOrNull(s.stan), "rrn": pgTextOrNull(s.rrn), "authorization": s.authorizationID, "code": pgTextOrNull(s.message.responseCode),
			"image": s.message.image, "digest": s.message.digest, "note": pgTextOrNull(s.message.note), "tenant": s.tenant, "event": s.event,
			"detail": s.detail}).Scan(&fresh)
	if err != nil {
		return false, fmt.Errorf("insert late message: %w", err)
	}
	return fresh, nil
}

// insertException opens an exception about an authorisation in tx, unless one of the kind is open.
func insertException(ctx context.Context, tx pgx.Tx, a *Authorization, kind, detail string, now time.Time) error {
	_, err := tx.Exec(ctx, `INSERT INTO exception (id, kind, tenant, link, subject_id, detail, opened_at)
		VALUES (@id, @kind, @tenant, @link, @subject, @detail, @now) ON CONFLICT (kind, subject_id) WHERE closed_at IS NULL DO NOTHING`,
		pgx.NamedArgs{"id": newID(), "kind": kind, "tenant": a.Tenant, "link": a.Link, "subject": a.ID, "detail": detail, "now": now})
	if err != nil {
		return fmt.Errorf("insert exception: %w", err)
	}
	return nil
}

// wholeRow is the reversal of the whole under its lock.
type wholeRow struct {
	state    reversal.State
	closedAs reversal.Outcome
	attempts int32
	claimed  bool
}

// selectWholeForUpdate locks the reversal of the whole, before its authorisation as whoever resolves it does; found is false when none is
// owed.
func selectWholeForUpdate(ctx context.Context, tx pgx.Tx, authorization uuid.UUID) (row wholeRow, found bool, err error) {
	err = tx.QueryRow(ctx, `SELECT state, coalesce(closed_as, ''), attempts, claim_epoch IS NOT NULL FROM duty
		WHERE authorization_id = @authorization AND number = 0 FOR UPDATE`, pgx.NamedArgs{"authorization": authorization}).Scan(&row.state, &row.closedAs, &row.attempts, &row.claimed)
	if isNoRows(err) {
		return wholeRow{}, false, nil
	}
	if err != nil {
		return wholeRow{}, false, fmt.Errorf("lock reversal: %w", err)
	}
	return row, true, nil
}

// What history says of a version that a late answer made.
const (
	eventReversalReopened = "reversal_reopened"
	eventLateDecline      = "late_decline"
)

// updateReopened makes a locked reversal owed again and due, with the histories of it and of its authorisation. What an attempt that is
// being made comes to finds its claim gone.
func updateReopened(ctx context.Context, tx pgx.Tx, authorization uuid.UUID, from, to reversal.State, now time.Time) error {
	_, err := tx.Exec(ctx, `
		WITH reopened AS (
			UPDATE duty SET state = @to, state_version = state_version + 1, reopened = reopened + 1, closed_as = NULL, next_at = @due,
				claim_epoch = NULL, response_code = NULL, updated_at = @now
			WHERE authorization_id = @authorization AND number = 0 AND state = @from RETURNING id, kind, state_version
		), duty_history AS (
			INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, at)
			SELECT id, state_version, kind, @from, @to, @event, @now FROM reopened
		), moved AS (
			UPDATE card_authorization SET state_version = state_version + 1, updated_at = @now WHERE id = @authorization RETURNING id, state, state_version
		)
		INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, at)
		SELECT id, state_version, 'authorization', state, state, @event, @now FROM moved`,
		pgx.NamedArgs{"authorization": authorization, "from": string(from), "to": string(to), "event": eventReversalReopened, "now": now, "due": dueAtOnce()})
	if err != nil {
		return fmt.Errorf("reopen reversal: %w", err)
	}
	return nil
}

// updateOutdated marks a locked reversal as one whose attempts so far were made before an approval came, once however many copies of it
// come. Its schedule stays; the microsecond only ends the claim of an attempt that is being made.
func updateOutdated(ctx context.Context, tx pgx.Tx, authorization uuid.UUID) error {
	_, err := tx.Exec(ctx, `UPDATE duty SET reopened = reopened + 1, next_at = next_at + interval '1 microsecond'
		WHERE authorization_id = @authorization AND number = 0 AND reopened = 0`, pgx.NamedArgs{"authorization": authorization})
	if err != nil {
		return fmt.Errorf("outdate attempts of reversal: %w", err)
	}
	return nil
}

var withdrawnSQL = `
	WITH withdrawn AS (
		UPDATE duty SET state = @duty_to, state_version = state_version + 1, closed_as = @outcome, response_code = @code, needs_attention = false, updated_at = @now
		WHERE authorization_id = @authorization AND number = 0 AND state = @duty_from RETURNING id, kind, state_version
	), duty_history AS (
		INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, response_code, at)
		SELECT id, state_version, kind, @duty_from, @duty_to, @outcome, @code, @now FROM withdrawn
	), closed AS (
		UPDATE exception e SET closed_at = @now FROM withdrawn w WHERE e.subject_id = w.id AND e.closed_at IS NULL
	), moved AS (
		UPDATE card_authorization SET state = @to, state_version = state_version + 1, updated_at = @now WHERE id = @authorization AND state = @from
		RETURNING *
	), history AS (
		INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, response_code, at)
		SELECT id, state_version, 'authorization', @from, @to, @event, @code, @now FROM moved
	), release AS (
		SELECT id AS intent, ` + int2Literal(transactionOwn) + ` AS transaction, ` + int2Literal(ledger.Release) + ` AS step, ` + int2Literal(releaseAtDecision) + ` AS number,
			` + int2Literal(ledger.Pending) + ` AS layer, settlement_account AS debit_account, customer_account AS credit_account, @held::int8 AS amount_minor,
			currency::text AS currency, coalesce(settlement_date, (@now::timestamptz AT TIME ZONE 'UTC')::date) AS value_date, @now::timestamptz AS booked_at,
			rrn AS source_ref, false AS correction, tenant, client_reference
		FROM moved WHERE @held::int8 > 0
	), posted AS (` + ledger.PostFrom("release") + `)
	SELECT EXISTS (SELECT FROM release) AND NOT EXISTS (SELECT FROM posted)`

// updateWithdrawn closes a locked reversal of which nothing was sent, ends its authorisation and lets the hold go. hit says that the
// ledger had let it go already.
func updateWithdrawn(ctx context.Context, tx pgx.Tx, a *Authorization, to State, code string, now time.Time) (hit bool, err error) {
	err = tx.QueryRow(ctx, withdrawnSQL, pgx.NamedArgs{"duty_from": string(reversal.Owed), "duty_to": string(reversal.Acknowledged),
		"outcome": string(reversal.AttemptWithdrawn), "code": code, "authorization": a.ID, "from": string(a.State), "to": string(to), "event": eventLateDecline, "held": a.held(), "now": now}).Scan(&hit)
	if err != nil {
		return false, fmt.Errorf("withdraw reversal: %w", err)
	}
	return hit, nil
}
