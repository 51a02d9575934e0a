package gateway

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schemegate/schemegate/gateway/commit"
)

const duplicateSQL = `
INSERT INTO duplicate (id, at, tenant, source, reason, key, original_id)
SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::uuid[])
ON CONFLICT DO NOTHING`

func queueDuplicates(batch *pgx.Batch, steps []commit.Step) {
	batch.Queue(duplicateSQL,
		column(steps, func(s *duplicateStep) pgtype.UUID { return pgUUID(s.duplicate.ID) }),
		column(steps, func(s *duplicateStep) pgtype.Timestamptz { return pgTime(s.duplicate.At) }),
		column(steps, func(s *duplicateStep) pgtype.Text { return pgText(s.duplicate.tenant) }),
		column(steps, func(s *duplicateStep) pgtype.Text { return pgText(s.duplicate.Source) }),
		column(steps, func(s *duplicateStep) pgtype.Text { return pgText(s.duplicate.Reason) }),
		column(steps, func(s *duplicateStep) pgtype.Text { return pgText(s.duplicate.Key) }),
		column(steps, func(s *duplicateStep) pgtype.UUID { return pgUUIDOrNull(s.duplicate.OriginalID) }),
	)
}

func pgUUIDOrNull(id *uuid.UUID) pgtype.UUID {
	if id == nil {
		return pgtype.UUID{}
	}
	return pgUUID(*id)
}

// selectDuplicates reads the journal in the order of its ids, which grow with time.
func selectDuplicates(ctx context.Context, db querier, tenant string, before uuid.UUID, limit int) ([]Duplicate, error) {
	rows, err := db.Query(ctx, `
		SELECT id, at, source, reason, key, original_id FROM duplicate
		WHERE tenant = @tenant AND (@before = '00000000-0000-0000-0000-000000000000'::uuid OR id < @before)
		ORDER BY id DESC LIMIT @limit`, pgx.NamedArgs{"tenant": tenant, "before": before, "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("select duplicates: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Duplicate, err error) {
		err = row.Scan(&d.ID, &d.At, &d.Source, &d.Reason, &d.Key, &d.OriginalID)
		d.At = d.At.UTC()
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("select duplicates: %w", err)
	}
	return list, nil
}
