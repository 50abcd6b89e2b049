package verify

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pdlink/kernels"
	"pdlink/kernels/cuda"
	"pdlink/kernels/safetensors"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// recording opens a recorded prefill; state is where its state.safetensors is.
func recording(tb testing.TB, name, state string) Recording {
	tb.Helper()
	dir := filepath.Join("..", "..", "tools", "pdlink", "testdata", "cases", name)
	var c struct {
		Config    json.RawMessage `json:"config"`
		BlockSize int             `json:"block_size"`
		Captured  int             `json:"captured_tokens"`
		Numerics  string          `json:"numerics"`
	}
	text, err := os.ReadFile(filepath.Join(dir, "case.json"))
	must(tb, err)
	must(tb, json.Unmarshal(text, &c))
	r := Recording{BlockTokens: c.BlockSize, Tokens: c.Captured}
	r.Numerics, err = kernels.ParseNumerics(c.Numerics)
	must(tb, err)
	r.Geometry, err = kernels.ParseGeometry(c.Config)
	must(tb, err)
	r.Weights, err = kernels.OpenWeights(filepath.Join(dir, "weights.safetensors"), r.Geometry)
	must(tb, err)
	r.Capture, err = safetensors.Open(filepath.Join(dir, "capture.safetensors"))
	must(tb, err)
	if state == "" {
		state = filepath.Join(dir, "state.safetensors")
	}
	r.State, err = safetensors.Open(state)
	must(tb, err)
	tb.Cleanup(func() {
		for _, f := range []interface{ Close() error }{r.Weights, r.Capture, r.State} {
			if err := f.Close(); err != nil {
				tb.Error(err)
			}
		}
	})
	return r
}

// check returns what became of one.
func check(tb testing.TB, r Report, name string) Check {
	tb.Helper()
	for _, c := range r.Checks {
		if c.Name == name {
			return c
		}
	}
	tb.Fatalf("no check %s in %+v", name, r)
	return Check{}
}

// results are those of all checks, in order.
func results(r Report) string {
	words := make([]string, 0, len(r.Checks))
	for _, c := range r.Checks {
		words = append(words, string(c.Result))
	}
	return strings.Join(words, "/")
}

// TestReferenceEqualsRecorded: what a decoder on a CPU cached is equal bit for bit,
// and the other checks hold.
func TestReferenceEqualsRecorded(t *testing.T) {
	for name, elements := range map[string]int{"dsv4-a": 200_000, "dsv4-b": 350_000} {
		r, err := Run(t.Context(), recording(t, name, ""), Options{Engine: cuda.Reference})
		must(t, err)
		if !r.Good() || results(r) != "passed/passed/passed/passed" || r.Engine != "reference" || r.Numerics != "mlx-cpu" {
			t.Fatalf("%s: %+v", name, r)
		}
		n := 0
		for _, c := range append(check(t, r, Arrays).Classes, check(t, r, Pooled).Classes...) {
			n += c.Elements
			if c.Equal != c.Elements || c.L2 != 0 || c.Least != 1 || c.Against != "recorded" {
				t.Errorf("%s: %+v", name, c)
			}
		}
		if n < elements {
			t.Errorf("%s: only %d elements were compared", name, n)
		}
	}
}

// TestAShorterRunAndSomeLayers: what does not apply is not compared, the rest is.
func TestAShorterRunAndSomeLayers(t *testing.T) {
	rec := recording(t, "dsv4-a", "")
	r, err := Run(t.Context(), rec, Options{Engine: cuda.Reference, Tokens: 700, Layers: []int{1, 2}})
	must(t, err)
	if !r.Good() || r.Tokens != 700 || r.Layers != 2 || results(r) != "passed/passed/passed/passed" {
		t.Fatalf("%+v", r)
	}
	r, err = Run(t.Context(), rec, Options{Engine: cuda.Reference, Tokens: 300, Layers: []int{0}})
	must(t, err)
	if !r.Good() || results(r) != "left out/left out/passed/left out" {
		t.Errorf("%+v", r)
	}
	rec.State = nil
	r, err = Run(t.Context(), rec, Options{Engine: cuda.Reference, Tokens: 600, Layers: []int{1}})
	must(t, err)
	if !r.Good() || results(r) != "left out/left out/passed/passed" {
		t.Errorf("nothing recorded: %+v", r)
	}
}

