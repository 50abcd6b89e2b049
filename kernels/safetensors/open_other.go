//go:build !unix

package safetensors

// openFlags has no counterpart here.
const openFlags = 0
