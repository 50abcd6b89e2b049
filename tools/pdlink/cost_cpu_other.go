//go:build !unix

package main

// cpuSeconds is 0: it is not known on this system.
func cpuSeconds() float64 { return 0 }
