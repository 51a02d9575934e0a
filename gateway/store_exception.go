package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Exception is something that needs a person. Its age counts from OpenedAt.
type Exception struct {
	ID        uuid.UUID `json:"id"`
	Kind      string    `json:"kind"`
	Link      string    `json:"link"`
	SubjectID uuid.UUID `json:"subject_id"`
	Detail    string    `json:"detail"`
	OpenedAt  time.Time `json:"opened_at"`
}

// Exceptions lists the tenant's open exceptions, newest first: those older than before, or all when it is the nil UUID.
func (g *Gateway) Exceptions(ctx context.Context, tenant string, before uuid.UUID, limit int) ([]Exception, error) {
	list, err := selectOpenExceptions(ctx, g.db, tenant, before, limit)
	if err != nil {
		return nil, Errorf(CodeDatabaseUnavailable, err, "")
	}
	return list, nil
}

// selectOpenExceptions reads open exceptions in the order of their ids, which grow with time.
func selectOpenExceptions(ctx context.Context, db querier, tenant string, before uuid.UUID, limit int) ([]Exception, error) {
	rows, err := db.Query(ctx, `
		SELECT id, kind, link, subject_id, detail, opened_at FROM exception
		WHERE tenant = @tenant AND closed_at IS NULL AND (@before = '00000000-0000-0000-0000-000000000000'::uuid OR id < @before)
		ORDER BY id DESC LIMIT @limit`,
		pgx.NamedArgs{"tenant": tenant, "before": before, "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("select open exceptions: %w", err)
	}
	exceptions, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Exception, err error) {
		err = row.Scan(&e.ID, &e.Kind, &e.Link, &e.SubjectID, &e.Detail, &e.OpenedAt)
		e.OpenedAt = e.OpenedAt.UTC()
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("select open exceptions: %w", err)
	}
	return exceptions, nil
}
