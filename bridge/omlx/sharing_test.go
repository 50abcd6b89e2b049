package omlx

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestConflict: the name of a block is taken by something else.
func TestConflict(t *testing.T) {
	plan := tiny(Format5, 2)
	for name, place := range map[string]func(path string) error{
		"garbage":   func(p string) error { return os.WriteFile(p, []byte("garbage"), 0o600) },
		"empty":     func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"symlink":   func(p string) error { return os.Symlink("nowhere", p) },
		"other layout": func(p string) error {
			other := plan
			other.Spec.Format = Format4
			s, err := Open(t.TempDir(), StoreOptions{})
			if err != nil {
				return err
			}
			j, err := s.Begin(other)
			if err != nil {
				return err
			}
			if err := writeAll(j); err != nil {
				return err
			}
			return os.Rename(s.Path(plan.Hashes[1]), p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustOpen(t, t.TempDir())
			late := mustBegin(t, s, plan) // sees the name free
			path := s.Path(plan.Hashes[1])
			if err := place(path); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadFile(path)
			early := mustBegin(t, s, plan)
			if early.Present(1) || !errors.Is(early.Conflict(1), ErrConflict) || early.Conflict(0) != nil {
				t.Errorf("present %v, conflict %v", early.Present(1), early.Conflict(1))
			}
			for what, err := range map[string]error{
				"write": early.Write(1, 0, content(early, 1)), "seal": early.Seal(1), "publish": early.Publish(1),
			} {
				if !errors.Is(err, ErrConflict) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if err := writeAll(late); !errors.Is(err, ErrConflict) || !late.Present(0) || late.Present(1) {
				t.Errorf("late: %v", err)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
				t.Error("the file was changed")
			}
			if _, err := os.Lstat(path); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTwoJobs: two jobs, in two stores on one directory, write the same blocks at
// the same time.
func TestTwoJobs(t *testing.T) {
	for _, format := range []string{Format3, Format5} {
		dir := t.TempDir()
		plan := tiny(format, 6)
		var wg sync.WaitGroup
		for range 4 {
			j := mustBegin(t, mustOpen(t, dir), plan)
			wg.Go(func() {
				if err := writeAll(j); err != nil {
					t.Error(err)
				}
				for k := range j.Blocks() {
					if !j.Present(k) {
						t.Errorf("block %d is not present", k)
					}
				}
			})
		}
		wg.Wait()
		alone := mustOpen(t, t.TempDir())
		if err := writeAll(mustBegin(t, alone, plan)); err != nil {
			t.Fatal(err)
		}
		if !same(files(t, dir), files(t, alone.root)) {
			t.Error("files differ from those of one job alone")
		}
	}
}

// TestConcurrentUse writes all blocks from many goroutines, seals several at once
// and publishes in order, as the receiver does.
func TestConcurrentUse(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	plan := tiny(Format5, 8)
	j := mustBegin(t, s, plan)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for _, k := range rng.Perm(8) {
				wire := content(j, k)
				quarter := len(wire) / 4
				from, to := g*quarter, (g+1)*quarter
				if g == 3 {
					to = len(wire)
				}
				if err := j.Write(k, int64(from), wire[from:to]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for k := range 8 {
		wg.Go(func() {
			if err := j.Seal(k); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for k := range 8 {
		if err := j.Publish(k); err != nil {
			t.Fatal(err)
		}
	}
	alone := mustOpen(t, t.TempDir())
	if err := writeAll(mustBegin(t, alone, plan)); err != nil {
		t.Fatal(err)
	}
	if !same(files(t, s.root), files(t, alone.root)) {
		t.Error("files differ from those written one by one")
	}
}

// TestStaleParts: files of a dead writer go, everybody else's stay.
func TestStaleParts(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	plan := tiny(Format5, 2)
	dead := mustBegin(t, s, plan)
	live := mustBegin(t, s, plan)
	for k := range 2 {
		if err := errors.Join(dead.Write(k, 0, content(dead, k)), live.Write(k, 0, content(live, k))); err != nil {
			t.Fatal(err)
		}
	}
	var keep []string
	h := plan.Hashes[0].String()
	for _, name := range []string{"." + h + ".part.safetensors", h + "_tmp.safetensors", h + ".part", "." + h[1:] + ".part",
		"." + h + ".100.part", "notes.txt", "." + h + ".partial"} {
		path := filepath.Join(dir, "7", name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		keep = append(keep, path)
	}
	if err := os.Mkdir(filepath.Join(dir, "7", "."+h+".part"), 0o700); err != nil {
		t.Fatal(err)
	}
	// A killed process loses its open files and with them its locks.
	var stale []string
	for k := range dead.blocks {
		b := &dead.blocks[k]
		stale = append(stale, b.temp)
		if err := b.file.Close(); err != nil {
			t.Fatal(err)
		}
		b.file = nil
	}
	mustOpen(t, dir)
	for _, path := range stale {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	for k := range live.blocks {
		keep = append(keep, live.blocks[k].temp)
	}
	for _, path := range keep {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	for k := range 2 {
		sealAndPublish(t, live, k)
	}
}

// TestTakeOver: a dead writer's file in a store that is open already is replaced
// when its block is written again.
func TestTakeOver(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	plan := tiny(Format5, 1)
	path := filepath.Join(s.root, plan.Hashes[0].String()[:1], "."+plan.Hashes[0].String()+".part")
	if err := os.WriteFile(path, []byte("left behind, longer than nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeAll(mustBegin(t, s, plan)); err != nil {
		t.Fatal(err)
	}
	if got := files(t, s.root); len(got) != 1 {
		t.Errorf("%d files", len(got))
	}
	// A link in that place is neither followed nor removed.
	target := filepath.Join(t.TempDir(), "precious")
	plan.Hashes[0][31]++
	link := filepath.Join(s.root, plan.Hashes[0].String()[:1], "."+plan.Hashes[0].String()+".part")
	if err := errors.Join(os.WriteFile(target, []byte("x"), 0o600), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	if err := writeAll(mustBegin(t, s, plan)); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(target); err != nil || string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
	if to, err := os.Readlink(link); err != nil || to != target {
		t.Errorf("%q, %v", to, err)
	}
}
