package prefill

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/kernels"
	"pdlink/kernels/safetensors"
)

// weightsOnDisk are those of a recorded case in a file of their own. overwrite changes one
// value of layer 1 in place, as a program does that writes over a file; back undoes it.
func weightsOnDisk(t *testing.T) (w *weights, overwrite, back func()) {
	t.Helper()
	dir := filepath.Join("..", "..", "tools", "pdlink", "testdata", "cases", "dsv4-a")
	text, err := os.ReadFile(filepath.Join(dir, "case.json"))
	must(t, err)
	var c struct {
		Config json.RawMessage `json:"config"`
	}
	must(t, json.Unmarshal(text, &c))
	g, err := kernels.ParseGeometry(c.Config)
	must(t, err)
	data, err := os.ReadFile(filepath.Join(dir, "weights.safetensors"))
	must(t, err)
	path := filepath.Join(t.TempDir(), "weights.safetensors")
	must(t, os.WriteFile(path, data, 0o600))
	file, err := safetensors.Open(path)
	must(t, err)
	norm, ok := file.Tensor("layer_1.kv_norm.weight")
	if !ok {
		t.Fatal("the weights have no layer_1.kv_norm.weight")
	}
	begin := int64(len(data)) - dataEnd(file) + norm.Begin
	must(t, file.Close())
	opened, err := kernels.OpenWeights(path, g)
	must(t, err)
	t.Cleanup(func() { opened.Close() })
	put := func(mask byte) func() {
		return func() {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteAt([]byte{data[begin] ^ mask}, begin)
			must(t, errors.Join(err, f.Close()))
		}
	}
	return newWeights(&Projection{Geometry: g, Weights: opened, Workers: 1}), put(1), put(0)
}

// dataEnd is where the last tensor of a file ends.
func dataEnd(f *safetensors.File) (last int64) {
	for _, t := range f.Tensors() {
		last = max(last, t.End)
	}
	return last
}

// TestWeightsAreWhatIsToldOfThem: whichever comes first, nothing is made with bytes of
// another hash than the one that is told.
func TestWeightsAreWhatIsToldOfThem(t *testing.T) {
	const block = 512
	w, overwrite, back := weightsOnDisk(t)
	told, err := w.facts()
	must(t, err)
	overwrite()
	if _, err := w.engine(1, block); !errors.Is(err, errChanged) || !strings.Contains(err.Error(), "layer 1 is ") || !strings.Contains(err.Error(), told.Layers[1]) {
		t.Errorf("told, overwritten, used: %v", err)
	}
	if _, err := w.engine(2, block); err != nil {
		t.Errorf("a layer that is as it was: %v", err)
	}
	back()
	if _, err := w.engine(1, block); err != nil {
		t.Errorf("put back: %v", err)
	}
	overwrite()
	if _, err := w.engine(1, block); err != nil {
		t.Errorf("in use already: %v", err)
	}

	w, overwrite, _ = weightsOnDisk(t)
	_, err = w.engine(1, block)
	must(t, err)
	overwrite()
	after, err := w.facts()
	must(t, err)
	if after.Layers[1] != told.Layers[1] || after.Layers[1] != layerHash(w.p.Geometry, 1, w.layers[1]) {
		t.Errorf("used, overwritten, told: %s, and what is in use is %s", after.Layers[1], told.Layers[1])
	}
	w, overwrite, _ = weightsOnDisk(t)
	overwrite()
	other, err := w.facts()
	must(t, err)
	if other.Layers[1] == told.Layers[1] || other.Layers[2] != told.Layers[2] {
		t.Errorf("the overwritten value is in no hash: %v", other.Layers)
	}
}
