//go:build cuda

package cuda

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"pdlink/kernels"
	"pdlink/kernels/safetensors"
)

// TestGolden runs the recorded prefills on the GPU: chunks change nothing, the
// reference's Mac profile is reached within the limits, and a continuation from every
// boundary equals the unbroken run.
func TestGolden(t *testing.T) {
	for _, name := range []string{"dsv4-a", "dsv4-b"} {
		dir := filepath.Join("..", "..", "tools", "pdlink", "testdata", "cases", name)
		var c struct {
			Config    json.RawMessage `json:"config"`
			BlockSize int             `json:"block_size"`
		}
		text, err := os.ReadFile(filepath.Join(dir, "case.json"))
		must(t, err)
		must(t, json.Unmarshal(text, &c))
		g, err := kernels.ParseGeometry(c.Config)
		must(t, err)
		w, err := kernels.OpenWeights(filepath.Join(dir, "weights.safetensors"), g)
		must(t, err)
		capture, err := safetensors.Open(filepath.Join(dir, "capture.safetensors"))
		must(t, err)
		dev, err := Open(g, w, c.BlockSize, Options{Engine: GPU, Library: os.Getenv("PDLINK_PDPROJ"), WithPre: true, MaxTokens: 4096})
		must(t, err)
		ref, err := Open(g, w, c.BlockSize, Options{Engine: Reference, WithPre: true})
		must(t, err)
		for i, ratio := range g.Ratios {
			x := readRows(t, capture, fmt.Sprintf("layer_%d.x", i))
			var want, whole sequence
			q := request(t, ref)
			want.feed(t, q, i, g.Hidden, x, len(x)/g.Hidden)
			must(t, q.Close())
			q = request(t, dev)
			whole.feed(t, q, i, g.Hidden, x, len(x)/g.Hidden)
			must(t, q.Close())
			near(t, fmt.Sprintf("%s layer %d", name, i), ratio, whole.arrays, want.arrays)
			for _, cuts := range [][]int{{1}, {7}, {130}, {512}, {1, 2, 3, 130, 131, 515}} {
				q := request(t, dev)
				var cut sequence
				cut.feed(t, q, i, g.Hidden, x, cuts...)
				must(t, q.Close())
				identical(t, fmt.Sprintf("%s layer %d cut %v", name, i, cuts), cut.arrays, whole.arrays)
			}
			resume(t, dev, g, c.BlockSize, i, x, whole.arrays)
			enter(t, dev, g, c.BlockSize, i, x, whole.arrays)
		}
		for _, f := range []interface{ Close() error }{dev, ref, capture, w} {
			closeIt(t, f)
		}
	}
}

// resume seeds a layer from each boundary and compares what follows.
func resume(t *testing.T, dev Projector, g kernels.Geometry, block, layer int, x []uint16, whole map[string][]uint16) {
	t.Helper()
	for pos := block; pos < len(x)/g.Hidden; pos += block {
		at := fmt.Sprint(pos)
		s := kernels.State{Win: whole["win@"+at]}
		s.Comp.PrevKV, s.Comp.PrevGate = whole["prev_kv@"+at], whole["prev_gate@"+at]
		s.Index.PrevKV, s.Index.PrevGate = whole["idx_prev_kv@"+at], whole["idx_prev_gate@"+at]
		q := request(t, dev)
		must(t, q.Seed(layer, pos, s))
		var rest sequence
		rest.feed(t, q, layer, g.Hidden, x[pos*g.Hidden:], 333)
		must(t, q.Close())
		want := map[string][]uint16{}
		for name := range rest.arrays {
			want[name] = whole[name]
		}
		if r := g.Ratios[layer]; r > 0 {
			want["pooled"] = whole["pooled"][pos/r*g.HeadDim:]
			if r == 4 {
				want["idx_pooled"] = whole["idx_pooled"][pos/r*g.IndexDim:]
			}
		}
		identical(t, fmt.Sprintf("layer %d resumed at %d", layer, pos), rest.arrays, want)
	}
}

// enter puts a layer at each boundary without the window before, as behind a prefix
// that the decoder holds: from the next boundary on everything is the unbroken run's.
func enter(t *testing.T, dev Projector, g kernels.Geometry, block, layer int, x []uint16, whole map[string][]uint16) {
	t.Helper()
	for pos := block; pos+block < len(x)/g.Hidden; pos += block {
		q := request(t, dev)
		must(t, q.Seed(layer, pos, kernels.State{Win: whole[fmt.Sprint("win@", pos)], WithoutPrevious: true}))
		var rest sequence
		rest.feed(t, q, layer, g.Hidden, x[pos*g.Hidden:], 333)
		must(t, q.Close())
		want := map[string][]uint16{}
		for name := range rest.arrays {
			want[name] = whole[name]
		}
		if r := g.Ratios[layer]; r > 0 {
			cut := func(name string, dim int) {
				rest.arrays[name] = rest.arrays[name][block/r*dim:]
				want[name] = whole[name][(pos+block)/r*dim:]
			}
			cut("pooled", g.HeadDim)
			if r == 4 {
				cut("idx_pooled", g.IndexDim)
			}
		}
		identical(t, fmt.Sprintf("layer %d entered at %d", layer, pos), rest.arrays, want)
	}
}

func readRows(tb testing.TB, f *safetensors.File, name string) []uint16 {
	tb.Helper()
	s, ok := f.Tensor(name)
	if !ok {
		tb.Fatalf("no tensor %s", name)
	}
	b := make([]byte, s.Size())
	must(tb, f.ReadTensor(s, b))
	out := make([]uint16, len(b)/2)
	for i := range out {
		out[i] = binary.LittleEndian.Uint16(b[2*i:])
	}
	return out
}
