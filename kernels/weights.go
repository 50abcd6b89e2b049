package kernels

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"pdlink/kernels/safetensors"
)

// PoolWeights are the decoder's weights of one pool. The slices are read-only
// once a Layer was built from them.
type PoolWeights struct {
	// KV and Gate are the two projections, bf16 [out, hidden] row-major; out is the row
	// width for ratio 128 and twice that for ratio 4 (lane A, then lane B).
	KV, Gate []uint16
	// APE is the positional bias of the gate, [ratio, out].
	APE []float32
	// Norm is the weight of the RMS norm, bf16 [width].
	Norm []uint16
}

// LayerWeights are the decoder's weights of one layer. Parts that the layer's
// ratio does not use are empty.
type LayerWeights struct {
	// KV is the window projection, bf16 [head_dim, hidden] row-major.
	KV []uint16
	// Norm is the weight of the window's RMS norm, bf16 [head_dim].
	Norm []uint16
	// Comp belongs to the layer's pool (ratio 4 or 128), Index to its indexer (ratio 4).
	Comp, Index PoolWeights
}

// Weights reads projection weights layer by layer from a safetensors file, so
// that a host that serves some of the layers holds only those. Its methods may be
// called by several goroutines at once, Close by one when no other runs.
type Weights struct {
	file *safetensors.File
	g    Geometry
}

// tensorSpec is what a tensor of the weight file must look like.
type tensorSpec struct {
	name  string
	shape []int64
	bias  bool // positional bias: F32, or BF16 where the decoder's checkpoint was cast
}

// layerSpecs lists the tensors of layer i in a fixed order: window projection and
// norm, then per pool the two projections, the bias and the norm.
func layerSpecs(g Geometry, i int) []tensorSpec {
	hidden, r := int64(g.Hidden), g.Ratios[i]
	prefix := fmt.Sprintf("layer_%d.", i)
	specs := []tensorSpec{
		{prefix + "wkv.weight", []int64{int64(g.HeadDim), hidden}, false},
		{prefix + "kv_norm.weight", []int64{int64(g.HeadDim)}, false},
	}
	pool := func(name string, dim int) {
		out := int64(poolWidth(r, dim))
		specs = append(specs, tensorSpec{prefix + name + ".wkv.weight", []int64{out, hidden}, false},
			tensorSpec{prefix + name + ".wgate.weight", []int64{out, hidden}, false},
			tensorSpec{prefix + name + ".ape", []int64{int64(r), out}, true},
			tensorSpec{prefix + name + ".norm.weight", []int64{int64(dim)}, false})
	}
	if r != 0 {
		pool("comp", g.HeadDim)
	}
	if r == overlapRatio {
		pool("idx", g.IndexDim)
	}
	return specs
}

// OpenWeights opens a weight file and checks the name, type and shape of every
// tensor against the geometry; nothing but the header is read. The caller closes
// the result. Errors: ErrGeometry, ErrWeights, or those of safetensors.Open.
//
// Matrices and norms must be BF16. An F32 norm weight is refused because the
// decoder would then compute and cache that layer in F32. A BF16 bias is accepted:
// it is what the decoder has after a cast, and for ratio 128 it changes the result.
func OpenWeights(path string, g Geometry) (*Weights, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open weights: %w", err)
	}
	w, err := NewWeights(f, g)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return w, nil
}

