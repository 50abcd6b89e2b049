package omlx

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// disk is what the store does to a file system. It is a seam: the tests put
// faults behind it.
type disk interface {
	// create makes a new temporary file and locks it against other stores. It
	// returns errHeld if a live writer has a file of that name, or anything has it
	// that is not this account's to remove; a dead writer's file is replaced. It
	// leaves nothing behind when it fails.
	create(path string) (part, error)
	// publish gives the file its final name in one step. It fails with
	// fs.ErrExist, and changes nothing, if that name is taken. It never fails once
	// the file has the name; the temporary name may then stay as a second one.
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

// errHeld reports a temporary name that a live writer holds, or something that
// nobody but its owner may judge.
var errHeld = errors.New("temporary file is in use")

// errNoLock reports a file system on which nobody can tell a live writer's file
// from a dead one's.
var errNoLock = errors.New("this file system cannot lock files: put the block store on one that can, a local one for example")

// osDisk is the real file system. The zero value is ready.
type osDisk struct {
	lock func(*os.File) error // instead of lockFile; nil: lockFile
}

// lockNow locks a file or says why not, see lockFile.
func (d osDisk) lockNow(f *os.File) error {
	if d.lock != nil {
		return d.lock(f)
	}
	return lockFile(f)
}

func (d osDisk) create(path string) (part, error) {
	for range 3 { // each round ends for good unless another store interferes
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|openNew, fileMode)
		if errors.Is(err, fs.ErrExist) {
			if err := d.removeStale(path); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		// Between creation and lock another store may have taken the file for a
		// dead writer's and removed it; then this file has no name any more.
		if err = d.lockNow(f); err == nil && sameFile(f, path) {
			return osPart{f}, nil
		}
		if err != nil && !errors.Is(err, errHeld) && sameFile(f, path) {
			err = errors.Join(err, os.Remove(path)) // a file without a lock is in everybody's way
		}
		if cerr := f.Close(); cerr != nil || (err != nil && !errors.Is(err, errHeld)) {
			return nil, errors.Join(err, cerr)
		}
	}
	return nil, errHeld
}

// removeStale removes a temporary file whose writer is gone. It returns errHeld
// if the writer lives, and for what this account may not examine, lock or remove,
// what is no file and what lies behind a linked directory: whoever put it there
// decides about it.
func (d osDisk) removeStale(path string) error {
	if !canLock {
		return errHeld
	}
	if dir, err := os.Lstat(filepath.Dir(path)); err != nil || !dir.IsDir() {
		return errHeld
	}
	f, err := openStale(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = d.lockNow(f)
		if err == nil && sameFile(f, path) {
			err = os.Remove(path)
		}
		err = errors.Join(err, f.Close())
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, errNoLock) {
		return errHeld
	}
	return err
}

// openStale opens what has a temporary file's name, to lock it. A lock needs no
// right to write, except on network file systems.
func openStale(path string) (*os.File, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errHeld
	}
	f, err := os.OpenFile(path, os.O_RDWR|openOther, 0)
	if errors.Is(err, fs.ErrPermission) {
		return os.OpenFile(path, os.O_RDONLY|openOther, 0)
	}
	return f, err
}

// sameFile reports whether path still names the open file, a regular one.
func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil || !a.Mode().IsRegular() {
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

// diskError adds ErrNoSpace to an error that means a full disk or quota, and the
// remedy to a missing right.
func diskError(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (let this account read and write the store's directories)", err)
	}
	return err
}

// linkNew publishes by a hard link, which no file system lets replace a name.
func linkNew(temp, final string) error {
	err := os.Link(temp, final)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w (a block store needs a file system that renames without replacing, or has hard links)", err)
	}
	if err == nil {
		os.Remove(temp) //nolint:errcheck // the block is visible; a name that stays is a dead writer's once the file is closed
	}
	return err
}
