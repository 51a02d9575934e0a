package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

const (
	// maintenanceDatabase exists in every cluster.
	maintenanceDatabase = "postgres"
	connectTimeout      = 5 * time.Second

	// SQLSTATE 57P03: starting up, recovering or shutting down.
	codeCannotConnectNow = "57P03"
	// SQLSTATE 57P01 and 57P02: the session ended with a shutdown or with the
	// crash of another session, after which the server recovers.
	codeAdminShutdown = "57P01"
	codeCrashShutdown = "57P02"
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
		_ = conn.Close(ctx) // the server has answered, which is all that was asked
		return nil
	}
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return fmt.Errorf("%w: %w", errNotReady, err)
	}
	switch refused.Code {
	case codeCannotConnectNow, codeAdminShutdown, codeCrashShutdown:
		return fmt.Errorf("%w: %w", errStarting, err)
	}
	return fmt.Errorf("connect: %w", err)
}

// ensureDatabase makes the database when it is missing.
func (s *Server) ensureDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.url(maintenanceDatabase))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	if err := s.checkCluster(ctx, conn); err != nil {
		return err
	}
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

// checkCluster makes sure that the server at the socket serves our cluster: one
// that an operator started by hand may have its socket where another server,
// such as the distribution's, has the file that we connect to.
func (s *Server) checkCluster(ctx context.Context, conn *pgx.Conn) error {
	var served string
	if err := conn.QueryRow(ctx, `SELECT current_setting('data_directory')`).Scan(&served); err != nil {
		return fmt.Errorf("ask for data directory: %w", err)
	}
	ours, err := os.Stat(s.paths.data)
	if err != nil {
		return fmt.Errorf("look for cluster: %w", err)
	}
	theirs, err := os.Stat(served)
	if err != nil {
		return fmt.Errorf("look for data directory of the server: %w", err)
	}
	if !os.SameFile(ours, theirs) {
		return fmt.Errorf("server at %s serves %s, not %s", s.socketDir, served, s.paths.data)
	}
	return nil
}

// checkGuarantees makes sure that what is promised is in force in our database
// for our role. The command line wins over files, but a server that was found
// running may have been started without it, and what was set for a database or a
// role wins over both: that is reset, the rest refused.
func (s *Server) checkGuarantees(ctx context.Context) error {
	wrong, err := s.wrongGuarantees(ctx)
	if err != nil || len(wrong) == 0 {
		return err
	}
	if err := s.resetOverrides(ctx, wrong); err != nil {
		return err
	}
	wrong, err = s.wrongGuarantees(ctx) // on a new connection, where the reset counts
	if err != nil || len(wrong) == 0 {
		return err
	}
	return fmt.Errorf("running server, process %d, was not started by this program: its %s is %q; stop it and start again",
		s.pid, wrong[0].name, wrong[0].value)
}

// wrongGuarantees are those not in force, with the values in force.
func (s *Server) wrongGuarantees(ctx context.Context) ([]setting, error) {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return nil, fmt.Errorf("connect to database: %w", err)
	}
	defer conn.Close(ctx)
	var wrong []setting
	for _, promised := range guarantees {
		var value string
		if err := conn.QueryRow(ctx, `SELECT current_setting($1)`, promised.name).Scan(&value); err != nil {
			return nil, fmt.Errorf("ask for %s: %w", promised.name, err)
		}
		if value != promised.value {
			wrong = append(wrong, setting{promised.name, value})
		}
	}
	return wrong, nil
}

// resetOverrides takes back what was set for databases and roles.
func (s *Server) resetOverrides(ctx context.Context, wrong []setting) error {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return fmt.Errorf("connect to database: %w", err)
	}
	defer conn.Close(ctx)
	for _, w := range wrong {
		rows, err := conn.Query(ctx, `
			SELECT format('ALTER ROLE %s%s RESET %I', coalesce(quote_ident(r.rolname), 'ALL'),
			       coalesce(' IN DATABASE ' || quote_ident(d.datname), ''), $1::text)
			  FROM pg_db_role_setting s
			  LEFT JOIN pg_database d ON d.oid = s.setdatabase
			  LEFT JOIN pg_roles r ON r.oid = s.setrole
			 WHERE EXISTS (SELECT 1 FROM unnest(s.setconfig) c WHERE split_part(c, '=', 1) = $1)`, w.name)
		if err != nil {
			return fmt.Errorf("look for overrides of %s: %w", w.name, err)
		}
		resets, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("look for overrides of %s: %w", w.name, err)
		}
		for _, reset := range resets {
			if _, err := conn.Exec(ctx, reset); err != nil {
				return fmt.Errorf("reset override of %s: %w", w.name, err)
			}
			s.log.Warn("override of a guarantee of private PostgreSQL reset", zap.String("setting", w.name), zap.String("value", w.value))
		}
	}
	return nil
}
