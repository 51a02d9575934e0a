package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// serverState is what the database says of itself.
type serverState struct {
	InRecovery bool
	ReadOnly   bool
	MayInsert  bool
	Now        time.Time
}

// selectServerState asks without writing: a look every second must leave nothing behind.
func selectServerState(ctx context.Context, pool *pgxpool.Pool) (serverState, error) {
	rows, err := pool.Query(ctx, `
		SELECT pg_is_in_recovery() AS in_recovery,
			current_setting('transaction_read_only')::bool AS read_only,
			coalesce(has_table_privilege(to_regclass('idempotency_claim'), 'INSERT'), false) AS may_insert,
			clock_timestamp() AS now`)
	if err != nil {
		return serverState{}, fmt.Errorf("ask the database: %w", err)
	}
	state, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[serverState])
	if err != nil {
		return serverState{}, fmt.Errorf("ask the database: %w", err)
	}
	return state, nil
}
