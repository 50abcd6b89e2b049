package archtest

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/token"
	"maps"
	"slices"
	"strings"
)

// variant is one way to build the module.
type variant struct {
	goos, goarch string
	tags         []string
}

// String returns the variant as "linux/amd64" or "linux/amd64,tag".
func (v variant) String() string {
	return strings.Join(append([]string{v.goos + "/" + v.goarch}, v.tags...), ",")
}

// platforms are those that a twin is looked for on: where the parts run, and two others that must still compile.
func platforms() []variant {
	return []variant{{"linux", "amd64", nil}, {"linux", "arm64", nil}, {"darwin", "arm64", nil}, {"freebsd", "amd64", nil}, {"windows", "amd64", nil}}
}

// checkTwins requires that what a file for some systems or tags gives to the rest of its package, or to other packages, is
// there on all of them.
func checkTwins(t *Tree, _ Policy) []Violation {
	var bad []Violation
	for _, pkg := range t.Packages {
		found, err := checkPackageTwins(t, pkg)
		if err != nil {
			found = []Violation{{"twins", pkg.Dir, err.Error()}}
		}
		bad = append(bad, found...)
	}
	return bad
}

// checkPackageTwins does it for one package.
func checkPackageTwins(t *Tree, pkg *Package) ([]Violation, error) {
	variants, err := buildVariants(pkg)
	if err != nil {
		return nil, err
	}
	var partial []*File            // files of some variants only
	used := map[string]bool{}      // names that the files of all variants use
	active := map[*File][]string{} // the variants that a partial file belongs to
	for _, f := range pkg.sources() {
		var in []string
		for _, v := range variants {
			ok, err := t.matches(f, v)
			if err != nil {
				return nil, err
			}
			if ok {
				in = append(in, v.String())
			}
		}
		switch len(in) {
		case 0: // for a system that is not looked at
		case len(variants):
			usedNames(f, used)
		default:
			partial = append(partial, f)
			active[f] = in
		}
	}
	where := map[string]map[string]bool{} // needed name to the variants that declare it
	for _, f := range partial {
		for name, needed := range declared(f) {
			if needed || isUsed(name, used) {
				if where[name] == nil {
					where[name] = map[string]bool{}
				}
				for _, v := range active[f] {
					where[name][v] = true
				}
			}
		}
	}
	var bad []Violation
	for _, name := range slices.Sorted(maps.Keys(where)) {
		for _, v := range variants {
			if !where[name][v.String()] {
				bad = append(bad, Violation{"twins", pkg.Dir, fmt.Sprintf("%s is not declared for %s: its file needs a twin", name, v)})
			}
		}
	}
	return bad, nil
}

// isUsed reports whether a name is used. A method counts only where its type is too: what files of all variants do not know
// they reach through interfaces, whose implementation is the business of the files that make one.
func isUsed(name string, used map[string]bool) bool {
	recv, method, ok := strings.Cut(name, ".")
	if !ok {
		return used[name]
	}
	return used[method] && (used[recv] || token.IsExported(recv))
}

// declared returns the names that a file declares at top level, methods as "Type.Method", and whether each is exported.
func declared(f *File) map[string]bool {
	names := map[string]bool{}
	for _, decl := range f.AST.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			name := decl.Name.Name
			exported := decl.Name.IsExported() && f.AST.Name.Name != "main"
			if decl.Recv != nil {
				recv := receiver(decl.Recv.List[0].Type)
				name, exported = recv+"."+name, exported && token.IsExported(recv)
			}
			names[name] = exported
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					names[spec.Name.Name] = spec.Name.IsExported()
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						names[id.Name] = id.IsExported()
					}
				}
			}
		}
	}
	delete(names, "_")
	return names
}

// receiver returns the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// usedNames adds every identifier of a file.
func usedNames(f *File, used map[string]bool) {
	ast.Inspect(f.AST, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			used[id.Name] = true
		}
		return true
	})
}

// buildVariants returns all platforms, plain and with each tag that the package's constraints mention.
func buildVariants(pkg *Package) ([]variant, error) {
	tags := map[string]bool{}
	for _, f := range pkg.sources() {
		for _, group := range f.AST.Comments {
			if group.Pos() > f.AST.Package {
				break
			}
			for _, c := range group.List {
				if !constraint.IsGoBuild(c.Text) {
					continue
				}
				expr, err := constraint.Parse(c.Text)
				if err != nil {
					return nil, fmt.Errorf("parse constraint of %s: %w", f.Path, err)
				}
				addTags(expr, tags)
			}
		}
	}
	all := platforms()
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		for _, v := range platforms() {
			all = append(all, variant{v.goos, v.goarch, []string{tag}})
		}
	}
	return all, nil
}

// addTags collects the tags of a constraint that the module made up: no system, processor, compiler or release, and not the
// word for files that no build takes.
func addTags(expr constraint.Expr, tags map[string]bool) {
	switch x := expr.(type) {
	case *constraint.AndExpr:
		addTags(x.X, tags)
		addTags(x.Y, tags)
	case *constraint.OrExpr:
		addTags(x.X, tags)
		addTags(x.Y, tags)
	case *constraint.NotExpr:
		addTags(x.X, tags)
	case *constraint.TagExpr:
		builtin := []string{
			"ignore", "unix", "cgo", "gc", "gccgo", "race", "msan", "asan", "linux", "darwin", "freebsd", "netbsd", "openbsd",
			"dragonfly", "solaris", "illumos", "aix", "android", "ios", "windows", "plan9", "js", "wasip1", "amd64", "arm64", "386",
			"arm", "riscv64", "loong64", "ppc64", "ppc64le", "mips", "mipsle", "mips64", "mips64le", "s390x", "wasm",
		}
		if !slices.Contains(builtin, x.Tag) && !strings.HasPrefix(x.Tag, "go1.") {
			tags[x.Tag] = true
		}
	}
}
