package verify

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pdlink/kernels/safetensors"
)

// checkState looks whether everything that is recorded can be: an array that no layer
// makes, or that lies beyond the prompt, would be passed over in silence.
func (r *Recording) checkState() error {
	if r.State == nil {
		return nil
	}
	for _, t := range r.State.Tensors() {
		if err := r.checkName(t.Name); err != nil {
			return err
		}
		if t.DType != safetensors.BF16 {
			return fmt.Errorf("%w: %s is %s, not BF16", ErrInput, t.Name, t.DType)
		}
	}
	return nil
}

// checkName looks whether a recorded array is one that the model makes of the prompt.
func (r *Recording) checkName(full string) error {
	number, name, ok := strings.Cut(strings.TrimPrefix(full, "layer_"), ".")
	layer, err := strconv.Atoi(number)
	if !ok || err != nil || layer < 0 || layer >= r.Geometry.Layers() || fmt.Sprintf("layer_%d.%s", layer, name) != full {
		return fmt.Errorf("%w: the recorded state has %s, which is of no layer of the model's %d", ErrInput, full, r.Geometry.Layers())
	}
	ratio := r.Geometry.Ratios[layer]
	base, at, placed := strings.Cut(name, "@")
	if known := arraysOf(ratio); !placed && !isArray(known.pools, name) || placed && !isArray(known.rows, base) {
		return fmt.Errorf("%w: the recorded state has %s, which a layer of ratio %d does not make", ErrInput, full, ratio)
	}
	if !placed || at == atEnd {
		return nil
	}
	pos, err := strconv.Atoi(at)
	switch {
	case err != nil || strconv.Itoa(pos) != at || pos <= 0 || pos%r.BlockTokens != 0:
		return fmt.Errorf("%w: the recorded state has %s, and %q is no end of a block of %d tokens", ErrInput, full, at, r.BlockTokens)
	case pos > r.Tokens:
		return fmt.Errorf("%w: the recorded state has %s, beyond the prompt's %d tokens", ErrInput, full, r.Tokens)
	}
	return nil
}

// arrayNames are the arrays of a layer: pools as they are named, rows before their @.
type arrayNames struct{ pools, rows []string }

func isArray(names []string, name string) bool { return slices.Contains(names, name) }

// arraysOf are the arrays that a layer of a ratio can have.
func arraysOf(ratio int) arrayNames {
	n := arrayNames{rows: []string{arrayWindow, arrayBefore}}
	if ratio > 0 {
		n.pools = append(n.pools, arrayPooled)
		n.rows = append(n.rows, "buf_kv", "buf_gate")
	}
	if ratio == overlap {
		n.pools = append(n.pools, arrayIndex)
		n.rows = append(n.rows, "prev_kv", "prev_gate", "idx_buf_kv", "idx_buf_gate", "idx_prev_kv", "idx_prev_gate")
	}
	return n
}

// overlap is the ratio of the layers that have an indexer, and rows from before.
const overlap = 4

// compare holds a layer's arrays to what was recorded of it.
func (v *verifier) compare(layer int, got *sequence) error {
	want := map[string][]uint16{}
	if v.rec.State != nil {
		for _, t := range v.rec.State.Tensors() {
			name, ok := strings.CutPrefix(t.Name, fmt.Sprintf("layer_%d.", layer))
			if !ok || !v.applies(name) {
				continue
			}
			b := make([]byte, t.Size()) // no more than the file has, which its reader checked
			if err := v.rec.State.ReadTensor(t, b); err != nil {
				return fmt.Errorf("%w: read %s: %w", ErrInput, t.Name, err)
			}
			want[name] = v.rows(layer, name, patterns(b))
		}
	}
	have := map[string][]uint16{}
	for name := range want {
		have[name] = got.arrays[name]
	}
	v.cover(layer, got, want)
	v.against(layer, v.recorded, have, want)
	return nil
}

// rows are those of a recorded array that the run has to make: of a pool, those that
// end within its tokens.
func (v *verifier) rows(layer int, name string, a []uint16) []uint16 {
	if v.o.Tokens == v.rec.Tokens || name != arrayPooled && name != arrayIndex {
		return a
	}
	g := &v.rec.Geometry
	dim := g.HeadDim
	if name == arrayIndex {
		dim = g.IndexDim
	}
	return a[:min(len(a), v.o.Tokens/g.Ratios[layer]*dim)]
}

