package verify

import (
	"fmt"
	"slices"

	"pdlink/kernels"
	"pdlink/kernels/cuda"
)

// Names of arrays, as recordings have them; the others are name@boundary.
const (
	arrayPooled = "pooled"
	arrayIndex  = "idx_pooled"
	arrayWindow = "win"
	arrayBefore = "win_pre" // before rotation
	atEnd       = "end"
)

// sequence is all that a layer made of a prompt, by name.
type sequence struct {
	arrays map[string][]uint16
	states map[int]kernels.State // by boundary
}

// follow feeds rows of a layer to a request in chunks of the given lengths, of which
// the last one repeats, and collects what comes.
func follow(q cuda.Request, layer, hidden int, x []uint16, cuts ...int) (*sequence, error) {
	s := &sequence{arrays: map[string][]uint16{}, states: map[int]kernels.State{}}
	var out kernels.Output
	for i := 0; len(x) > 0; i++ {
		n := min(cuts[min(i, len(cuts)-1)]*hidden, len(x))
		if err := q.Feed(layer, x[:n], &out); err != nil {
			return nil, fmt.Errorf("project layer %d: %w", layer, err)
		}
		x = x[n:]
		s.arrays[arrayPooled] = append(s.arrays[arrayPooled], out.Pooled.Data...)
		s.arrays[arrayIndex] = append(s.arrays[arrayIndex], out.Index.Data...)
		for i := range out.Boundaries {
			b := &out.Boundaries[i]
			s.keep(&b.State, fmt.Sprint(b.Pos))
			s.states[b.Pos] = copied(&b.State)
		}
	}
	var st kernels.State
	if err := q.Carry(layer, &st); err != nil {
		return nil, fmt.Errorf("read the carry of layer %d: %w", layer, err)
	}
	s.keep(&st, atEnd)
	return s, nil
}

// parts lists the arrays of a state under their names.
func parts(st *kernels.State) map[string][]uint16 {
	return map[string][]uint16{
		arrayWindow: st.Win, arrayBefore: st.WinPre,
		"buf_kv": st.Comp.BufKV, "buf_gate": st.Comp.BufGate, "prev_kv": st.Comp.PrevKV, "prev_gate": st.Comp.PrevGate,
		"idx_buf_kv": st.Index.BufKV, "idx_buf_gate": st.Index.BufGate, "idx_prev_kv": st.Index.PrevKV, "idx_prev_gate": st.Index.PrevGate,
	}
}

func (s *sequence) keep(st *kernels.State, at string) {
	for name, a := range parts(st) {
		if len(a) > 0 {
			s.arrays[name+"@"+at] = slices.Clone(a)
		}
	}
}

// copied is what a layer can be seeded with.
func copied(st *kernels.State) kernels.State {
	c := slices.Clone[[]uint16]
	return kernels.State{
		Win:   c(st.Win),
		Comp:  kernels.PoolState{PrevKV: c(st.Comp.PrevKV), PrevGate: c(st.Comp.PrevGate)},
		Index: kernels.PoolState{PrevKV: c(st.Index.PrevKV), PrevGate: c(st.Index.PrevGate)},
	}
}

// differs says where two sequences are not the same bits; empty where nowhere.
func (s *sequence) differs(want map[string][]uint16) string {
	for _, name := range names(want, s.arrays) {
		got, w := s.arrays[name], want[name]
		if len(got) != len(w) {
			return fmt.Sprintf("%s has %d elements, not %d", name, len(got), len(w))
		}
		for i := range w {
			if got[i] != w[i] {
				return fmt.Sprintf("%s differs from element %d on: %04x, not %04x", name, i, got[i], w[i])
			}
		}
	}
	return ""
}

// names are the names of both, in order.
func names(a, b map[string][]uint16) []string {
	var out []string
	for _, m := range []map[string][]uint16{a, b} {
		for name := range m {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
