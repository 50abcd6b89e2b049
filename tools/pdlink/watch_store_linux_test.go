package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestStoreThatIsFullIsNotReady: when what is free is less than the next block needs, and
// ready again when that is small. What earlier looks left goes with the first one.
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
	small.opened(1000)
	small.opened(10) // the largest counts
	if n := small.block.Load(); n != 1000 {
		t.Errorf("a block of %d bytes", n)
	}
	for range 2 {
		if err := small.look(dir); err != nil {
			t.Error(err)
		}
		holds()
	}
	large.opened(1 << 62)
	if err := large.look(dir); err == nil || !strings.HasPrefix(err.Error(), "the file system of "+dir+" is full: ") {
		t.Errorf("%v", err)
	}
	holds()
	if err := small.look(filepath.Join(dir, "gone")); err == nil {
		t.Error("ready without a store")
	}
}
