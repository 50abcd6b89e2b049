//go:build unix

package omlx

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestFileMode(t *testing.T) {
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	s := mustOpen(t, filepath.Join(t.TempDir(), "deep", "store"))
	plan := tiny(Format5, 1)
	if err := writeAll(mustBegin(t, s, plan)); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(s.Path(plan.Hashes[0]))
	if err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}
