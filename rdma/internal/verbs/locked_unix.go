//go:build !nordma && (linux || darwin) && (amd64 || arm64)

package verbs

import "golang.org/x/sys/unix"

// lockedLimit is how many bytes this process may lock in memory, registered ones
// above all; ok is false where there is no limit, or none is known. Privileged
// processes are not held to it.
func lockedLimit() (bytes uint64, ok bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return 0, false
	}
	return r.Cur, r.Cur < noLimit
}
