package main

import "syscall"

// peakRSS is the largest resident set of this process so far, in bytes.
func peakRSS() uint64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return uint64(u.Maxrss) // macOS counts bytes
}
