//go:build unix

package omlx

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLockErrors(t *testing.T) {
	for errno, want := range map[unix.Errno]error{
		unix.EWOULDBLOCK: errHeld, unix.EBADF: errHeld, unix.ENOLCK: errNoLock, unix.ENOTSUP: errNoLock,
		unix.ENOSYS: errNoLock, unix.EIO: unix.EIO,
	} {
		if err := lockError(errno); !errors.Is(err, want) || (!errors.Is(want, errHeld) && !errors.Is(err, errno)) {
			t.Errorf("%v: %v, want %v", errno, err, want)
		}
	}
	if err := lockError(nil); err != nil {
		t.Error(err)
	}
}

// TestDirectoryErrors: where directories cannot be made durable, the message says
// what helps.
func TestDirectoryErrors(t *testing.T) {
	for errno, helps := range map[unix.Errno]bool{unix.EINVAL: true, unix.ENOTSUP: true, unix.ENOSYS: true, unix.EIO: false} {
		err := dirError("x", errno)
		if !errors.Is(err, errno) || strings.Contains(err.Error(), "--no-sync") != helps {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

// TestLinkedFolder: behind a subdirectory that is a link nothing is removed, neither
// by opening the store nor by writing the block.
func TestLinkedFolder(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	plan := tiny(Format5, 1)
	name := plan.Hashes[0].String()
	foreign := filepath.Join(elsewhere, "."+name+partSuffix)
	if err := errors.Join(os.WriteFile(foreign, []byte("precious"), 0o600), os.Symlink(elsewhere, filepath.Join(dir, name[:1]))); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, dir)
	j := mustBegin(t, s, plan)
	if err := errors.Join(writeAll(j), j.Close()); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(foreign); err != nil || string(data) != "precious" {
		t.Errorf("%q, %v", data, err)
	}
	// In a directory of the store's own it is stale.
	own := filepath.Join(dir, "own")
	if err := errors.Join(os.Rename(elsewhere, own), os.Remove(filepath.Join(dir, name[:1])), os.Rename(own, filepath.Join(dir, name[:1]))); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, dir)
	if _, err := os.Lstat(filepath.Join(dir, name[:1], filepath.Base(foreign))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a stale file of the store's own: %v", err)
	}
}
