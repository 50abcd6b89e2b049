package kernels

import "math"

// BF16 rounds v to the nearest bf16 value, ties to even, and returns its bit
// pattern. Every NaN becomes the one quiet NaN 0x7fc0.
func BF16(v float32) uint16 {
	u := math.Float32bits(v)
	if v != v {
		return 0x7fc0
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// Float32 returns the value of a bf16 bit pattern; the conversion is exact.
func Float32(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// round rounds to bf16 and keeps the result in a float32.
func round(v float32) float32 { return Float32(BF16(v)) }

// unpack writes the values of src to dst, which must not be shorter.
func unpack(dst []float32, src []uint16) {
	dst = dst[:len(src)]
	for i, b := range src {
		dst[i] = Float32(b)
	}
}

// fused is a·b + c with the roundings of the definition that the decoder's CPU
// backend was reproduced with: the product is exact in float64, the sum is rounded
// to float64 and then to float32. Because the product is exact, a compiler that
// fuses the two operations yields the same bits.
func fused(a, b, c float32) float32 {
	return float32(float64(a)*float64(b) + float64(c))
}
