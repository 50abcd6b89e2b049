package main

import "runtime"

// cpuUse is the CPU time that a process spent in a measured window, by
// getrusage of the whole process, and how often it asked the kernel for bytes.
type cpuUse struct {
	User        float64 `json:"user_seconds"`
	System      float64 `json:"system_seconds"`
	PerGB       float64 `json:"seconds_per_gb"` // user and system, per 10^9 payload bytes
	Voluntary   int64   `json:"voluntary_switches"`
	Involuntary int64   `json:"involuntary_switches"`
	Ready       float64 `json:"ready_seconds"` // threads were fit to run and had no core
	Reads       int64   `json:"reads"`         // system calls; of all files and sockets
	Writes      int64   `json:"writes"`
	ReadsPerGB  float64 `json:"reads_per_gb"`
}

// since returns what was spent after an earlier reading, nil where the system
// does not tell.
func (u *cpuUse) since(before *cpuUse, bytes uint64) *cpuUse {
	if u == nil || before == nil {
		return nil
	}
	d := &cpuUse{
		User: u.User - before.User, System: u.System - before.System,
		Voluntary: u.Voluntary - before.Voluntary, Involuntary: u.Involuntary - before.Involuntary,
		Ready: max(0, u.Ready-before.Ready), Reads: u.Reads - before.Reads, Writes: u.Writes - before.Writes,
	}
	d.per(bytes)
	return d
}

// per puts the figures in proportion to so many bytes of payload.
func (u *cpuUse) per(bytes uint64) {
	if u == nil || bytes == 0 {
		return
	}
	gb := float64(bytes) / 1e9
	u.PerGB, u.ReadsPerGB = (u.User+u.System)/gb, float64(u.Reads)/gb
}

// seconds is user and system time, 0 where it is not known.
func (u *cpuUse) seconds() float64 {
	if u == nil {
		return 0
	}
	return u.User + u.System
}

// platform names what this end runs on.
func platform() string { return runtime.GOOS + "/" + runtime.GOARCH }
