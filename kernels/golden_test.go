package kernels

import (
	"fmt"
	"strings"
	"testing"
)

// expectedArrays returns the golden arrays of layer i without their prefix.
func (c *goldenCase) expectedArrays(tb testing.TB, i int) map[string][]uint16 {
	prefix := fmt.Sprintf("layer_%d.", i)
	want := map[string][]uint16{}
	for _, t := range c.state.Tensors() {
		if name, ok := strings.CutPrefix(t.Name, prefix); ok {
			want[name] = readPatterns(tb, c.state, t.Name)
		}
	}
	return want
}

// TestGoldenEqualsDecoder holds every array that the real decoder cached, at all
// boundaries and at the end, to the bit.
func TestGoldenEqualsDecoder(t *testing.T) {
	for _, name := range []string{"dsv4-a", "dsv4-b"} {
		c := openCase(t, name)
		for _, cuts := range [][]int{{c.Captured}, {1}, {7}, {130}, {512}, {1, 2, 3, 130, 131, 515}} {
			if underRace && len(cuts) == 1 && cuts[0] < 100 {
				continue
			}
			t.Run(fmt.Sprint(name, cuts), func(t *testing.T) {
				elements := 0
				for i := range c.geometry.Layers() {
					want := c.expectedArrays(t, i)
					r := newRun()
					r.feed(t, c.layer(t, i, 0), c.x(t, i), cuts...)
					equalRuns(t, fmt.Sprint("layer ", i), r.arrays, want)
					for _, a := range want {
						elements += len(a)
					}
				}
				if elements < 300_000 {
					t.Errorf("only %d elements were compared", elements)
				}
			})
		}
	}
}

// TestGoldenProfilesDiffer makes sure that the golden comparison can fail: the
// other profiles must not reproduce a CPU decoder.
func TestGoldenProfilesDiffer(t *testing.T) {
	c := openCase(t, "dsv4-a")
	for _, p := range []Numerics{MLXMetal, Ideal} {
		c.numerics = p
		for i, part := range []string{"win@end", "idx_pooled", "pooled"} {
			r := newRun()
			r.feed(t, c.layer(t, i, 0), c.x(t, i), c.Captured)
			if d := difference(r.arrays[part], c.expectedArrays(t, i)[part]); d == "equal" {
				t.Errorf("%v: %s of layer %d equals the CPU decoder's", p, part, i)
			}
		}
	}
}
