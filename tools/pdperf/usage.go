package main

import "runtime"

// cpuUse is the CPU time that a process spent in a measured window, by
// getrusage of the whole process.
type cpuUse struct {
	User        float64 `json:"user_seconds"`
	System      float64 `json:"system_seconds"`
	PerGB       float64 `json:"seconds_per_gb"` // user and system, per 10^9 payload bytes
	Voluntary   int64   `json:"voluntary_switches"`
	Involuntary int64   `json:"involuntary_switches"`
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
	}
	if bytes > 0 {
		d.PerGB = (d.User + d.System) / (float64(bytes) / 1e9)
	}
	return d
}

// platform names what this end runs on.
func platform() string { return runtime.GOOS + "/" + runtime.GOARCH }