// NewWeights is OpenWeights for a file that is already open. On success the result
// owns f and closes it.
func NewWeights(f *safetensors.File, g Geometry) (*Weights, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	known := make(map[string]struct{})
	var missing []string
	for i := range g.Layers() {
		for _, s := range layerSpecs(g, i) {
			known[s.name] = struct{}{}
			t, ok := f.Tensor(s.name)
			if !ok {
				missing = append(missing, s.name)
				continue
			}
			if err := s.check(t); err != nil {
				return nil, err
			}
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: tensors missing: %s; export them from the decoder's checkpoint", ErrWeights, listNames(missing))
	}
	var extra []string
	for _, t := range f.Tensors() {
		if _, ok := known[t.Name]; !ok {
			extra = append(extra, t.Name)
		}
	}
	if len(extra) > 0 {
		return nil, fmt.Errorf("%w: tensors that this geometry does not have: %s; weights and configuration must be of one model", ErrWeights, listNames(extra))
	}
	return &Weights{file: f, g: g}, nil
}

// check compares a tensor of the file with what it must be.
func (s tensorSpec) check(t safetensors.Tensor) error {
	if !slices.Equal(t.Shape, s.shape) {
		return fmt.Errorf("%w: %s has shape %v, want %v", ErrWeights, s.name, t.Shape, s.shape)
	}
	switch {
	case t.DType == safetensors.BF16, s.bias && t.DType == safetensors.F32:
		return nil
	case t.DType == safetensors.F32 && len(s.shape) == 1:
		return fmt.Errorf("%w: %s is F32: with such a norm weight the decoder caches the layer in F32; use a decoder checkpoint with BF16 norms", ErrWeights, s.name)
	}
	return fmt.Errorf("%w: %s is %s, want BF16: export dequantised matrices as BF16", ErrWeights, s.name, t.DType)
}

// listNames joins at most eight names.
func listNames(names []string) string {
	const shown = 8
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}

// Layer reads the weights of layer i into new memory that belongs to the caller.
// Errors: ErrWeights for an index out of range, or those of reading.
func (w *Weights) Layer(i int) (LayerWeights, error) {
	var lw LayerWeights
	if i < 0 || i >= w.g.Layers() {
		return lw, fmt.Errorf("%w: layer %d of %d", ErrWeights, i, w.g.Layers())
	}
	r := reader{file: w.file, buf: make([]byte, weightReadBytes), specs: layerSpecs(w.g, i)}
	lw.KV, lw.Norm = r.patterns(), r.patterns()
	for _, p := range []*PoolWeights{&lw.Comp, &lw.Index} {
		if len(r.specs) > 0 {
			*p = PoolWeights{KV: r.patterns(), Gate: r.patterns(), APE: r.floats(), Norm: r.patterns()}
		}
	}
	if r.err != nil {
		return LayerWeights{}, r.err
	}
	return lw, nil
}

// Close closes the file. It is idempotent.
func (w *Weights) Close() error { return w.file.Close() }

// reader reads the tensors of a list in order and remembers the first error.
type reader struct {
	file  *safetensors.File
	buf   []byte
	specs []tensorSpec
	err   error
}

// next returns the next tensor of the list, whose size is known to lie in the file.
func (r *reader) next() safetensors.Tensor {
	t, _ := r.file.Tensor(r.specs[0].name)
	r.specs = r.specs[1:]
	return t
}

// each calls f with the bytes of t in runs of whole elements; off is in bytes.
func (r *reader) each(t safetensors.Tensor, f func(off int64, b []byte)) {
	for off := t.Begin; off < t.End && r.err == nil; {
		b := r.buf[:min(int64(len(r.buf)), t.End-off)]
		if n, err := r.file.ReadAt(b, off); n < len(b) {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			r.err = fmt.Errorf("read weights %s: %w", t.Name, err)
			return
		}
		f(off-t.Begin, b)
		off += int64(len(b))
	}
}

func (r *reader) patterns() []uint16 {
	t := r.next()
	dst := make([]uint16, t.Size()/2)
	r.each(t, func(off int64, b []byte) {
		d := dst[off/2:]
		for i := range len(b) / 2 {
			d[i] = binary.LittleEndian.Uint16(b[2*i:])
		}
	})
	return dst
}

func (r *reader) floats() []float32 {
	t := r.next()
	if t.DType == safetensors.BF16 {
		r.specs = append([]tensorSpec{{name: t.Name}}, r.specs...)
		p := r.patterns()
		dst := make([]float32, len(p))
		unpack(dst, p)
		return dst
	}
	dst := make([]float32, t.Size()/4)
	r.each(t, func(off int64, b []byte) {
		d := dst[off/4:]
		for i := range len(b) / 4 {
			d[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	})
	return dst
}

// check reports weights whose sizes do not fit layer i of the geometry.
func (w *LayerWeights) check(g Geometry, i int) error {
	r := g.Ratios[i]
	want := []struct {
		name     string
		got, len int
	}{{"wkv", len(w.KV), g.HeadDim * g.Hidden}, {"kv_norm", len(w.Norm), g.HeadDim}}
	pool := func(name string, p PoolWeights, used bool, dim int) {
		out, norm := 0, 0
		if used {
			out, norm = poolWidth(r, dim), dim
		}
		for _, f := range []struct {
			part     string
			got, len int
		}{{".wkv", len(p.KV), out * g.Hidden}, {".wgate", len(p.Gate), out * g.Hidden}, {".ape", len(p.APE), out * r}, {".norm", len(p.Norm), norm}} {
			want = append(want, struct {
				name     string
				got, len int
			}{name + f.part, f.got, f.len})
		}
	}
	pool("comp", w.Comp, r != 0, g.HeadDim)
	pool("idx", w.Index, r == overlapRatio, g.IndexDim)
	for _, f := range want {
		if f.got != f.len {
			return fmt.Errorf("%w: layer %d, ratio %d: %s has %d elements, want %d", ErrWeights, i, r, f.name, f.got, f.len)
		}
	}
	return nil
}
