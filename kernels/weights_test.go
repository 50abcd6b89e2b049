package kernels

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pdlink/kernels/safetensors"
)

// weightFile builds the bytes of a weight file whose tensors are the specs of g
// after change.
func weightFile(tb testing.TB, g Geometry, change func([]safetensors.Tensor) []safetensors.Tensor) []byte {
	tb.Helper()
	var ts []safetensors.Tensor
	for i := range g.Layers() {
		for _, s := range layerSpecs(g, i) {
			t := safetensors.Tensor{Name: s.name, DType: safetensors.BF16, Shape: s.shape}
			if s.bias {
				t.DType = safetensors.F32
			}
			ts = append(ts, t)
		}
	}
	if change != nil {
		ts = change(ts)
	}
	var end int64
	for i := range ts {
		size, err := safetensors.ByteSize(ts[i].DType, ts[i].Shape)
		must(tb, err)
		ts[i].Begin, ts[i].End = end, end+size
		end += size
	}
	head, err := safetensors.EncodeHeader(ts, nil)
	must(tb, err)
	body := make([]byte, end)
	for i := range body {
		body[i] = byte(i * 7)
	}
	return append(head, body...)
}

func weightsFrom(tb testing.TB, g Geometry, file []byte) (*Weights, error) {
	tb.Helper()
	f, err := safetensors.NewFile(bytes.NewReader(file), int64(len(file)))
	must(tb, err)
	return NewWeights(f, g)
}

func threeLayers() Geometry {
	g := smallGeometry(0)
	g.Ratios = []int{0, 4, 128}
	return g
}

func TestWeightsRead(t *testing.T) {
	g := threeLayers()
	file := weightFile(t, g, nil)
	w, err := weightsFrom(t, g, file)
	must(t, err)
	for i := range g.Layers() {
		lw, err := w.Layer(i)
		must(t, err)
		if _, err := NewLayer(g, i, lw, MLXMetal, smallBlock, 1); err != nil {
			t.Errorf("layer %d: %v", i, err)
		}
	}
	lw, err := w.Layer(1)
	must(t, err)
	tensor, _ := w.file.Tensor("layer_1.idx.ape")
	data := file[w.file.DataOffset()+tensor.Begin:][:tensor.Size()]
	for i, v := range lw.Index.APE {
		if want := binary.LittleEndian.Uint32(data[4*i:]); math.Float32bits(v) != want {
			t.Fatalf("bias %d is %08x, want %08x", i, math.Float32bits(v), want)
		}
	}
	tensor, _ = w.file.Tensor("layer_1.comp.wgate.weight")
	data = file[w.file.DataOffset()+tensor.Begin:][:tensor.Size()]
	for i, v := range lw.Comp.Gate {
		if want := binary.LittleEndian.Uint16(data[2*i:]); v != want {
			t.Fatalf("gate %d is %04x, want %04x", i, v, want)
		}
	}
	for _, i := range []int{-1, 3} {
		if _, err := w.Layer(i); !errors.Is(err, ErrWeights) {
			t.Errorf("layer %d: %v", i, err)
		}
	}
	must(t, w.Close())
	must(t, w.Close())
}

// TestWeightsCastBias holds that a BF16 bias is read as its own values.
func TestWeightsCastBias(t *testing.T) {
	g := threeLayers()
	file := weightFile(t, g, func(ts []safetensors.Tensor) []safetensors.Tensor {
		for i := range ts {
			if strings.HasSuffix(ts[i].Name, ".ape") {
				ts[i].DType = safetensors.BF16
			}
		}
		return ts
	})
	w, err := weightsFrom(t, g, file)
	must(t, err)
	lw, err := w.Layer(2)
	must(t, err)
	tensor, _ := w.file.Tensor("layer_2.comp.ape")
	data := file[w.file.DataOffset()+tensor.Begin:]
	if len(lw.Comp.APE) != 128*9 {
		t.Fatalf("%d bias values", len(lw.Comp.APE))
	}
	for i, v := range lw.Comp.APE {
		if want := uint32(binary.LittleEndian.Uint16(data[2*i:])) << 16; math.Float32bits(v) != want {
			t.Fatalf("bias %d is %08x, want %08x", i, math.Float32bits(v), want)
		}
	}
	if len(lw.Comp.Norm) != 9 || len(lw.Index.KV) != 0 {
		t.Error("tensors after the bias are misplaced")
	}
}

