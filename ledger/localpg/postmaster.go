package localpg

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"go.uber.org/zap"
)

const (
	// maxSocketPathBytes is what the kernel accepts for the path of a socket.
	maxSocketPathBytes = 107
	// shortRoot is where the socket goes when its path would be longer.
	shortRoot = "/tmp"
	// hbaMode lets the server read the rules that the daemon wrote.
	hbaMode os.FileMode = 0o644
)

var (
	errNotReady = errors.New("server is not ready")
	errStarting = fmt.Errorf("%w: it recovers, starts or stops", errNotReady)
	errGone     = errors.New("server ended")

	errStillServed = errors.New("a server that cannot be seen from here, or processes of one that was killed, still use the cluster")
)

// chooseSocketDir prefers a directory below the data directory and falls back
// to a short one with a name made from it.
func (s *Server) chooseSocketDir() error {
	s.socketDir = s.paths.run
	if len(socketPath(s.socketDir)) > maxSocketPathBytes {
		sum := sha256.Sum256([]byte(s.paths.data))
		s.socketDir = filepath.Join(shortRoot, "schemegate-"+hex.EncodeToString(sum[:8]))
	}
	if err := s.owner.makePrivate(s.socketDir); err != nil {
		return fmt.Errorf("make socket directory: %w", err)
	}
	// No postmaster of this cluster runs, and the directory is nobody else's.
	for _, left := range []string{socketPath(s.socketDir), socketPath(s.socketDir) + ".lock"} {
		if err := os.Remove(left); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove stale socket: %w", err)
		}
	}
	return nil
}

// leaveSocketDir removes a directory outside the data directory.
func (s *Server) leaveSocketDir() error {
	if s.socketDir == s.paths.run {
		return nil
	}
	if err := os.Remove(s.socketDir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove socket directory: %w", err)
	}
	return nil
}

func socketPath(dir string) string { return filepath.Join(dir, fmt.Sprintf(".s.PGSQL.%d", port)) }

// launch starts the server and waits until it accepts connections.
func (s *Server) launch(ctx context.Context) error {
	// Nothing but the socket, and whoever can enter its directory is trusted.
	const hba = "local all all trust\nlocal replication all trust\n"
	if err := errors.Join(os.WriteFile(s.paths.hba, []byte(hba), hbaMode), os.Chmod(s.paths.hba, hbaMode)); err != nil {
		return fmt.Errorf("write access rules: %w", err)
	}
	for attempt := 1; ; attempt++ {
		err := s.claimAndSpawn(ctx)
		if err == nil {
			err = s.awaitLaunched(ctx)
		}
		if err == nil || attempt == launchAttempts || !errors.Is(err, errGone) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(launchRetryGap):
		}
	}
}

// claimAndSpawn starts the postmaster once no process of an earlier one is left.
// Every process of a server holds its lock for as long as it lives, whatever its
// number and in whatever container: two servers on one cluster would ruin it.
func (s *Server) claimAndSpawn(ctx context.Context) error {
	claimCtx, cancel := context.WithTimeoutCause(ctx, s.limits.claim, errStillServed)
	defer cancel()
	held, err := lockFile(claimCtx, s.paths.serverLock, exclusive)
	if err != nil {
		return err
	}
	err = s.disownPIDFile()
	if err == nil {
		err = s.chooseSocketDir()
	}
	if err == nil {
		err = s.spawn(held.file)
	}
	return errors.Join(err, held.release()) // the server has its own hold on it by now
}

func (s *Server) awaitLaunched(ctx context.Context) error {
	began, wait := s.spawned, s.patience(s.pid)
	for {
		select {
		case <-s.reaped:
			return fmt.Errorf("%w while starting: %s", errGone, s.lastWords(began))
		case <-ctx.Done():
			err := fmt.Errorf("wait for server to accept connections: %w: %s", context.Cause(ctx), s.lastWords(began))
			return errors.Join(err, s.quit())
		case <-time.After(wait.gap):
		}
		err := s.ping(ctx)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errNotReady) {
			return errors.Join(err, s.quit())
		}
		if wait.spent(err) {
			err = fmt.Errorf("wait for server to accept connections: silent for %v: %w: %s", s.limits.silence, err, s.lastWords(began))
			return errors.Join(err, s.quit())
		}
	}
}

// spawn starts the postmaster in a session of its own, so that neither the
// daemon's death nor an interrupt typed at its terminal reaches it. It inherits
// the hold on lock.
func (s *Server) spawn(lock *os.File) error {
	s.spawned = time.Now()
	out, err := os.OpenFile(s.paths.startup, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("open startup log: %w", err)
	}
	defer out.Close()
	args := []string{"-D", s.paths.data}
	for _, set := range s.settings() {
		args = append(args, "-c", set.name+"="+set.value)
	}
	// Not bound to a context: the server is ended by signals of its own.
	cmd := s.owner.command(context.Background(), s.paths.data, s.bin.postgres, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr.Setsid = true
	if s.cfg.DieWithParent {
		dieWithParent(cmd.SysProcAttr)
	}
	started, reaped := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(reaped)
		if s.cfg.DieWithParent {
			// The kernel watches the thread, not the process.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
		}
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		if err := cmd.Wait(); err != nil {
			s.log.Warn("private PostgreSQL ended", zap.Error(err))
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", s.bin.postgres, err)
	}
	s.pid, s.reaped = cmd.Process.Pid, reaped
	return nil
}

// shutDown rolls open transactions back, writes a checkpoint and ends the
// server; past ctx or stopTimeout it ends it at once.
func (s *Server) shutDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := s.signal(syscall.SIGINT); err != nil {
		return err
	}
	if s.waitGone(ctx) == nil {
		return s.leaveSocketDir()
	}
	s.log.Warn("private PostgreSQL did not stop in time, stopping at once", zap.Int("pid", s.pid))
	return s.quit()
}

// quit ends the server without a checkpoint; the next start recovers from WAL.
func (s *Server) quit() error {
	ctx, cancel := context.WithTimeout(context.Background(), quitTimeout)
	defer cancel()
	if err := s.signal(syscall.SIGQUIT); err != nil {
		return err
	}
	return s.waitGone(ctx)
}

func (s *Server) signal(sig syscall.Signal) error {
	if !s.running() {
		return nil
	}
	if err := syscall.Kill(s.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %v to process %d: %w", sig, s.pid, err)
	}
	return nil
}

// running looks at the process itself: its number must not be trusted once it
// was waited for.
func (s *Server) running() bool {
	if s.reaped != nil {
		select {
		case <-s.reaped:
			return false
		default:
			return true
		}
	}
	alive, _ := postmasterAlive(s.pid, s.paths.data)
	return alive
}

func (s *Server) waitGone(ctx context.Context) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for s.running() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for process %d to end: %w", s.pid, context.Cause(ctx))
		case <-ticker.C:
		}
	}
	return nil
}
