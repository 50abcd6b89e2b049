package omlx

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// dropCache makes the next read of a file come from the disk: clean pages that
// nobody has mapped go.
func dropCache(b *testing.B, path string) {
	f, err := os.Open(path)
	if err == nil {
		err = errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
	}
	if err != nil {
		b.Fatal(err)
	}
}
