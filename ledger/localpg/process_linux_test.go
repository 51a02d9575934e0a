package localpg

import (
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/zap"
)

// withoutPtrace runs do on a thread that may not look into other users'
// processes, as root in a container.
func withoutPtrace(t *testing.T, do func()) {
	t.Helper()
	const version3, sysPtrace = 0x20080522, 19
	header := struct {
		version uint32
		pid     int32
	}{version: version3}
	var sets [2]struct{ effective, permitted, inheritable uint32 }
	done := make(chan syscall.Errno, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var errno syscall.Errno
		defer func() { done <- errno }()
		_, _, errno = syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets)), 0)
		if errno == 0 {
			sets[0].effective &^= 1 << sysPtrace
			_, _, errno = syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets)), 0)
		}
		if errno == 0 {
			do()
		}
	}()
	if errno := <-done; errno != 0 {
		t.Fatal(errno)
	}
}

// Root in a container may not see where a postmaster works. That is no proof of
// its death: the pid file and the socket of a running server were lost so.
func TestServerThatMayNotBeLookedAtIsAdopted(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root starts the server as another user")
	}
	cfg := smallConfig(newDir(t))
	s := mustStart(t, cfg)
	t.Cleanup(func() { mustStop(t, s) })
	other := mustStart(t, smallConfig(newDir(t)))
	t.Cleanup(func() { mustStop(t, other) })
	stranger := s.owner.command(t.Context(), "/", "/bin/sleep", "600")
	own := s.owner
	own.drops = false // so it runs as root
	roots := own.command(t.Context(), "/", "/bin/sleep", "600")
	zombie := s.owner.command(t.Context(), "/", "/bin/true")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stranger.Wait() }) // killed with the context
	if err := roots.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = roots.Wait() })
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = zombie.Wait() })
	eventually(t, "process becomes a zombie", func() bool { alive, _ := postmasterAlive(zombie.Process.Pid, s.paths.data); return !alive })
	withoutPtrace(t, func() {
		eventually(t, "title of a session is set", func() bool {
			_, certain := postmasterAlive(children(t, s.pid)[0], s.paths.data)
			return certain
		})
		for name, test := range map[string]struct {
			pid            int
			alive, certain bool
		}{
			"the postmaster":            {s.pid, true, true},
			"another cluster's":         {other.pid, false, true},
			"a helper of it":            {children(t, s.pid)[0], false, true},
			"the same user's program":   {stranger.Process.Pid, true, false},
			"another user's program":    {roots.Process.Pid, false, true},
			"one nobody has waited for": {zombie.Process.Pid, false, true},
			"nobody":                    {4194304, false, true},
		} {
			alive, certain := postmasterAlive(test.pid, s.paths.data)
			if alive != test.alive || certain != test.certain {
				t.Errorf("%s: alive %v, certain %v, want %v, %v", name, alive, certain, test.alive, test.certain)
			}
		}
		again, err := start(t.Context(), cfg, systemSearch(), limits{silence: time.Minute, claim: time.Second}, zap.NewNop())
		if err != nil {
			t.Error(err)
			return
		}
		if !again.Adopted || again.pid != s.pid {
			t.Errorf("adopted %v, process %d, want process %d adopted", again.Adopted, again.pid, s.pid)
		}
		mustStop(t, again)
	})
	mustExec(t, s, `SELECT 1`)
}
