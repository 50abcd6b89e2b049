package trace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Check reports why WriteFile could not write a file, nil where it can, so that this is
// found before there is anything to lose. It leaves everything as it is: a file that is
// there keeps what it has, and one that is not there is not made. Of a pipe or a device
// it says nothing: to open it may wait for its reader.
func Check(name string) error {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil
	}
	w, err := begin(name)
	if err != nil {
		return err
	}
	return w.discard()
}

// WriteFile writes the trace to a file. An earlier one is replaced when the new one is whole
// and on the disk, and else kept; but one whose directory takes no other file, or whose
// name cannot be given away, as a mount point, is written over, and what cannot be put
// there stays beside it, as the error says. What is no plain file is written as it is: a
// pipe that nobody reads is an error.
func (r *Recorder) WriteFile(name string) error {
	if r == nil {
		return nil
	}
	w, err := begin(name)
	if err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	if err := r.Write(w); err != nil {
		return errors.Join(err, w.discard())
	}
	if err := w.commit(os.Rename); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}

// Recorded reports whether there is anything to write: a span that has ended.
func (r *Recorder) Recorded() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.spans) > 0
}

// maxLinks bounds the links that lead to a file, as Linux does.
const maxLinks = 40

// writing is a file that is being written. It ends with commit or discard.
type writing struct {
	io.Writer
	f    *os.File
	name string // that it is to have; "": it has it
	over bool   // it is written over what it had
}

// begin begins to write what is to be a file of that name, beside it where that can be. An
// error has the name that was said.
func begin(said string) (writing, error) {
	if said == "" {
		return writing{}, os.ErrNotExist
	}
	w, err := beginAt(follow(said))
	if wrong := (*fs.PathError)(nil); errors.As(err, &wrong) {
		wrong.Path = said
	}
	return w, err
}

// follow is where a name leads: a link goes on leading there, to a file that is not there
// yet too.
func follow(name string) string {
	for range maxLinks {
		whole, err := filepath.EvalSymlinks(name)
		if err == nil {
			return whole
		}
		to, errLink := os.Readlink(name)
		if !errors.Is(err, os.ErrNotExist) || errLink != nil {
			break
		}
		if !filepath.IsAbs(to) {
			dir, err := filepath.EvalSymlinks(filepath.Dir(name)) // what .. is of
			if err != nil {
				break
			}
			to = filepath.Join(dir, to)
		}
		name = to
	}
	return name
}

// beginAt is begin without links.
func beginAt(name string) (writing, error) {
	mode, there := os.FileMode(0o644), false
	switch info, err := os.Stat(name); {
	case err == nil && info.Mode()&fs.ModeNamedPipe != 0:
		f, err := openPipe(name)
		return writing{Writer: f, f: f}, err
	case err == nil && !info.Mode().IsRegular():
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		return writing{Writer: f, f: f}, err
	case err == nil:
		mode, there = info.Mode().Perm(), true
	case !errors.Is(err, os.ErrNotExist):
		return writing{}, err
	}
	var old *os.File
	if there { // who may not write it may not replace it
		var err error
		if old, err = os.OpenFile(name, os.O_WRONLY, 0); err != nil {
			return writing{}, err
		}
	}
	dir, base := filepath.Split(name)
	// The process is in the name: two that write one file do not write into each other's.
	// Whatever else has the name, a link of somebody else in a directory for all, is not
	// written to.
	part := filepath.Join(dir, fmt.Sprintf(".%s.%d.part", base, os.Getpid()))
	os.Remove(part) //nolint:errcheck // if it is there and stays, the next line says so
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	switch {
	case err != nil && there:
		return writing{Writer: old, f: old, over: true}, nil
	case err != nil:
		return writing{}, err
	case there:
		old.Close()   //nolint:errcheck // nothing was written
		f.Chmod(mode) //nolint:errcheck // whatever the umask; a file system without modes has none
	}
	return writing{Writer: f, f: f, name: name}, nil
}

// commit gives the file its name, by rename.
func (w writing) commit(rename func(from, to string) error) error {
	var err error
	if w.over { // what was longer
		var end int64
		if end, err = w.f.Seek(0, io.SeekCurrent); err == nil {
			err = w.f.Truncate(end)
		}
	}
	if w.name == "" {
		return errors.Join(err, w.f.Close())
	}
	// A name that is on the disk before its bytes would have none after a power cut.
	if err = w.f.Sync(); errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	part := w.f.Name()
	if err = errors.Join(err, w.f.Close()); err != nil {
		return errors.Join(err, os.Remove(part))
	}
	if err = rename(part, w.name); err == nil {
		return nil
	}
	if info, errStat := os.Stat(w.name); errStat == nil && info.Mode().IsRegular() {
		errCopy := fill(w.name, part)
		if errCopy == nil {
			return os.Remove(part)
		}
		err = errors.Join(err, errCopy)
	}
	return fmt.Errorf("%w: the timeline is in %s", err, part)
}

// fill gives a file that is there the bytes of another.
func fill(name, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it was read
	out, err := os.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// discard ends it and leaves the name to what had it.
func (w writing) discard() error {
	err := w.f.Close()
	if w.name != "" {
		err = errors.Join(err, os.Remove(w.f.Name()))
	}
	return err
}
