package omlx

import (
	"encoding/json"
	"strconv"
	"strings"

	"pdlink/kernels/safetensors"
)

// canonical returns the name under which the decoder compares a cache class;
// false for a class that it does not know.
func canonical(class string) (string, bool) {
	switch class {
	case classKV, classRotating, classList, classPool, "BatchKVCache", "ArraysCache", "TurboQuantKVCache",
		"MiniMaxM3KVCache", "QuantizedKVCache", "ChunkedKVCache":
		return class, true
	case "SizedArraysCache":
		return "ArraysCache", true
	case "PrefillReadyRotatingKVCache", "BufferedRotatingKVCache", "BatchRotatingKVCache":
		return classRotating, true
	case "BatchTurboQuantKVCache":
		return "TurboQuantKVCache", true
	case "BatchPoolingCache", classPoolDelta:
		return classPool, true
	}
	return class, false
}

// layer reads layer i.
func (r *blockReader) layer(i int, class string, meta json.RawMessage) (BlockLayer, error) {
	l := BlockLayer{Type: class}
	prefix := "layer_" + strconv.Itoa(i)
	class, known := canonical(class)
	if !known {
		return l, damaged("layer %d has unknown type %q", i, class)
	}
	if v, ok := r.get(prefix + "_turboquant_v2"); ok {
		return l, r.turboQuant(prefix, v)
	}
	_, composite := r.meta[prefix+"_sub_count"]
	if class == classList && (composite || r.block.Format == "2") {
		return l, r.members(&l, prefix, meta)
	}
	if composite {
		return l, damaged("%s is a %s and has members", prefix, l.Type)
	}
	st, err := r.state(prefix, class, meta)
	if err != nil {
		return l, err
	}
	l.States = []BlockState{st}
	if class == classKV || class == "BatchKVCache" {
		return l, r.slice(&st)
	}
	l.Placeholder = isPlaceholder(&st)
	if class == classList && !l.Placeholder {
		return l, damaged("%s is a CacheList without members", prefix)
	}
	return l, r.classRules(&st, l.Placeholder)
}

// isPlaceholder recognises the two one-element arrays that stand for a layer
// without state.
func isPlaceholder(st *BlockState) bool {
	if len(st.Elements) != 2 {
		return false
	}
	for _, e := range st.Elements {
		if e.Kind != ElementArray || e.Tensor.DType != safetensors.F32 || !isOne(e.Tensor) {
			return false
		}
	}
	return true
}

// members reads a CacheList layer.
func (r *blockReader) members(l *BlockLayer, prefix string, meta json.RawMessage) error {
	var pair []json.RawMessage
	var names []string
	var metas []json.RawMessage
	if json.Unmarshal(meta, &pair) != nil || len(pair) != 2 ||
		json.Unmarshal(pair[0], &names) != nil || json.Unmarshal(pair[1], &metas) != nil || len(names) != len(metas) {
		return damaged("%s has no member names and metas", prefix)
	}
	if r.block.Format != "2" {
		n, err := r.number(prefix+"_sub_count", maxElements)
		if err != nil {
			return err
		}
		if n != len(names) {
			return damaged("%s has %d members and %d member metas", prefix, n, len(names))
		}
	}
	if mode, ok := r.get(prefix + "_storage_mode"); ok && mode != "pm" {
		return damaged("%s has storage mode %q", prefix, mode)
	}
	for j, name := range names {
		class, known := canonical(name)
		if !known || class == classList {
			return damaged("%s has a member of unknown type %q", prefix, name)
		}
		st, err := r.state(prefix+"_sub_"+strconv.Itoa(j), class, metas[j])
		if err != nil {
			return err
		}
		l.States = append(l.States, st)
		if err := r.classRules(&l.States[j], false); err != nil {
			return err
		}
	}
	return nil
}

// state reads one cache object.
func (r *blockReader) state(prefix, class string, meta json.RawMessage) (BlockState, error) {
	st := BlockState{Prefix: prefix, Class: class}
	declared, hasClass := r.get(prefix + "_state_class_name")
	var err error
	if st.Elements, err = r.elements(prefix, 0); err != nil {
		return st, err
	}
	if hasClass {
		if c, ok := canonical(declared); !ok || c != class {
			return st, damaged("%s declares class %q, its layer says %q", prefix, declared, class)
		}
	}
	switch {
	case isPlaceholder(&st):
		return st, nil
	case class == classRotating:
		return st, r.rotatingMeta(prefix, meta)
	case class == classPool:
		if json.Unmarshal(meta, &st.Ratio) != nil || st.Ratio < 1 {
			return st, damaged("%s has ratio %s: a pool's meta is a bare positive integer", prefix, meta)
		}
		return st, r.delta(&st, declared)
	}
	return st, nil
}

// rotatingMeta reads keep, size, offset and index, as texts or numbers.
func (r *blockReader) rotatingMeta(prefix string, meta json.RawMessage) error {
	var items []json.RawMessage
	if json.Unmarshal(meta, &items) != nil || len(items) != 4 {
		return damaged("%s: window metas %s are not four numbers", prefix, meta)
	}
	var v [4]int
	for i, raw := range items {
		n, err := strconv.Atoi(strings.Trim(string(raw), `"`))
		if err != nil || n < 0 {
			return damaged("%s: window meta %s is not a number", prefix, raw)
		}
		v[i] = n
	}
	if r.block.End != 0 && r.block.End != v[2] {
		return damaged("%s ends at token %d, an earlier window at %d", prefix, v[2], r.block.End)
	}
	r.block.End = v[2]
	return nil
}

// delta finds out whether a pool holds all rows or a range, and reads the range.
func (r *blockReader) delta(st *BlockState, declared string) error {
	n := len(st.Elements)
	last := &st.Elements[n-1]
	ranged := last.Kind == ElementArray && last.Tensor.DType == safetensors.I64 &&
		len(last.Shape) == 1 && last.Shape[0] == 2
	if st.Delta = n == 4 || n == 6; !st.Delta {
		if declared == classPoolDelta || (n != 2 && n != 3 && n != 5) {
			return damaged("%s (%s) has %d elements", st.Prefix, declared, n)
		}
		return nil
	}
	switch {
	case r.block.Format == "2" || r.block.Format == Format3:
		return damaged("%s is a pool delta, which format %s does not have", st.Prefix, r.block.Format)
	case declared != classPoolDelta:
		return damaged("%s is a pool delta and declares class %q", st.Prefix, declared)
	case !ranged:
		return damaged("%s has no row range of two I64", st.Prefix)
	}
	var err error
	st.Start, st.End, err = r.rowRange(last.Tensor)
	return err
}

// turboQuant accounts for the packed fields of a quantised layer.
func (r *blockReader) turboQuant(prefix, version string) error {
	if version != "1" {
		return damaged("%s_turboquant_v2 is %q, want 1", prefix, version)
	}
	for _, side := range [][2]string{{"key", "k"}, {"value", "v"}} {
		r.get(prefix + "_tq_" + side[0] + "_type")
		fields, ok := r.get(prefix + "_tq_" + side[0] + "_fields")
		if !ok {
			return damaged("%s has no list of %s fields", prefix, side[0])
		}
		for _, field := range strings.Split(fields, ",") {
			if _, err := r.tensor(prefix + "_tq_" + side[1] + "_" + field); err != nil {
				return err
			}
		}
	}
	return nil
}
