package localpg

import (
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

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

// holdBack lets sessions see that the database is missing and keeps them from
// making it until release is called.
func holdBack(t *testing.T, dir string) (conn *pgx.Conn, release func()) {
	t.Helper()
	conn = maintain(t, dir)
	dropDatabase(t, conn)
	mustRun(t, conn, `BEGIN`, `LOCK TABLE pg_database IN SHARE MODE`)
	return conn, func() { mustRun(t, conn, `ROLLBACK`) }
}

// waiting waits until n sessions are about to make the database.
func waiting(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d sessions make the database", n), func() bool {
		var found int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'pg_database'::regclass`).Scan(&found)
		if err != nil {
			t.Fatal(err)
		}
		return found == n
	})
}

func TestDatabaseMadeByTwoAtOnce(t *testing.T) {
	t.Parallel()
	s := mustStart(t, smallConfig(newDir(t)))
	t.Cleanup(func() { mustStop(t, s) })
	conn, release := holdBack(t, s.paths.dataDir)
	const makers = 2
	made := make(chan error, makers)
	for range makers {
		go func() { made <- s.ensureDatabase(t.Context()) }()
	}
	waiting(t, conn, makers)
	release()
	for range makers {
		if err := <-made; err != nil {
			t.Error(err)
		}
	}
	mustExec(t, s, `CREATE TABLE works (n int)`)
}

// A daemon killed during its first start leaves a session that still makes the
// database; the next start makes it at the same time.
func TestStartKilledWhileItMakesTheDatabase(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	s := mustStart(t, smallConfig(dir))
	t.Cleanup(func() { mustStop(t, s) })
	conn, release := holdBack(t, dir)

	killed := exec.Command(os.Args[0])
	killed.Env = append(os.Environ(), ownerDirVariable+"="+dir)
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	waiting(t, conn, 1)
	killOwner(t, killed)

	type result struct {
		s   *Server
		err error
	}
	started := make(chan result, 1)
	go func() {
		s, err := Start(t.Context(), smallConfig(dir), zap.NewNop())
		started <- result{s, err}
	}()
	waiting(t, conn, 2) // the dead start's session is one of them
	release()
	next := <-started
	if next.err != nil {
		t.Fatal(next.err)
	}
	mustExec(t, next.s, `CREATE TABLE works (n int)`)
	mustStop(t, next.s)
}

// children are the processes that parent began.
func children(t *testing.T, parent int) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it ended
		}
		// The name stands in brackets and may hold anything; state and parent follow it.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, pid)
		}
	}
	return found
}

// killTree kills a server that this process started with all its processes.
func killTree(t *testing.T, s *Server) {
	t.Helper()
	if err := syscall.Kill(s.pid, syscall.SIGSTOP); err != nil { // it may begin no more
		t.Fatal(err)
	}
	for _, pid := range append(children(t, s.pid), s.pid) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	<-s.reaped
}

func clusterDatabases(t *testing.T, s *Server) map[string]bool {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(s.paths.data, "base", "[0-9]*"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, dir := range dirs {
		found[dir] = true
	}
	return found
}

// Every process of a server dies while its files of the database are being
// copied: what PostgreSQL leaves of that does not stop the next start.
func TestServerKilledWhileItMakesTheDatabase(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("only Linux tells of all processes of the server")
	}
	const tries = 5
	dir := newDir(t)
	s := mustStart(t, smallConfig(dir))
	left := 0 // tries in which files of an unfinished database were left
	for range tries {
		dropDatabase(t, maintain(t, dir))
		before := clusterDatabases(t, s)
		dying := s
		ended := make(chan error, 1)
		go func() { ended <- dying.ensureDatabase(context.Background()) }()
		eventually(t, "files of the database appear", func() bool { return len(clusterDatabases(t, s)) > len(before) })
		killTree(t, s)
		interrupted := <-ended != nil
		dead := s
		s = mustStart(t, smallConfig(dir))
		if s.Adopted {
			t.Fatal("a dead server was adopted")
		}
		if interrupted {
			left++
		}
		mustExec(t, s, `CREATE TABLE works (n int)`)
		mustStop(t, dead)
	}
	if left == 0 {
		t.Errorf("in none of %d tries was the making of the database interrupted", tries)
	}
	t.Logf("interrupted in %d of %d tries", left, tries)
	mustStop(t, s)
}
