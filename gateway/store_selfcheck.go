package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/schemegate/schemegate/ledger"
)

// selfCheckWindow is what a self-check looks at.
type selfCheckWindow struct {
	link       string
	since      time.Time // by deadline
	overdue    time.Time // what is pending with a deadline before it is a finding
	unattended time.Time // a reversal owed since before it must have called a person
}

var findingsSQL = `
	WITH seen AS MATERIALIZED (
		SELECT a.id, a.tenant, a.link, a.state, a.deadline_at, ` + effectSQL + ` AS effect FROM card_authorization a
		WHERE a.deadline_at >= @since AND a.link = @link AND a.state <> 'approved'
	), held AS (
		SELECT s.id, sum(CASE p.step WHEN ` + int2Literal(ledger.Hold) + ` THEN p.amount_minor WHEN ` + int2Literal(ledger.Release) + ` THEN -p.amount_minor ELSE 0 END) AS minor
		FROM seen s JOIN ledger_posting p ON p.intent = s.id AND p.layer = ` + int2Literal(ledger.Pending) + `
		WHERE s.state IN ('captured', 'reversed', 'expired', 'declined', 'not_sent') GROUP BY s.id
	)
	(SELECT '` + FindingPending + `' AS kind, id, tenant, link, 'pending past its deadline of ' || to_char(deadline_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS detail
	FROM seen WHERE state = 'pending' AND deadline_at < @overdue LIMIT @limit)
	UNION ALL
	(SELECT '` + FindingUnreversed + `', s.id, s.tenant, s.link, CASE WHEN r.id IS NULL THEN 'timed out, and no reversal is owed'
		ELSE 'its reversal is ' || r.state || ' and no person was called' END
	FROM seen s LEFT JOIN duty r ON r.authorization_id = s.id AND r.number = 0
	WHERE s.state = 'timed_out' AND (r.id IS NULL AND s.effect <> 'nothing' OR r.state = 'acknowledged' OR r.state = 'suspended' OR r.created_at < @unattended)
	AND NOT EXISTS (SELECT FROM exception e WHERE e.subject_id IN (s.id, r.id) AND e.closed_at IS NULL)
	AND NOT coalesce(r.state = 'owed' AND EXISTS (SELECT FROM state_history h WHERE h.subject_id = r.id AND h.state_version = r.state_version AND h.at >= @unattended), false) LIMIT @limit)
	UNION ALL
	(SELECT '` + FindingUnreversed + `', s.id, s.tenant, s.link, 'reversed, and its reversal is ' || r.state
	FROM seen s JOIN duty r ON r.authorization_id = s.id AND r.number = 0
	WHERE s.state = 'reversed' AND r.state <> 'acknowledged' AND r.reopened = 0
	AND NOT EXISTS (SELECT FROM exception e WHERE e.subject_id IN (s.id, r.id) AND e.closed_at IS NULL) LIMIT @limit)
	UNION ALL
	(SELECT '` + FindingHeld + `', s.id, s.tenant, s.link, s.state || ', and ' || h.minor || ' minor units are held'
	FROM held h JOIN seen s ON s.id = h.id WHERE h.minor <> 0
	AND NOT EXISTS (SELECT FROM duty d WHERE d.authorization_id = s.id AND d.kind = 'reversal' AND d.undoes IS NULL AND d.state <> 'acknowledged') LIMIT @limit)`

// selectFindings reads what is not as it must be on one link.
func selectFindings(ctx context.Context, db querier, w selfCheckWindow) ([]Finding, error) {
	rows, err := db.Query(ctx, findingsSQL, pgx.NamedArgs{"link": w.link, "since": w.since, "overdue": w.overdue, "unattended": w.unattended, "limit": maxFindings})
	if err != nil {
		return nil, fmt.Errorf("select findings: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f Finding, err error) {
		return f, row.Scan(&f.Kind, &f.AuthorizationID, &f.Tenant, &f.Link, &f.Detail)
	})
	if err != nil {
		return nil, fmt.Errorf("select findings: %w", err)
	}
	return found, nil
}

// insertFindings opens an exception for each finding, unless one of the kind is open.
func insertFindings(ctx context.Context, db *pgxpool.Pool, found []Finding, now time.Time) error {
	if len(found) == 0 {
		return nil
	}
	ids, subjects := make(pgtype.FlatArray[pgtype.UUID], len(found)), make(pgtype.FlatArray[pgtype.UUID], len(found))
	kinds, tenants, links, details := make([]string, len(found)), make([]string, len(found)), make([]string, len(found)), make([]string, len(found))
	for i, f := range found {
		ids[i], subjects[i] = pgUUID(newID()), pgUUID(f.AuthorizationID)
		kinds[i], tenants[i], links[i], details[i] = f.Kind, f.Tenant, f.Link, f.Detail
	}
	_, err := db.Exec(ctx, `
		INSERT INTO exception (id, kind, tenant, link, subject_id, detail, opened_at)
		SELECT id, kind, tenant, link, subject_id, detail, @now
		FROM unnest(@ids::uuid[], @kinds::text[], @tenants::text[], @links::text[], @subjects::uuid[], @details::text[])
		AS u(id, kind, tenant, link, subject_id, detail)
		ON CONFLICT (kind, subject_id) WHERE closed_at IS NULL DO NOTHING`,
		pgx.NamedArgs{"ids": ids, "kinds": kinds, "tenants": tenants, "links": links, "subjects": subjects, "details": details, "now": now})
	if err != nil {
		return fmt.Errorf("insert findings: %w", err)
	}
	return nil
}
