package omlx

import (
	"strconv"
	"strings"

	"pdlink/kernels/safetensors"
)

// elements reads the elements of the state under prefix.
func (r *blockReader) elements(prefix string, depth int) ([]Element, error) {
	if r.block.Format == "2" {
		return r.pair(prefix)
	}
	if depth > maxNesting {
		return nil, damaged("%s is nested too deep", prefix)
	}
	n, err := r.number(prefix+"_state_count", maxElements)
	if err != nil {
		return nil, err
	}
	out := make([]Element, n)
	for k := range out {
		if out[k], err = r.element(prefix+"_state_"+strconv.Itoa(k), depth); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// pair reads a state of format 2, which has keys and values and no counts.
func (r *blockReader) pair(prefix string) ([]Element, error) {
	out := make([]Element, 2)
	for k, part := range []string{"_keys", "_values"} {
		e, err := r.element(prefix+part, 0)
		if err != nil {
			return nil, err
		}
		if e.Kind == ElementNone || e.Kind == ElementNested {
			return nil, damaged("%s has a mark that format 2 does not know", e.Name)
		}
		out[k] = e
	}
	return out, nil
}

// element reads one element with its mark.
func (r *blockReader) element(name string, depth int) (Element, error) {
	e := Element{Name: name}
	none, isNone := r.get(name + "_none")
	dims, isZero := r.get(name + "_zero_dim")
	kind, isNested := r.get(name + "_nested")
	switch {
	case isNone && isZero, isNone && isNested, isZero && isNested:
		return e, damaged("%s has two marks", name)
	case isNested:
		return r.nested(e, kind, depth)
	}
	t, err := r.tensor(name)
	if err != nil {
		return e, err
	}
	e.Tensor, e.Shape = t, t.Shape
	switch {
	case isNone:
		e.Kind = ElementNone
		if none != "1" {
			return e, damaged("%s_none is %q, want 1", name, none)
		}
	case isZero:
		e.Kind = ElementZeroDim
		if e.Shape, err = zeroShape(name, dims); err != nil {
			return e, err
		}
	default:
		if t.Size() == 0 {
			return e, damaged("%s has no values and no mark", name)
		}
		return e, nil
	}
	if !isOne(t) || (isNone && t.DType != safetensors.F32) {
		return e, damaged("placeholder %s is %s %v", name, t.DType, t.Shape)
	}
	return e, nil
}

func (r *blockReader) nested(e Element, kind string, depth int) (Element, error) {
	e.Kind = ElementNested
	if kind != "tuple" && kind != "nstate" {
		return e, damaged("%s_nested is %q, want tuple or nstate", e.Name, kind)
	}
	if _, both := r.f.Tensor(e.Name); both {
		return e, damaged("%s is nested and a tensor", e.Name)
	}
	r.get(e.Name + "_state_class_name")
	var err error
	e.Nested, err = r.elements(e.Name, depth+1)
	return e, err
}

// zeroShape parses a recorded shape, which must contain a zero.
func zeroShape(name, text string) ([]int64, error) {
	var shape []int64
	zero := false
	for _, part := range strings.Split(text, ",") {
		d, err := strconv.ParseInt(part, 10, 32)
		if err != nil || d < 0 || strconv.FormatInt(d, 10) != part {
			return nil, damaged("%s_zero_dim %q is not a shape", name, text)
		}
		zero = zero || d == 0
		shape = append(shape, d)
	}
	if !zero {
		return nil, damaged("%s_zero_dim %q has no zero", name, text)
	}
	return shape, nil
}

// isOne reports a placeholder's shape.
func isOne(t safetensors.Tensor) bool { return len(t.Shape) == 1 && t.Shape[0] == 1 }
