package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// archive writes files in the format that the kernel unpacks at its start ("newc",
// Documentation/driver-api/early-userspace/buffer-format.rst). It is used by one goroutine.
// The first error sticks and is close's.
type archive struct {
	w     *bufio.Writer
	at    int64
	inode int
	made  map[string]bool
	err   error
}

func newArchive(w io.Writer) *archive {
	return &archive{w: bufio.NewWriterSize(w, 1<<20), made: map[string]bool{".": true}}
}

// Types of an entry's mode.
const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeLink = 0o120000
)

// entry writes one header, with the directories above it, and size bytes of body. The
// first entry of a name stays.
func (a *archive) entry(name string, mode uint32, size int64, body io.Reader) {
	name = filepath.Clean(name)
	if a.made[name] || a.err != nil {
		return
	}
	a.dir(filepath.Dir(name))
	a.made[name] = true
	a.inode++
	// Magic, then thirteen numbers of eight hexadecimal digits.
	a.print("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	a.pad()
	if size == 0 || a.err != nil {
		return
	}
	n, err := io.Copy(a.w, io.LimitReader(body, size))
	a.at += n
	if err == nil && n != size {
		err = fmt.Errorf("%s became shorter while it was read", name)
	}
	a.err = err
	a.pad()
}

func (a *archive) print(format string, args ...any) {
	n, err := fmt.Fprintf(a.w, format, args...)
	a.at += int64(n)
	if a.err == nil {
		a.err = err
	}
}

// pad fills up to four bytes, to which everything is aligned.
func (a *archive) pad() {
	for a.at%4 != 0 && a.err == nil {
		a.err = a.w.WriteByte(0)
		a.at++
	}
}

// dir adds a directory and those above it.
func (a *archive) dir(name string) {
	if name = filepath.Clean(name); name != "/" {
		a.entry(name, modeDir|0o755, 0, nil)
	}
}

// link adds a symbolic link.
func (a *archive) link(name, target string) {
	a.entry(name, modeLink|0o777, int64(len(target)), strings.NewReader(target))
}

// text adds a file of that content.
func (a *archive) text(name, content string, mode uint32) {
	a.entry(name, modeFile|mode, int64(len(content)), strings.NewReader(content))
}

// file adds a copy of the file at path, links followed.
func (a *archive) file(name, path string) {
	f, err := os.Open(path)
	if err != nil {
		a.fail(err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		a.fail(err)
		return
	}
	a.entry(name, modeFile|uint32(info.Mode().Perm()), info.Size(), f)
}

// tree adds everything at and below path, links followed.
func (a *archive) tree(name, path string) {
	a.fail(filepath.WalkDir(path, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(path, p)
		if err != nil {
			return err
		}
		info, err := os.Stat(p)
		switch {
		case err != nil:
			return err
		case info.IsDir():
			a.dir(filepath.Join(name, rel))
		case info.Mode().IsRegular():
			a.file(filepath.Join(name, rel), p)
		}
		return a.err
	}))
}

func (a *archive) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

// close ends the archive; what is written behind is another one.
func (a *archive) close() error {
	a.made = map[string]bool{".": true}
	a.entry("TRAILER!!!", 0, 0, nil)
	for a.at%512 != 0 && a.err == nil {
		a.err = a.w.WriteByte(0)
		a.at++
	}
	if a.err != nil {
		return fmt.Errorf("write image: %w", a.err)
	}
	if err := a.w.Flush(); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return nil
}
