package main

import (
	"strings"
	"testing"
)

// TestWatched: where it may, the kernel watches; else one line says why it does not, and all
// the rest is there. That it watches where it may is of the tests of flow.
func TestWatched(t *testing.T) {
	status, out, errOut := cli(t, quick("local", "--ebpf", "--json")...)
	if status != exitOK {
		t.Fatalf("status %d: %s%s", status, out, errOut)
	}
	r := parsed(t, out)
	sound(t, r)
	if r.Watched == nil {
		if strings.Count(errOut, "\n") != 1 || !strings.Contains(errOut, "--ebpf: ") {
			t.Errorf("%+v, said %q", r.Watched, errOut)
		}
		return
	}
	if w := r.Watched; w == nil || w.RTT.Count == 0 && len(w.Notes) == 0 || w.RTT.P50 > w.RTT.P99 {
		t.Errorf("%+v, said %q", w, errOut)
	}
	status, out, errOut = cli(t, quick("local", "--ebpf")...)
	if status != exitOK || !strings.Contains(out, "  watched ") || !strings.Contains(out, "segments sent again") {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
}

// TestReaderBacklog: a receiving end looks whether bytes wait for it.
func TestReaderBacklog(t *testing.T) {
	for _, command := range []string{"local", "floor"} {
		r := measured(t, quick(command, "--time", "300ms")...)
		sound(t, r)
		if b := r.Receiver.Backlog; b == nil || b.Samples < 1 || b.Waiting > b.Samples || r.Sender.Backlog != nil {
			t.Errorf("%s: %+v", command, b)
		}
	}
}
