package omlx

import (
	"fmt"
	"sort"

	"pdlink/kernels/safetensors"
)

// Array names one computed array of a layer.
type Array int

// The arrays in file order. Idx arrays belong to the indexer of ratio-4 layers;
// Prev arrays exist in five-element pool states only.
const (
	K           Array = iota // keys [heads, block tokens, head width]
	V                        // values, the same shape
	Window                   // sliding window [window, head width]
	Pooled                   // this block's pooled rows [block tokens / ratio, head width]
	PrevKV                   // previous window's kv projection [4, 2 * head width]
	PrevGate                 // previous window's gate projection, the same shape
	IdxPooled                // this block's indexer rows [block tokens / 4, index width]
	IdxPrevKV                // [4, 2 * index width]
	IdxPrevGate              // [4, 2 * index width]
	numArrays
)

// String returns the array's name in lower case with underscores.
func (a Array) String() string {
	names := [...]string{"k", "v", "window", "pooled", "prev_kv", "prev_gate", "idx_pooled", "idx_prev_kv", "idx_prev_gate"}
	if a < 0 || int(a) >= len(names) {
		return fmt.Sprintf("array(%d)", int(a))
	}
	return names[a]
}

// WireTensor is one array's place in a block's wire data. Off, Size and RowBytes
// are bytes; a row is one vector of the array's last dimension.
type WireTensor struct {
	Layer    int
	Array    Array
	Off      int64
	Size     int64
	RowBytes int64
	Rows     int
	DType    safetensors.DType
}

// segment is a run of wire data that is one run in every block's file too.
type segment struct {
	wire, size int64
	data, grow int64 // data offset in block k is data + k*grow
}

// WireSize returns the bytes of one block's wire data; the same for all blocks.
func (l *Layout) WireSize() int64 { return l.size }

// Wire returns the place of a layer's array; false if the layer has none.
func (l *Layout) Wire(layer int, a Array) (WireTensor, bool) {
	if layer < 0 || layer >= l.spec.Layers || a < 0 || a >= numArrays {
		return WireTensor{}, false
	}
	i := l.index[layer*int(numArrays)+int(a)]
	if i < 0 {
		return WireTensor{}, false
	}
	return l.wire[i], true
}

// WireTensors returns all arrays in wire order. The slice belongs to the Layout.
func (l *Layout) WireTensors() []WireTensor { return l.wire }

// LayerRange returns the range of the wire data that holds all of a layer's
// arrays; 0, 0 for a layer that does not exist.
func (l *Layout) LayerRange(layer int) (off, size int64) {
	if layer < 0 || layer >= l.spec.Layers {
		return 0, 0
	}
	first := true
	for _, i := range l.index[layer*int(numArrays) : (layer+1)*int(numArrays)] {
		if i < 0 {
			continue
		}
		if w := &l.wire[i]; first {
			off, size, first = w.Off, w.Size, false
		} else {
			size = w.Off + w.Size - off
		}
	}
	return off, size
}

// Locate returns where wire byte off of block k lies in the block's data region,
// and how many of the n bytes from there are contiguous in the file. The caller
// goes on with the rest. It needs 0 <= off, 0 < n and off+n <= WireSize().
func (l *Layout) Locate(k int, off, n int64) (data, run int64) {
	i := sort.Search(len(l.parts), func(i int) bool { return l.parts[i].wire > off }) - 1
	p := &l.parts[i]
	in := off - p.wire
	return p.data + int64(k)*p.grow + in, min(n, p.size-in)
}

// join merges neighbours that are contiguous in every block's file.
func (l *Layout) join() {
	out := l.parts[:1]
	for _, p := range l.parts[1:] {
		last := &out[len(out)-1]
		if p.data == last.data+last.size && p.grow == last.grow {
			last.size += p.size
			continue
		}
		out = append(out, p)
	}
	l.parts = out
}
