package kernels

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pdlink/kernels/safetensors"
)

// goldenCase is a recorded prefill and the caches of the real decoder.
type goldenCase struct {
	Config     json.RawMessage `json:"config"`
	BlockSize  int             `json:"block_size"`
	Numerics   string          `json:"numerics"`
	Captured   int             `json:"captured_tokens"`
	Boundaries []int           `json:"boundaries"`

	geometry       Geometry
	numerics       Numerics
	weights        *Weights
	capture, state *safetensors.File
}

func openCase(tb testing.TB, name string) *goldenCase {
	tb.Helper()
	dir := filepath.Join("..", "tools", "pdlink", "testdata", "cases", name)
	text, err := os.ReadFile(filepath.Join(dir, "case.json"))
	must(tb, err)
	c := &goldenCase{}
	must(tb, json.Unmarshal(text, c))
	c.geometry, err = ParseGeometry(c.Config)
	must(tb, err)
	c.numerics, err = ParseNumerics(c.Numerics)
	must(tb, err)
	c.weights, err = OpenWeights(filepath.Join(dir, "weights.safetensors"), c.geometry)
	must(tb, err)
	c.capture, err = safetensors.Open(filepath.Join(dir, "capture.safetensors"))
	must(tb, err)
	c.state, err = safetensors.Open(filepath.Join(dir, "state.safetensors"))
	must(tb, err)
	tb.Cleanup(func() {
		for _, f := range []interface{ Close() error }{c.weights, c.capture, c.state} {
			if err := f.Close(); err != nil {
				tb.Error(err)
			}
		}
	})
	return c
}

func (c *goldenCase) layer(tb testing.TB, i, workers int) *Layer {
	tb.Helper()
	w, err := c.weights.Layer(i)
	must(tb, err)
	l, err := NewLayer(c.geometry, i, w, c.numerics, c.BlockSize, workers)
	must(tb, err)
	return l
}

func (c *goldenCase) x(tb testing.TB, i int) []uint16 {
	return readPatterns(tb, c.capture, fmt.Sprintf("layer_%d.x", i))
}

func readPatterns(tb testing.TB, f *safetensors.File, name string) []uint16 {
	tb.Helper()
	t, ok := f.Tensor(name)
	if !ok || t.DType != safetensors.BF16 {
		tb.Fatalf("no BF16 tensor %s", name)
	}
	b := make([]byte, t.Size())
	must(tb, f.ReadTensor(t, b))
	out := make([]uint16, len(b)/2)
	for i := range out {
		out[i] = binary.LittleEndian.Uint16(b[2*i:])
	}
	return out
}

// run collects everything that a layer yields over a sequence, under the names of
// the golden state.
type run struct {
	arrays map[string][]uint16
	out    Output
	state  State
}

func newRun() *run { return &run{arrays: map[string][]uint16{}, out: Output{WithPre: true}} }

// feed gives x to the layer in chunks of the given lengths; the last one repeats.
func (r *run) feed(tb testing.TB, l *Layer, x []uint16, cuts ...int) {
	tb.Helper()
	for i := 0; len(x) > 0; i++ {
		n := min(cuts[min(i, len(cuts)-1)]*l.hidden, len(x))
		must(tb, l.Feed(x[:n], &r.out))
		x = x[n:]
		for name, rows := range map[string]Rows{"pooled": r.out.Pooled, "idx_pooled": r.out.Index} {
			if have := len(r.arrays[name]); rows.Count() > 0 && have > 0 && rows.First*rows.Dim != have {
				tb.Fatalf("%s: rows from %d on follow %d elements", name, rows.First, have)
			}
			r.arrays[name] = append(r.arrays[name], rows.Data...)
		}
		for i := range r.out.Boundaries {
			r.keep(&r.out.Boundaries[i].State, fmt.Sprint(r.out.Boundaries[i].Pos))
		}
	}
	l.State(&r.state)
	r.keep(&r.state, "end")
}

func (r *run) keep(s *State, at string) {
	for name, a := range map[string][]uint16{
		"win": s.Win, "win_pre": s.WinPre,
		"buf_kv": s.Comp.BufKV, "buf_gate": s.Comp.BufGate, "prev_kv": s.Comp.PrevKV, "prev_gate": s.Comp.PrevGate,
		"idx_buf_kv": s.Index.BufKV, "idx_buf_gate": s.Index.BufGate, "idx_prev_kv": s.Index.PrevKV, "idx_prev_gate": s.Index.PrevGate,
	} {
		if len(a) > 0 {
			r.arrays[name+"@"+at] = slices.Clone(a)
		}
	}
}

// equalRuns reports every array in which two runs differ.
func equalRuns(tb testing.TB, what string, got, want map[string][]uint16) {
	tb.Helper()
	for name, w := range want {
		if g := got[name]; !slices.Equal(g, w) {
			tb.Errorf("%s: %s differs (%s)", what, name, difference(g, w))
		}
	}
	for name, g := range got {
		if len(g) > 0 && len(want[name]) == 0 {
			tb.Errorf("%s: %s is there but should not be", what, name)
		}
	}
}

func difference(got, want []uint16) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d elements, want %d", len(got), len(want))
	}
	n, first := 0, -1
	for i := range got {
		if got[i] != want[i] {
			if first < 0 {
				first = i
			}
			n++
		}
	}
	if n == 0 {
		return "equal"
	}
	return fmt.Sprintf("%d of %d elements, first at %d: %04x, want %04x", n, len(got), first, got[first], want[first])
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
