package kernels

import "math"

// InverseFrequencies returns, per rotated pair, the factor that a token position
// is multiplied with to give the angle (radians), [RopeDim/2] float32. compressed
// selects the table of layers with a ratio and of all pools, otherwise that of
// layers without one. A pooled row uses the same table at the position of its first token.
//
// The decoder stores a frequency table and multiplies with its reciprocal; both
// reciprocals round, and both are reproduced.
func (g Geometry) InverseFrequencies(compressed bool) []float32 {
	base, yarn := g.RopeTheta, (*Yarn)(nil)
	if compressed {
		base, yarn = g.CompressRopeTheta, g.Yarn
	}
	t := make([]float32, g.RopeDim/2)
	for i := range t {
		t[i] = 1 / frequency(i, g.RopeDim, base, yarn)
	}
	return t
}

// frequency returns entry i of the decoder's stored table.
func frequency(i, dims int, base float64, y *Yarn) float32 {
	exponent := float32(2*i) / float32(dims)
	inv := 1 / float32(math.Pow(base, float64(exponent)))
	if y != nil {
		keep := 1 - yarnRamp(i, dims, base, y)
		inv = float32(float32(inv/float32(y.Factor))*(1-keep)) + float32(inv*keep)
	}
	return 1 / inv
}

// yarnRamp is 0 for pairs that keep their frequency, 1 for pairs that are slowed
// by the full factor, linear between.
func yarnRamp(i, dims int, base float64, y *Yarn) float32 {
	dim := func(rotations float64) float64 {
		return float64(dims) * math.Log(y.OriginalMaxPositions/(rotations*2*math.Pi)) / (2 * math.Log(base))
	}
	low := math.Max(math.Floor(dim(y.BetaFast)), 0)
	high := math.Min(math.Ceil(dim(y.BetaSlow)), float64(dims-1))
	if low == high {
		high += 0.001
	}
	r := (float32(i) - float32(low)) / float32(high-low)
	return min(max(r, 0), 1)
}

// rotate turns the interleaved pairs of tail (bf16 values in float32, two per
// entry of inv) by the angles of token position pos, in place. The results are
// bf16 values.
func rotate(n Numerics, tail, inv []float32, pos int) {
	p := float32(pos)
	tail = tail[:2*len(inv)]
	for i, f := range inv {
		angle := float32(p * f)
		a, b := tail[2*i], tail[2*i+1]
		if n == MLXCPU {
			s, c := vectorSinCos(angle)
			s, c = round(s), round(c)
			tail[2*i] = round(round(float32(a*c)) - round(float32(b*s)))
			tail[2*i+1] = round(round(float32(a*s)) + round(float32(b*c)))
			continue
		}
		s, c := librarySinCos(angle)
		tail[2*i] = round(float32(a*c) - float32(b*s))
		tail[2*i+1] = round(float32(a*s) + float32(b*c))
	}
}
