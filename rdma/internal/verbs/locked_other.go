//go:build !(linux || darwin || freebsd)

package verbs

// LockedLimit is how many bytes this process may lock in memory: none is known here.
func LockedLimit() (bytes uint64, ok bool) { return 0, false }
