package localpg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"go.uber.org/zap"
)

// These make a second process of the test binary: one that starts a server and
// then waits to be killed.
const (
	ownerDirVariable = "LOCALPG_TEST_OWNER_DIR"
	ownerDieVariable = "LOCALPG_TEST_OWNER_DIE"
	// ownerStopVariable makes it stop the server and exit instead of waiting.
	ownerStopVariable = "LOCALPG_TEST_OWNER_STOP"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerDirVariable); dir != "" {
		runOwner(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func runOwner(dir string) {
	cfg := Config{DataDir: dir, SharedBuffersMiB: minSharedBuffersMiB, DieWithParent: os.Getenv(ownerDieVariable) != ""}
	s, err := Start(context.Background(), cfg, zap.NewNop())
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("ready", s.pid)
	if os.Getenv(ownerStopVariable) == "" {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the test does
	}
	if err := s.Stop(context.Background()); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

// startOwner runs this program again as the owner of a server and returns it
// with the server's process id.
func startOwner(t *testing.T, cmd *exec.Cmd, dir string, env ...string) int {
	t.Helper()
	cmd.Env = append(os.Environ(), ownerDirVariable+"="+dir)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("owner process said %q: %v", line, err)
	}
	pid, err := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), "ready "))
	if err != nil {
		t.Fatalf("owner process said %q", line)
	}
	return pid
}

// killOwner kills the owner process alone, as an operator or the kernel would.
func killOwner(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var killed *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &killed) {
		t.Fatalf("owner process ended with %v", err)
	}
}

// newDir makes a directory that the server's user can pass through, which
// t.TempDir is not.
func newDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "localpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

func smallConfig(dir string) Config {
	return Config{DataDir: dir, SharedBuffersMiB: minSharedBuffersMiB}
}

func mustStart(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), cfg, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustStop(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

func connect(t *testing.T, s *Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func mustExec(t *testing.T, s *Server, statements ...string) {
	t.Helper()
	conn := connect(t, s)
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func show(t *testing.T, conn *pgx.Conn, name string) string {
	t.Helper()
	var value string
	if err := conn.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&value); err != nil {
		t.Fatalf("show %s: %v", name, err)
	}
	return value
}

// eventually polls a condition that another process brings about.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within the deadline", what)
		}
		<-ticker.C
	}
}

func TestSettingsInForce(t *testing.T) {
	t.Parallel()
	s := mustStart(t, smallConfig(newDir(t)))
	t.Cleanup(func() { mustStop(t, s) })
	if s.Adopted {
		t.Error("a new server counts as adopted")
	}
	// Neither ALTER SYSTEM nor the configuration file may undo a promise.
	mustExec(t, s, `ALTER SYSTEM SET fsync = off`, `ALTER SYSTEM SET log_statement = 'all'`, `SELECT pg_reload_conf()`)
	conn := connect(t, s)
	for name, want := range map[string]string{
		"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "data_checksums": "on",
		"listen_addresses": "", "unix_socket_permissions": "0700", "ssl": "off",
		"log_statement": "none", "log_min_error_statement": "panic", "log_error_verbosity": "terse",
		"log_parameter_max_length": "0", "log_parameter_max_length_on_error": "0",
		"jit": "off", "shared_buffers": "16MB", "max_wal_size": "4GB", "max_connections": "100",
		"server_encoding": "UTF8", "lc_collate": "C", "TimeZone": "UTC",
	} {
		if got := show(t, conn, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := show(t, conn, "wal_compression"); got == "off" {
		t.Error("wal_compression is off")
	}
	info, err := os.Stat(s.socketDir)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != privateMode {
		t.Errorf("socket directory has mode %04o", info.Mode().Perm())
	}
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.pid)); err == nil && strings.Contains(string(env), "HOME=") {
		t.Error("server has the environment of this process")
	}
}

