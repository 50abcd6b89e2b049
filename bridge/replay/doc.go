// Package replay makes a transfer's pieces from a case: a directory that holds
// what a prefill engine had in its hands for one prompt (see [Load] for the
// form), and possibly the block files that the decoder itself wrote for it. It
// drives the same kernels and layouts as a live prefill does, so a recorded
// prompt is both a test and a way to measure.
//
// A case can be read again, so its transfers need no slots kept until blocks
// are durable.
package replay
