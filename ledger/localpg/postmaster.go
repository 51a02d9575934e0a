package localpg

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
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
	// maxTailBytes of the server's log go into an error.
	maxTailBytes = 2000
)

var (
	errNotReady = errors.New("server is not ready")
	errGone     = errors.New("server ended")
)

// initCluster makes the cluster when there is none. It comes into being beside
// its place and is moved there whole, so a crash leaves no half of one.
func (s *Server) initCluster(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(s.paths.data, "PG_VERSION")); err == nil {
		return nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look for cluster: %w", err)
	}
	if err := removePartial(ctx, s.paths.partial); err != nil {
		return fmt.Errorf("remove unfinished cluster: %w", err)
	}
	if err := s.owner.makePrivate(s.paths.partial); err != nil {
		return err
	}
	if err := s.owner.checkReach(ctx, s.bin.postgres, s.paths.partial); err != nil {
		return err
	}
	// Locale C: the order of text keys must not change with the C library.
	cmd := s.owner.command(ctx, s.paths.partial, s.bin.initdb, "--pgdata="+s.paths.partial, "--username="+Superuser,
		"--auth=trust", "--encoding=UTF8", "--locale=C", "--data-checksums")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make cluster in %s: %w: %s", s.paths.partial, err, tail(out))
	}
	if err := os.Rename(s.paths.partial, s.paths.data); err != nil {
		return fmt.Errorf("put cluster in place: %w", err)
	}
	s.log.Info("private PostgreSQL cluster made", zap.String("directory", s.paths.data), zap.String("version", s.Version))
	return syncDir(s.paths.top)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

// pidFile is what the running or last postmaster wrote into its data directory.
type pidFile struct {
	pid       int
	socketDir string
}

func (p paths) pidFile() string { return filepath.Join(p.data, "postmaster.pid") }

// readPIDFile returns nil when there is no usable one. Its lines are: pid, data
// directory, start time, port, socket directory, and more.
func readPIDFile(path string) (*pidFile, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pid file: %w", err)
	}
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 0 {
		return nil, nil
	}
	file := &pidFile{pid: pid}
	if len(lines) > 4 {
		file.socketDir = strings.TrimSpace(lines[4])
	}
	return file, nil
}

// adopt takes over a server that is running, waiting for one that is still
// starting. False: none is running, and nothing a dead one left is in the way.
func (s *Server) adopt(ctx context.Context) (bool, error) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		file, err := readPIDFile(s.paths.pidFile())
		if err != nil {
			return false, err
		}
		if file == nil {
			return false, nil
		}
		alive, certain := postmasterAlive(file.pid, s.paths.data)
		if !alive {
			if certain {
				err = s.disownPIDFile(file.pid)
			}
			return false, err
		}
		// A young postmaster has not written its socket directory yet.
		notReady := errNotReady
		if file.socketDir != "" {
			s.pid, s.socketDir = file.pid, file.socketDir
			if notReady = s.ping(ctx); !errors.Is(notReady, errNotReady) {
				return notReady == nil, notReady
			}
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("wait for running server, process %d: %w: %w", file.pid, context.Cause(ctx), notReady)
		case <-ticker.C:
		}
	}
}

// disownPIDFile keeps a stale pid file from stopping the next server: the dead
// one's number may belong to someone else by now, whom PostgreSQL would take
// for a postmaster. The file is not removed, since PostgreSQL reads from it
// which shared memory must be free of old children first; instead it gets the
// number of the next server's parent, which PostgreSQL knows cannot be one.
func (s *Server) disownPIDFile(pid int) error {
	path := s.paths.pidFile()
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read stale pid file: %w", err)
	}
	_, rest, _ := bytes.Cut(text, []byte("\n"))
	text = append([]byte(strconv.Itoa(os.Getpid())+"\n"), rest...)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open stale pid file: %w", err)
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write stale pid file: %w", err)
	}
	s.log.Warn("stale pid file of private PostgreSQL cleared", zap.Int("pid", pid))
	return nil
}

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
	if err := s.chooseSocketDir(); err != nil {
		return err
	}
	// Nothing but the socket, and whoever can enter its directory is trusted.
	const hba = "local all all trust\nlocal replication all trust\n"
	if err := errors.Join(os.WriteFile(s.paths.hba, []byte(hba), hbaMode), os.Chmod(s.paths.hba, hbaMode)); err != nil {
		return fmt.Errorf("write access rules: %w", err)
	}
	for attempt := 1; ; attempt++ {
		err := s.launchOnce(ctx)
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

func (s *Server) launchOnce(ctx context.Context) error {
	began := time.Now()
	if err := s.spawn(); err != nil {
		return err
	}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.reaped:
			return fmt.Errorf("%w while starting: %s", errGone, s.lastWords(began))
		case <-ctx.Done():
			err := fmt.Errorf("wait for server to accept connections: %w: %s", context.Cause(ctx), s.lastWords(began))
			return errors.Join(err, s.quit())
		case <-ticker.C:
		}
		err := s.ping(ctx)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errNotReady) {
			return errors.Join(err, s.quit())
		}
	}
}

// spawn starts the postmaster in a session of its own, so that neither the
// daemon's death nor an interrupt typed at its terminal reaches it.
func (s *Server) spawn() error {
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

// lastWords are what the server said since it was started at began: to its
// standard error at first, to its log once that is open.
func (s *Server) lastWords(began time.Time) string {
	words := make([]string, 0, 2)
	said, err := os.ReadFile(s.paths.startup)
	if err != nil {
		return err.Error()
	}
	words = append(words, tail(said))
	logs, err := filepath.Glob(filepath.Join(s.paths.log, "*.log"))
	if err != nil {
		return err.Error()
	}
	for _, log := range logs {
		if info, err := os.Stat(log); err != nil || info.ModTime().Before(began) {
			continue
		}
		if text, err := os.ReadFile(log); err == nil {
			words = append(words, tail(text))
		}
	}
	return strings.Join(words, "\n")
}

func tail(text []byte) string {
	text = bytes.TrimSpace(text)
	if len(text) > maxTailBytes {
		text = text[len(text)-maxTailBytes:]
	}
	return string(text)
}

const (
	// removeLimit bounds the removal of an unfinished cluster, and removePause is between two tries: the initdb of a start that was
	// killed may still be writing into it, and fails when its directory goes.
	removeLimit = 10 * time.Second
	removePause = 50 * time.Millisecond
)

// removePartial removes what a killed start left of a cluster.
func removePartial(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	for {
		err := os.RemoveAll(dir)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(removePause):
		}
	}
}
