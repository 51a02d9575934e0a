package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

const (
	exclusive = syscall.LOCK_EX
	shared    = syscall.LOCK_SH
)

// fileLock is a lock that the kernel gives back when its holder dies, however
// it dies. The server does not inherit it.
type fileLock struct{ file *os.File }

// lockFile waits for the lock until ctx ends.
func lockFile(ctx context.Context, path string, how int) (*fileLock, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		got, err := flock(file, how)
		if err != nil {
			return nil, errors.Join(err, file.Close())
		}
		if got {
			return &fileLock{file: file}, nil
		}
		select {
		case <-ctx.Done():
			err := fmt.Errorf("wait for lock %s held by another process: %w", path, context.Cause(ctx))
			return nil, errors.Join(err, file.Close())
		case <-ticker.C:
		}
	}
}

// tryUpgrade makes a shared lock exclusive and reports whether it could, which
// means that nobody else holds it. After a false the lock may be lost: an
// upgrade is not atomic.
func (l *fileLock) tryUpgrade() (bool, error) { return flock(l.file, exclusive) }

func (l *fileLock) release() error {
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("release lock: %w", err)
	}
	return nil
}

func flock(file *os.File, how int) (bool, error) {
	for {
		err := syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case errors.Is(err, syscall.EINTR):
		default:
			return false, fmt.Errorf("lock %s: %w", file.Name(), err)
		}
	}
}
