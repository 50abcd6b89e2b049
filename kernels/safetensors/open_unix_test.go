//go:build unix

package safetensors

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestOpenStrange: nothing but a regular file is opened, and nobody waits for it.
func TestOpenStrange(t *testing.T) {
	dir := t.TempDir()
	pipe, link, loop := filepath.Join(dir, "pipe"), filepath.Join(dir, "link"), filepath.Join(dir, "loop")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink(pipe, link), os.Symlink(loop, loop)); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(dir, "good")
	if err := errors.Join(os.WriteFile(good, sampleFile(t), 0o600), os.Symlink(good, filepath.Join(dir, "to-good"))); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{pipe: ErrHeader, link: ErrHeader, "/dev/zero": ErrHeader, dir: ErrHeader, loop: syscall.ELOOP} {
		done := make(chan error, 1)
		go func() { _, err := Open(path); done <- err }()
		select {
		case err := <-done:
			if !errors.Is(err, want) {
				t.Errorf("%s: %v", path, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: waits", path)
		}
	}
	f, err := Open(filepath.Join(dir, "to-good"))
	if err != nil {
		t.Fatalf("a link to a file: %v", err)
	}
	f.Close()
}
