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

// WriteFile writes the trace to a file, all or nothing: an earlier one is replaced when the
// new one is whole, and else kept. What is no plain file, as a pipe, is written as it is.
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
	if err := w.commit(); err != nil {
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

// writing is a file that is being written. It ends with commit or discard.
type writing struct {
	io.Writer
	f    *os.File
	name string // that it is to have; "": it has it
}

// begin begins to write what is to be a file of that name, beside it.
func begin(name string) (writing, error) {
	if name == "" {
		return writing{}, os.ErrNotExist
	}
	if whole, err := filepath.EvalSymlinks(name); err == nil { // a link goes on leading there
		name = whole
	}
	mode, there := os.FileMode(0o644), false
	switch info, err := os.Stat(name); {
	case err == nil && !info.Mode().IsRegular():
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		return writing{f, f, ""}, err
	case err == nil:
		f, err := os.OpenFile(name, os.O_WRONLY, 0) // who may not write it may not replace it
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return writing{}, err
		}
		mode, there = info.Mode().Perm(), true
	case !errors.Is(err, os.ErrNotExist):
		return writing{}, err
	}
	dir, base := filepath.Split(name)
	// One name a process: what a crash left is used again. Whatever else has the name, a
	// link of somebody else in a directory for all, is not written to.
	part := filepath.Join(dir, fmt.Sprintf(".%s.%d.part", base, os.Getpid()))
	os.Remove(part) //nolint:errcheck // if it is there and stays, the next line says so
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err == nil && there {
		f.Chmod(mode) //nolint:errcheck // whatever the umask; a file system without modes has none
	}
	if wrong := (*fs.PathError)(nil); errors.As(err, &wrong) {
		wrong.Path = name // the one that people know
	}
	return writing{f, f, name}, err
}

// commit gives the file its name.
func (w writing) commit() error {
	err := w.f.Close()
	if w.name == "" {
		return err
	}
	if err == nil {
		err = os.Rename(w.f.Name(), w.name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(w.f.Name()))
	}
	return nil
}

// discard ends it and leaves the name to what had it.
func (w writing) discard() error {
	err := w.f.Close()
	if w.name != "" {
		err = errors.Join(err, os.Remove(w.f.Name()))
	}
	return err
}
