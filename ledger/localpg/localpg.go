// Package localpg runs the private PostgreSQL of a daemon that was given no
// database URL: it finds installed server binaries, makes a cluster under the
// data directory, starts it, adopts one that a crash of the daemon left
// running, and stops it at the end.
//
// It promises full durability (fsync, full_page_writes and synchronous_commit
// are forced on the command line, where no configuration file can undo them, and
// every start looks whether they are in force),
// that the server can be reached only through a socket in a directory with
// mode 0700 and never over TCP, that no statement text and no parameter is
// logged, and that the server outlives a killed daemon, so that the next one
// finds it running. Several processes may use one data directory at the same
// time; the last one to leave stops the server, also when it leaves because its
// start failed. Two servers never run on one cluster: every process of a server
// holds a lock for as long as it lives.
//
// It never uses, stops or changes a cluster that the distribution made, never
// runs the server as root, never hands the daemon's environment on to it, and
// never deletes a cluster.
package localpg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"go.uber.org/zap"
)

const (
	// Database is the name of the database that Start makes.
	Database = "schemegate"
	// Superuser is the role that owns the cluster; it needs no password, since
	// only who may enter the socket directory can connect.
	Superuser = "schemegate"

	// port only names the socket file; nothing listens on TCP.
	port = 5432

	// startTimeout bounds each step of a start, and the silence of a server that
	// is waited for. A recovery that the server tells of has no limit.
	startTimeout = 5 * time.Minute
	// claimTimeout is how long the last processes of a killed server may live on.
	claimTimeout = 30 * time.Second
	// stopTimeout is how long a fast shutdown may take before the server is
	// told to stop at once, which costs crash recovery at the next start.
	stopTimeout = 30 * time.Second
	// quitTimeout is how long an immediate shutdown may take.
	quitTimeout = 10 * time.Second
	// pollInterval is the pause between two looks at a server or a lock.
	pollInterval = 10 * time.Millisecond
	// launchAttempts and launchRetryGap cover the moment in which the children
	// of a killed server still hold its shared memory: those of one that an
	// operator started by hand, without its lock.
	launchAttempts = 4
	launchRetryGap = 300 * time.Millisecond
)

// Config says where the private PostgreSQL lives and how large it may grow.
// The zero value of every field but DataDir means its default.
type Config struct {
	// DataDir is the daemon's data directory; the cluster is made below it. It
	// is created when missing.
	DataDir string `yaml:"-"`
	// BinDir is the directory that holds postgres and initdb. Empty: they are
	// looked for.
	BinDir string `yaml:"bin_dir"`
	// SharedBuffersMiB is the size of the buffer cache in MiB. 0: a quarter of
	// the memory, within named bounds.
	SharedBuffersMiB int `yaml:"shared_buffers_mib"`
	// MaxConnections is the number of connections the server accepts. 0:
	// DefaultMaxConnections.
	MaxConnections int `yaml:"max_connections"`
	// MaxWALMiB is how much write-ahead log, in MiB, may gather between two
	// checkpoints; the disk needs room for it. 0: DefaultMaxWALMiB.
	MaxWALMiB int `yaml:"max_wal_mib"`
	// DieWithParent ties the server's life to this process, also when it is
	// killed. For tests; works on Linux only.
	DieWithParent bool `yaml:"-"`
}

// limits bound what a start waits for.
type limits struct {
	silence time.Duration // how long a server that is waited for may say nothing
	claim   time.Duration // how long the processes of an earlier server are waited for
}

// Server is a running private PostgreSQL that this process uses.
type Server struct {
	// Adopted is true when the server was running already.
	Adopted bool
	// Version is the version of the server binaries, such as "15.18".
	Version string

	cfg       Config
	log       *zap.Logger
	paths     paths
	owner     owner
	bin       binaries
	socketDir string
	use       *fileLock // shared with every other process that uses the server
	limits    limits
	spawned   time.Time     // when this process last started the postmaster
	pid       int           // of the postmaster, 0 while none is known
	reaped    chan struct{} // closed when a server that this process started has ended; nil when adopted
}

