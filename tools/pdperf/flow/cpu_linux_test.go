package flow_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdlink/tools/pdperf/flow"
)

// TestCPU holds the threads' time against that of the process.
func TestCPU(t *testing.T) {
	var before, after unix.Rusage
	read := func(to *unix.Rusage) flow.CPU {
		if err := unix.Getrusage(unix.RUSAGE_SELF, to); err != nil {
			t.Fatal(err)
		}
		c, err := flow.ReadCPU()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := read(&before)
	for begin := time.Now(); time.Since(begin) < 300*time.Millisecond; {
	}
	d := read(&after).Since(first)
	used := func(r unix.Rusage) time.Duration { return time.Duration(r.Utime.Nano() + r.Stime.Nano()) }
	if want := used(after) - used(before); d.Run < want*8/10 || d.Run > want*12/10+20*time.Millisecond {
		t.Errorf("threads ran for %v, the process for %v", d.Run, want)
	}
}
