package archtest

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// OnlyTop is a tree without what lies in its root directory and is not named in
// keep: what somebody left there and nobody committed is no part of the module.
func OnlyTop(fsys fs.FS, keep []string) fs.FS {
	return topFS{FS: fsys, keep: keep}
}

// topFS hides entries of the root directory from those who list it.
type topFS struct {
	fs.FS
	keep []string
}

// ReadDir implements fs.ReadDirFS.
func (t topFS) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(t.FS, name)
	if name == "." {
		entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !slices.Contains(t.keep, e.Name()) })
	}
	return entries, err
}

// TopOf returns the names in the root directory that lead to some paths, which
// use slashes.
func TopOf(paths []string) []string {
	var top []string
	for _, p := range paths {
		if name, _, _ := strings.Cut(p, "/"); name != "" && !slices.Contains(top, name) {
			top = append(top, name)
		}
	}
	return top
}

// checkTopLevel keeps the root directory as it was settled.
func checkTopLevel(t *Tree, p Policy) []Violation {
	var bad []Violation
	for _, name := range t.Top {
		if !strings.HasPrefix(name, ".") && !slices.Contains(p.Top, name) {
			bad = append(bad, Violation{"top level", name, "does not belong into the root directory"})
		}
	}
	return bad
}

// checkPaths finds paths that exist on one machine only, or lead out of the repository.
func checkPaths(t *Tree, _ Policy) []Violation {
	local := regexp.MustCompile(`(^|[\s"'=(:,\x60])/(work|root)/|\.\./shared`)
	var bad []Violation
	for _, f := range t.Files {
		for i, line := range bytes.Split(f.Data, []byte("\n")) {
			if m := local.Find(line); m != nil {
				bad = append(bad, Violation{"paths", fmt.Sprintf("%s:%d", f.Path, i+1), fmt.Sprintf("%q is a path of one machine", m)})
			}
		}
	}
	return bad
}

// checkFileLength bounds source files of every language that is written by hand here, tests too.
func checkFileLength(t *Tree, p Policy) []Violation {
	sources := []string{".go", ".py", ".sh", ".cu", ".cuh", ".c", ".h"}
	var bad []Violation
	for _, f := range t.Files {
		lines := bytes.Count(f.Data, []byte("\n"))
		if lines > p.FileLines && slices.Contains(sources, path.Ext(f.Path)) {
			bad = append(bad, Violation{"file length", f.Path, fmt.Sprintf("%d lines, at most %d: split it by noun", lines, p.FileLines)})
		}
	}
	return bad
}