// Values reach a server's log in the text of a failed statement, in its
// parameters, or in the DETAIL of a violated constraint.
func TestLogHoldsNoValues(t *testing.T) {
	t.Parallel()
	s := mustStart(t, smallConfig(newDir(t)))
	mustExec(t, s, `CREATE TABLE card (number text PRIMARY KEY)`, `INSERT INTO card VALUES ('4111111111111111')`)
	conn := connect(t, s)
	for _, statement := range []string{
		`INSERT INTO card VALUES ('4111111111111111')`,
		`SELECT '4111111111111111' FROM no_such_table`,
		`SELECT 1/0 AS "4111111111111111"`,
	} {
		if _, err := conn.Exec(t.Context(), statement); err == nil {
			t.Fatalf("%s: no error", statement)
		}
	}
	if _, err := conn.Exec(t.Context(), `INSERT INTO card VALUES ($1)`, "4111111111111111"); err == nil {
		t.Fatal("no error")
	}
	conn.Close(t.Context())
	mustStop(t, s)
	logs, err := filepath.Glob(filepath.Join(s.LogDir(), "*"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no log: %v", err)
	}
	text, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "duplicate key value violates") {
		t.Errorf("log does not name the error:\n%s", text)
	}
	if strings.Contains(string(text), "4111111111111111") {
		t.Errorf("log holds a card number:\n%s", text)
	}
}

func TestRestartKeepsDataAndIsQuick(t *testing.T) {
	t.Parallel()
	cfg := smallConfig(newDir(t))
	s := mustStart(t, cfg)
	mustExec(t, s, `CREATE TABLE kept (n int)`, `INSERT INTO kept VALUES (7)`)
	mustStop(t, s)
	if alive, _ := postmasterAlive(s.pid, s.paths.data); alive {
		t.Error("server runs after Stop")
	}

	began := time.Now()
	s = mustStart(t, cfg)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("start on an existing cluster took %v", took)
	}
	t.Cleanup(func() { mustStop(t, s) })
	if s.Adopted {
		t.Error("a started server counts as adopted")
	}
	var n int
	if err := connect(t, s).QueryRow(t.Context(), `SELECT n FROM kept`).Scan(&n); err != nil || n != 7 {
		t.Errorf("read %d: %v", n, err)
	}
}

func TestAdoptAfterOwnerWasKilled(t *testing.T) {
	t.Parallel()
	// So long that the socket needs its short directory.
	dir := filepath.Join(newDir(t), strings.Repeat("long-", 20))
	owner := exec.Command(os.Args[0])
	pid := startOwner(t, owner, dir)
	killOwner(t, owner)

	s := mustStart(t, smallConfig(dir))
	if !s.Adopted || s.pid != pid {
		t.Errorf("adopted %v, process %d, want process %d adopted", s.Adopted, s.pid, pid)
	}
	if len(socketPath(s.paths.run)) <= maxSocketPathBytes || !strings.HasPrefix(s.socketDir, shortRoot) {
		t.Errorf("socket directory is %s", s.socketDir)
	}
	mustExec(t, s, `CREATE TABLE works (n int)`)
	mustStop(t, s)
	if alive, _ := postmasterAlive(pid, s.paths.data); alive {
		t.Error("adopted server runs after Stop")
	}
	if _, err := os.Stat(s.socketDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("short socket directory is left: %v", err)
	}
}

func TestServerDiesWithItsParent(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/cwd"); err != nil {
		t.Skip("only Linux ends a process with its parent")
	}
	dir := newDir(t)
	owner := exec.Command(os.Args[0])
	pid := startOwner(t, owner, dir, ownerDieVariable+"=1")
	killOwner(t, owner)
	data := newPaths(dir).data
	eventually(t, "server ends", func() bool { alive, _ := postmasterAlive(pid, data); return !alive })
}

