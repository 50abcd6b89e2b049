//go:build !unix

package verbs

// Map gives size bytes of zeroed memory. No device is here that could be given it, so
// it may be Go's.
func Map(size int) (mem []byte, unmap func() error, err error) {
	return make([]byte, size), func() error { return nil }, nil
}
