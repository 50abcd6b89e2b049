package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Tree is a module's sources as they lie in a directory, independent of any platform.
type Tree struct {
	Module   string     // module path from go.mod
	Top      []string   // names in the root directory
	Files    []TextFile // every file that people edit
	Packages []*Package // by directory

	fsys fs.FS
	fset *token.FileSet
}

// TextFile is one file's path from the root and its content.
type TextFile struct {
	Path string
	Data []byte
}

// Package is the Go files of one directory, its external tests among them.
type Package struct {
	Dir   string // relative to the root, "." for the root itself
	Name  string // name of the package without the tests, or of the tests where there is nothing else
	Files []*File
}

// File is one parsed Go file.
type File struct {
	Path    string
	Test    bool
	Alone   bool // a program that no build takes, run by hand (go:build ignore)
	AST     *ast.File
	Imports []string
}

// Load reads a module. Directories that only tools write are left out. A file that does not parse, or a go.mod that names no
// module, is an error.
func Load(fsys fs.FS) (*Tree, error) {
	t := &Tree{fsys: fsys, fset: token.NewFileSet()}
	top, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, fmt.Errorf("read module root: %w", err)
	}
	for _, e := range top {
		t.Top = append(t.Top, e.Name())
	}
	byDir := map[string]*Package{}
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", ".build", "__pycache__", ".ruff_cache"}, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		return t.add(name, byDir)
	})
	if err != nil {
		return nil, fmt.Errorf("load module: %w", err)
	}
	for _, p := range byDir {
		t.Packages = append(t.Packages, p)
	}
	slices.SortFunc(t.Packages, func(a, b *Package) int { return strings.Compare(a.Dir, b.Dir) })
	if t.Module == "" {
		return nil, fmt.Errorf("load module: go.mod names no module")
	}
	return t, nil
}

// add reads one file into the tree. Model weights and captures are data, not text: a NUL byte tells.
func (t *Tree) add(name string, byDir map[string]*Package) error {
	data, err := fs.ReadFile(t.fsys, name)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if bytes.IndexByte(data, 0) >= 0 {
		return nil
	}
	t.Files = append(t.Files, TextFile{Path: name, Data: data})
	if name == "go.mod" {
		t.Module = moduleName(data)
	}
	if path.Ext(name) != ".go" || strings.Contains("/"+name, "/testdata/") {
		return nil
	}
	parsed, err := parser.ParseFile(t.fset, name, data, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("parse: %w", err)
	}
	f := &File{
		Path:  name,
		Test:  strings.HasSuffix(name, "_test.go"),
		Alone: bytes.Contains(data, []byte("//go:build ignore\n")),
		AST:   parsed,
	}
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return fmt.Errorf("parse %s: import %s: %w", name, spec.Path.Value, err)
		}
		f.Imports = append(f.Imports, imported)
	}
	dir := path.Dir(name)
	p := byDir[dir]
	if p == nil {
		p = &Package{Dir: dir}
		byDir[dir] = p
	}
	p.Files = append(p.Files, f)
	if p.Name == "" || !f.Test && !f.Alone {
		p.Name = parsed.Name.Name
	}
	return nil
}

// moduleName returns the path in a go.mod's module line, or "".
func moduleName(gomod []byte) string {
	for line := range strings.Lines(string(gomod)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "module" {
			return fields[1]
		}
	}
	return ""
}

// line returns "file:line" of a node.
func (t *Tree) line(n ast.Node) string {
	pos := t.fset.Position(n.Pos())
	return fmt.Sprintf("%s:%d", pos.Filename, pos.Line)
}

// matches reports whether a file belongs to the build for a platform with some tags, by its name and its constraint.
func (t *Tree) matches(f *File, v variant) (bool, error) {
	ctx := build.Default
	ctx.GOOS, ctx.GOARCH, ctx.BuildTags, ctx.CgoEnabled = v.goos, v.goarch, v.tags, false
	ctx.JoinPath = path.Join
	ctx.OpenFile = func(name string) (io.ReadCloser, error) { return t.fsys.Open(name) }
	ok, err := ctx.MatchFile(path.Dir(f.Path), path.Base(f.Path))
	if err != nil {
		return false, fmt.Errorf("match %s for %s: %w", f.Path, v, err)
	}
	return ok, nil
}

// sources returns the files that make up the package when it is imported or linked.
func (p *Package) sources() []*File {
	return slices.DeleteFunc(slices.Clone(p.Files), func(f *File) bool { return f.Test || f.Alone })
}
