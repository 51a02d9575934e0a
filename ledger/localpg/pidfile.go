package localpg

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"go.uber.org/zap"
)

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

// disownPIDFile keeps a stale pid file from stopping the next server: the dead
// one's number may belong to someone else by now, whom PostgreSQL would take
// for a postmaster. The file is not removed, since PostgreSQL reads from it
// which shared memory must be free of old children first; instead it gets the
// number of the next server's parent, which PostgreSQL knows cannot be one. The
// server's lock is held. A process that lives, or may, keeps its file: a running
// postmaster ends itself when it finds another's number there.
func (s *Server) disownPIDFile() error {
	path := s.paths.pidFile()
	stale, err := readPIDFile(path)
	if err != nil || stale == nil || stale.pid == os.Getpid() {
		return err
	}
	alive, certain := postmasterAlive(stale.pid, s.paths.data)
	if alive {
		return fmt.Errorf("process %d has begun to serve the cluster meanwhile", stale.pid)
	}
	if !certain {
		return nil // PostgreSQL's own check decides
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read stale pid file: %w", err)
	}
	line, rest, _ := bytes.Cut(text, []byte("\n"))
	// Written over in one piece and never cut first: on a full disk an emptied
	// file could not be filled again, and PostgreSQL refuses an empty one.
	text = append(fmt.Appendf(nil, "%*d\n", len(line), os.Getpid()), rest...)
	file, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open stale pid file: %w", err)
	}
	_, err = file.WriteAt(text, 0)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write stale pid file: %w", err)
	}
	s.log.Warn("stale pid file of private PostgreSQL cleared", zap.Int("pid", stale.pid))
	return nil
}
