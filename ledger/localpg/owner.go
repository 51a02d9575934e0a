package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// unprivilegedUsers are who the server may run as when the daemon is root, the
// first that exists.
var unprivilegedUsers = []string{"postgres", "nobody"}

// privateMode lets nobody but the owner (and root) in.
const privateMode os.FileMode = 0o700

// owner is the user whose processes the server's are.
type owner struct {
	uid, gid uint32
	drops    bool // this process is root and gives its rights up for the server
}

// clusterOwner is this process's own user or, when that is root, the user an
// existing cluster belongs to, else an unprivileged one. PostgreSQL refuses to
// run as root.
func clusterOwner(data string) (owner, error) {
	self := uint32(os.Geteuid())
	info, err := os.Stat(data)
	switch {
	case err == nil:
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return owner{}, fmt.Errorf("read owner of %s: not known on this system", data)
		}
		if self == 0 && stat.Uid != 0 {
			return owner{uid: stat.Uid, gid: stat.Gid, drops: true}, nil
		}
		if self == 0 {
			return owner{}, fmt.Errorf("cluster %s belongs to root, who may not run PostgreSQL: give it to another user", data)
		}
		if stat.Uid != self {
			return owner{}, fmt.Errorf("cluster %s belongs to user %d, not to user %d: start as that user or as root", data, stat.Uid, self)
		}
	case errors.Is(err, os.ErrNotExist):
	case errors.Is(err, os.ErrPermission):
		return owner{}, fmt.Errorf("cluster %s is closed to user %d: start as the user who made it or as root: %w", data, self, err)
	default:
		return owner{}, fmt.Errorf("look for cluster: %w", err)
	}
	if self != 0 {
		return owner{uid: self, gid: uint32(os.Getegid())}, nil
	}
	for _, name := range unprivilegedUsers {
		if u, err := user.Lookup(name); err == nil {
			return ownerOf(u)
		}
	}
	return owner{}, fmt.Errorf("PostgreSQL may not run as root and none of the users %s exists", strings.Join(unprivilegedUsers, ", "))
}

func ownerOf(u *user.User) (owner, error) {
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return owner{}, fmt.Errorf("read user id of %s: %w", u.Username, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return owner{}, fmt.Errorf("read group id of %s: %w", u.Username, err)
	}
	return owner{uid: uint32(uid), gid: uint32(gid), drops: true}, nil
}

// command prepares a program of the server's to run as the owner. It gets an
// environment of its own, since the daemon's may hold keys.
func (o owner) command(ctx context.Context, dir, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if o.drops {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: o.uid, Gid: o.gid}
	}
	return cmd
}

// makePrivate makes a directory that only the owner can enter, or makes sure
// that an existing one is such: in a place like /tmp someone else may have been
// there first.
func (o owner) makePrivate(dir string) error {
	err := os.Mkdir(dir, privateMode)
	if err == nil && o.drops {
		err = os.Chown(dir, int(o.uid), int(o.gid))
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("check directory: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if o.drops && stat.Uid == 0 && info.Mode().Perm() == privateMode {
		// A daemon that died between making it and giving it away.
		return os.Chown(dir, int(o.uid), int(o.gid))
	}
	if stat.Uid != o.uid || info.Mode().Perm() != privateMode {
		return fmt.Errorf("directory %s has owner %d and mode %04o, not owner %d and mode %04o",
			dir, stat.Uid, info.Mode().Perm(), o.uid, privateMode)
	}
	return nil
}

// checkReach makes sure that the owner can get to dir, by going there: on the
// way the first directory that refuses is named. program is any the owner can
// run.
func (o owner) checkReach(ctx context.Context, program, dir string) error {
	if !o.drops || o.canEnter(ctx, program, dir) == nil {
		return nil
	}
	var way []string
	for d := dir; ; d = filepath.Dir(d) {
		way = append(way, d)
		if d == filepath.Dir(d) {
			break
		}
	}
	for i := len(way) - 1; i >= 0; i-- {
		if err := o.canEnter(ctx, program, way[i]); err != nil {
			return fmt.Errorf("user %d, who runs PostgreSQL, cannot enter %s: allow it with `chmod o+x %s` or choose another data directory: %w",
				o.uid, way[i], way[i], err)
		}
	}
	return nil
}

func (o owner) canEnter(ctx context.Context, program, dir string) error {
	return o.command(ctx, dir, program, "--version").Run()
}
