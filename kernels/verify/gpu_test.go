//go:build cuda

package verify

import (
	"os"
	"testing"

	"pdlink/kernels/cuda"
)

// TestOnAGPU: the GPU is within its limits, and exact where it has to be.
func TestOnAGPU(t *testing.T) {
	for _, name := range []string{"dsv4-a", "dsv4-b"} {
		r, err := Run(t.Context(), recording(t, name, ""), Options{Engine: cuda.GPU, Library: os.Getenv("PDLINK_PDPROJ")})
		must(t, err)
		t.Logf("%s: %s, %s", name, r.Why, r.Numerics)
		for _, c := range r.Checks {
			t.Logf("%s: %s %s", c.Name, c.Result, c.Detail)
			for _, k := range c.Classes {
				t.Logf("  %s: %d of %d equal, relative L2 %.1e against what is %s", k.Name, k.Equal, k.Elements, k.L2, k.Against)
			}
		}
		if !r.Good() || results(r) != "passed/passed/passed/passed" || r.Engine != "cuda" {
			t.Errorf("%s: %s", name, results(r))
		}
		if n := len(check(t, r, Arrays).Classes); n != 4 {
			t.Errorf("%s: %d classes of arrays, want two against each yardstick", name, n)
		}
	}
}
