package localpg

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// postmasterAlive reports whether process pid is the postmaster of the cluster
// in data. A postmaster works in its data directory, so neither a process that
// was given the number of a dead one nor a dead one that nobody has waited for
// passes. certain is true: the answer can be relied on.
func postmasterAlive(pid int, data string) (alive, certain bool) {
	there, err := os.Stat(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		return false, true
	}
	here, err := os.Stat(data)
	return err == nil && os.SameFile(there, here), true
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
