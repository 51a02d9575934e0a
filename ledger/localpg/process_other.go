//go:build unix && !linux

package localpg

import "syscall"

// postmasterAlive reports whether process pid exists. certain is false: another
// process may have been given the number, so PostgreSQL's own check decides.
func postmasterAlive(pid int, _ string) (alive, certain bool) {
	return syscall.Kill(pid, 0) == nil, false
}

// dieWithParent does nothing: only Linux offers it.
func dieWithParent(*syscall.SysProcAttr) {}

// memoryBytes is not known here; the smallest buffer cache is used.
func memoryBytes() uint64 { return 0 }
