package main

import "testing"

// TestLowWater moves blocks around the mark with one in flight: a mark that is
// never reached would hang.
func TestLowWater(t *testing.T) {
	const mark = 64 << 10
	for _, size := range []string{"65535", "65536", "65537", "131071"} {
		r := measured(t, "floor", "--size", size, "--frame", "1MiB", "--in-flight", "1", "--warmup", "0", "--time", "30ms", "--lowat", "64KiB")
		sound(t, r)
		for _, s := range r.Receiver.Sockets {
			if s.RecvLowWater < 1 || s.RecvLowWater > mark {
				t.Errorf("%s: the kernel has a mark of %d", size, s.RecvLowWater)
			}
		}
	}
}

// TestSocketFacts compares what the kernel says with what was moved.
func TestSocketFacts(t *testing.T) {
	r := measured(t, quick("local", "--lanes", "2")...)
	sound(t, r)
	for _, e := range []endResult{r.Sender, r.Receiver} {
		var moved int64
		for _, s := range e.Sockets {
			if s.Congestion == "" || s.MSS < 500 || s.SendBuffer < 1 || s.RecvBuffer < 1 || !s.NoDelay {
				t.Errorf("%+v", s)
			}
			moved += s.Sent + s.Received
		}
		// Two lanes and the control socket; payload, headers and a little talk.
		if len(e.Sockets) != 3 || float64(moved) < float64(r.Bytes) || float64(moved) > 1.01*float64(r.Bytes) {
			t.Errorf("%d sockets moved %d bytes for a payload of %d", len(e.Sockets), moved, r.Bytes)
		}
	}
}
