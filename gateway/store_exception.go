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
	Tenant    string    `json:"-"`
	Link      string    `json:"link"`
	SubjectID uuid.UUID `json:"subject_id"`
	Detail    string    `json:"detail"`
	OpenedAt  time.Time `json:"opened_at"`
}

// Exceptions lists the tenant's open exceptions, newest first: those older than before, or all when it is the nil UUID.
func (g *Gateway) Exceptions(ctx context.Context, tenant string, before uuid.UUID, limit int) ([]Exception, error) {
	list, err := OpenExceptions(ctx, g.db, ExceptionFilter{Tenant: tenant, Before: before, Limit: limit})
	if err != nil {
		return nil, Errorf(CodeDatabaseUnavailable, err, "")
	}
	return list, nil
}

// ExceptionFilter narrows a list of open exceptions; empty fields narrow nothing.
type ExceptionFilter struct {
	Tenant       string
	Link         string
	Kind         string
	OpenedBefore time.Time
	Before       uuid.UUID // cursor: only older ones
	Limit        int
}

// OpenExceptions reads open exceptions in the order of their ids, which grow with time, the newest first.
func OpenExceptions(ctx context.Context, db querier, f ExceptionFilter) ([]Exception, error) {
	rows, err := db.Query(ctx, `
		SELECT id, kind, tenant, link, subject_id, detail, opened_at FROM exception
		WHERE closed_at IS NULL AND (@tenant = '' OR tenant = @tenant) AND (@link = '' OR link = @link) AND (@kind = '' OR kind = @kind)
		AND (@opened_before::timestamptz IS NULL OR opened_at < @opened_before)
		AND (@before = '00000000-0000-0000-0000-000000000000'::uuid OR id < @before)
		ORDER BY id DESC LIMIT @limit`,
		pgx.NamedArgs{"tenant": f.Tenant, "link": f.Link, "kind": f.Kind, "opened_before": pgTime(f.OpenedBefore), "before": f.Before, "limit": f.Limit})
	if err != nil {
		return nil, fmt.Errorf("select open exceptions: %w", err)
	}
	exceptions, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Exception, err error) {
		err = row.Scan(&e.ID, &e.Kind, &e.Tenant, &e.Link, &e.SubjectID, &e.Detail, &e.OpenedAt)
		e.OpenedAt = e.OpenedAt.UTC()
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("select open exceptions: %w", err)
	}
	return exceptions, nil
}
