//go:build linux || darwin || freebsd

package verbs

import "golang.org/x/sys/unix"

// LockedLimit is how many bytes this process may lock in memory, registered ones
// above all; ok is false where there is no limit, or none is known. Privileged
// processes are not held to it.
func LockedLimit() (bytes uint64, ok bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return 0, false
	}
	limit := uint64(r.Cur) //nolint:unconvert // another type on FreeBSD
	return limit, limit < 1<<62
}