// The number of a dead server may have been given to another process of the
// same user, which PostgreSQL by itself takes for a running server.
func TestStalePIDFileOfAReusedNumber(t *testing.T) {
	t.Parallel()
	cfg := smallConfig(newDir(t))
	s := mustStart(t, cfg)
	pidFile, err := os.ReadFile(s.paths.pidFile())
	if err != nil {
		t.Fatal(err)
	}
	socketLock, err := os.ReadFile(socketPath(s.socketDir) + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	mustStop(t, s)

	other := s.owner.command(t.Context(), "/", "/bin/sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Wait() }) // killed with the context
	for path, text := range map[string][]byte{s.paths.pidFile(): pidFile, socketPath(s.socketDir) + ".lock": socketLock} {
		_, rest, _ := strings.Cut(string(text), "\n")
		if err := os.WriteFile(path, []byte(fmt.Sprintf("%d\n%s", other.Process.Pid, rest)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, int(s.owner.uid), int(s.owner.gid)); err != nil {
			t.Fatal(err)
		}
	}
	s = mustStart(t, cfg)
	if s.Adopted {
		t.Error("another process was adopted")
	}
	mustStop(t, s)
}

func TestServerKilledRecovers(t *testing.T) {
	t.Parallel()
	cfg := smallConfig(newDir(t))
	killed := mustStart(t, cfg)
	mustExec(t, killed, `CREATE TABLE kept (n int)`, `INSERT INTO kept VALUES (7)`)
	if err := syscall.Kill(killed.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-killed.reaped
	s := mustStart(t, cfg)
	if s.Adopted {
		t.Error("a dead server was adopted")
	}
	var n int
	if err := connect(t, s).QueryRow(t.Context(), `SELECT n FROM kept`).Scan(&n); err != nil || n != 7 {
		t.Errorf("read %d: %v", n, err)
	}
	// The first user of the dead server is not the last of the new one.
	mustStop(t, killed)
	mustExec(t, s, `SELECT 1`)
	mustStop(t, s)
}

func TestManyStartAtOnceOnOneDirectory(t *testing.T) {
	t.Parallel()
	const users = 4
	cfg := smallConfig(newDir(t))
	servers := make([]*Server, users)
	var wg sync.WaitGroup
	for i := range users {
		wg.Go(func() {
			s, err := Start(t.Context(), cfg, zap.NewNop())
			if err != nil {
				t.Error(err)
				return
			}
			servers[i] = s
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	started := 0
	for _, s := range servers {
		if !s.Adopted {
			started++
		}
		if s.pid != servers[0].pid {
			t.Errorf("processes %d and %d serve one directory", s.pid, servers[0].pid)
		}
	}
	if started != 1 {
		t.Errorf("%d of %d started a server", started, users)
	}
	for i, s := range servers {
		mustExec(t, s, `SELECT 1`)
		mustStop(t, s)
		if alive, _ := postmasterAlive(s.pid, s.paths.data); alive != (i < users-1) {
			t.Errorf("after %d of %d left, server alive is %v", i+1, users, alive)
		}
	}
}

// Root's half of the promise is tested by every other test when root runs them.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("tests run as an ordinary user already: every other test covers this")
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skip("this system has no user nobody")
	}
	o, err := ownerOf(nobody)
	if err != nil {
		t.Fatal(err)
	}
	// The test binary lies where only root can reach it.
	binary := filepath.Join(newDir(t), "owner")
	text, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, text, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := newDir(t)
	if err := os.Chown(dir, int(o.uid), int(o.gid)); err != nil {
		t.Fatal(err)
	}
	cmd := o.command(t.Context(), dir, binary)
	startOwner(t, cmd, dir, ownerStopVariable+"=1")
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	// Root then keeps that user for the same cluster.
	s := mustStart(t, smallConfig(dir))
	if s.owner.uid != o.uid {
		t.Errorf("server runs as user %d, cluster belongs to %d", s.owner.uid, o.uid)
	}
	mustStop(t, s)
}

func TestDirectoryThatTheServersUserCannotEnter(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root starts the server as another user")
	}
	closed := filepath.Join(newDir(t), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), smallConfig(filepath.Join(closed, "data")), zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), "cannot enter "+closed+":") {
		t.Errorf("error does not name %s: %v", closed, err)
	}
}

func TestSocketDirectoryOpenToOthersIsRefused(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	run := newPaths(dir).run
	if err := os.MkdirAll(run, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), smallConfig(dir), zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), run) || !strings.Contains(err.Error(), "0700") {
		t.Errorf("error does not name directory and mode: %v", err)
	}
}

