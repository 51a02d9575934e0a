package gateway

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schemegate/schemegate/ledger"
	"github.com/schemegate/schemegate/reversal"
)

// eventReversalRecorded is what history says of an authorisation's version that a reversal of the whole made.
const eventReversalRecorded = "reversal_recorded"

// insertWhole owes the reversal of the whole of an authorisation whose row is locked and which has none, with both histories; a then
// stands as the row. While it is pending its version stays: the answer that is on its way carries the next one.
func insertWhole(ctx context.Context, tx pgx.Tx, a *Authorization, owing wholeOwing, now time.Time) error {
	tag, err := tx.Exec(ctx, `
		WITH moved AS (
			UPDATE card_authorization SET state_version = state_version + 1, updated_at = @now
			WHERE id = @authorization AND state <> 'pending' RETURNING id, state, state_version
		), history AS (
			INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, at)
			SELECT id, state_version, 'authorization', state, state, @event, @now FROM moved
		), owed AS (
			INSERT INTO duty (id, authorization_id, kind, number, tenant, link, state, state_version, reason, reopened, next_at, created_at, updated_at)
			SELECT @id, a.id, 'reversal', 0, a.tenant, a.link, 'owed', 1, @reason, @reopened, @due,
				greatest(@now::timestamptz, (SELECT max(d.created_at) + interval '1 microsecond' FROM duty d WHERE d.authorization_id = @authorization)), @now
			FROM card_authorization a WHERE a.id = @authorization
			RETURNING id, reason, created_at
		)
		INSERT INTO state_history (subject_id, state_version, subject, to_state, reason, at)
		SELECT id, 1, 'reversal', 'owed', reason, created_at FROM owed`,
		pgx.NamedArgs{"authorization": a.ID, "id": reversal.WholeID(a.ID), "reason": string(owing.reason), "reopened": owing.reopened,
			"due": owing.due, "event": eventReversalRecorded, "now": now})
	if err != nil {
		return fmt.Errorf("insert reversal: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return fmt.Errorf("insert reversal: %w", errLostRace)
	}
	if a.State != Pending {
		a.StateVersion, a.UpdatedAt = a.StateVersion+1, now
	}
	return nil
}

// selectWhole reads the reversal of the whole.
func selectWhole(ctx context.Context, db querier, a *Authorization) (DutyView, error) {
	duties, err := selectDuties(ctx, db, a)
	if err != nil {
		return DutyView{}, err
	}
	i := slices.IndexFunc(duties, func(d DutyView) bool { return d.Number == 0 })
	if i < 0 {
		return DutyView{}, fmt.Errorf("select reversal: %w", errLostRace)
	}
	return duties[i], nil
}

// selectUnheld tells whether an approval of the authorisation was booked without a hold.
func selectUnheld(ctx context.Context, db querier, id uuid.UUID) (unheld bool, err error) {
	err = db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM ledger_posting WHERE intent = @id AND transaction = @unheld AND step IN (@debit, @return) AND number = 1)`,
		pgx.NamedArgs{"id": id, "unheld": transactionUnheld, "debit": int16(ledger.Debit), "return": int16(ledger.Return)}).Scan(&unheld)
	if err != nil {
		return false, fmt.Errorf("select unheld approval: %w", err)
	}
	return unheld, nil
}

// updateDue makes the reversal of the whole due that its client asked for while the authorisation was running. An attempt that is being
// made keeps its time.
func updateDue(ctx context.Context, db *pgxpool.Pool, authorization uuid.UUID, now time.Time) error {
	_, err := db.Exec(ctx, `UPDATE duty SET next_at = @now, updated_at = greatest(@now, updated_at)
		WHERE authorization_id = @authorization AND number = 0 AND state = 'owed' AND reason = ANY(@asked) AND claim_epoch IS NULL AND next_at > @now`,
		pgx.NamedArgs{"authorization": authorization, "asked": []string{string(reversal.Customer), string(reversal.Undelivered)}, "now": now})
	if err != nil {
		return fmt.Errorf("make reversal due: %w", err)
	}
	return nil
}

// selectTombstone reads a tombstone.
func selectTombstone(ctx context.Context, db querier, tenant string, id uuid.UUID) (t tombstone, err error) {
	err = db.QueryRow(ctx, `SELECT id, client_reference, reason, created_at FROM tombstone WHERE id = @id AND tenant = @tenant`,
		pgx.NamedArgs{"id": id, "tenant": tenant}).Scan(&t.id, &t.clientReference, &t.reason, &t.createdAt)
	if err != nil {
		return tombstone{}, fmt.Errorf("select tombstone: %w", err)
	}
	return t, nil
}

// insertTombstone writes a tombstone whose reference is claimed in tx.
func insertTombstone(ctx context.Context, tx pgx.Tx, tenant string, t tombstone) error {
	_, err := tx.Exec(ctx, `INSERT INTO tombstone (id, tenant, client_reference, reason, created_at) VALUES (@id, @tenant, @reference, @reason, @now)`,
		pgx.NamedArgs{"id": t.id, "tenant": tenant, "reference": t.clientReference, "reason": string(t.reason), "now": t.createdAt})
	if err != nil {
		return fmt.Errorf("insert tombstone: %w", err)
	}
	return nil
}
