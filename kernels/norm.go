package kernels

import "math"

// finisher turns a projected or pooled row into a cached one: weighted RMS norm
// with the decoder's two roundings, then rotation of the row's tail. It keeps a
// scratch row, so one goroutine may use it at a time.
type finisher struct {
	numerics Numerics
	eps      float32
	weight   []float32 // [dim]
	inv      []float32 // [rope/2], see InverseFrequencies
	row      []float32 // [dim], scratch
}

func newFinisher(n Numerics, g Geometry, weight []uint16, compressed bool) finisher {
	f := finisher{numerics: n, eps: float32(g.NormEps), inv: g.InverseFrequencies(compressed)}
	f.weight, f.row = make([]float32, len(weight)), make([]float32, len(weight))
	unpack(f.weight, weight)
	return f
}

// finish reads the bf16 row raw of token position pos and writes the finished row
// to dst and, unless pre is nil, the normed row before rotation to pre. All have
// the finisher's width; raw may be dst.
func (f *finisher) finish(dst, pre, raw []uint16, pos int) {
	unpack(f.row, raw)
	rmsNorm(f.numerics, f.row, f.weight, f.eps)
	if pre != nil {
		pack(pre, f.row)
	}
	rotate(f.numerics, f.row[len(f.row)-2*len(f.inv):], f.inv, pos)
	pack(dst, f.row)
}

// rmsNorm replaces row by round(round(row · r) · weight) with
// r = 1/sqrt(mean(row²) + eps).
func rmsNorm(n Numerics, row, weight []float32, eps float32) {
	r := 1 / float32(math.Sqrt(float64(meanSquare(n, row)+eps)))
	weight = weight[:len(row)]
	for i, v := range row {
		row[i] = round(float32(round(float32(v*r)) * weight[i]))
	}
}

func meanSquare(n Numerics, row []float32) float32 {
	if n == MLXCPU {
		var s float32
		for _, v := range row {
			s += float32(v * v)
		}
		return float32(s * float32(1/float64(len(row))))
	}
	var s float64
	for _, v := range row {
		s += float64(v) * float64(v)
	}
	return float32(s / float64(len(row)))
}

// pack writes bf16 values held in float32 as bit patterns; values that are no bf16
// values are rounded.
func pack(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	for i, v := range src {
		dst[i] = BF16(v)
	}
}
