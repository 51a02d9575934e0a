package localpg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// postmasterAlive reports whether process pid is the postmaster of the cluster
// in data. A postmaster works in its data directory, so neither a process that
// was given the number of a dead one nor a dead one that nobody has waited for
// passes. certain: the answer can be relied on; what may not be looked at is no
// proof of a death.
func postmasterAlive(pid int, data string) (alive, certain bool) {
	here, err := os.Stat(data)
	if err != nil {
		return false, false
	}
	there, err := os.Stat(fmt.Sprintf("/proc/%d/cwd", pid))
	switch {
	case err == nil:
		return os.SameFile(there, here), true
	case errors.Is(err, os.ErrPermission):
		return guarded(pid, here)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		return false, true // it has ended and nobody has waited for it
	}
	// Where /proc is missing or shows only a user's own processes, nothing there
	// does not mean no process. One that may not be signalled is not the
	// cluster owner's.
	if syscall.Kill(pid, 0) == nil {
		return true, false
	}
	return false, true
}

// guarded judges a process whose directory this one may not read, as root in a
// container without CAP_SYS_PTRACE: by its user and its command line, which
// everybody may read.
func guarded(pid int, here os.FileInfo) (alive, certain bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, os.ErrNotExist) {
		return false, true // it ended meanwhile
	}
	stat, ok := here.Sys().(*syscall.Stat_t)
	if err != nil || !ok {
		return true, false
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) > 1 && fields[0] == "State:" && (fields[1] == "Z" || fields[1] == "X"):
			return false, true
		case len(fields) > 2 && fields[0] == "Uid:" && fields[2] != strconv.FormatUint(uint64(stat.Uid), 10):
			return false, true // PostgreSQL runs as nobody but the owner
		}
	}
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return true, false
	}
	if strings.HasPrefix(string(command), "postgres: ") {
		return false, true // the title of a session or helper, which a postmaster never has
	}
	args := strings.Split(string(command), "\x00")
	at := slices.Index(args, "-D")
	if at < 0 || at+1 >= len(args) || !filepath.IsAbs(args[at+1]) {
		return true, false
	}
	served, err := os.Stat(args[at+1])
	if err != nil {
		return true, false
	}
	return os.SameFile(served, here), true
}

// dieWithParent asks the kernel to end the process when the thread that starts
// it ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }

// memoryBytes is what this machine or its container may use.
func memoryBytes() uint64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	total := uint64(info.Totalram) * uint64(info.Unit)
	text, err := os.ReadFile("/sys/fs/cgroup/memory.max")
	if err != nil {
		return total
	}
	// "max" stands for no limit and is no number.
	if limit, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil {
		return min(total, limit)
	}
	return total
}
