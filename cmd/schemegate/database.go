package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/ledger/localpg"
	"github.com/schemegate/schemegate/migrations"
)

const (
	// databaseStopTimeout bounds its stop, databaseCutTimeout that after a second signal; past it the next start recovers.
	databaseStopTimeout = 30 * time.Second
	databaseCutTimeout  = 5 * time.Second
	// connectTimeout bounds one attempt to reach the server.
	connectTimeout = 5 * time.Second
	// applicationName is how the server's own views call our connections.
	applicationName = "schemegate"
)

// database is the PostgreSQL in use: a server somewhere, or the private one.
type database struct {
	url     string
	pool    *pgxpool.Pool   // nil until connect
	private *localpg.Server // nil when the server is not ours
	log     *zap.Logger
}

// openDatabase brings the server up, if it is ours, and knows its URL. close ends what it began.
func openDatabase(ctx context.Context, c config, log *zap.Logger) (*database, error) {
	d := &database{log: log}
	if c.Database.URL != "" {
		var err error
		d.url, err = c.Database.connectionURL()
		return d, err
	}
	began := time.Now() // without a bound: a recovery that is ended half way begins anew; localpg bounds each step and any silence
	private, err := localpg.Start(ctx, c.Database.Private, log)
	if err != nil {
		return nil, fmt.Errorf("start private PostgreSQL: %w", err)
	}
	log.Info("private PostgreSQL runs", zap.String("version", private.Version), zap.Bool("adopted", private.Adopted),
		zap.Duration("took", time.Since(began)))
	d.private, d.url = private, private.URL()
	return d, nil
}

// connect makes the pool, under the role that cannot change what is append-only.
func (d *database) connect(ctx context.Context, connections int) error {
	config, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		return fmt.Errorf("read database URL: %w", err)
	}
	config.MaxConns = int32(connections)
	config.ConnConfig.ConnectTimeout = connectTimeout
	config.ConnConfig.RuntimeParams["role"] = migrations.WriterRole
	config.ConnConfig.RuntimeParams["application_name"] = applicationName
	if d.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return fmt.Errorf("make database pool: %w", err)
	}
	return nil
}

const (
	// watchInterval is how often the private server is looked at.
	watchInterval = time.Second
	// maxDeadLooks is how many looks in a row must fail: a server that restarts after a crash of a session is back sooner.
	maxDeadLooks = 10
)

// watch ends with an error when the private server has ended under the daemon. Nothing can be recorded then, and a fresh start
// recovers everything, so whoever supervises the daemon is to start it again.
func (d *database) watch(ctx context.Context) error {
	if d.private == nil {
		return nil
	}
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for dead := 0; dead < maxDeadLooks; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if d.private.Alive() {
			dead = 0
			continue
		}
		dead++
	}
	return errors.New("the private PostgreSQL has ended: start the daemon again, which starts it and recovers what is open")
}

// close ends the pool, and then the private server when nobody else uses it. The end of cut hurries it.
func (d *database) close(cut context.Context) error {
	if d.pool != nil {
		d.pool.Close()
	}
	if d.private == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), databaseStopTimeout)
	defer cancel()
	uncut := context.AfterFunc(cut, func() { time.AfterFunc(databaseCutTimeout, cancel) })
	defer uncut()
	if err := d.private.Stop(ctx); err != nil {
		return fmt.Errorf("stop private PostgreSQL: %w", err)
	}
	return nil
}

// withDatabase runs a tool on the configured database, which must have this program's schema.
func withDatabase(p process, file string, use func(ctx context.Context, pool *pgxpool.Pool) error) (err error) {
	c, err := loadConfig(file)
	if err != nil {
		return err
	}
	log, err := toolLogger(c.Log, p)
	if err != nil {
		return err
	}
	if c.Database.URL == "" && !localpg.Exists(c.Database.Private) {
		return fmt.Errorf("there is no private PostgreSQL in %s yet (data_dir): schemegate serve or migrate makes it", c.Database.Private.DataDir)
	}
	d, err := openDatabase(p.ctx, c, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close(p.cut)) }()
	if err := d.connect(p.ctx, minPoolConnections); err != nil {
		return err
	}
	if err := checkSchema(p.ctx, d.pool); err != nil {
		return err
	}
	return use(p.ctx, d.pool)
}

// codeNoRole is SQLSTATE invalid_parameter_value: a connection asks for the writer's role, which the first migration of a server makes.
const codeNoRole = "22023"

// checkSchema refuses a database that this program cannot work on.
func checkSchema(ctx context.Context, pool *pgxpool.Pool) error {
	have, want, err := migrations.Current(ctx, pool)
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &refused) && refused.Code == codeNoRole && strings.Contains(refused.Message, migrations.WriterRole):
		return errors.New("the database's server has never been migrated: run schemegate migrate")
	case err != nil:
		return err
	case have < want:
		return fmt.Errorf("the database's schema has version %d and this program needs %d: run schemegate migrate", have, want)
	case have > want:
		return fmt.Errorf("the database's schema has version %d and this program knows up to %d: use a newer program", have, want)
	}
	return nil
}
