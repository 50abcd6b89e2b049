package flow

import "time"

// CPU is the processor time of this process so far: of all of its threads that live,
// since they began.
type CPU struct {
	Run   time.Duration `json:"run_ns"`   // on a core
	Ready time.Duration `json:"ready_ns"` // fit to run, while others had the core
}

// Since is what was spent between two readings. A thread that ended meanwhile takes
// its time with it: then it is zero where it would be less.
func (c CPU) Since(before CPU) CPU {
	return CPU{Run: max(0, c.Run-before.Run), Ready: max(0, c.Ready-before.Ready)}
}
