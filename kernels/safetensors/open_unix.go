//go:build unix

package safetensors

import "syscall"

// openFlags keep an open from waiting for a pipe's other end.
const openFlags = syscall.O_NONBLOCK
