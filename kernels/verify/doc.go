// Package verify holds a projection against what a decoder had: the GPU's or the
// reference's, over a recorded prefill. It computes and compares arrays and knows
// nothing of block files.
package verify
