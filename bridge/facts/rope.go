package facts

import (
	"fmt"
	"math"
	"slices"
)

// sampledPairs returns the pairs, of n, whose rotation is told: evenly from the
// first to the last.
func sampledPairs(n int) []int {
	out := make([]int, 0, samplePairs+1)
	for i := range samplePairs + 1 {
		out = append(out, i*(n-1)/samplePairs)
	}
	return slices.Compact(out)
}

// sampledPositions returns the positions at which a rotation is told, as far as an
// engine's tables reach.
func sampledPositions() []int { return []int{1, 255, 4095, 32767} }

// SampledLayers returns the layers of a model that are looked at: first, middle and
// last, and of DeepSeek-V4 the first of each ratio.
func SampledLayers(layers int, ratios []int) []int {
	if layers < 1 {
		return nil
	}
	out := []int{0, layers / 2, layers - 1}
	seen := map[int]bool{}
	for i, r := range ratios[:min(len(ratios), layers)] {
		if !seen[r] {
			seen[r] = true
			out = append(out, i)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// RopeOf returns the rotation by angles per position and pair, without a scale.
func RopeOf(first int, pairs string, angles []float32) Rope {
	r := Rope{Dims: 2 * len(angles), First: first, Pairs: pairs, Index: sampledPairs(len(angles)), At: sampledPositions()}
	for _, at := range r.At {
		cos, sin := make([]float64, len(r.Index)), make([]float64, len(r.Index))
		for k, i := range r.Index {
			s, c := math.Sincos(float64(float32(at) * angles[i]))
			cos[k], sin[k] = short(c), short(s)
		}
		r.Cos, r.Sin = append(r.Cos, cos), append(r.Sin, sin)
	}
	return r
}

// short leaves six digits of a number.
func short(v float64) float64 {
	if v == 0 {
		return 0
	}
	e := math.Pow(10, 5-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*e) / e
}

// difference says in what two rotations differ, for each of the two; ok is true
// where they do not, as far as both tell.
func (r *Rope) difference(o *Rope) (one, other string, ok bool) {
	if r.Dims != o.Dims || r.First != o.First || r.Pairs != o.Pairs {
		return r.form(), o.form(), false
	}
	for i, at := range r.At {
		k := slices.Index(o.At, at)
		if k < 0 {
			continue
		}
		for j, pair := range r.Index {
			l := slices.Index(o.Index, pair)
			if l < 0 {
				continue
			}
			a, b := turn{r.Cos[i][j], r.Sin[i][j]}, turn{o.Cos[k][l], o.Sin[k][l]}
			if !a.near(b) {
				return a.text(pair, at), b.text(pair, at), false
			}
		}
	}
	return "", "", true
}

// common reports whether two rotations tell anything of the same: a turn of one pair
// at one position, or that there is none.
func (r *Rope) common(o *Rope) bool {
	among := func(list []int) func(int) bool { return func(v int) bool { return slices.Contains(list, v) } }
	return r.Dims == 0 && o.Dims == 0 || slices.ContainsFunc(r.At, among(o.At)) && slices.ContainsFunc(r.Index, among(o.Index))
}

func (r *Rope) form() string {
	if r.Dims == 0 {
		return "none"
	}
	return fmt.Sprintf("%d features from %d in pairs of %s", r.Dims, r.First, r.Pairs)
}

// turn is where a pair of features is turned to.
type turn struct{ cos, sin float64 }

// near reports whether two are the same, but for the precision of tables.
func (t turn) near(o turn) bool {
	if !(math.Abs(t.cos-o.cos) <= tableStep && math.Abs(t.sin-o.sin) <= tableStep) { // NaN is not near
		return false
	}
	a, b := math.Atan2(t.sin, t.cos), math.Atan2(o.sin, o.cos)
	if most := max(math.Abs(a), math.Abs(b)); most < 1 {
		return math.Abs(a-b) <= turnLeast+turnShare*most
	}
	return true
}

func (t turn) text(pair, at int) string {
	text := fmt.Sprintf("pair %d turned by %.3g radians at position %d", pair, math.Atan2(t.sin, t.cos), at)
	if size := math.Hypot(t.cos, t.sin); math.Abs(size-1) > tableStep {
		text += fmt.Sprintf(" and scaled by %.4g", size)
	}
	return text
}
