package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"

	"github.com/schemegate/schemegate/ledger/localpg"
)

// TestDaemonEndsWhenItsPostgreSQLWasKilled: a daemon that can record nothing for good says so and ends, and a start recovers.
func TestDaemonEndsWhenItsPostgreSQLWasKilled(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "schemegate-death-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	private, err := localpg.Start(t.Context(), localpg.Config{DataDir: dir}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	d := &database{private: private, log: zap.NewNop()}
	ended := make(chan error, 1)
	go func() { ended <- d.watch(t.Context()) }()
	pidFile, err := os.ReadFile(filepath.Join(dir, "postgresql", "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.SplitN(string(pidFile), "\n", 2)[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "start the daemon again") {
		t.Fatalf("ended with %v", err)
	}
	_ = private.Stop(t.Context()) // of a dead server there is nothing to stop
	again, err := localpg.Start(t.Context(), localpg.Config{DataDir: dir}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if !again.Alive() {
		t.Error("the server started again takes no connections")
	}
	if err := again.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
