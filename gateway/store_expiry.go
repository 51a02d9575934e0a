package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/schemegate/schemegate/ledger"
)

// expiryLook is where a look for expired holds stands.
type expiryLook struct {
	link          string
	from          time.Time // by deadline; moves on with each transaction
	createdBefore time.Time
	now           time.Time
}

// endHolds ends up to expiryLimit holds in one transaction and moves the look on; n is how many. The rows are locked first, so that the
// second statement sees whatever a capture or a reversal has recorded before it; what is locked by one at this moment is left to the
// next look.
func (g *Gateway) endHolds(ctx context.Context, look *expiryLook) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, expiryTimeout)
	defer cancel()
	var hits []uuid.UUID
	err = pgx.BeginFunc(ctx, g.db, func(tx pgx.Tx) error {
		ids, last, err := selectExpiredHolds(ctx, tx, *look)
		if err != nil || len(ids) == 0 {
			return err
		}
		if n, hits, err = updateExpired(ctx, tx, ids, *look); err != nil {
			return err
		}
		look.from = last
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, id := range hits {
		g.reportLedgerHit(id)
	}
	return n, nil
}

// stillReversed says, of a row named a, that a reversal ends its hold, or is about to. A partial one is waited for, and without an end
// where nothing else remains.
const stillReversed = `EXISTS (SELECT FROM duty d WHERE d.authorization_id = a.id AND d.kind = 'reversal' AND d.undoes IS NULL
	AND (d.number = 0 OR d.state <> 'acknowledged' AND (a.created_at > @overdue OR a.captured_minor + a.reversed_minor = a.approved_minor)))`

// expiredHolds are approved holds past their time, by the index of deadlines: a deadline lies at most maxAnswerWithin after the request.
const expiredHolds = ` FROM card_authorization a
	WHERE a.deadline_at >= @from AND a.deadline_at <= @until AND a.created_at <= @before AND a.link = @link AND a.state = 'approved'
	AND ` + effectSQL + ` = 'holds' AND NOT ` + stillReversed + ` `

// selectLeftHolds tells whether a look left any hold with a deadline up to through, since another transaction had its row.
func selectLeftHolds(ctx context.Context, db querier, look expiryLook, from, through time.Time) (left bool, err error) {
	err = db.QueryRow(ctx, `SELECT EXISTS (SELECT`+expiredHolds+`)`,
		pgx.NamedArgs{"link": look.link, "from": from, "until": through, "before": look.createdBefore,
			"overdue": look.createdBefore.Add(-expiryPatience)}).Scan(&left)
	if err != nil {
		return false, fmt.Errorf("select holds left: %w", err)
	}
	return left, nil
}

// selectExpiredHolds locks expired holds, in the order of their deadlines.
func selectExpiredHolds(ctx context.Context, tx pgx.Tx, look expiryLook) (ids []uuid.UUID, last time.Time, err error) {
	rows, err := tx.Query(ctx, `SELECT a.id, a.deadline_at`+expiredHolds+`ORDER BY a.deadline_at LIMIT @limit FOR NO KEY UPDATE OF a SKIP LOCKED`,
		pgx.NamedArgs{"link": look.link, "from": look.from, "until": look.createdBefore.Add(maxAnswerWithin), "before": look.createdBefore,
			"overdue": look.createdBefore.Add(-expiryPatience), "limit": expiryLimit})
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("select expired holds: %w", err)
	}
	var id uuid.UUID
	if _, err = pgx.ForEachRow(rows, []any{&id, &last}, func() error {
		ids = append(ids, id)
		return nil
	}); err != nil {
		return nil, time.Time{}, fmt.Errorf("select expired holds: %w", err)
	}
	return ids, last, nil
}

var updateExpiredSQL = `
	WITH moved AS (
		UPDATE card_authorization a SET state_version = a.state_version + 1, updated_at = greatest(@now, a.updated_at), state = CASE
				WHEN a.captured_minor > 0 THEN 'captured' WHEN a.reversed_minor = a.approved_minor THEN 'reversed' ELSE 'expired' END
		WHERE a.id = ANY(@ids::uuid[]) AND a.state = 'approved' AND NOT ` + stillReversed + `
		RETURNING a.id, a.state, a.state_version, a.updated_at, a.tenant, a.client_reference, a.rrn, a.currency, a.customer_account, a.settlement_account,
			a.approved_minor - a.captured_minor - a.reversed_minor AS rest_minor
	), history AS (
		INSERT INTO state_history (subject_id, state_version, subject, from_state, to_state, reason, at)
		SELECT id, state_version, 'authorization', 'approved', state, 'hold_expired', updated_at FROM moved
	), told AS (
		INSERT INTO event (at, tenant, kind, subject_id, detail)
		SELECT updated_at, tenant, @event, id, 'the rest of the hold is released; the authorization is ' || state FROM moved
	), release AS (
		SELECT id AS intent, ` + int2Literal(transactionOwn) + ` AS transaction, ` + int2Literal(ledger.Release) + ` AS step, ` + int2Literal(releaseOfRest) + ` AS number,
			` + int2Literal(ledger.Pending) + ` AS layer, settlement_account AS debit_account, customer_account AS credit_account, rest_minor AS amount_minor,
			currency::text AS currency, (updated_at AT TIME ZONE 'UTC')::date AS value_date, updated_at AS booked_at, rrn AS source_ref,
			false AS correction, tenant, client_reference
		FROM moved WHERE rest_minor > 0
	), posted AS (` + ledger.PostFrom("release") + `)
	SELECT id, EXISTS (SELECT FROM release r WHERE r.intent = moved.id AND NOT EXISTS (SELECT FROM posted p WHERE p.intent = r.intent)) FROM moved`

// updateExpired ends locked holds: state, history, event and the release of what remains. n is how many; hits are those whose release the
// ledger had already.
func updateExpired(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, look expiryLook) (n int, hits []uuid.UUID, err error) {
	rows, err := tx.Query(ctx, updateExpiredSQL, pgx.NamedArgs{"ids": ids, "now": look.now, "event": eventExpired,
		"overdue": look.createdBefore.Add(-expiryPatience)})
	if err != nil {
		return 0, nil, fmt.Errorf("expire holds: %w", err)
	}
	var id uuid.UUID
	var hit bool
	if _, err = pgx.ForEachRow(rows, []any{&id, &hit}, func() error {
		n++
		if hit {
			hits = append(hits, id)
		}
		return nil
	}); err != nil {
		return 0, nil, fmt.Errorf("expire holds: %w", err)
	}
	return n, hits, nil
}
