package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

// A server in another container, or one whose number is not to be seen, must
// not get a second one on its cluster: both would write, and ruin it.
func TestServerThatCannotBeSeenKeepsItsCluster(t *testing.T) {
	t.Parallel()
	cfg := smallConfig(newDir(t))
	s := mustStart(t, cfg)
	t.Cleanup(func() { mustStop(t, s) })
	text, err := os.ReadFile(s.paths.pidFile())
	if err != nil {
		t.Fatal(err)
	}
	dead := exec.Command("/bin/true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	unseen := fmt.Appendf(nil, "%d\n%s", dead.Process.Pid, rest)
	if err := os.WriteFile(s.paths.pidFile(), unseen, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = start(t.Context(), cfg, systemSearch(), limits{silence: time.Minute, claim: 200 * time.Millisecond}, zap.NewNop())
	if !errors.Is(err, errStillServed) {
		t.Errorf("got %v", err)
	}
	if now, err := os.ReadFile(s.paths.pidFile()); err != nil || !bytes.Equal(now, unseen) {
		t.Errorf("pid file of a running server was changed to %q: %v", now, err)
	}
	if err := os.WriteFile(s.paths.pidFile(), text, 0o600); err != nil { // before the server looks
		t.Fatal(err)
	}
	mustExec(t, s, `SELECT 1`) // its socket is still there
}

// Sessions of a killed server may outlive it; a new one waits for their end.
func TestLaunchWaitsForTheDeadServersSessions(t *testing.T) {
	t.Parallel()
	cfg := smallConfig(newDir(t))
	killed := mustStart(t, cfg)
	conn := connect(t, killed)
	var session int
	if err := conn.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&session); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(session, syscall.SIGSTOP); err != nil { // it cannot notice
		t.Fatal(err)
	}
	if err := syscall.Kill(killed.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-killed.reaped
	_, err := start(t.Context(), cfg, systemSearch(), limits{silence: time.Minute, claim: 200 * time.Millisecond}, zap.NewNop())
	if !errors.Is(err, errStillServed) {
		t.Errorf("got %v", err)
	}
	if err := syscall.Kill(session, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s := mustStart(t, cfg)
	mustStop(t, s)
	mustStop(t, killed)
}

// A file that is cut before it is written could stay empty on a full disk, and
// PostgreSQL refuses an empty one.
func TestStalePIDFileIsWrittenOverInPlace(t *testing.T) {
	t.Parallel()
	s := &Server{paths: newPaths(newDir(t)), log: zap.NewNop()}
	if err := os.MkdirAll(s.paths.data, 0o700); err != nil {
		t.Fatal(err)
	}
	const unused = 4194304 // one more than any process can have
	const rest = "/data\n1\n5432\n/run\n\n 42 7\nready   \n"
	if err := os.WriteFile(s.paths.pidFile(), fmt.Appendf(nil, "%d\n%s", unused, rest), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.disownPIDFile(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(s.paths.pidFile())
	if err != nil {
		t.Fatal(err)
	}
	line, after, _ := strings.Cut(string(text), "\n")
	if strings.TrimSpace(line) != strconv.Itoa(os.Getpid()) || after != rest || len(line) != len(strconv.Itoa(unused)) {
		t.Errorf("pid file is now %q", text)
	}
}

// byHand starts a server on dir's cluster as an operator would.
func byHand(t *testing.T, s *Server, settings ...string) *exec.Cmd {
	t.Helper()
	args := []string{"-D", s.paths.data, "-c", "listen_addresses=", "-c", "unix_socket_directories=" + s.paths.run}
	for _, set := range settings {
		args = append(args, "-c", set)
	}
	cmd := s.owner.command(context.Background(), s.paths.data, s.bin.postgres, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGQUIT) }) // an error once it was waited for
	eventually(t, "server takes connections", func() bool { return s.ping(t.Context()) == nil })
	return cmd
}

// A server that runs without the promised durability is not taken for one of ours.
func TestServerWithoutGuaranteesIsNotUsed(t *testing.T) {
	t.Parallel()
	cfg := smallConfig(newDir(t))
	s := mustStart(t, cfg)
	mustStop(t, s)
	hand := byHand(t, s, "fsync=off")
	ended := make(chan error, 1)
	go func() { ended <- hand.Wait() }()
	_, err := Start(t.Context(), cfg, zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), `fsync is "off"`) {
		t.Fatalf("error does not name fsync: %v", err)
	}
	if err := <-ended; err != nil { // nobody else used it
		t.Errorf("it was not shut down in order: %v", err)
	}
	s = mustStart(t, cfg)
	if got := show(t, connect(t, s), "fsync"); got != "on" || s.Adopted {
		t.Errorf("fsync is %s, adopted %v", got, s.Adopted)
	}
	mustStop(t, s)
}

// What is set for a database or a role wins over the command line.
func TestOverridesOfGuaranteesAreReset(t *testing.T) {
	t.Parallel()
	cfg := smallConfig(newDir(t))
	s := mustStart(t, cfg)
	t.Cleanup(func() { mustStop(t, s) })
	mustExec(t, s, `ALTER DATABASE schemegate SET synchronous_commit = off`, `ALTER ROLE schemegate SET log_statement = 'all'`,
		`ALTER ROLE schemegate IN DATABASE schemegate SET zero_damaged_pages = on`, `ALTER ROLE ALL SET log_min_error_statement = error`,
		`ALTER DATABASE schemegate SET work_mem = '8MB'`)
	again := mustStart(t, cfg)
	t.Cleanup(func() { mustStop(t, again) })
	conn := connect(t, again)
	for _, promised := range guarantees {
		if got := show(t, conn, promised.name); got != promised.value {
			t.Errorf("%s is %q, want %q", promised.name, got, promised.value)
		}
	}
	if got := show(t, conn, "work_mem"); got != "8MB" {
		t.Errorf("work_mem, which is the operator's, is %s", got)
	}
}

// A socket may be another cluster's, such as the distribution's.
func TestServerOfAnotherClusterIsNotUsed(t *testing.T) {
	t.Parallel()
	other, ours := mustStart(t, smallConfig(newDir(t))), mustStart(t, smallConfig(newDir(t)))
	t.Cleanup(func() { mustStop(t, other); mustStop(t, ours) })
	dropDatabase(t, maintain(t, other.paths.dataDir))
	text, err := os.ReadFile(ours.paths.pidFile())
	if err != nil {
		t.Fatal(err)
	}
	pointed := strings.Replace(string(text), ours.socketDir, other.socketDir, 1)
	if err := os.WriteFile(ours.paths.pidFile(), []byte(pointed), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Start(t.Context(), ours.cfg, zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), "serves "+other.paths.data) {
		t.Errorf("got %v", err)
	}
	var made bool
	err = maintain(t, other.paths.dataDir).QueryRow(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)`, Database).Scan(&made)
	if err != nil || made {
		t.Errorf("database was made in the other cluster: %v, %v", made, err)
	}
	mustExec(t, ours, `SELECT 1`)
}

func TestDamagedClusterIsNotReplaced(t *testing.T) {
	t.Parallel()
	cfg := smallConfig(newDir(t))
	s := mustStart(t, cfg)
	mustStop(t, s)
	if err := os.Remove(filepath.Join(s.paths.data, "PG_VERSION")); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), cfg, zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), s.paths.data) || !strings.Contains(err.Error(), "PG_VERSION") {
		t.Errorf("error does not name the cluster and what it lacks: %v", err)
	}
	if _, err := os.Stat(filepath.Join(s.paths.data, "global", "pg_control")); err != nil {
		t.Error(err)
	}
}

// While a start waits for its turn, another process may make the cluster with
// other binaries.
func TestClusterOfAnotherVersionMadeMeanwhile(t *testing.T) {
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
	fresh := install(t, filepath.Join(newDir(t), "bin"), "17.2")
	done := make(chan error, 1)
	go func() {
		_, err := start(t.Context(), smallConfig(dir), search{path: []string{fresh}}, limits{}, zap.NewNop())
		done <- err
	}()
	eventually(t, "start has chosen its binaries", func() bool { _, err := os.Stat(paths.log); return err == nil })
	if err := os.Mkdir(paths.data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(paths.data, "PG_VERSION"), []byte("16\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := held.release(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrNoBinaries) || !strings.Contains(err.Error(), "cannot open a cluster of version 16") {
		t.Errorf("got %v", err)
	}
}

// A recovery may take hours; ended half way it would begin anew.
func TestPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{limits: limits{silence: time.Minute}, log: zap.NewNop()}
		p := s.patience(1)
		for range 3600 {
			time.Sleep(p.gap)
			if p.spent(fmt.Errorf("ping: %w", errStarting)) {
				t.Fatal("a server that recovers is given up on")
			}
		}
		if p.gap != recoveringGap {
			t.Errorf("looks at a recovering server are %v apart", p.gap)
		}
		time.Sleep(time.Minute)
		if p.spent(errNotReady) {
			t.Error("the limit counts from before the server's last word")
		}
		time.Sleep(time.Second)
		if !p.spent(errNotReady) {
			t.Error("a silent server is waited for without limit")
		}
	})
}

func TestLastWordsAreTheEndAndFollowNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	long, link := filepath.Join(dir, "long.log"), filepath.Join(dir, "link.log")
	if err := os.WriteFile(long, []byte(strings.Repeat("early ", maxTailBytes)+"No space left on device\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(long, link); err != nil {
		t.Fatal(err)
	}
	said, err := readTail(long)
	if err != nil || !strings.HasSuffix(said, "No space left on device") || len(said) > maxTailBytes {
		t.Errorf("read %d bytes: %v", len(said), err)
	}
	if _, err := readTail(link); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a link was followed: %v", err)
	}
}
