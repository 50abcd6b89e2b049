package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pdlink/bridge"
)

// TestStoreThatIsFullIsNotReady: when what is free is less than the next block needs, and
// ready again when that is small. What earlier looks left goes after the first one.
func TestStoreThatIsFullIsNotReady(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{".pdlink-ready-1.part", ".pdlink-doctor-2.part", ".pdlink-doctor-2.part.mode"} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, old, old); err != nil {
			t.Fatal(err)
		}
	}
	others := []string{".0123.part", ".pdlink-ready-3.part", "0123.safetensors"} // blocks, and the look of another process
	for _, name := range others {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(filepath.Join(dir, others[0]), old, old); err != nil {
		t.Fatal(err)
	}
	holds := func() {
		t.Helper()
		var is []string
		list, err := os.ReadDir(dir)
		for _, e := range list {
			is = append(is, e.Name())
		}
		if err != nil || !slices.Equal(is, others) {
			t.Errorf("%v: %q", err, is)
		}
	}
	var small, large roomFor
	small.took(1000)
	small.took(10) // the largest counts
	if n := small.block.Load(); n != 1000 {
		t.Errorf("a block of %d bytes", n)
	}
	for range 2 {
		if err := small.look(dir); err != nil {
			t.Error(err)
		}
		<-small.swept
		holds()
	}
	large.took(1 << 62)
	if err := large.look(dir); err == nil || !strings.HasPrefix(err.Error(), "the file system of "+dir+" is full: ") {
		t.Errorf("%v", err)
	}
	<-large.swept
	holds()
	if err := small.look(filepath.Join(dir, "gone")); err == nil {
		t.Error("ready without a store")
	}
}

// sealing is a target that seals blocks, or does not.
type sealing struct {
	bridge.Target
	err error
}

// Seal implements bridge.Target.
func (s sealing) Seal(int) error { return s.err }

// TestOnlyBlocksThatCameCount: a plan of large ones that fails does not.
func TestOnlyBlocksThatCameCount(t *testing.T) {
	var r roomFor
	bad := errors.New("bad block")
	if err := (taking{sealing{err: bad}, &r, 1 << 30}).Seal(0); !errors.Is(err, bad) || r.block.Load() != 0 {
		t.Errorf("%v, a block of %d bytes", err, r.block.Load())
	}
	if err := (taking{sealing{}, &r, 1000}).Seal(0); err != nil || r.block.Load() != 1000 {
		t.Errorf("%v, a block of %d bytes", err, r.block.Load())
	}
}
