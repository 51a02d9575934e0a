// Package migrations holds the database schema as forward-only SQL, embedded in
// the program, and brings a database up to it.
//
// It promises that daemons starting at once apply each migration once, that a
// migration and its version number commit together, and that a database whose
// schema is newer than the program is refused. It never goes back a version and
// takes no advisory lock, which some PostgreSQL-compatible engines pretend to
// have: the lock is a row with a lease.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"go.uber.org/zap"
)

// WriterRole is the role the daemon works under: NOLOGIN, entered by SET ROLE,
// without UPDATE, DELETE and TRUNCATE on append-only tables.
const WriterRole = "schemegate_writer"

const (
	// versionTable is where goose records the versions that were applied.
	versionTable = "goose_db_version"

	// maxConnections: one that migrates, one that keeps the lock, one to spare.
	maxConnections = 3

	// A daemon that dies while migrating keeps the others waiting for one lease.
	lockLease     = 15 * time.Second
	lockHeartbeat = 3 * time.Second
	// The longest wait for another daemon's migrations: retries times interval.
	lockInterval = 100 * time.Millisecond
	lockRetries  = 6000
	unlockTries  = 50
)

// ErrSchemaNewer: the database was migrated by a newer program than this one.
var ErrSchemaNewer = errors.New("database schema is newer than this program")

//go:embed *.sql
var files embed.FS

// Up applies what is missing. It waits while another daemon migrates. The error
// wraps ErrSchemaNewer when the database knows a version that the program does
// not; it names the migration that failed, and then those before it stay.
func Up(ctx context.Context, url string, log *zap.Logger) error {
	db, err := open(url)
	if err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	err = up(ctx, db, files, log)
	if err == nil {
		err = letWriterReadVersion(ctx, db)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	return nil
}

func open(url string) (*sql.DB, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("read database URL: %w", err)
	}
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(maxConnections)
	return db, nil
}

func up(ctx context.Context, db *sql.DB, fsys fs.FS, log *zap.Logger) error {
	have, err := appliedVersion(func(query string) row { return db.QueryRowContext(ctx, query) })
	if err != nil {
		return err
	}
	want, err := newestVersion(fsys)
	if err != nil {
		return err
	}
	if have > want {
		return fmt.Errorf("%w: it has version %d, the program knows up to %d: start a newer program", ErrSchemaNewer, have, want)
	}
	locker, err := lock.NewPostgresTableLocker(
		lock.WithTableLeaseDuration(lockLease),
		lock.WithTableHeartbeatInterval(lockHeartbeat),
		lock.WithTableLockTimeout(lockInterval, lockRetries),
		lock.WithTableUnlockTimeout(lockInterval, unlockTries),
		lock.WithTableRetryPolicy(mayPass),
		lock.WithTableLogger(slog.New(slog.DiscardHandler)), // what it would say comes back as an error
	)
	if err != nil {
		return fmt.Errorf("make migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, fsys, goose.WithLocker(locker), goose.WithTableName(versionTable),
		goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	applied, err := provider.Up(ctx)
	if err != nil {
		return err
	}
	for _, m := range applied {
		log.Info("migration applied", zap.Int64("version", m.Source.Version), zap.String("file", m.Source.Path), zap.Duration("took", m.Duration))
	}
	return nil
}

// mayPass reports whether a failed attempt to lock is worth another: the lock is
// held or the connection fell, but no refusal of the statement itself (SQLSTATE
// classes 28, 3D and 42), which would only be refused again.
func mayPass(err error) bool {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return true
	}
	for _, class := range []string{"28", "3D", "42"} {
		if strings.HasPrefix(refused.Code, class) {
			return false
		}
	}
	return true
}

// Querier is what can run a query: a connection, a pool or a transaction of pgx.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Current returns the version the database has, 0 when it was never migrated,
// and the one this program wants.
func Current(ctx context.Context, db Querier) (have, want int64, err error) {
	if want, err = newestVersion(files); err != nil {
		return 0, 0, err
	}
	have, err = appliedVersion(func(query string) row { return db.QueryRow(ctx, query) })
	return have, want, err
}

// row is what the rows of pgx and of database/sql have in common.
type row interface{ Scan(dest ...any) error }

// appliedVersion is 0 when there is no version table.
func appliedVersion(queryRow func(query string) row) (int64, error) {
	var version int64
	err := queryRow(`SELECT coalesce(max(version_id), 0) FROM ` + versionTable + ` WHERE is_applied`).Scan(&version)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "42P01" { // undefined_table
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	return version, nil
}

func newestVersion(fsys fs.FS) (int64, error) {
	names, err := fs.Glob(fsys, "*.sql")
	if err != nil {
		return 0, fmt.Errorf("list migrations: %w", err)
	}
	var newest int64
	for _, name := range names {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return 0, fmt.Errorf("read version of migration %s: %w", name, err)
		}
		newest = max(newest, version)
	}
	return newest, nil
}

// letWriterReadVersion lets the daemon's role ask for the schema's version.
func letWriterReadVersion(ctx context.Context, db *sql.DB) error {
	var may bool
	err := db.QueryRowContext(ctx, `SELECT has_table_privilege($1, $2, 'SELECT')`, WriterRole, versionTable).Scan(&may)
	if err != nil {
		return fmt.Errorf("look for privilege on schema version: %w", err)
	}
	if may {
		return nil
	}
	if _, err := db.ExecContext(ctx, `GRANT SELECT ON `+versionTable+` TO `+WriterRole); err != nil {
		return fmt.Errorf("grant privilege on schema version: %w", err)
	}
	return nil
}