func TestDamagedClusterNamesTheServersWords(t *testing.T) {
	t.Parallel()
	cfg := smallConfig(newDir(t))
	s := mustStart(t, cfg)
	mustStop(t, s)
	if err := os.Remove(filepath.Join(s.paths.data, "global", "pg_control")); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), cfg, zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), "could not find the database system") {
		t.Errorf("error does not end with the server's words: %v", err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	paths := newPaths(dir)
	if err := os.Mkdir(paths.top, 0o711); err != nil {
		t.Fatal(err)
	}
	held, err := lockFile(t.Context(), paths.startLock, exclusive)
	if err != nil {
		t.Fatal(err)
	}
	// Long enough to find the binaries on a busy machine, so that the wait ends at the lock.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err = Start(ctx, smallConfig(dir), zap.NewNop())
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), paths.startLock) {
		t.Errorf("error does not name the lock that was waited for: %v", err)
	}
	if err := held.release(); err != nil {
		t.Error(err)
	}
}

// TestSearchCutShort: a context that ends while binaries are looked for must not be told as "none are installed".
func TestSearchCutShort(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Start(ctx, smallConfig(newDir(t)), zap.NewNop())
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrNoBinaries) {
		t.Errorf("got %v", err)
	}
}

func TestConfigOutOfBounds(t *testing.T) {
	t.Parallel()
	for field, cfg := range map[string]Config{
		"data directory":     {},
		"shared_buffers_mib": {DataDir: "d", SharedBuffersMiB: minSharedBuffersMiB - 1},
		"max_connections":    {DataDir: "d", MaxConnections: maxConnections + 1},
		"max_wal_mib":        {DataDir: "d", MaxWALMiB: -1},
	} {
		_, err := Start(t.Context(), cfg, zap.NewNop())
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error does not name %s: %v", field, err)
		}
	}
}

func TestAutoSharedBuffers(t *testing.T) {
	t.Parallel()
	for memory, want := range map[uint64]int{
		0:         autoMinSharedBuffersMiB,
		1 << 30:   256,
		4 << 30:   1024,
		512 << 30: autoMaxSharedBuffersMiB,
	} {
		if got := autoSharedBuffersMiB(memory); got != want {
			t.Errorf("of %d bytes: %d MiB, want %d", memory, got, want)
		}
	}
}

func TestRunningServerThatCannotBeReachedIsNamed(t *testing.T) {
	t.Parallel()
	cfg := smallConfig(newDir(t))
	s := mustStart(t, cfg)
	t.Cleanup(func() { mustStop(t, s) })
	if err := os.Remove(socketPath(s.socketDir)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := Start(ctx, cfg, zap.NewNop())
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", s.pid)) {
		t.Errorf("error does not name process %d: %v", s.pid, err)
	}
	t.Log(err)
}

// TestPartialClusterStillWrittenIsRemoved: the initdb of a killed start goes on writing for a moment.
func TestPartialClusterStillWrittenIsRemoved(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "partial")
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				sub := filepath.Join(dir, strconv.Itoa(i%50))
				_ = os.MkdirAll(sub, 0o700)
				_ = os.WriteFile(filepath.Join(sub, strconv.Itoa(i)), nil, 0o600)
			}
		}
	})
	time.AfterFunc(300*time.Millisecond, func() { close(stop) })
	if err := removePartial(t.Context(), dir); err != nil {
		t.Errorf("not removed: %v", err)
	}
	writing.Wait()
}
