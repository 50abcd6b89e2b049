package omlx

import (
	"encoding/binary"

	"pdlink/kernels/safetensors"
)

// rowRange reads the two numbers of a row range.
func (r *blockReader) rowRange(t safetensors.Tensor) (start, end int64, err error) {
	var b [rangeBytes]byte
	if err := r.f.ReadTensor(t, b[:]); err != nil {
		return 0, 0, err
	}
	start, end = int64(binary.LittleEndian.Uint64(b[:8])), int64(binary.LittleEndian.Uint64(b[8:]))
	if start < 0 || end < start {
		return 0, 0, damaged("%s holds the impossible range %d..%d", t.Name, start, end)
	}
	return start, end, nil
}

// classRules checks the elements of one state against its class.
func (r *blockReader) classRules(st *BlockState, placeholder bool) error {
	switch {
	case placeholder:
		return nil
	case st.Class == classKV || st.Class == "BatchKVCache":
		return r.slice(st)
	case st.Class == classRotating:
		return r.window(st)
	case st.Class == classPool:
		return r.pool(st)
	}
	return nil
}

// slice checks per-token keys and values [batch, heads, tokens, width].
func (r *blockReader) slice(st *BlockState) error {
	if len(st.Elements) != 2 {
		return damaged("%s has %d elements, want keys and values", st.Prefix, len(st.Elements))
	}
	for _, e := range st.Elements {
		// Models that store one array only give the other a width of zero.
		if (e.Kind != ElementArray && e.Kind != ElementZeroDim) || len(e.Shape) != 4 {
			return damaged("%s is no array of four dimensions", e.Name)
		}
		if e.Shape[2] != int64(r.block.Tokens) {
			return damaged("%s holds %d tokens, the block has %d", e.Name, e.Shape[2], r.block.Tokens)
		}
	}
	return sameLead(st)
}

// window checks a rotating window; values may have width zero.
func (r *blockReader) window(st *BlockState) error {
	if len(st.Elements) != 2 {
		return damaged("%s has %d elements, want keys and values", st.Prefix, len(st.Elements))
	}
	for i, e := range st.Elements {
		if len(e.Shape) != 4 || (e.Kind != ElementArray && (e.Kind != ElementZeroDim || i == 0)) {
			return damaged("%s is no window of four dimensions", e.Name)
		}
	}
	return sameLead(st)
}

// sameLead requires keys and values to agree in batch, heads and tokens.
func sameLead(st *BlockState) error {
	a, b := st.Elements[0].Shape, st.Elements[1].Shape
	if a[0] != b[0] || a[1] != b[1] || a[2] != b[2] {
		return damaged("%s has keys %v and values %v", st.Prefix, a, b)
	}
	return nil
}

// pool checks a compressed pool: rows of three dimensions, as many as the range
// says, and previous-window arrays of four that come in pairs.
func (r *blockReader) pool(st *BlockState) error {
	n := len(st.Elements)
	if st.Delta {
		n--
	}
	if n < 3 {
		return nil
	}
	rows := &st.Elements[2]
	if rows.Kind != ElementNone {
		if (rows.Kind != ElementArray && rows.Kind != ElementZeroDim) || len(rows.Shape) != 3 {
			return damaged("%s holds no rows of three dimensions", rows.Name)
		}
	}
	if st.Delta {
		have := int64(0)
		if rows.Kind != ElementNone {
			have = rows.Shape[1]
		}
		if have != st.End-st.Start {
			return damaged("%s holds %d rows, its range is %d..%d", rows.Name, have, st.Start, st.End)
		}
	}
	for _, pair := range [][2]int{{0, 1}, {3, 4}} {
		if pair[1] >= n {
			continue
		}
		a, b := &st.Elements[pair[0]], &st.Elements[pair[1]]
		if (a.Kind == ElementNone) != (b.Kind == ElementNone) {
			return damaged("%s and %s: one is there without the other", a.Name, b.Name)
		}
	}
	return nil
}
