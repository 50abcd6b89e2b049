package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// checkPackageComments requires exactly one package comment in each package, and that it is one: not the licence, and in the
// form that go doc expects.
func checkPackageComments(t *Tree, _ Policy) []Violation {
	licence := regexp.MustCompile(`(?i)^(copyright|spdx-|licensed under|©)`)
	var bad []Violation
	for _, pkg := range t.Packages {
		var where []string
		for _, f := range pkg.Files {
			text := f.AST.Doc.Text()
			if text == "" || f.Alone {
				continue
			}
			want := "Package " + pkg.Name + " "
			if pkg.Name == "main" {
				want = "Command "
			}
			switch {
			case f.Test:
				bad = append(bad, Violation{"package comment", f.Path, "a test file has one: leave a line between the comment and the package clause"})
			case licence.MatchString(text):
				bad = append(bad, Violation{"package comment", f.Path, "the licence is the package comment: leave a line after it"})
			case !strings.HasPrefix(text, want):
				bad = append(bad, Violation{"package comment", f.Path, fmt.Sprintf("must begin with %q", want)})
			}
			if !f.Test {
				where = append(where, f.Path)
			}
		}
		if len(pkg.sources()) > 0 && len(where) != 1 {
			bad = append(bad, Violation{"package comment", pkg.Dir, fmt.Sprintf("%d package comments %v, want exactly one", len(where), where)})
		}
	}
	return bad
}

// checkPackageNames refuses names that say nothing about what a package is for.
func checkPackageNames(t *Tree, _ Policy) []Violation {
	empty := []string{"util", "utils", "common", "helper", "helpers", "misc", "base", "lib", "shared"}
	var bad []Violation
	for _, pkg := range t.Packages {
		if name := strings.TrimSuffix(pkg.Name, "_test"); slices.Contains(empty, name) {
			bad = append(bad, Violation{"package name", pkg.Dir, fmt.Sprintf("%q says nothing: name it after what it provides", name)})
		}
	}
	return bad
}

// checkFunctionLength bounds the lines between a function's braces, comments included. Tests are free.
func checkFunctionLength(t *Tree, p Policy) []Violation {
	var bad []Violation
	t.inspect(false, func(_ *Package, _ *File, n ast.Node) {
		fn, ok := n.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			return
		}
		lines := t.fset.Position(fn.Body.Rbrace).Line - t.fset.Position(fn.Body.Lbrace).Line - 1
		if lines > p.FunctionLines {
			bad = append(bad, Violation{"function length", t.line(fn), fmt.Sprintf("%s has %d lines, at most %d", fn.Name.Name, lines, p.FunctionLines)})
		}
	})
	return bad
}

// checkInterfaces bounds the methods that an interface lists; an embedded one counts as one.
func checkInterfaces(t *Tree, p Policy) []Violation {
	var bad []Violation
	t.inspect(false, func(_ *Package, _ *File, n ast.Node) {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return
		}
		if iface, ok := spec.Type.(*ast.InterfaceType); ok && iface.Methods.NumFields() > p.InterfaceMethods {
			bad = append(bad, Violation{"interface", t.line(spec), fmt.Sprintf("%s has %d methods, at most %d", spec.Name.Name, iface.Methods.NumFields(), p.InterfaceMethods)})
		}
	})
	return bad
}

// checkInit refuses func init: whoever builds a program decides what runs in it.
func checkInit(t *Tree, _ Policy) []Violation {
	var bad []Violation
	t.inspect(true, func(_ *Package, _ *File, n ast.Node) {
		if fn, ok := n.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			bad = append(bad, Violation{"init", t.line(fn), "func init is not used here: make it a value that main passes on"})
		}
	})
	return bad
}

// checkSystemBranches refuses branches on runtime.GOOS and GOARCH: what differs is in a file for each system.
func checkSystemBranches(t *Tree, _ Policy) []Violation {
	names := func(e ast.Expr) bool {
		sel, ok := e.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "GOOS" && sel.Sel.Name != "GOARCH" {
			return false
		}
		pkg, ok := sel.X.(*ast.Ident)
		return ok && pkg.Name == "runtime"
	}
	var bad []Violation
	t.inspect(true, func(_ *Package, _ *File, n ast.Node) {
		branch := false
		switch n := n.(type) {
		case *ast.BinaryExpr:
			branch = (n.Op == token.EQL || n.Op == token.NEQ) && (names(n.X) || names(n.Y))
		case *ast.SwitchStmt:
			branch = names(n.Tag)
		}
		if branch {
			bad = append(bad, Violation{"system branch", t.line(n), "branches on the system: make it a file for each, with a twin"})
		}
	})
	return bad
}

// checkSkips finds tests that skip, and helpers that skip for them, outside the list.
func checkSkips(t *Tree, p Policy) []Violation {
	var bad []Violation
	for _, pkg := range t.Packages {
		for _, f := range pkg.Files {
			for _, decl := range f.AST.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok || p.Skips[pkg.Dir+"."+fn.Name.Name] != "" {
					continue
				}
				for _, call := range skipCalls(fn) {
					bad = append(bad, Violation{"skips", t.line(call), fn.Name.Name + " may skip: a test that does not run proves nothing"})
				}
			}
		}
	}
	return bad
}

// skipCalls returns the calls of Skip, Skipf and SkipNow on a parameter of type *testing.T, B, F or testing.TB, in a function
// and in the literals within it.
func skipCalls(fn *ast.FuncDecl) []ast.Node {
	receivers := map[string]bool{}
	ast.Inspect(fn, func(n ast.Node) bool {
		field, ok := n.(*ast.Field)
		if !ok {
			return true
		}
		typ := field.Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		if sel, ok := typ.(*ast.SelectorExpr); ok {
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "testing" {
				for _, name := range field.Names {
					receivers[name.Name] = true
				}
			}
		}
		return true
	})
	var calls []ast.Node
	ast.Inspect(fn, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && receivers[x.Name] {
			calls = append(calls, sel)
		}
		return true
	})
	return calls
}

// inspect visits every node of every file, tests only when asked for.
func (t *Tree) inspect(tests bool, visit func(*Package, *File, ast.Node)) {
	for _, pkg := range t.Packages {
		for _, f := range pkg.Files {
			if f.Test && !tests {
				continue
			}
			ast.Inspect(f.AST, func(n ast.Node) bool {
				visit(pkg, f, n)
				return true
			})
		}
	}
}
