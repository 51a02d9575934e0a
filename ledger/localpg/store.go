package localpg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// maintenanceDatabase exists in every cluster.
	maintenanceDatabase = "postgres"
	connectTimeout      = 5 * time.Second

	// SQLSTATE 57P03: starting up, recovering or shutting down.
	codeCannotConnectNow = "57P03"
	// SQLSTATE 42P04: another process was quicker.
	codeDuplicateDatabase = "42P04"
	codeUniqueViolation   = "23505"
)

// ping connects once. The error of a server that is not ready yet is
// errNotReady.
func (s *Server) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url(maintenanceDatabase))
	if err == nil {
		return conn.Close(ctx)
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code != codeCannotConnectNow {
		return fmt.Errorf("connect: %w", err)
	}
	return fmt.Errorf("%w: %w", errNotReady, err)
}

// ensureDatabase makes the database when it is missing.
func (s *Server) ensureDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.url(maintenanceDatabase))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	var exists bool
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)`, Database).Scan(&exists)
	if err != nil {
		return fmt.Errorf("look for database: %w", err)
	}
	if exists {
		return nil
	}
	// Copying the files is quicker than logging every compressed page.
	_, err = conn.Exec(ctx, `CREATE DATABASE `+pgx.Identifier{Database}.Sanitize()+` STRATEGY file_copy`)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && (refused.Code == codeDuplicateDatabase || refused.Code == codeUniqueViolation) {
		return nil // a start that was killed may still be making it, and its backend finishes
	}
	if err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	return nil
}
