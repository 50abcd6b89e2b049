package omlx

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// syncDisk notes which directories are made durable, and fails if told to.
type syncDisk struct {
	osDisk
	mu   sync.Mutex
	dirs map[string]int
	err  error
}

func (d *syncDisk) syncDir(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dirs == nil {
		d.dirs = make(map[string]int)
	}
	d.dirs[path]++
	return d.err
}

// take returns what was noted, and forgets it.
func (d *syncDisk) take() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	dirs := d.dirs
	d.dirs = nil
	return dirs
}

func openSyncing(t *testing.T, dir string) (*Store, *syncDisk) {
	t.Helper()
	s := mustOpen(t, dir)
	d := &syncDisk{}
	s.disk, s.opt.NoSync = d, false
	return s, d
}

// TestPresentIsDurable: whoever gave a block its name may have died before that was
// durable, so Begin makes it so: each directory of the plan's blocks once.
func TestPresentIsDurable(t *testing.T) {
	dir := t.TempDir()
	plan := tiny(Format5, 40)
	if err := writeAll(mustBegin(t, mustOpen(t, dir), plan)); err != nil {
		t.Fatal(err)
	}
	want := make(map[string]int)
	for _, h := range plan.Hashes[:20] {
		want[filepath.Join(dir, h.String()[:1])] = 1
	}
	if len(want) < 5 || len(want) == 16 {
		t.Fatalf("%d directories test nothing", len(want))
	}
	s, d := openSyncing(t, dir)
	short := plan
	short.Hashes = plan.Hashes[:20]
	mustBegin(t, s, short)
	if got := d.take(); !maps.Equal(got, want) {
		t.Errorf("durable: %v, want %v", got, want)
	}
	mustBegin(t, s, plan)
	if got := d.take(); len(got) > 16 {
		t.Errorf("%d directories", len(got))
	}
	fresh := tiny(Format5, 3)
	fresh.Spec.Model = "other"
	for k := range fresh.Hashes {
		fresh.Hashes[k] = chainHash("other", nil, []uint32{uint32(k)}, nil)
	}
	mustBegin(t, s, fresh)
	if got := d.take(); got != nil {
		t.Errorf("no block is present, durable: %v", got)
	}
	d.err = syscall.EIO
	if _, err := s.Begin(plan); !errors.Is(err, syscall.EIO) {
		t.Errorf("a directory that is not durable: %v", err)
	}
	s.opt.NoSync = true
	d.take()
	mustBegin(t, s, plan)
	if got := d.take(); got != nil {
		t.Errorf("without synchronisation: %v", got)
	}
}

// TestYieldIsDurable: a block that another writer published meanwhile is durable
// before Settle says so.
func TestYieldIsDurable(t *testing.T) {
	dir := t.TempDir()
	plan := tiny(Format5, 1)
	s, d := openSyncing(t, dir)
	late := mustBegin(t, s, plan)
	if err := errors.Join(late.Write(0, 0, content(late, 0)), late.Seal(0)); err != nil {
		t.Fatal(err)
	}
	if err := writeAll(mustBegin(t, mustOpen(t, dir), plan)); err != nil {
		t.Fatal(err)
	}
	sub := filepath.Dir(s.Path(plan.Hashes[0]))
	d.err = syscall.EIO
	if err := late.Publish(0); err != nil || !late.Present(0) {
		t.Errorf("present %v, %v", late.Present(0), err)
	}
	for range 2 {
		if n, err := late.Settle(0, 1); n != 0 || !errors.Is(err, syscall.EIO) {
			t.Errorf("%d settled, %v", n, err)
		}
	}
	d.err = nil
	d.take()
	if n, err := late.Settle(0, 1); n != 1 || err != nil || d.take()[sub] != 1 {
		t.Errorf("the directory was not made durable: %d, %v", n, err)
	}
	if n, err := late.Settle(0, 1); n != 1 || err != nil || d.take() != nil {
		t.Errorf("once is enough: %d, %v", n, err)
	}
}

// TestClearedStore: somebody removes everything in a store that is open, blocks,
// directories and temporary files.
func TestClearedStore(t *testing.T) {
	for name, empty := range map[string]func(root string) error{
		"contents": func(root string) error {
			var errs []error
			for _, digit := range "0123456789abcdef" {
				errs = append(errs, os.RemoveAll(filepath.Join(root, string(digit))))
			}
			return errors.Join(errs...)
		},
		"all": os.RemoveAll,
	} {
		s, d := openSyncing(t, filepath.Join(t.TempDir(), "store"))
		plan := tiny(Format5, 3)
		before := mustBegin(t, s, plan)
		if err := before.Write(0, 0, content(before, 0)); err != nil {
			t.Fatal(err)
		}
		if err := empty(s.root); err != nil {
			t.Fatal(err)
		}
		if err := before.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
		d.take()
		if err := writeAll(mustBegin(t, s, plan)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d.take()[s.root] == 0 {
			t.Errorf("%s: the new directories are not durable", name)
		}
		alone := mustOpen(t, t.TempDir())
		if err := writeAll(mustBegin(t, alone, plan)); err != nil {
			t.Fatal(err)
		}
		if !same(files(t, s.root), files(t, alone.root)) || s.open.Load() != 0 {
			t.Errorf("%s: files differ, %d counted open", name, s.open.Load())
		}
	}
	// Between the look at a block and its directory: it is not there any more.
	dir := t.TempDir()
	plan := tiny(Format5, 2)
	if err := writeAll(mustBegin(t, mustOpen(t, dir), plan)); err != nil {
		t.Fatal(err)
	}
	s, d := openSyncing(t, dir)
	d.err = &os.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}
	if j := mustBegin(t, s, plan); j.Present(0) || j.Present(1) {
		t.Error("blocks in a directory that is gone are present")
	}
}

// TestNoLocks: on a file system without locks writing fails, says why and leaves
// nothing behind, and a store with files of others can be opened.
func TestNoLocks(t *testing.T) {
	dir := t.TempDir()
	plan := tiny(Format5, 2)
	other := filepath.Join(dir, plan.Hashes[1].String()[:1], "."+plan.Hashes[1].String()+partSuffix)
	if err := errors.Join(os.MkdirAll(filepath.Dir(other), 0o700), os.WriteFile(other, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s, err := open(dir, StoreOptions{NoSync: true}, osDisk{lock: func(*os.File) error { return errNoLock }})
		if err != nil {
			t.Fatal(err)
		}
		j := mustBegin(t, s, plan)
		for k := range 2 {
			if err := j.Write(k, 0, content(j, k)); !errors.Is(err, errNoLock) || !strings.Contains(err.Error(), "put the block store on one that can") {
				t.Errorf("block %d: %v", k, err)
			}
		}
		if got := files(t, dir); len(got) != 1 || s.open.Load() != 0 {
			t.Errorf("%d files, %d counted open", len(got), s.open.Load())
		}
	}
	if _, err := os.Lstat(other); err != nil {
		t.Errorf("somebody else's file: %v", err)
	}
}
