package archtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// below reports whether a package is a subtree's root or lies in it.
func below(dir, root string) bool { return dir == root || strings.HasPrefix(dir, root+"/") }

// internal returns the directory of an import of this module.
func (t *Tree) internal(imported string) (string, bool) {
	if imported == t.Module {
		return ".", true
	}
	return strings.CutPrefix(imported, t.Module+"/")
}

// standard reports whether an import is the standard library's: its first element has no dot.
func standard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// checkImports holds every file to its package's entry in the table.
func checkImports(t *Tree, p Policy) []Violation {
	var bad []Violation
	for _, pkg := range t.Packages {
		entry, known := p.Imports[pkg.Dir]
		if !known {
			bad = append(bad, Violation{"imports", pkg.Dir, "package is not in the import table: say what it may import"})
			continue
		}
		for _, f := range pkg.Files {
			for _, imported := range f.Imports {
				if why := forbidden(t, p, pkg, f, entry, imported); why != "" {
					bad = append(bad, Violation{"imports", f.Path, fmt.Sprintf("imports %s: %s", imported, why)})
				}
			}
		}
	}
	return bad
}

// forbidden says why a file may not import something, or "".
func forbidden(t *Tree, p Policy, pkg *Package, f *File, entry Imports, imported string) string {
	if dir, ok := t.internal(imported); ok {
		switch {
		case slices.Contains(entry.Internal, dir), f.Test && (dir == pkg.Dir || slices.Contains(entry.Tests, dir)):
			return ""
		}
		return fmt.Sprintf("the table does not let %s depend on it", pkg.Dir)
	}
	if standard(imported) {
		if slices.Contains(entry.NoStd, imported) && !f.Test {
			return fmt.Sprintf("%s has no use for it", pkg.Dir)
		}
		return ""
	}
	if entry.Modules[imported] != "" || f.Test && p.TestImports[imported] != "" {
		return ""
	}
	return fmt.Sprintf("no reason is given for %s to have this dependency", pkg.Dir)
}

// checkArrows holds what no table entry can allow.
func checkArrows(t *Tree, p Policy) []Violation {
	var bad []Violation
	for _, pkg := range t.Packages {
		for _, a := range p.Arrows {
			if below(pkg.Dir, a.To) || a.From != "" && !below(pkg.Dir, a.From) ||
				slices.ContainsFunc(a.Except, func(root string) bool { return below(pkg.Dir, root) }) {
				continue
			}
			for _, f := range pkg.Files {
				for _, imported := range f.Imports {
					if dir, ok := t.internal(imported); ok && below(dir, a.To) {
						bad = append(bad, Violation{"arrows", f.Path, fmt.Sprintf("imports %s: %s", imported, a.Why)})
					}
				}
			}
		}
	}
	return bad
}

// checkStaleEntries finds table entries that name packages which are not there: they would allow what nobody meant.
func checkStaleEntries(t *Tree, p Policy) []Violation {
	there := map[string]bool{}
	for _, pkg := range t.Packages {
		there[pkg.Dir] = true
	}
	var bad []Violation
	for _, dir := range slices.Sorted(maps.Keys(p.Imports)) {
		if !there[dir] {
			bad = append(bad, Violation{"imports", dir, "is in the import table, but there is no such package"})
			continue
		}
		for _, name := range slices.Concat(p.Imports[dir].Internal, p.Imports[dir].Tests) {
			if !there[name] {
				bad = append(bad, Violation{"imports", dir, fmt.Sprintf("may import %s, but there is no such package", name)})
			}
		}
	}
	return bad
}

// checkCgo keeps cgo in the packages that are allowed it.
func checkCgo(t *Tree, p Policy) []Violation {
	var bad []Violation
	for _, pkg := range t.Packages {
		for _, f := range pkg.Files {
			if slices.Contains(f.Imports, "C") && p.Cgo[pkg.Dir] == "" {
				bad = append(bad, Violation{"cgo", f.Path, `imports "C" outside the packages that may`})
			}
		}
	}
	return bad
}

// CheckDeps returns what a program must not contain but does: deps are the import paths of everything linked into it, as
// `go list -deps` prints them.
func CheckDeps(program string, deps []string, p Policy) []Violation {
	var bad []Violation
	for _, name := range slices.Sorted(maps.Keys(p.NotInBinaries)) {
		if slices.Contains(deps, name) {
			bad = append(bad, Violation{"binaries", program, fmt.Sprintf("contains %s: %s", name, p.NotInBinaries[name])})
		}
	}
	return bad
}
