// Package pgtest gives each test a fresh PostgreSQL database of its own.
//
// It promises a real server with the settings of production, started once per
// test process and never outliving it, and a database that no other test sees,
// made from a template that was migrated once. It never touches an installed
// cluster, unless the environment variable SCHEMEGATE_TEST_DATABASE_URL names a
// server to use instead; its user needs CREATEDB and CREATEROLE.
package pgtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/schemegate/schemegate/ledger/localpg"
	"github.com/schemegate/schemegate/migrations"
)

const (
	urlVariable = "SCHEMEGATE_TEST_DATABASE_URL"

	// maxPoolConnections of each test; the facts about commits want few.
	maxPoolConnections = 4
	// maxAdminConnections make and drop databases.
	maxAdminConnections = 2
	// serverConnections covers many parallel tests.
	serverConnections = 300
	sharedBuffersMiB  = 64
	maxWALMiB         = 256

	// memoryRoot is a file system in memory, used when it has this much room.
	memoryRoot     = "/dev/shm"
	minMemoryBytes = 1 << 30

	startTimeout = time.Minute
	dropTimeout  = 30 * time.Second
	stopTimeout  = 30 * time.Second

	dirPrefix = "schemegate-pgtest-"
	// A directory of a test process that was killed is removed by a later one,
	// once it is so old that it cannot be in the making.
	abandonedAfter = 2 * time.Minute
)

// DB is a database that exists for one test.
type DB struct {
	// URL connects as the owner, who may do anything.
	URL string
	// Pool works under the daemon's role (migrations.WriterRole), or under the
	// owner's in a database that was not migrated.
	Pool *pgxpool.Pool
}

// NewDB returns a fresh, migrated database, dropped at the test's end.
func NewDB(t testing.TB) *DB {
	t.Helper()
	c := mustCluster(t)
	template, err := c.template()
	if err != nil {
		t.Fatalf("migrate template database: %v", err)
	}
	return c.newDB(t, template, migrations.WriterRole)
}

// NewEmptyDB returns a fresh database without any table, dropped at the test's
// end.
func NewEmptyDB(t testing.TB) *DB {
	t.Helper()
	return mustCluster(t).newDB(t, "template0", "")
}

