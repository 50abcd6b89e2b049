package omlx

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// disk is what the store does to a file system. It is a seam: the tests put
// faults behind it.
type disk interface {
	// create makes a new temporary file and locks it against other stores. It
	// returns errHeld if a live writer has a file of that name; a dead writer's is
	// replaced.
	create(path string) (part, error)
	// publish gives the file its final name in one step. It fails with
	// fs.ErrExist, and changes nothing, if that name is taken.
	publish(temp, final string) error
	// remove removes a name.
	remove(path string) error
	// syncDir makes the names in a directory durable.
	syncDir(path string) error
}

// part is an open temporary file. Reads and writes may run concurrently.
type part interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// allocate gives the file its size, as zeros, and reserves the space if the
	// file system can.
	allocate(size int64) error
	// writeBack starts writing a range to the device without waiting.
	writeBack(off, n int64) error
	// sync waits until the file's bytes are durable.
	sync() error
}

// errHeld reports a temporary file that a live writer holds.
var errHeld = errors.New("temporary file is in use")

// osDisk is the real file system.
type osDisk struct{}

func (osDisk) create(path string) (part, error) {
	for range 3 { // each round ends for good unless another store interferes
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|openNoFollow, fileMode)
		if errors.Is(err, fs.ErrExist) {
			if err := removeStale(path); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		// Between creation and lock another store may have taken the file for a
		// dead writer's and removed it; then this file has no name any more.
		if err = lockFile(f); err == nil && sameFile(f, path) {
			return osPart{f}, nil
		}
		if cerr := f.Close(); cerr != nil || (err != nil && !errors.Is(err, errHeld)) {
			return nil, errors.Join(err, cerr)
		}
	}
	return nil, errHeld
}

// removeStale removes a temporary file whose writer is gone; errHeld if it lives.
func removeStale(path string) error {
	if !canLock {
		return errHeld
	}
	f, err := os.OpenFile(path, os.O_RDWR|openNoFollow, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = lockFile(f)
	if err == nil && sameFile(f, path) {
		err = os.Remove(path)
	}
	return errors.Join(err, f.Close())
}

// sameFile reports whether path still names the open file.
func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}

func (osDisk) publish(temp, final string) error { return renameNew(temp, final) }
func (osDisk) remove(path string) error         { return os.Remove(path) }
func (osDisk) syncDir(path string) error        { return syncDir(path) }

type osPart struct{ *os.File }

func (p osPart) allocate(size int64) error    { return allocate(p.File, size) }
func (p osPart) writeBack(off, n int64) error { return writeBack(p.File, off, n) }
func (p osPart) sync() error                  { return dataSync(p.File) }

// diskError adds ErrNoSpace to an error that means a full disk or quota.
func diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// linkNew publishes by a hard link, which no file system lets replace a name.
func linkNew(temp, final string) error {
	if err := os.Link(temp, final); err != nil {
		return err
	}
	return os.Remove(temp)
}