// Start brings the private PostgreSQL below cfg.DataDir up, making the cluster
// when there is none, and returns when the database accepts connections. A
// recovery takes as long as ctx lets it. A start that fails leaves as Stop does:
// a server that nobody else uses is stopped, whether it was started or found
// running. Errors name the directory, the missing binaries with the command that
// installs them, or end with the server's own last words.
func Start(ctx context.Context, cfg Config, log *zap.Logger) (*Server, error) {
	s, err := start(ctx, cfg, systemSearch(), limits{silence: startTimeout, claim: claimTimeout}, log)
	if err != nil {
		return nil, fmt.Errorf("start private PostgreSQL: %w", err)
	}
	return s, nil
}

func start(ctx context.Context, cfg Config, where search, limits limits, log *zap.Logger) (_ *Server, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	dataDir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("resolve data directory: %w", err)
	}
	s := &Server{cfg: cfg, log: log, paths: newPaths(dataDir), limits: limits}
	if s.owner, err = clusterOwner(s.paths.data); err != nil {
		return nil, err
	}
	major, err := clusterMajor(s.paths.data)
	if err != nil {
		return nil, err
	}
	if s.bin, err = where.find(limited, cfg.BinDir, major, s.owner); err != nil {
		return nil, err
	}
	if err := s.paths.make(s.owner); err != nil {
		return nil, err
	}
	// Held only while starting, so that of several processes one makes and
	// starts the server and the others find it running.
	starting, err := lockFile(limited, s.paths.startLock, exclusive)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, starting.release()) }()

	// Another process may have made the cluster meanwhile, with other binaries.
	if now, err := clusterMajor(s.paths.data); err != nil {
		return nil, err
	} else if now != major {
		if s.bin, err = where.find(limited, cfg.BinDir, now, s.owner); err != nil {
			return nil, err
		}
	}
	s.Version = s.bin.version
	if s.use, err = lockFile(limited, s.paths.useLock, shared); err != nil {
		return nil, err
	}
	if err := s.bringUp(ctx); err != nil {
		return nil, s.abandon(ctx, err)
	}
	return s, nil
}

func (c Config) check() error {
	switch {
	case c.DataDir == "":
		return errors.New("data directory is empty")
	case c.SharedBuffersMiB != 0 && (c.SharedBuffersMiB < minSharedBuffersMiB || c.SharedBuffersMiB > maxSharedBuffersMiB):
		return fmt.Errorf("shared_buffers_mib %d is not within %d to %d", c.SharedBuffersMiB, minSharedBuffersMiB, maxSharedBuffersMiB)
	case c.MaxConnections != 0 && (c.MaxConnections < minConnections || c.MaxConnections > maxConnections):
		return fmt.Errorf("max_connections %d is not within %d to %d", c.MaxConnections, minConnections, maxConnections)
	case c.MaxWALMiB != 0 && (c.MaxWALMiB < minWALMiB || c.MaxWALMiB > maxWALMiB):
		return fmt.Errorf("max_wal_mib %d is not within %d to %d", c.MaxWALMiB, minWALMiB, maxWALMiB)
	}
	return nil
}

// bringUp makes what is missing and leaves a server that accepts connections.
// The start lock is held.
func (s *Server) bringUp(ctx context.Context) error {
	began := time.Now()
	if err := s.initCluster(ctx); err != nil {
		return err
	}
	if err := s.owner.checkReach(ctx, s.bin.postgres, s.paths.data); err != nil {
		return err
	}
	adopted, err := s.adopt(ctx)
	if err != nil {
		return err
	}
	if !adopted {
		if err := s.launch(ctx); err != nil {
			return err
		}
	}
	s.Adopted = adopted
	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.ensureDatabase(limited); err != nil {
		return err
	}
	if err := s.checkGuarantees(limited); err != nil {
		return err
	}
	s.log.Info("private PostgreSQL ready", zap.Bool("adopted", adopted), zap.String("version", s.Version),
		zap.Int("pid", s.pid), zap.String("socket_dir", s.socketDir), zap.Duration("took", time.Since(began)))
	return nil
}

// abandon ends a start that failed with cause. The start lock is held.
func (s *Server) abandon(ctx context.Context, cause error) error {
	ended, err := s.leave(context.WithoutCancel(ctx))
	if err != nil {
		err = fmt.Errorf("leave server after failed start: %w", err)
	}
	s.log.Warn("start of private PostgreSQL failed", zap.Bool("server_ended", ended), zap.Int("pid", s.pid))
	return errors.Join(cause, err, s.use.release())
}

