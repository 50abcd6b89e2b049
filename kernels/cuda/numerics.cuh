// The leaf functions that decide bits, for the device and, so that they can be
// tested where there is none, for the host. Compiled without contraction: every
// product and sum rounds as written, and only fmaf and fma fuse.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define LEAF __host__ __device__ __forceinline__
#else
#define LEAF static inline
#endif

namespace pd {

LEAF uint32_t bits(float v) {
#ifdef __CUDA_ARCH__
	return __float_as_uint(v);
#else
	uint32_t u;
	memcpy(&u, &v, sizeof u);
	return u;
#endif
}

LEAF float value(uint32_t u) {
#ifdef __CUDA_ARCH__
	return __uint_as_float(u);
#else
	float v;
	memcpy(&v, &u, sizeof v);
	return v;
#endif
}

// Rounds to the nearest bf16, ties to even; NaN stays a NaN.
LEAF uint32_t pattern(float v) {
	uint32_t u = bits(v);
	u = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
	return v != v ? 0x7fc0u : u;
}

LEAF float unpack(uint32_t pattern) { return value(pattern << 16); }

// Rounds to bf16 and keeps the result in a float. One conversion instruction on
// the device.
LEAF float round16(float v) {
#ifdef __CUDA_ARCH__
	unsigned short h;
	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v));
	return value((uint32_t)h << 16);
#else
	return unpack(pattern(v));
#endif
}

// 2^(j/8) as a sum of two floats.
struct Power {
	float hi, lo;
};

constexpr int powers = 8;

LEAF Power power(int j) {
	const Power t[powers] = {
		{0x1p+0f, 0},
		{0x1.172b84p+0f, -0x1.c15742p-27f},
		{0x1.306fe0p+0f, 0x1.4636e2p-25f},
		{0x1.4bfdaep+0f, -0x1.593abcp-25f},
		{0x1.6a09e6p+0f, 0x1.9fcef4p-26f},
		{0x1.8ace54p+0f, 0x1.15506ep-27f},
		{0x1.ae89fap+0f, -0x1.a94b14p-26f},
		{0x1.d5818ep+0f, -0x1.822dbcp-27f},
	};
	return t[j];
}

// The exponential of x <= 0, wrong in the last bit about once in 100 values, so
// that a weight rounded to bf16 differs from the exact one in a few of 10^7 cases.
// Below -87, where results leave the normal range, it is zero. x = n·ln2/8 + s, and table holds
// what power gives.
LEAF float exp0(float x, const Power *table) {
	const float z = fmaf(x, 0x1.715476p+3f, 0x1.8p+23f); // its low bits are n
	const float n = z - 0x1.8p+23f;
	const float s = fmaf(n, -0x1.0bfbe8p-18f, fmaf(n, -0x1.62ep-4f, x));
	const float p = fmaf(fmaf(s, 0x1.555556p-5f, 0x1.555556p-3f), s, 0.5f);
	const float e = fmaf(s * p, s, s);
	const uint32_t i = bits(z);
	const Power t = table[i & 7];
	const float m = t.hi + fmaf(t.hi, e, t.lo);
	return x < -87.0f ? 0.0f : value(bits(m) + ((i & ~7u) << 20));
}

// e/sum correctly rounded, for normal values; r is 1/sum refined by inverse.
LEAF float inverse(float sum) {
#ifdef __CUDA_ARCH__
	float r;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(sum));
	return fmaf(r, fmaf(-sum, r, 1.0f), r);
#else
	return 1.0f / sum;
#endif
}

LEAF float quotient(float e, float sum, float r) {
	const float q = e * r;
	return fmaf(fmaf(-sum, q, e), r, q);
}

// Sine and cosine of a float32 angle, |x| < 2^24, each rounded once from a double
// that is good to 2^-50. Series, because the reduced angle is below pi/4.
LEAF void sincos32(float x, float *sine, float *cosine) {
	const double d = (double)x;
	const double n = rint(d * 0.63661977236758134308);
	double r = fma(n, -1.57079632679489655800, d);
	r = fma(n, -6.12323399573676603587e-17, r);
	const double z = r * r;
	double s = 1.0 / 355687428096000.0;
	s = fma(s, z, -1.0 / 1307674368000.0);
	s = fma(s, z, 1.0 / 6227020800.0);
	s = fma(s, z, -1.0 / 39916800.0);
	s = fma(s, z, 1.0 / 362880.0);
	s = fma(s, z, -1.0 / 5040.0);
	s = fma(s, z, 1.0 / 120.0);
	s = fma(s, z, -1.0 / 6.0);
	s = fma(s * z, r, r);
	double c = 1.0 / 20922789888000.0;
	c = fma(c, z, -1.0 / 87178291200.0);
	c = fma(c, z, 1.0 / 479001600.0);
	c = fma(c, z, -1.0 / 3628800.0);
	c = fma(c, z, 1.0 / 40320.0);
	c = fma(c, z, -1.0 / 720.0);
	c = fma(c, z, 1.0 / 24.0);
	c = fma(c, z, -0.5);
	c = fma(c, z, 1.0);
	const int quadrant = (int)n & 3;
	const double a = quadrant & 1 ? c : s, b = quadrant & 1 ? s : c;
	*sine = (float)(quadrant & 2 ? -a : a);
	*cosine = (float)((quadrant + 1) & 2 ? -b : b);
}

// 1/sqrt(mean + eps), both operations correctly rounded; part is 1/n.
LEAF float scale_of(double sum, double part, float eps) {
	const float mean = (float)(sum * part);
#ifdef __CUDA_ARCH__
	return __frcp_rn(__fsqrt_rn(mean + eps));
#else
	return 1.0f / sqrtf(mean + eps);
#endif
}

// Rotates one pair by the angle position·factor, one rounding each.
LEAF void rotated(float *a, float *b, float position, float factor) {
	float s, c;
	sincos32(position * factor, &s, &c);
	const float x = *a, y = *b;
	*a = round16(x * c - y * s);
	*b = round16(x * s + y * c);
}

} // namespace pd
