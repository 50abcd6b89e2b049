//go:build cuda

package cuda

import (
	"math"
	"testing"

	"pdlink/kernels"
)

// class names the tolerance that an array falls under.
func class(name string, ratio int) string {
	switch {
	case name == "pooled" && ratio == 128:
		return "pooled 128"
	case name == "pooled":
		return "pooled 4"
	case name == "idx_pooled":
		return "indexer pooled"
	case len(name) > 4 && name[:4] == "win@":
		return "window"
	}
	return "raw rows"
}

// distance accumulates how far arrays are from what they should be.
type distance struct {
	elements, equal int
	diff, norm      float64
}

func (d *distance) add(got, want []uint16) {
	d.elements += len(want)
	for i, w := range want {
		if got[i] == w {
			d.equal++
		}
		a, b := float64(kernels.Float32(got[i])), float64(kernels.Float32(w))
		d.diff += (a - b) * (a - b)
		d.norm += b * b
	}
}

func (d *distance) share() float64 { return 100 * float64(d.equal) / float64(d.elements) }
func (d *distance) l2() float64    { return math.Sqrt(d.diff / d.norm) }

// distances compares two sequences by class of array; what one has and the other
// has not is an error.
func distances(tb testing.TB, ratio int, got, want map[string][]uint16) map[string]*distance {
	tb.Helper()
	all := map[string]*distance{}
	for name, w := range want {
		if len(got[name]) != len(w) {
			tb.Fatalf("%s has %d elements, want %d", name, len(got[name]), len(w))
		}
		if len(w) == 0 {
			continue
		}
		c := class(name, ratio)
		if all[c] == nil {
			all[c] = &distance{}
		}
		all[c].add(got[name], w)
	}
	for name, g := range got {
		if len(g) > 0 && len(want[name]) == 0 {
			tb.Errorf("%s is there but should not be", name)
		}
	}
	return all
}
