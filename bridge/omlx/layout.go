package omlx

import (
	"fmt"
	"strconv"

	"pdlink/kernels/safetensors"
)

// Layout is a spec worked out: every tensor of every block with its place, the
// header text, and where wire data lies in the files. It is immutable and may be
// used by any number of goroutines.
type Layout struct {
	spec    Spec // normalised
	slots   []slot
	layers  []layer
	wire    []WireTensor
	index   []int32 // layer*numArrays + array → wire, or -1
	parts   []segment
	size    int64 // wire bytes of a block
	data    int64 // data bytes of block 0
	grow    int64 // data bytes added with every further block
	keys    []safetensors.KV
	sign    string
	types   string
	zeroDim safetensors.DType
}

// mark says what a slot's metadata declare.
type mark int

const (
	markArray   mark = iota // an ordinary array
	markNone                // placeholder of an absent element
	markZeroDim             // placeholder of a zero-width array
	markRange               // the row range of a pool delta
)

// slot is one tensor of the file. Sizes and offsets of block k are the value
// plus k times its growth, which is zero except behind cumulative pools.
type slot struct {
	name      string
	dtype     safetensors.DType
	shape     []int64 // block 0
	mark      mark
	rows      int64 // pool rows per block (pooled arrays and ranges)
	cumulates bool
	begin     int64
	beginGrow int64
	size      int64
	sizeGrow  int64
}

// state is one cache object: a plain layer or one member of a composite layer.
type state struct {
	prefix     string
	class      string // class name key, if the file has one
	kind       string // cache class in the metas
	meta       int    // compression ratio of a pool
	first, len int    // its slots
}

// layer is one model layer. sub is true for a composite layer (CacheList).
type layer struct {
	states []state
	sub    bool
}

// Cache classes as the files spell them.
const (
	classKV        = "KVCache"
	classRotating  = "RotatingKVCache"
	classList      = "CacheList"
	classPool      = "PoolingCache"
	classPoolDelta = "PoolingCacheDelta"
)

// NewLayout works out the layout of a spec. It fails with ErrPlan and the reason.
func NewLayout(spec Spec) (*Layout, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	s := spec.normalised()
	l := &Layout{spec: s, zeroDim: safetensors.DType(s.Options.ZeroDimDType), index: make([]int32, s.Layers*int(numArrays))}
	for i := range l.index {
		l.index[i] = -1
	}
	for i := range s.Layers {
		if s.Kind == KindKV {
			l.addKV(i)
		} else {
			l.addDSV4(i, s.Ratios[i])
		}
		if l.data > maxBlockBytes {
			return nil, fmt.Errorf("%w: block needs more than %d bytes", ErrPlan, int64(maxBlockBytes))
		}
	}
	l.join()
	l.describe()
	return l, nil
}

// Spec returns the spec with its defaults filled in. Its slices belong to the Layout.
func (l *Layout) Spec() Spec { return l.spec }

// Cumulative reports whether block k's file repeats the pooled rows of all blocks
// before it, so that it can be finished only after block k-1.
func (l *Layout) Cumulative() bool { return l.grow > 0 }

// DataLen returns the bytes of block k's data region.
func (l *Layout) DataLen(k int) int64 { return l.data + int64(k)*l.grow }

// Tensors returns the tensors of block k in file order, offsets relative to the
// data region. The caller owns the result.
func (l *Layout) Tensors(k int) []safetensors.Tensor {
	out := make([]safetensors.Tensor, len(l.slots))
	for i := range l.slots {
		s := &l.slots[i]
		begin, end := s.span(k)
		shape := append([]int64(nil), s.shape...)
		if s.cumulates {
			shape[1] += int64(k) * s.rows
		}
		out[i] = safetensors.Tensor{Name: s.name, DType: s.dtype, Shape: shape, Begin: begin, End: end}
	}
	return out
}

// span returns the slot's data range in block k.
func (s *slot) span(k int) (begin, end int64) {
	begin = s.begin + int64(k)*s.beginGrow
	return begin, begin + s.size + int64(k)*s.sizeGrow
}

// add appends a slot behind the others.
func (l *Layout) add(s slot) {
	s.size = s.dtype.Size()
	for _, d := range s.shape {
		s.size *= d
	}
	if s.cumulates {
		s.sizeGrow = s.size
	}
	s.begin, s.beginGrow = l.data, l.grow
	l.data += s.size
	l.grow += s.sizeGrow
	l.slots = append(l.slots, s)
}

