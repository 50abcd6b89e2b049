// Package kernels computes a decoder's finished cache rows from what a prefill
// engine has in its hands. It is the plain-Go definition of "correct": an
// accelerated twin is held to it.
//
// Two kinds of model are known. DeepSeek-V4: [Layer] takes the attention input of
// one layer, in pieces of any length, and yields the sliding window, the pooled
// rows and the carries that the decoder would have cached, with the decoder's own
// roundings and summation orders ([Numerics]). Plain key/value models:
// [GatherKV] only moves bytes from token-major to head-major order.
//
// All bf16 values are bit patterns in uint16. Wherever a rounding decides a bit,
// products are converted explicitly before they are added, so that no compiler
// fuses the two and every architecture yields the same bits. The exceptions are
// the library exponential, sine and power, which are evaluated in float64 and
// rounded to float32; there the last float64 bit may depend on the architecture.
package kernels
