//go:build unix

package omlx

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestFileMode: the umask alone decides who shares a store.
func TestFileMode(t *testing.T) {
	for umask, want := range map[int]struct{ dir, file os.FileMode }{
		0o022: {0o755, 0o644}, 0o002: {0o775, 0o664}, 0o027: {0o750, 0o640}, 0o077: {0o700, 0o600},
	} {
		old := syscall.Umask(umask)
		s := mustOpen(t, filepath.Join(t.TempDir(), "deep", "store"))
		plan := tiny(Format5, 1)
		err := writeAll(mustBegin(t, s, plan))
		syscall.Umask(old)
		if err != nil {
			t.Fatal(err)
		}
		path := s.Path(plan.Hashes[0])
		for path, want := range map[string]os.FileMode{path: want.file, filepath.Dir(path): want.dir, s.root: want.dir} {
			st, err := os.Stat(path)
			if err != nil || st.Mode().Perm() != want {
				t.Errorf("umask %#o: %v, want %v, %v", umask, st.Mode(), want, err)
			}
		}
	}
}