// addWire appends a slot whose bytes travel.
func (l *Layout) addWire(layer int, a Array, s slot) {
	l.add(s)
	s = l.slots[len(l.slots)-1]
	width := s.shape[len(s.shape)-1] * s.dtype.Size()
	l.index[layer*int(numArrays)+int(a)] = int32(len(l.wire))
	l.wire = append(l.wire, WireTensor{
		Layer: layer, Array: a, Off: l.size, Size: s.size, RowBytes: width, Rows: int(s.size / width), DType: s.dtype,
	})
	// The bytes of this block are the last ones of a cumulative tensor.
	l.parts = append(l.parts, segment{wire: l.size, size: s.size, data: s.begin, grow: s.beginGrow + s.sizeGrow})
	l.size += s.size
}

func (l *Layout) addKV(i int) {
	s := &l.spec
	prefix := "layer_" + strconv.Itoa(i)
	shape := []int64{1, int64(s.KVHeads), int64(s.BlockTokens), int64(s.HeadDim)}
	dtype := safetensors.DType(s.DType)
	st := state{prefix: prefix, kind: classKV, first: len(l.slots), len: 2}
	l.addWire(i, K, slot{name: prefix + "_state_0", dtype: dtype, shape: shape})
	l.addWire(i, V, slot{name: prefix + "_state_1", dtype: dtype, shape: shape})
	l.layers = append(l.layers, layer{states: []state{st}})
}

func (l *Layout) addDSV4(i, ratio int) {
	prefix := "layer_" + strconv.Itoa(i)
	if ratio == 0 {
		l.layers = append(l.layers, layer{states: []state{l.addWindow(i, prefix)}})
		return
	}
	states := []state{l.addWindow(i, prefix+"_sub_0")}
	states = append(states, l.addPool(i, prefix+"_sub_1", ratio, l.spec.HeadDim, Pooled))
	if ratio == overlap {
		states = append(states, l.addPool(i, prefix+"_sub_2", ratio, l.spec.IndexHeadDim, IdxPooled))
	}
	l.layers = append(l.layers, layer{states: states, sub: true})
}

// addWindow adds the rotating window: keys, and values of width zero.
func (l *Layout) addWindow(i int, prefix string) state {
	s := &l.spec
	st := state{prefix: prefix, kind: classRotating, first: len(l.slots), len: 2}
	shape := []int64{1, 1, int64(s.Window), int64(s.HeadDim)}
	l.addWire(i, Window, slot{name: prefix + "_state_0", dtype: poolDType, shape: shape})
	l.add(slot{name: prefix + "_state_1", dtype: l.zeroDim, shape: []int64{1}, mark: markZeroDim})
	return st
}

// addPool adds a compressed pool: two remainders that are empty at a boundary,
// the rows, the previous window if the state has five elements, and the range
// if the rows are a delta. first is the pool's row array; its two neighbours in
// the enumeration are the previous window.
func (l *Layout) addPool(i int, prefix string, ratio, width int, first Array) state {
	s := &l.spec
	delta := s.Format != Format3
	rows := int64(s.BlockTokens / ratio)
	st := state{prefix: prefix, kind: classPool, meta: ratio, first: len(l.slots)}
	if s.Options.ClassNames == On {
		st.class = classPool
		if delta {
			st.class = classPoolDelta
		}
	}
	name := func() string { return prefix + "_state_" + strconv.Itoa(len(l.slots)-st.first) }
	none := func() { l.add(slot{name: name(), dtype: safetensors.F32, shape: []int64{1}, mark: markNone}) }
	none()
	none()
	l.addWire(i, first, slot{
		name: name(), dtype: poolDType, shape: []int64{1, rows, int64(width)}, rows: rows, cumulates: !delta,
	})
	for e := 3; e < s.PoolState; e++ {
		if ratio != overlap {
			none()
			continue
		}
		// Both projections of an overlapping window have two lanes.
		shape := []int64{1, 1, overlap, 2 * int64(width)}
		l.addWire(i, first+Array(e-2), slot{name: name(), dtype: poolDType, shape: shape})
	}
	if delta {
		l.add(slot{name: name(), dtype: safetensors.I64, shape: []int64{2}, mark: markRange, rows: rows})
	}
	st.len = len(l.slots) - st.first
	return st
}
