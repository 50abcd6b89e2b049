package kernels

import "slices"

// Rows are consecutive pooled rows. The zero value has none.
type Rows struct {
	// First is the sequence-wide index of the first row: row p covers tokens
	// p·ratio … p·ratio+ratio-1.
	First int
	// Dim is the width of a row, in elements.
	Dim int
	// Data holds the rows, bf16 [Count, Dim] row-major.
	Data []uint16
}

// Count returns the number of rows.
func (r Rows) Count() int {
	if r.Dim == 0 {
		return 0
	}
	return len(r.Data) / r.Dim
}

// Boundary is what a layer held when the sequence was Pos tokens long, Pos being
// a multiple of the block length. Its State has no remainder rows and can seed a
// layer.
type Boundary struct {
	Pos int
	State
}

// Output receives the results of Feed. The zero value is ready; it is meant to be
// reused, and its memory grows to the largest call and stays. Everything in it
// belongs to it and is valid until the next Feed with it. One goroutine may use it
// at a time.
type Output struct {
	// Pooled are the rows that the call completed in the layer's pool, Index those in
	// its indexer's pool. Both are empty if the layer has no such pool.
	Pooled, Index Rows
	// Boundaries has one entry per block boundary that the call reached or crossed,
	// in ascending order.
	Boundaries []Boundary
	// WithPre asks for WinPre in the boundaries; the caller sets it.
	WithPre bool
}

// reset empties o and keeps its memory.
func (o *Output) reset() {
	o.Pooled = Rows{Data: o.Pooled.Data[:0]}
	o.Index = Rows{Data: o.Index.Data[:0]}
	o.Boundaries = o.Boundaries[:0]
}

// boundary appends an entry whose slices keep the memory of an earlier call.
func (o *Output) boundary() *Boundary {
	if n := len(o.Boundaries); n < cap(o.Boundaries) {
		o.Boundaries = o.Boundaries[:n+1]
	} else {
		o.Boundaries = append(o.Boundaries, Boundary{})
	}
	return &o.Boundaries[len(o.Boundaries)-1]
}

// grow appends n elements of unspecified value to s and returns s and the new part.
func grow(s []uint16, n int) (all, added []uint16) {
	all = slices.Grow(s, n)[:len(s)+n]
	return all, all[len(s):]
}
