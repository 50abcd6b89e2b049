//go:build unix

package cmdline

import (
	"testing"

	"golang.org/x/sys/unix"
)

func makePipe(t *testing.T, path string) bool {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return true
}
