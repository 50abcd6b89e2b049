//go:build unix

package main

import "syscall"

// readCPU returns what this process has spent so far, its children not counted;
// nil where the system does not tell.
func readCPU() *cpuUse {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return nil
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Nano()) / 1e9 }
	c := &cpuUse{
		User: seconds(u.Utime), System: seconds(u.Stime),
		Voluntary: int64(u.Nvcsw), Involuntary: int64(u.Nivcsw), //nolint:unconvert // int32 on some systems
	}
	c.Ready = readySeconds()
	c.Reads, c.Writes = readCalls()
	return c
}
