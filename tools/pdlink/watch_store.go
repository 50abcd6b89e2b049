package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

const (
	// unknownBlock is what a block is taken to need before there was a transfer: 256
	// tokens of plain keys and values of 64 layers, as Qwen3-32B has; those of other
	// models are smaller.
	unknownBlock = 64 << 20

	// probeBytes is what is written to see that something can be: a page of memory, for
	// which every file system has to find room.
	probeBytes = 4096

	// strandedAfter is how old a file of a look is that nobody will remove any more: a
	// look takes a second at the most, or hangs with the file system.
	strandedAfter = time.Minute

	// strandedNames are the files that looks at a store make, those of `pdlink doctor`
	// too; the decoder's scan does not see them.
	strandedNames = ".pdlink-*.part*"
)

// roomFor looks whether a store can take the next block. Its look is called from one
// goroutine at a time.
type roomFor struct {
	block   atomic.Int64 // bytes of the largest block of transfers so far; 0: none was opened
	cleaned string       // directory without what earlier processes left
}

// opened notes a transfer whose blocks have so many bytes.
func (r *roomFor) opened(block int64) {
	for {
		was := r.block.Load()
		if block <= was || r.block.CompareAndSwap(was, block) {
			return
		}
	}
}

// look reports why a directory cannot take the next block; nil when it can.
func (r *roomFor) look(dir string) error {
	if r.cleaned != dir {
		removeStranded(dir, time.Now().Add(-strandedAfter))
		r.cleaned = dir
	}
	if err := writable(dir); err != nil {
		return err
	}
	need := r.block.Load()
	if need == 0 {
		need = unknownBlock
	}
	if free, _, ok := freeSpace(dir); ok && free < uint64(need) {
		return fmt.Errorf("the file system of %s is full: %s are free, and a block needs %s", dir, bytesText(free), bytesText(uint64(need)))
	}
	return nil
}

// writable reports why no file can be made and filled in a directory; nil when it can.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".pdlink-ready-*.part")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, probeBytes))
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

// removeStranded removes the files of looks from before a time, which a crash left. One
// that cannot be removed does no harm.
func removeStranded(dir string, before time.Time) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range list {
		if is, err := filepath.Match(strandedNames, e.Name()); err != nil || !is || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err == nil && info.ModTime().Before(before) {
			os.Remove(filepath.Join(dir, e.Name())) //nolint:errcheck // see above
		}
	}
}