// applies tells the recorded arrays that a run makes: a request does not keep the
// window behind the last boundary, and a shorter run has another end.
func (v *verifier) applies(name string) bool {
	base, at, ok := strings.Cut(name, "@")
	switch {
	case !ok:
		return true
	case at == atEnd:
		return v.o.Tokens == v.rec.Tokens && base != arrayWindow && base != arrayBefore
	}
	pos, err := strconv.Atoi(at)
	return err == nil && pos <= v.o.Tokens
}

// coverage is how many layers are recorded, of those that have arrays of a check.
type coverage struct{ whole, part, all int }

// cover counts a layer. The window before rotation is in no decoder's cache, so that
// it may be missing.
func (v *verifier) cover(layer int, got *sequence, want map[string][]uint16) {
	ratio := v.rec.Geometry.Ratios[layer]
	var made, there [2]int
	for name, a := range got.arrays {
		base, _, _ := strings.Cut(name, "@")
		if len(a) == 0 || base == arrayBefore || !v.applies(name) {
			continue
		}
		at := checkOf(classOf(name, ratio))
		made[at]++
		if _, ok := want[name]; ok {
			there[at]++
		}
	}
	for at := range made {
		c := &v.found[at]
		if made[at] == 0 {
			continue
		}
		c.all++
		switch there[at] {
		case 0:
		case made[at]:
			c.whole++
		default:
			c.part++
		}
	}
}

// String says how much is recorded; empty: all of it.
func (c coverage) String() string {
	switch {
	case c.whole == c.all:
		return ""
	case c.part > 0:
		return fmt.Sprintf("%d of %d layers recorded, %d of them in part", c.whole+c.part, c.all, c.part)
	}
	return fmt.Sprintf("%d of %d layers recorded", c.whole, c.all)
}

// checkOf is the check that a class belongs to.
func checkOf(class string) int {
	if isPooled(class) {
		return inPooled
	}
	return inArrays
}

// against takes two runs into a tally. What neither has is nothing to compare.
func (v *verifier) against(layer int, t *tally, got, want map[string][]uint16) {
	ratio := v.rec.Geometry.Ratios[layer]
	for _, name := range names(got, want) {
		class := classOf(name, ratio)
		switch g, w := got[name], want[name]; {
		case len(g) != len(w):
			v.fail(checkOf(class), "layer %d: %s has %d elements, not %d as %s", layer, name, len(g), len(w), t.against)
		case len(w) > 0:
			t.add(class, g, w)
		}
	}
}

// nothing says why there is nothing to hold a check's arrays against.
func (v *verifier) nothing(at int) string {
	switch c := v.found[at]; {
	case c.all == 0 && at == inPooled && !slices.ContainsFunc(v.o.Layers, v.pools):
		return "these layers have no pools"
	case c.all == 0 && at == inPooled:
		return fmt.Sprintf("%d tokens complete no row of a pool", v.o.Tokens)
	case c.all == 0:
		return fmt.Sprintf("%d tokens end no block of %d, and not the prompt", v.o.Tokens, v.rec.BlockTokens)
	case v.rec.State == nil:
		return "nothing is recorded to hold the reference against"
	}
	return fmt.Sprintf("0 of %d layers recorded: nothing to hold the reference against", v.found[at].all)
}

// pools reports whether a layer has a pool.
func (v *verifier) pools(layer int) bool { return v.rec.Geometry.Ratios[layer] > 0 }

// short names the pools of which the run is too short for a row; empty: none.
func (v *verifier) short() string {
	var ratios []int
	for _, layer := range v.o.Layers {
		if r := v.rec.Geometry.Ratios[layer]; r > v.o.Tokens {
			ratios = append(ratios, r)
		}
	}
	if len(ratios) == 0 {
		return ""
	}
	return fmt.Sprintf("%s left out: %d tokens complete no row", classOf(arrayPooled, slices.Max(ratios)), v.o.Tokens)
}
