package verify

import (
	"errors"
	"math"

	"pdlink/kernels"
)

// ErrInput is returned for a recorded prefill that cannot be used; the text says
// what of it.
var ErrInput = errors.New("verify: unusable recording")

// Result is what became of a check.
type Result string

// The results of a check.
const (
	Passed  Result = "passed"
	Failed  Result = "failed"
	LeftOut Result = "left out" // there is nothing to check, and Detail says why
)

// The names of the checks, in the order in which they are made.
const (
	Arrays       = "arrays"       // windows and carried rows against what was recorded
	Pooled       = "pooled"       // pooled tensors against what was recorded
	SelfTest     = "self-test"    // how a prompt is cut changes no bit
	Continuation = "continuation" // a prompt that begins at a block's end goes on in the same bits
)

// Report is what Run found.
type Report struct {
	Engine   string // "cuda" or "reference"
	Why      string // the device, or why there is none
	Numerics string // rounding profile that the engine has
	Tokens   int    // of the prompt, that were computed
	Layers   int
	Checks   []Check
}

// Good reports whether no check failed and at least one passed.
func (r *Report) Good() bool {
	passed := false
	for _, c := range r.Checks {
		if c.Result == Failed {
			return false
		}
		passed = passed || c.Result == Passed
	}
	return passed
}

// Check is one check over all layers.
type Check struct {
	Name    string
	Result  Result
	Detail  string  // what failed first, or what was done
	Classes []Class // of Arrays and Pooled
}

// Class is how far arrays of one sort are from what they should be.
type Class struct {
	Name     string
	Against  string // "recorded" or "reference"
	Elements int
	Equal    int     // bit for bit
	L2       float64 // norm of the difference, relative to that of what it should be
	Least    float64 // share of equal elements that is demanded, 0 to 1
	Most     float64 // L2 that is allowed
}

// Good reports whether the class is within its limits.
func (c *Class) Good() bool {
	return c.Elements > 0 && float64(c.Equal) >= c.Least*float64(c.Elements) && c.L2 <= c.Most
}

// The sorts of array, by what rounding does to them.
const (
	rawRows       = "raw rows" // carried rows, and windows before rotation
	window        = "window"
	pooledOverlap = "pooled 4"
	pooledPlain   = "pooled 128"
	pooledIndex   = "indexer pooled"
)

// classOf is the sort of an array of a layer.
func classOf(name string, ratio int) string {
	switch {
	case name == arrayPooled && ratio == 128:
		return pooledPlain
	case name == arrayPooled:
		return pooledOverlap
	case name == arrayIndex:
		return pooledIndex
	case len(name) > 4 && name[:4] == "win@":
		return window
	}
	return rawRows
}

// isPooled tells the classes of check Pooled from those of Arrays.
func isPooled(class string) bool {
	return class == pooledOverlap || class == pooledPlain || class == pooledIndex
}

// limit is what is demanded of a class: see Class.
type limit struct{ least, most float64 }

// exact is demanded where an engine has the roundings and the order of sums of what
// it is held against.
func exact(string) limit { return limit{1, 0} }

// nearReference is demanded of a GPU against the reference of the same roundings:
// only the order of float32 sums of products differs. A kernel beyond it has a wrong
// order of pooling, or another meaning; see the numeric specification, 8.4.
func nearReference(class string) limit {
	switch class {
	case pooledOverlap, pooledIndex:
		return limit{0.993, 8e-4}
	case pooledPlain:
		return limit{0.975, 1.5e-3}
	}
	return limit{0.995, 5e-4}
}

// nearRecorded is demanded against a decoder that rounds elsewhere: MLX on a CPU is
// 1e-2 away from MLX on a Mac in pools of 128, and less in all others. A wrong
// rotation, order or weight is farther.
func nearRecorded(string) limit { return limit{0, 2e-2} }

// tally accumulates classes over layers.
type tally struct {
	against string
	limits  func(class string) limit
	order   []string
	classes map[string]*sums
}

type sums struct {
	elements, equal int
	diff, norm      float64
}

func newTally(against string, limits func(string) limit) *tally {
	return &tally{against: against, limits: limits, classes: map[string]*sums{}}
}

// add takes an array and what it should be, of the same length.
func (t *tally) add(class string, got, want []uint16) {
	s := t.classes[class]
	if s == nil {
		s = &sums{}
		t.classes[class] = s
		t.order = append(t.order, class)
	}
	s.elements += len(want)
	for i, w := range want {
		if got[i] == w {
			s.equal++
		}
		a, b := float64(kernels.Float32(got[i])), float64(kernels.Float32(w))
		s.diff += float64((a - b) * (a - b))
		s.norm += float64(b * b)
	}
}

// of returns the classes that are pooled, or those that are not.
func (t *tally) of(pooled bool) []Class {
	var out []Class
	for _, name := range t.order {
		if isPooled(name) != pooled {
			continue
		}
		s, l := t.classes[name], t.limits(name)
		c := Class{Name: name, Against: t.against, Elements: s.elements, Equal: s.equal, Least: l.least, Most: l.most}
		switch {
		case s.norm > 0:
			c.L2 = math.Sqrt(s.diff / s.norm)
		case s.diff > 0:
			c.L2 = math.Inf(1)
		}
		if math.IsNaN(s.diff) || math.IsNaN(s.norm) {
			c.L2 = math.Inf(1)
		}
		out = append(out, c)
	}
	return out
}
