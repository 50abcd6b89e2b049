package kernels

import "math"

// polyExp is the exponential of MLX's CPU backend: a power of two times a
// polynomial in the fraction. The last factor of two is exact.
func polyExp(x float32) float32 {
	switch {
	case x != x:
		return x
	case x > 88:
		return float32(math.Inf(1))
	case x < -88:
		return 0
	}
	y := float32(x * 1.442695)
	whole := float32(math.Floor(float64(y) + 0.5))
	frac := y - whole
	p := float32(1.535336188319500e-4)
	p = fused(p, frac, 1.339887440266574e-3)
	p = fused(p, frac, 9.618437357674640e-3)
	p = fused(p, frac, 5.550332471162809e-2)
	p = fused(p, frac, 2.402264791363012e-1)
	p = fused(p, frac, 6.931472028550421e-1)
	p = fused(p, frac, 1)
	return float32(math.Float32frombits(uint32(int32(whole)+127)<<23) * p)
}

// partials is the number of partial sums into which the Metal kernels split a
// column of that many rows or more; shorter columns are summed serially.
const partials = 32

// reducer holds the per-feature scratch of softmax and pooling sum over the rows
// of one pooling window. One goroutine may use it at a time.
type reducer struct {
	numerics Numerics
	acc      []float32 // [dim]
	wide     []float64 // [dim]
}

func newReducer(n Numerics, dim int) reducer {
	return reducer{numerics: n, acc: make([]float32, dim), wide: make([]float64, dim)}
}

// softmax replaces g, row-major [rows, dim], by its softmax over the rows, each
// weight rounded to bf16.
func (r *reducer) softmax(g []float32) {
	dim := len(r.acc)
	top := r.acc
	copy(top, g[:dim])
	for j := dim; j < len(g); j += dim {
		for d, v := range g[j : j+dim] {
			if v > top[d] {
				top[d] = v
			}
		}
	}
	for j := 0; j < len(g); j += dim {
		row := g[j : j+dim]
		if r.numerics == MLXCPU {
			for d, v := range row {
				row[d] = polyExp(v - top[d])
			}
			continue
		}
		for d, v := range row {
			row[d] = float32(math.Exp(float64(v - top[d])))
		}
	}
	r.sum(g)
	for j := 0; j < len(g); j += dim {
		row := g[j : j+dim]
		for d, v := range row {
			row[d] = round(v / r.acc[d])
		}
	}
}

// sum leaves the per-feature sum of the rows of e in acc, in the order of the
// profile's softmax.
func (r *reducer) sum(e []float32) {
	dim := len(r.acc)
	switch {
	case r.numerics == Ideal:
		clear(r.wide)
		for j := 0; j < len(e); j += dim {
			for d, v := range e[j : j+dim] {
				r.wide[d] += float64(v)
			}
		}
		r.narrow()
	case r.numerics == MLXMetal && len(e) >= partials*dim:
		clear(r.wide)
		for j := 0; j < partials*dim; j += dim {
			copy(r.acc, e[j:j+dim])
			for k := j + partials*dim; k < len(e); k += partials * dim {
				for d, v := range e[k : k+dim] {
					r.acc[d] += v
				}
			}
			r.widen()
		}
		r.narrow()
	default:
		clear(r.acc)
		for j := 0; j < len(e); j += dim {
			for d, v := range e[j : j+dim] {
				r.acc[d] += v
			}
		}
	}
}

// weightedSum writes Σ round(kv · w) over the rows to dst as bf16, summed in the
// order and precision of the profile. kv and w are row-major [rows, dim].
func (r *reducer) weightedSum(dst []uint16, kv, w []float32) {
	dim := len(r.acc)
	switch {
	case r.numerics == Ideal:
		clear(r.wide)
		for j := 0; j < len(kv); j += dim {
			a, b := kv[j:j+dim], w[j:j+dim]
			for d, v := range a {
				r.wide[d] += float64(round(float32(v * b[d])))
			}
		}
		r.narrow()
	case r.numerics == MLXMetal && len(kv) >= partials*dim:
		clear(r.wide)
		for j := 0; j < partials*dim; j += dim {
			r.addRows(kv, w, j, partials*dim)
			r.widen()
		}
		r.narrow()
	default:
		r.addRows(kv, w, 0, dim)
	}
	pack(dst, r.acc)
}

// addRows sums the rounded products of the rows at first, first+step, … into acc,
// rounding to bf16 at each addition.
func (r *reducer) addRows(kv, w []float32, first, step int) {
	clear(r.acc)
	dim := len(r.acc)
	for j := first; j < len(kv); j += step {
		a, b := kv[j:j+dim], w[j:j+dim]
		for d, v := range a {
			r.acc[d] = round(r.acc[d] + round(float32(v*b[d])))
		}
	}
}

func (r *reducer) widen() {
	for d, v := range r.acc {
		r.wide[d] += float64(v)
	}
}

func (r *reducer) narrow() {
	for d, v := range r.wide {
		r.acc[d] = float32(v)
	}
}
