package omlx

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nobody is an account that owns nothing.
const nobody = 65534

// asOther runs call with the file rights of another account. Only root can do
// that; for the others the modes of the files say the same.
func asOther(t *testing.T, call func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		call()
		return
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its rights
		_, err := unix.SetfsuidRetUid(nobody)
		if got, _ := unix.SetfsuidRetUid(nobody); err == nil && got != nobody {
			err = unix.EPERM
		}
		if err == nil {
			call()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("become another account: %v", err)
	}
}

// sharedStore makes a store into which all accounts may write.
func sharedStore(t *testing.T, mode os.FileMode) *Store {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, dir)
	for _, sub := range append(subdirectories(dir), dir) {
		if err := os.Chmod(sub, mode); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func subdirectories(dir string) []string {
	var out []string
	for _, digit := range "0123456789abcdef" {
		out = append(out, filepath.Join(dir, string(digit)))
	}
	return out
}

// TestLivePartOfAnotherAccount: whatever the rights on one account's temporary
// file, another opens the store and writes the same block.
func TestLivePartOfAnotherAccount(t *testing.T) {
	for _, mode := range []os.FileMode{0o644, 0o444, 0} {
		s := sharedStore(t, 0o777)
		plan := tiny(Format5, 2)
		owner := mustBegin(t, s, plan)
		wire := content(owner, 0)
		if err := owner.Write(0, 0, wire); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(owner.blocks[0].temp, mode); err != nil {
			t.Fatal(err)
		}
		asOther(t, func() {
			other, err := Open(s.root, StoreOptions{NoSync: true})
			if err != nil {
				t.Errorf("mode %v: %v", mode, err)
				return
			}
			j, err := other.Begin(plan)
			if err != nil {
				t.Errorf("mode %v: %v", mode, err)
				return
			}
			if err := errors.Join(writeAll(j), j.Close()); err != nil {
				t.Errorf("mode %v: %v", mode, err)
			}
		})
		if _, err := os.Lstat(owner.blocks[0].temp); err != nil {
			t.Errorf("mode %v: the owner's file: %v", mode, err)
		}
		sealAndPublish(t, owner, 0)
		if st := owner.blocks[0].state; st != statePresent {
			t.Errorf("mode %v: state %d", mode, st)
		}
	}
}

// TestDeadPartOfAnotherAccount: it is removed where the rights on file and
// directory allow that, and is in nobody's way where they do not.
func TestDeadPartOfAnotherAccount(t *testing.T) {
	for name, c := range map[string]struct {
		dir, file os.FileMode
		gone      bool
	}{
		"readable":   {0o777, 0o444, true},
		"unreadable": {0o777, 0, false},
		"sticky":     {0o777 | os.ModeSticky, 0o444, os.Geteuid() != 0}, // one's own can be removed
	} {
		s := sharedStore(t, c.dir)
		plan := tiny(Format5, 1)
		path := filepath.Join(filepath.Dir(s.Path(plan.Hashes[0])), "."+plan.Hashes[0].String()+partSuffix)
		if err := errors.Join(os.WriteFile(path, []byte("left behind"), 0o600), os.Chmod(path, c.file)); err != nil {
			t.Fatal(err)
		}
		asOther(t, func() {
			other, err := Open(s.root, StoreOptions{NoSync: true})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			j, err := other.Begin(plan)
			if err == nil {
				err = errors.Join(writeAll(j), j.Close())
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) != c.gone {
			t.Errorf("%s: %v, want it gone: %v", name, err, c.gone)
		}
	}
}

// TestForbiddenStore: the message says what to do.
func TestForbiddenStore(t *testing.T) {
	s := sharedStore(t, 0o777)
	if err := os.Chmod(filepath.Join(s.root, "a"), 0); err != nil {
		t.Fatal(err)
	}
	asOther(t, func() {
		if _, err := Open(s.root, StoreOptions{}); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "let this account") {
			t.Error(err)
		}
	})
	if err := os.Chmod(filepath.Join(s.root, "a"), 0o777); err != nil { // so that it can be cleaned up
		t.Fatal(err)
	}
}

// TestUnreadableBlock: a block that this account may not read is a conflict at
// its place and not the end of every plan that names it.
func TestUnreadableBlock(t *testing.T) {
	s := sharedStore(t, 0o777)
	plan := tiny(Format5, 2)
	if err := writeAll(mustBegin(t, s, plan)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.Path(plan.Hashes[1]), 0); err != nil {
		t.Fatal(err)
	}
	asOther(t, func() {
		j, err := s.Begin(plan)
		if err != nil {
			t.Error(err)
			return
		}
		if !j.Present(0) || j.Present(1) || !errors.Is(j.Conflict(1), ErrConflict) {
			t.Errorf("present %v, %v; conflict %v", j.Present(0), j.Present(1), j.Conflict(1))
		}
	})
}

// TestLinkedNameStays: a block that has its name is published, even if its
// temporary name cannot go.
func TestLinkedNameStays(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	temp, final := filepath.Join(from, "temp"), filepath.Join(to, "final")
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Mkdir(from, 0o755), os.Mkdir(to, 0o755), os.Chmod(to, 0o777),
		os.WriteFile(temp, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(temp, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(from, 0o555); err != nil {
		t.Fatal(err)
	}
	asOther(t, func() {
		if err := linkNew(temp, final); err != nil {
			t.Error(err)
		}
		if err := linkNew(temp, final); !errors.Is(err, fs.ErrExist) {
			t.Errorf("again: %v", err)
		}
	})
	for _, path := range []string{temp, final} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	if err := os.Chmod(from, 0o755); err != nil { // so that it can be cleaned up
		t.Fatal(err)
	}
}

// TestStrangePart: what is no file under a temporary file's name is left alone, and
// nobody waits for it.
func TestStrangePart(t *testing.T) {
	for name, place := range map[string]func(path string) error{
		"pipe":      func(p string) error { return unix.Mkfifo(p, 0o600) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"link":      func(p string) error { return os.Symlink("nowhere", p) },
	} {
		s := mustOpen(t, t.TempDir())
		plan := tiny(Format5, 1)
		path := filepath.Join(filepath.Dir(s.Path(plan.Hashes[0])), "."+plan.Hashes[0].String()+partSuffix)
		if err := place(path); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			j, err := s.Begin(plan)
			if err == nil {
				err = errors.Join(writeAll(j), j.Close())
			}
			done <- err
		}()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the store waits for it", name)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