// Main runs a package's tests, stops the server they used, fails the run when
// goroutines are left over, and exits. Call it from TestMain.
func Main(m *testing.M) {
	code := m.Run()
	if err := stopCluster(); err != nil {
		fmt.Fprintf(os.Stderr, "stop PostgreSQL of tests: %v\n", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines left after the tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// cluster is the server of this test process.
type cluster struct {
	dir      string          // empty when the server is not ours
	server   *localpg.Server // nil when the server is not ours
	adminURL string
	admin    *pgxpool.Pool
	// template makes the migrated template database at its first call.
	template func() (string, error)
}

// The process's one cluster, started at first use.
var (
	startOnce sync.Once
	started   *cluster
	startErr  error
)

func mustCluster(t testing.TB) *cluster {
	t.Helper()
	startOnce.Do(func() { started, startErr = startCluster() })
	if startErr != nil {
		t.Fatalf("start PostgreSQL for tests: %v", startErr)
	}
	return started
}

func startCluster() (_ *cluster, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c := &cluster{adminURL: os.Getenv(urlVariable)}
	c.template = sync.OnceValues(c.makeTemplate)
	if c.adminURL == "" {
		if err := c.startServer(ctx); err != nil {
			return nil, err
		}
	}
	if c.admin, err = openPool(ctx, c.adminURL, "", maxAdminConnections); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

func (c *cluster) startServer(ctx context.Context) (err error) {
	root := serverRoot()
	removeAbandoned(root)
	if c.dir, err = os.MkdirTemp(root, dirPrefix); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	// When the tests run as root, the server's user must pass through.
	if err := os.Chmod(c.dir, 0o711); err != nil {
		return errors.Join(fmt.Errorf("open directory: %w", err), os.RemoveAll(c.dir))
	}
	config := localpg.Config{DataDir: c.dir, MaxConnections: serverConnections, DieWithParent: true}
	if !benchmarking() { // a benchmark measures the settings that the daemon's own server has
		config.SharedBuffersMiB, config.MaxWALMiB = sharedBuffersMiB, maxWALMiB
	}
	if c.server, err = localpg.Start(ctx, config, zap.NewNop()); err != nil {
		return errors.Join(err, os.RemoveAll(c.dir))
	}
	// Not the server's own database: nobody may be in a template that is copied.
	c.adminURL, err = withDatabase(c.server.URL(), "postgres")
	return err
}

// serverRoot is where the server's directory goes. A test database is some three
// hundred files, made in a fifth of the time in memory; benchmarks need the disk,
// whose commits they measure.
func serverRoot() string {
	var stat syscall.Statfs_t
	if benchmarking() || syscall.Statfs(memoryRoot, &stat) != nil {
		return os.TempDir()
	}
	if stat.Bavail*uint64(stat.Bsize) < minMemoryBytes {
		return os.TempDir()
	}
	return memoryRoot
}

// benchmarking reports whether the process runs benchmarks.
func benchmarking() bool {
	bench := flag.Lookup("test.bench")
	return bench != nil && bench.Value.String() != ""
}

func stopCluster() error {
	// From here on nothing starts any more.
	startOnce.Do(func() { startErr = errors.New("tests have ended") })
	if started == nil {
		return nil
	}
	return started.stop()
}

func (c *cluster) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var errs []error
	if c.admin != nil {
		if c.server == nil {
			if name, err := c.template(); err == nil {
				errs = append(errs, c.drop(ctx, name))
			}
		}
		c.admin.Close()
	}
	if c.server != nil {
		errs = append(errs, c.server.Stop(ctx), os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}

func (c *cluster) makeTemplate() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	name := localpg.Database // exists already in a server of our own
	if c.server == nil {
		name = newName("template")
		if err := c.create(ctx, name, "template0"); err != nil {
			return "", err
		}
	}
	address, err := withDatabase(c.adminURL, name)
	if err != nil {
		return "", err
	}
	return name, migrations.Up(ctx, address, zap.NewNop())
}

func (c *cluster) newDB(t testing.TB, template, role string) *DB {
	t.Helper()
	name := newName("test")
	if err := c.create(t.Context(), name, template); err != nil {
		t.Fatalf("make test database: %v", err)
	}
	t.Cleanup(func() {
		// The test's own context is over by now.
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		if err := c.drop(ctx, name); err != nil {
			t.Errorf("drop test database: %v", err)
		}
	})
	address, err := withDatabase(c.adminURL, name)
	if err != nil {
		t.Fatalf("address test database: %v", err)
	}
	pool, err := openPool(t.Context(), address, role, maxPoolConnections)
	if err != nil {
		t.Fatalf("connect to test database: %v", err)
	}
	t.Cleanup(pool.Close)
	return &DB{URL: address, Pool: pool}
}

func openPool(ctx context.Context, address, role string, connections int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("read database URL: %w", err)
	}
	config.MaxConns = connections
	if role != "" {
		config.ConnConfig.RuntimeParams["role"] = role
	}
	return pgxpool.NewWithConfig(ctx, config)
}

func newName(kind string) string {
	return "schemegate_" + kind + "_" + strings.ReplaceAll(uuid.NewString(), "-", "")
}

// withDatabase is the same server's URL for another database.
func withDatabase(address, database string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", fmt.Errorf("read %s: not a URL", urlVariable) // the cause would quote the password
	}
	u.Path = "/" + database
	return u.String(), nil
}

// removeAbandoned removes what killed test processes left behind; whatever it
// cannot remove is left to the next.
func removeAbandoned(root string) {
	dirs, err := filepath.Glob(filepath.Join(root, dirPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < abandonedAfter || inUse(dir) {
			continue
		}
		_ = os.RemoveAll(dir) // another user's, or somebody else is removing it
	}
}

// inUse reports whether a living process holds the server's lock below dir.
func inUse(dir string) bool {
	lock, err := os.Open(filepath.Join(dir, "postgresql", "use.lock"))
	if err != nil {
		return false
	}
	defer lock.Close()
	return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}
