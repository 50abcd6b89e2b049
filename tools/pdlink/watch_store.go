package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"pdlink/bridge"
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

	// sweepTime is how long they are looked for: a million names of a disk that has to
	// seek take less.
	sweepTime = 5 * time.Minute

	// sweepNames is how many names of a directory are held at a time.
	sweepNames = 1024
)

// roomFor looks whether a store can take the next block. Its look is called from one
// goroutine at a time.
type roomFor struct {
	block atomic.Int64  // bytes of the largest block that was taken so far; 0: none was
	dir   string        // the directory that swept is of
	swept chan struct{} // closed when what earlier processes left in dir is removed
}

// took notes that a block of so many bytes was taken.
func (r *roomFor) took(block int64) {
	for {
		was := r.block.Load()
		if block <= was || r.block.CompareAndSwap(was, block) {
			return
		}
	}
}

// taking is a target whose blocks are noted when they are there: a plan of large ones of
// which none comes does not count.
type taking struct {
	bridge.Target
	room *roomFor
	size int64 // of a block, bytes
}

// Seal implements bridge.Target.
func (t taking) Seal(block int) error {
	err := t.Target.Seal(block)
	if err == nil {
		t.room.took(t.size)
	}
	return err
}

// look reports why a directory cannot take the next block; nil when it can.
func (r *roomFor) look(dir string) error {
	if err := writable(dir); err != nil {
		return err
	}
	r.sweep(dir)
	need := r.block.Load()
	if need == 0 {
		need = unknownBlock
	}
	// A file system that does not know its size does not know what is free either.
	if free, total, ok := freeSpace(dir); ok && total > 0 && free < uint64(need) {
		return fmt.Errorf("the file system of %s is full: %s are free, and a block needs %s", dir, bytesText(free), bytesText(uint64(need)))
	}
	return nil
}

// sweep has what earlier processes left in a directory removed, once, and does not wait for
// it: a store may have very many names. One that hangs keeps one goroutine.
func (r *roomFor) sweep(dir string) {
	if r.dir == dir {
		return
	}
	if r.swept != nil {
		select {
		case <-r.swept:
		default:
			return // of another directory, still
		}
	}
	done := make(chan struct{})
	r.dir, r.swept = dir, done
	go func() {
		defer close(done)
		now := time.Now()
		removeStranded(dir, now.Add(-strandedAfter), now.Add(sweepTime))
	}()
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

// removeStranded removes the files of looks from before a time, which a crash left, until
// it is too late. One that cannot be removed does no harm.
func removeStranded(dir string, before, end time.Time) {
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	defer d.Close() //nolint:errcheck // it was read
	for time.Now().Before(end) {
		list, err := d.ReadDir(sweepNames)
		for _, e := range list {
			if is, err := filepath.Match(strandedNames, e.Name()); err != nil || !is || !e.Type().IsRegular() {
				continue
			}
			if info, err := e.Info(); err == nil && info.ModTime().Before(before) {
				os.Remove(filepath.Join(dir, e.Name())) //nolint:errcheck // see above
			}
		}
		if err != nil { // io.EOF, too
			return
		}
	}
}
