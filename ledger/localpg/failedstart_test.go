package localpg

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

// maintain connects to the maintenance database of the server below dir, used by
// this process or not.
func maintain(t *testing.T, dir string) *pgx.Conn {
	t.Helper()
	s := &Server{socketDir: newPaths(dir).run}
	conn, err := pgx.Connect(t.Context(), s.url(maintenanceDatabase))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func mustRun(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// dropDatabase makes the next start make the database again. Sessions that are
// ending are thrown out.
func dropDatabase(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	mustRun(t, conn, `DROP DATABASE `+Database+` WITH (FORCE)`)
}

// keepDatabaseFromBeingMade drops it and holds a session on what it is copied from.
func keepDatabaseFromBeingMade(t *testing.T, dir string) {
	t.Helper()
	dropDatabase(t, maintain(t, dir))
	s := &Server{socketDir: newPaths(dir).run}
	conn, err := pgx.Connect(t.Context(), s.url("template1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
}

func closeDatabase(t *testing.T, dir string) {
	t.Helper()
	mustRun(t, maintain(t, dir), `ALTER DATABASE `+Database+` ALLOW_CONNECTIONS false`)
}

var brokenSteps = map[string]struct {
	breakIt func(t *testing.T, dir string)
	says    string
}{
	"database cannot be made":    {keepDatabaseFromBeingMade, "create database"},
	"database cannot be entered": {closeDatabase, "connect to database"},
}

// A server that a crash left running and that the next start cannot use is not
// left running without a user.
func TestFailedStartEndsAdoptedServerNobodyUses(t *testing.T) {
	t.Parallel()
	for name, step := range brokenSteps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newDir(t)
			owner := exec.Command(os.Args[0])
			pid := startOwner(t, owner, dir)
			killOwner(t, owner)
			step.breakIt(t, dir)

			_, err := Start(t.Context(), smallConfig(dir), zap.NewNop())
			if err == nil || !strings.Contains(err.Error(), step.says) {
				t.Fatalf("start failed with %v, want %q", err, step.says)
			}
			if alive, _ := postmasterAlive(pid, newPaths(dir).data); alive {
				t.Errorf("process %d is left running without a user", pid)
				_ = syscall.Kill(pid, syscall.SIGQUIT)
			}
			if _, err := os.Stat(newPaths(dir).pidFile()); !os.IsNotExist(err) {
				t.Errorf("it was not shut down in order: %v", err)
			}
		})
	}
}

func TestFailedStartLeavesServerThatAnotherUses(t *testing.T) {
	t.Parallel()
	for name, step := range brokenSteps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newDir(t)
			owner := exec.Command(os.Args[0]) // another process, which has the server
			pid := startOwner(t, owner, dir)
			t.Cleanup(func() {
				killOwner(t, owner)
				data := newPaths(dir).data
				if alive, certain := postmasterAlive(pid, data); alive && certain {
					_ = syscall.Kill(pid, syscall.SIGQUIT)
				}
				eventually(t, "server ends", func() bool { alive, _ := postmasterAlive(pid, data); return !alive })
			})
			step.breakIt(t, dir)

			_, err := Start(t.Context(), smallConfig(dir), zap.NewNop())
			if err == nil || !strings.Contains(err.Error(), step.says) {
				t.Fatalf("start failed with %v, want %q", err, step.says)
			}
			mustRun(t, maintain(t, dir), `SELECT 1`)
			if alive, _ := postmasterAlive(pid, newPaths(dir).data); !alive {
				t.Errorf("process %d, which another process uses, was ended", pid)
			}
		})
	}
}

// A start that launched the server and then failed ends it too, in order.
func TestFailedStartEndsServerItLaunched(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	s := mustStart(t, smallConfig(dir))
	closeDatabase(t, dir)
	mustStop(t, s)
	_, err := Start(t.Context(), smallConfig(dir), zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), "connect to database") {
		t.Fatalf("start failed with %v", err)
	}
	if _, err := os.Stat(s.paths.pidFile()); !os.IsNotExist(err) {
		t.Errorf("a server is left: %v", err)
	}
}

// The last to leave ends the server that runs, also when that took the place of
// the one it began with.
func TestLastUserEndsTheServerThatTookTheOldOnesPlace(t *testing.T) {
	t.Parallel()
	cfg := smallConfig(newDir(t))
	first := mustStart(t, cfg)
	if err := syscall.Kill(first.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-first.reaped
	second := mustStart(t, cfg)
	if second.Adopted {
		t.Fatal("a dead server was adopted")
	}
	mustStop(t, second) // first still holds the directory
	if alive, _ := postmasterAlive(second.pid, second.paths.data); !alive {
		t.Error("server was ended although another used the directory")
	}
	mustStop(t, first)
	if alive, _ := postmasterAlive(second.pid, second.paths.data); alive {
		t.Errorf("process %d is left running without a user", second.pid)
		_ = second.quit()
	}
}
