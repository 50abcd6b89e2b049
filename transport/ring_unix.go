//go:build unix

package transport

import "syscall"

// mapMemory returns n bytes outside the Go heap, so that the collector never
// scans them and a device may write there, and the way to give them back.
func mapMemory(n int) ([]byte, func() error, error) {
	mem, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, nil, err
	}
	return mem, func() error { return syscall.Munmap(mem) }, nil
}
