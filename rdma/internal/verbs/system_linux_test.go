//go:build !nordma && (amd64 || arm64)

package verbs

import "testing"

func TestLockedIn(t *testing.T) {
	const status = "Name:\tx\nVmLck:\t       0 kB\nVmPin:\t    2048 kB\nCapInh:\t0000000000000000\n"
	for name, c := range map[string]struct {
		text  string
		bytes uint64
		bound bool
	}{
		"ordinary":   {status + "CapEff:\t0000000000000000\n", 2 << 20, true},
		"others":     {status + "CapEff:\t00000000a80425fb\n", 2 << 20, true},
		"privileged": {status + "CapEff:\t000001ffffffffff\n", 2 << 20, false},
		"nothing":    {"", 0, true},
		"garbage":    {"VmPin:\tmuch kB\nCapEff:\tall\n", 0, true},
	} {
		if bytes, bound := lockedIn(c.text); bytes != c.bytes || bound != c.bound {
			t.Errorf("%s: %d bytes, bound %v", name, bytes, bound)
		}
	}
	if n := bytesIn("max\n", noLimit); n != noLimit {
		t.Errorf("max is %d", n)
	}
	if n := bytesIn("4096\n", 0); n != 4096 {
		t.Errorf("4096 is %d", n)
	}
}