// Exists reports whether cfg's directory holds a cluster, so that who only reads need not make one.
func Exists(cfg Config) bool {
	_, err := os.Stat(filepath.Join(newPaths(cfg.DataDir).data, "PG_VERSION"))
	return err == nil
}

// URL connects to the database as its owner, a superuser.
func (s *Server) URL() string { return s.url(Database) }

func (s *Server) url(database string) string {
	query := url.Values{"host": {s.socketDir}, "port": {strconv.Itoa(port)}}
	u := url.URL{Scheme: "postgres", User: url.User(Superuser), Path: "/" + database, RawQuery: query.Encode()}
	return u.String()
}

// Alive reports whether the server takes connections. One that a crash of a session makes recover does; one whose first process was
// killed does not, and never will again.
func (s *Server) Alive() bool {
	conn, err := net.DialTimeout("unix", filepath.Join(s.socketDir, ".s.PGSQL."+strconv.Itoa(port)), aliveTimeout)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// aliveTimeout bounds one look at the socket.
const aliveTimeout = 2 * time.Second

// LogDir is where the server writes its log.
func (s *Server) LogDir() string { return s.paths.log }

// Stop ends this process's use of the server. When no other process uses it,
// the server is shut down: open transactions are rolled back, and the end of ctx
// makes it stop at once, which costs a recovery at the next start. Stop must be
// called once; the server may not be used afterwards.
func (s *Server) Stop(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("stop private PostgreSQL: %w", err)
		}
	}()
	defer func() { err = errors.Join(err, s.use.release()) }()
	// Nobody may begin to use the server between the look and the shutdown.
	lockCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	starting, err := lockFile(lockCtx, s.paths.startLock, exclusive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, starting.release()) }()

	ended, err := s.leave(ctx)
	switch {
	case err != nil:
		return err
	case ended:
		s.log.Info("private PostgreSQL stopped", zap.Int("pid", s.pid))
	default:
		s.log.Info("private PostgreSQL left running for another process", zap.Int("pid", s.pid))
	}
	return nil
}

// paths are the files below the data directory. The daemon owns the top and
// what it writes there itself; the server owns only data, log and run, so that
// a daemon that is root never writes where another user could place a link.
type paths struct {
	dataDir   string // the daemon's
	top       string
	data      string // the cluster
	partial   string // a cluster in the making
	run       string // the socket, when its path is short enough
	log       string
	hba       string
	startup   string // what the server says before its log is open
	startLock string
	useLock   string
	// serverLock is held by every process of the server itself.
	serverLock string
}

func newPaths(dataDir string) paths {
	top := filepath.Join(dataDir, "postgresql")
	return paths{
		dataDir:    dataDir,
		serverLock: filepath.Join(top, "server.lock"),
		top:        top,
		data:       filepath.Join(top, "data"),
		partial:    filepath.Join(top, "data.partial"),
		run:        filepath.Join(top, "run"),
		log:        filepath.Join(top, "log"),
		hba:        filepath.Join(top, "pg_hba.conf"),
		startup:    filepath.Join(top, "startup.log"),
		startLock:  filepath.Join(top, "start.lock"),
		useLock:    filepath.Join(top, "use.lock"),
	}
}

func (p paths) make(o owner) error {
	// Another user's server must be able to pass through, not to look around.
	mode := os.FileMode(0o700)
	if o.drops {
		mode = 0o711
	}
	_, err := os.Stat(p.dataDir)
	if errors.Is(err, os.ErrNotExist) {
		// A strict umask must not take the way through from the server's user.
		err = errors.Join(os.MkdirAll(p.dataDir, mode), os.Chmod(p.dataDir, mode))
	}
	if err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	if err := os.Mkdir(p.top, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make cluster directory: %w", err)
	}
	if o.drops {
		if err := os.Chmod(p.top, mode); err != nil {
			return fmt.Errorf("open cluster directory to the server's user: %w", err)
		}
	}
	for _, dir := range []string{p.run, p.log} {
		if err := o.makePrivate(dir); err != nil {
			return err
		}
	}
	return nil
}
