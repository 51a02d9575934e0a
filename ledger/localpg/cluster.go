package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
)

const (
	// removeLimit bounds the removal of an unfinished cluster, and removePause is between two tries: the initdb of a start that was
	// killed may still be writing into it, and fails when its directory goes.
	removeLimit = 10 * time.Second
	removePause = 50 * time.Millisecond
)

// initCluster makes the cluster when there is none. It comes into being beside
// its place and is moved there whole, so a crash leaves no half of one.
func (s *Server) initCluster(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(s.paths.data, "PG_VERSION")); err == nil {
		return nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look for cluster: %w", err)
	}
	if err := refuseRemains(s.paths.data); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
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
	// The way to the cluster must survive the loss of power like what is in it.
	return errors.Join(syncDir(s.paths.top), syncDir(s.paths.dataDir), syncParent(s.paths.dataDir))
}

// refuseRemains keeps a new cluster from being made where an old one has lost
// the file that names its version.
func refuseRemains(data string) error {
	left, err := os.ReadDir(data)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for remains of a cluster: %w", err)
	}
	if len(left) > 0 {
		return fmt.Errorf("%s holds files but no PG_VERSION: a damaged cluster is never replaced; restore it, or move it away for a new one", data)
	}
	return nil
}

// syncParent syncs the directory that dir is in. One that may not be read
// was not made by this process's user either.
func syncParent(dir string) error {
	if err := syncDir(filepath.Dir(dir)); !errors.Is(err, os.ErrPermission) {
		return err
	}
	return nil
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
