package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// insertClaim takes the key and the reference; won is false when either is taken.
func insertClaim(ctx context.Context, tx pgx.Tx, op operation, resource uuid.UUID, now time.Time) (won bool, err error) {
	tag, err := tx.Exec(ctx, `
		INSERT INTO idempotency_claim (tenant, endpoint, idempotency_key, client_reference, digest, resource_id, claimed_at)
		VALUES (@tenant, @endpoint, @key, @reference, @digest, @resource, @now) ON CONFLICT DO NOTHING`,
		pgx.NamedArgs{"tenant": op.tenant, "endpoint": op.endpoint, "key": op.idempotencyKey, "reference": op.reference,
			"digest": op.digest, "resource": resource, "now": now})
	if err != nil {
		return false, fmt.Errorf("insert claim: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// insertAnswer stores what the request is told, for its repeats.
func insertAnswer(ctx context.Context, tx pgx.Tx, op operation, answer Answer) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO stored_answer (tenant, endpoint, idempotency_key, status, body, resource)
		VALUES (@tenant, @endpoint, @key, @status, @body, @resource)`,
		pgx.NamedArgs{"tenant": op.tenant, "endpoint": op.endpoint, "key": op.idempotencyKey, "status": int16(answer.Status),
			"body": answer.Body, "resource": answer.Resource})
	if err != nil {
		return fmt.Errorf("insert answer: %w", err)
	}
	return nil
}

// selectStoredAnswer reads what a request was told; without a body when that has expired.
func selectStoredAnswer(ctx context.Context, db querier, tenant, endpoint, key string) (answer Answer, err error) {
	var status int16
	err = db.QueryRow(ctx, `
		SELECT status, body, resource FROM stored_answer WHERE tenant = @tenant AND endpoint = @endpoint AND idempotency_key = @key`,
		pgx.NamedArgs{"tenant": tenant, "endpoint": endpoint, "key": key}).Scan(&status, &answer.Body, &answer.Resource)
	if isNoRows(err) {
		return Answer{}, nil
	}
	if err != nil {
		return Answer{}, fmt.Errorf("select stored answer: %w", err)
	}
	answer.Status = int(status)
	return answer, nil
}

// selectForUpdate locks an authorisation for what is to be claimed of it; nil when the tenant has none of that id. Decisions, captures
// and reversals of one authorisation follow one another on this lock. It leaves the key alone, so that a duty's foreign key never waits
// for it: a worker that holds the duty would wait for us, and we for the duty.
func selectForUpdate(ctx context.Context, tx pgx.Tx, tenant string, id uuid.UUID) (*Authorization, error) {
	_, err := tx.Exec(ctx, `SELECT FROM card_authorization WHERE id = @id AND tenant = @tenant FOR NO KEY UPDATE`, pgx.NamedArgs{"id": id, "tenant": tenant})
	if err != nil {
		return nil, fmt.Errorf("lock authorization: %w", err)
	}
	return selectAuthorization(ctx, tx, tenant, id)
}
