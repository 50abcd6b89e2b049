package kernels

import "math"

// vectorSinCos returns sine and cosine of x as MLX's CPU backend computes them:
// the Cephes single-precision polynomials with fused multiply-adds. One value in
// seven differs from the correctly rounded one, by up to 6 units in the last place,
// which is why a library sine cannot replace it. x must be finite and below 2³⁰ in
// magnitude.
func vectorSinCos(x float32) (sin, cos float32) {
	neg := x < 0
	x = float32(math.Abs(float64(x)))
	// Octant, made even; x is reduced by that multiple of π/4 in three parts.
	e := (uint32(float32(x*1.27323954473516)) + 1) &^ 1
	y := float32(e)
	x = fused(-0.78515625, y, x)
	x = fused(-2.4187564849853515625e-4, y, x)
	x = fused(-3.77489497744594108e-8, y, x)
	z := float32(x * x)
	p := fused(fused(2.443315711809948e-5, z, -1.388731625493765e-3), z, 4.166664568298827e-2)
	p = float32(float32(p*z) * z)
	p = fused(z, -0.5, p) + 1
	q := fused(fused(-1.9515295891e-4, z, 8.3321608736e-3), z, -1.6666654611e-1)
	q = fused(x, float32(q*z), x)
	sin, cos = q, p
	if e&2 != 0 {
		sin, cos = p, q
	}
	if neg != (e&4 != 0) {
		sin = -sin
	}
	if (e-2)&4 == 0 {
		cos = -cos
	}
	return sin, cos
}

// librarySinCos rounds the float64 sine and cosine of the float32 angle.
func librarySinCos(x float32) (sin, cos float32) {
	s, c := math.Sincos(float64(x))
	return float32(s), float32(c)
}