func TestWeightsRefuse(t *testing.T) {
	g := threeLayers()
	retype := func(name string, d safetensors.DType) func([]safetensors.Tensor) []safetensors.Tensor {
		return func(ts []safetensors.Tensor) []safetensors.Tensor {
			i := slices.IndexFunc(ts, func(t safetensors.Tensor) bool { return t.Name == name })
			ts[i].DType = d
			return ts
		}
	}
	for name, c := range map[string]struct {
		change func([]safetensors.Tensor) []safetensors.Tensor
		says   string
	}{
		"missing":      {func(ts []safetensors.Tensor) []safetensors.Tensor { return ts[1:] }, "missing: layer_0.wkv.weight"},
		"many missing": {func(ts []safetensors.Tensor) []safetensors.Tensor { return ts[:2] }, "and 8 more"},
		"extra": {func(ts []safetensors.Tensor) []safetensors.Tensor {
			return append(ts, safetensors.Tensor{Name: "layer_3.wkv.weight", DType: safetensors.BF16, Shape: []int64{1}})
		}, "layer_3.wkv.weight"},
		"transposed": {func(ts []safetensors.Tensor) []safetensors.Tensor {
			ts[0].Shape = []int64{16, 9}
			return ts
		}, "has shape [16 9], want [9 16]"},
		"norm in F32":       {retype("layer_1.comp.norm.weight", safetensors.F32), "caches the layer in F32"},
		"window norm F32":   {retype("layer_0.kv_norm.weight", safetensors.F32), "caches the layer in F32"},
		"matrix in F32":     {retype("layer_1.idx.wkv.weight", safetensors.F32), "want BF16"},
		"matrix in F16":     {retype("layer_2.comp.wgate.weight", safetensors.F16), "want BF16"},
		"bias in F16":       {retype("layer_2.comp.ape", safetensors.F16), "want BF16"},
		"quantised weights": {retype("layer_0.wkv.weight", safetensors.U8), "dequantised"},
	} {
		_, err := weightsFrom(t, g, weightFile(t, g, c.change))
		if !errors.Is(err, ErrWeights) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	if _, err := weightsFrom(t, Geometry{}, weightFile(t, g, nil)); !errors.Is(err, ErrGeometry) {
		t.Errorf("no geometry: %v", err)
	}
}

func TestOpenWeightsFails(t *testing.T) {
	g, dir := threeLayers(), t.TempDir()
	if _, err := OpenWeights(filepath.Join(dir, "absent"), g); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
	path := filepath.Join(dir, "w.safetensors")
	file := weightFile(t, g, nil)
	must(t, os.WriteFile(path, file[:len(file)-2], 0o600))
	if _, err := OpenWeights(path, g); !errors.Is(err, safetensors.ErrLayout) {
		t.Errorf("short file: %v", err)
	}
	must(t, os.WriteFile(path, file, 0o600))
	if _, err := OpenWeights(path, smallGeometry(0)); !errors.Is(err, ErrWeights) || !strings.Contains(err.Error(), path) {
		t.Errorf("other model: %v", err)
	}
	w, err := OpenWeights(path, g)
	must(t, err)
	must(t, os.Truncate(path, int64(len(file)/2)))
	if _, err := w.Layer(2); err == nil || !strings.Contains(err.Error(), "layer_2") {
		t.Errorf("file cut while open: %v", err)
	}
	must(t, w.Close())
}
