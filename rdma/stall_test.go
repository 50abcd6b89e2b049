package rdma

import "testing"

// TestStallLooks: so many looks in a row without progress, while there is more to come.
func TestStallLooks(t *testing.T) {
	var s stall
	look := func(done uint64, more, want bool) {
		t.Helper()
		if got := s.look(done, more); got != want {
			t.Fatalf("%d done, more %v: stalled %v, want %v (%+v)", done, more, got, want, s)
		}
	}
	for range 2 * stallLooks { // nothing is to be done
		look(0, false, false)
	}
	for range stallLooks - 1 {
		look(0, true, false)
	}
	look(1, true, false) // progress
	for range stallLooks - 1 {
		look(1, true, false)
	}
	look(1, false, false) // all done, then more
	for range stallLooks - 1 {
		look(1, true, false)
	}
	look(1, true, true)
}
