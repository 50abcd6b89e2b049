//go:build unix

package verbs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Map gives size bytes of zeroed, page-aligned memory outside the Go heap, and the
// function that gives it back, to be called once, when no device can touch it any
// more.
func Map(size int) (mem []byte, unmap func() error, err error) {
	mem, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return mem, func() error { return unix.Munmap(mem) }, nil
}