// TestOtherRoundings: a decoder that rounds elsewhere is near, and no nearer than
// that.
func TestOtherRoundings(t *testing.T) {
	rec := recording(t, "dsv4-a", "")
	rec.Numerics = kernels.MLXMetal
	r, err := Run(t.Context(), rec, Options{Engine: cuda.Reference})
	must(t, err)
	if !r.Good() || r.Numerics != "mlx-metal" {
		t.Fatalf("%+v", r)
	}
	for _, c := range check(t, r, Pooled).Classes {
		if c.Equal == c.Elements || c.L2 == 0 {
			t.Errorf("%+v: nothing differs", c)
		}
	}
	rec.Numerics = kernels.Ideal
	rec.Geometry.CompressRopeTheta *= 2
	r, err = Run(t.Context(), rec, Options{Engine: cuda.Reference})
	must(t, err)
	if r.Good() || results(r) != "failed/failed/passed/passed" {
		t.Errorf("a wrong rotation: %+v", r)
	}
}

// TestWhatWasRecordedDiffers: one bit, a missing row and an array of another type.
func TestWhatWasRecordedDiffers(t *testing.T) {
	for name, c := range map[string]struct {
		tensor string
		change func(t *safetensors.Tensor, data []byte) []byte
		want   string
	}{
		"one bit of a window": {"layer_3.win@512", flip, "failed/passed/passed/passed"},
		"one bit of a pool":   {"layer_1.idx_pooled", flip, "passed/failed/passed/passed"},
		"a row too few":       {"layer_1.prev_kv@1024", shorten, "failed/passed/passed/passed"},
	} {
		r, err := Run(t.Context(), recording(t, "dsv4-a", changed(t, c.tensor, c.change)), Options{Engine: cuda.Reference})
		must(t, err)
		if got := results(r); got != c.want || r.Good() {
			t.Errorf("%s: %s, want %s: %+v", name, got, c.want, r.Checks[:2])
		}
	}
}

func flip(_ *safetensors.Tensor, data []byte) []byte {
	data[10] ^= 1
	return data
}

func shorten(t *safetensors.Tensor, data []byte) []byte {
	t.Shape[2]--
	return data[:len(data)*int(t.Shape[2])/int(t.Shape[2]+1)]
}

// changed writes dsv4-a's recorded state with one tensor changed.
func changed(tb testing.TB, tensor string, change func(*safetensors.Tensor, []byte) []byte) string {
	tb.Helper()
	return written(tb, func(t *safetensors.Tensor, data []byte) ([]byte, bool) {
		if t.Name == tensor {
			data = change(t, data)
		}
		return data, true
	})
}

// written writes what change makes of dsv4-a's recorded state, tensor by tensor; false
// leaves one out.
func written(tb testing.TB, change func(*safetensors.Tensor, []byte) ([]byte, bool)) string {
	tb.Helper()
	f, err := safetensors.Open(filepath.Join("..", "..", "tools", "pdlink", "testdata", "cases", "dsv4-a", "state.safetensors"))
	must(tb, err)
	defer f.Close()
	var tensors []safetensors.Tensor
	var data []byte
	for _, t := range f.Tensors() {
		b := make([]byte, t.Size())
		must(tb, f.ReadTensor(t, b))
		t.Shape = slices.Clone(t.Shape)
		b, keep := change(&t, b)
		if !keep {
			continue
		}
		t.Begin, t.End = int64(len(data)), int64(len(data)+len(b))
		tensors, data = append(tensors, t), append(data, b...)
	}
	header, err := safetensors.EncodeHeader(tensors, nil)
	must(tb, err)
	path := filepath.Join(tb.TempDir(), "state.safetensors")
	must(tb, os.WriteFile(path, append(header, data...), 0o600))
	return path
}

func TestRefuses(t *testing.T) {
	rec := recording(t, "dsv4-a", "")
	bad := rec
	bad.Tokens++
	if _, err := Run(t.Context(), bad, Options{Engine: cuda.Reference}); !errors.Is(err, ErrInput) {
		t.Errorf("a capture of another length: %v", err)
	}
	bad.Tokens = 0
	if _, err := Run(t.Context(), bad, Options{}); !errors.Is(err, ErrInput) {
		t.Errorf("no tokens: %v", err)
	}
	if _, err := Run(t.Context(), rec, Options{Engine: cuda.GPU, Library: filepath.Join(t.TempDir(), "none.so")}); !errors.Is(err, cuda.ErrUnavailable) {
		t.Errorf("a GPU that is not there: %v", err)
	}
	r, err := Run(t.Context(), rec, Options{Library: filepath.Join(t.TempDir(), "none.so"), Tokens: 600, Layers: []int{0}})
	must(t, err)
	if r.Engine != "reference" || !strings.Contains(r.Why, "none.so") {
		t.Errorf("no library: %q, %q", r.Engine, r.Why)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Run(stopped, rec, Options{Engine: cuda.Reference}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
