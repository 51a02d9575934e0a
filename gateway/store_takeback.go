package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/reversal"
)

// errLostRace means that a locked row was not what it was read as: a fault of ours.
var errLostRace = errors.New("the authorization moved under its lock")

// insertNumberedDuty claims a duty's amount and number and owes it, with both histories. A duty is never older than those before it,
// since they are sent in the order of their age.
func insertNumberedDuty(ctx context.Context, tx pgx.Tx, a *Authorization, c amountClaim, now time.Time) (created time.Time, err error) {
	err = tx.QueryRow(ctx, `
		WITH moved AS (
			UPDATE card_authorization SET captured_minor = captured_minor + @captured::int8, reversed_minor = reversed_minor + @reversed::int8,
				duties = @number, state = @to, state_version = state_version + 1, updated_at = @now
			WHERE id = @authorization AND state = @from AND duties = @number::int2 - 1
			AND captured_minor + reversed_minor + @captured::int8 + @reversed::int8 <= coalesce(approved_minor, 0)
			RETURNING id, tenant, link, state, state_version
		), history AS (
			INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, at)
			SELECT id, state_version, 'authorization', @from, state, @event, @now FROM moved
		), owed AS (
			INSERT INTO duty (id, authorization_id, kind, number, tenant, link, state, state_version, reason, next_at, created_at, updated_at,
				amount_minor, standing_minor, final, undoes, client_reference)
			SELECT @id, id, @kind, @number, tenant, link, 'owed', 1, @reason, @due,
				greatest(@now::timestamptz, (SELECT max(d.created_at) FROM duty d WHERE d.authorization_id = @authorization)), @now,
				@amount, @standing, @final, @undoes, @reference FROM moved
			RETURNING id, kind, reason, created_at
		), owed_history AS (
			INSERT INTO state_history (subject_id, state_version, subject, to_state, reason, at)
			SELECT id, 1, kind, 'owed', reason, created_at FROM owed
		)
		SELECT created_at FROM owed`,
		pgx.NamedArgs{"authorization": a.ID, "from": string(a.State), "to": string(c.to), "event": c.event, "now": now, "due": c.duty.NextAt,
			"captured": c.capturedMinor, "reversed": c.reversedMinor, "number": c.duty.Number, "id": c.duty.ID, "kind": string(c.duty.Kind),
			"reason": string(c.duty.Reason), "amount": c.duty.AmountMinor, "standing": c.standingMinor, "final": c.duty.Final, "undoes": c.undoes,
			"reference": pgTextOrNull(c.reference)}).Scan(&created)
	if isNoRows(err) {
		err = errLostRace
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("insert duty: %w", err)
	}
	return created, nil
}

// selectDuties reads the duties of an authorisation in the order of their numbers; the reversal of the whole, number 0, comes first.
func selectDuties(ctx context.Context, db querier, a *Authorization) ([]DutyView, error) {
	rows, err := db.Query(ctx, `
		SELECT id, kind, number, coalesce(client_reference, ''), amount_minor, standing_minor, final, undoes, reason, coalesce(stan, ''), state,
			coalesce(closed_as, ''), attempts, next_at, coalesce(response_code, ''), needs_attention, created_at, updated_at
		FROM duty WHERE authorization_id = @authorization AND tenant = @tenant ORDER BY number`,
		pgx.NamedArgs{"authorization": a.ID, "tenant": a.Tenant})
	if err != nil {
		return nil, fmt.Errorf("select duties: %w", err)
	}
	duties, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (DutyView, error) { return scanDutyView(row, a) })
	if err != nil {
		return nil, fmt.Errorf("select duties: %w", err)
	}
	return duties, nil
}

func scanDutyView(row pgx.CollectableRow, a *Authorization) (DutyView, error) {
	d := DutyView{AuthorizationID: a.ID}
	var due time.Time
	var undoes *uuid.UUID
	err := row.Scan(&d.ID, &d.Kind, &d.Number, &d.ClientReference, &d.amountMinor, &d.standingMinor, &d.Final, &undoes, &d.Reason, &d.STAN, &d.State,
		&d.ClosedAs, &d.Attempts, &due, &d.ResponseCode, &d.NeedsAttention, &d.CreatedAt, &d.UpdatedAt)
	if err != nil {
		return DutyView{}, err
	}
	d.Undoes, d.CreatedAt, d.UpdatedAt = undoes, d.CreatedAt.UTC(), d.UpdatedAt.UTC()
	if d.State == reversal.Owed {
		due = due.UTC()
		d.NextAt = &due
	}
	d.name(a)
	return d, nil
}
