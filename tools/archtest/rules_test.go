package archtest

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

// fixturePolicy is small limits and one entry for each package that the fixtures have.
func fixturePolicy() Policy {
	return Policy{
		Top: []string{"a", "b", "go.mod"},
		Imports: map[string]Imports{
			"a": {Internal: []string{"b"}, Modules: map[string]string{"example.org/sum": "sums"}, NoStd: []string{"net"}},
			"b": {},
		},
		TestImports:      map[string]string{"example.org/leak": "leaks"},
		Arrows:           []Arrow{{"b", nil, "a", "b is below a"}},
		Cgo:              map[string]string{},
		NotInBinaries:    map[string]string{"testing": "flags"},
		Skips:            map[string]string{"a.TestMay": "no such machine"},
		FileLines:        30,
		FunctionLines:    3,
		InterfaceMethods: 2,
	}
}

// goodTree is a module that breaks no rule of fixturePolicy; fixtures change files of it.
func goodTree() fstest.MapFS {
	files := map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"a/a.go": "// Copyright somebody\n\n// Package a adds.\npackage a\n\nimport (\n\t\"m/b\"\n\n\t\"example.org/sum\"\n)\n\nvar _, _ = b.B, sum.Sum\n",
		"b/b.go": "// Package b is below.\npackage b\n\n// B is one.\nconst B = 1\n",
		"b/b_test.go": "package b_test\n\nimport (\n\t\"testing\"\n\n\t\"m/b\"\n\n\t\"example.org/leak\"\n)\n\n" +
			"func TestB(t *testing.T) { leak.Check(t, b.B) }\n",
		".build/x.go": "not Go",
	}
	fsys := fstest.MapFS{}
	for name, content := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return fsys
}

func TestRules(t *testing.T) {
	t.Parallel()
	const (
		packageA = "// Package a adds.\npackage a\n\n"
		fourLine = "{\n\t_ = 1\n\t_ = 2\n\t_ = 3\n\t_ = 4\n}\n"
	)
	machine := "/" + "work/" // in two parts, so that this file is not a finding itself
	tests := []struct {
		name  string
		files map[string]string // replace or add to the good tree; empty content removes
		want  []string          // one part of each violation, in the order of Check
	}{
		{"good", nil, nil},
		{"top level", map[string]string{"notes.txt": "x"}, []string{"top level: notes.txt"}},
		{"dotfile", map[string]string{".editorconfig": "x"}, nil},
		{"absolute path", map[string]string{"b/run.sh": "cd \"" + machine + "x\"\n"}, []string{"paths: b/run.sh:1"}},
		{"relative path with the same name", map[string]string{"b/run.sh": "cd ./test" + machine + "x\n"}, nil},
		{"path out of the repository", map[string]string{"b/README.md": "\nsee .." + "/shared\n"}, []string{"paths: b/README.md:2"}},
		{"path in data", map[string]string{"b/x.bin": "\x00 " + machine + "\n"}, nil},
		{"unknown package", map[string]string{"a/c/c.go": "// Package c is new.\npackage c\n"}, []string{"imports: a/c: package is not in"}},
		{"stale entry", map[string]string{"b/b.go": "", "b/b_test.go": ""}, []string{
			"imports: a: may import b, but there is no such", "imports: b: is in the import table, but"}},
		{"internal import", map[string]string{"b/b.go": "// Package b is below.\npackage b\n\nimport _ \"m/a\"\n\n// B is one.\nconst B = 1\n"}, []string{
			"arrows: b/b.go: imports m/a: b is below a", "imports: b/b.go: imports m/a: the table does not let"}},
		{"internal import in a test", map[string]string{"b/c_test.go": "package b_test\n\nimport _ \"m/a\"\n"}, []string{
			"arrows: b/c_test.go", "imports: b/c_test.go"}},
		{"module import", map[string]string{"a/c.go": "package a\n\nimport _ \"example.org/other\"\n"}, []string{"imports: a/c.go: imports example.org/other: no reason"}},
		{"test module in code", map[string]string{"a/c.go": "package a\n\nimport _ \"example.org/leak\"\n"}, []string{"imports: a/c.go: imports example.org/leak"}},
		{"forbidden part of the standard library", map[string]string{"a/c.go": "package a\n\nimport _ \"net\"\n"}, []string{"imports: a/c.go: imports net: a has no use"}},
		{"import for another system", map[string]string{"a/c_windows.go": "package a\n\nimport _ \"example.org/other\"\n"}, []string{"imports: a/c_windows.go"}},
		{"cgo", map[string]string{"a/c.go": "package a\n\nimport \"C\"\n"}, []string{"cgo: a/c.go"}},
		{"no package comment", map[string]string{"b/b.go": "package b\n\n// B is one.\nconst B = 1\n"}, []string{"package comment: b: 0 package comments"}},
		{"two package comments", map[string]string{"b/c.go": "// Package b is below.\npackage b\n"}, []string{"package comment: b: 2 package comments"}},
		{"licence as package comment", map[string]string{"b/b.go": "// Copyright 2026 somebody\npackage b\n\n// B is one.\nconst B = 1\n"}, []string{
			"package comment: b/b.go: the licence"}},
		{"package comment of another form", map[string]string{"b/b.go": "// This is b.\npackage b\n\n// B is one.\nconst B = 1\n"}, []string{
			`package comment: b/b.go: must begin with "Package b "`}},
		{"command comment", map[string]string{"b/b.go": "// Package main is a program.\npackage main\n\nfunc main() {}\n", "b/b_test.go": ""}, []string{
			`package comment: b/b.go: must begin with "Command "`}},
		{"package comment in a test", map[string]string{"b/c_test.go": "// Package b_test tests.\npackage b_test\n"}, []string{"package comment: b/c_test.go"}},
		{"empty name", map[string]string{"b/b.go": "// Package helpers is below.\npackage helpers\n", "b/b_test.go": ""}, []string{"package name: b"}},
		{"long file", map[string]string{"b/x.py": strings.Repeat("\n", 31)}, []string{"file length: b/x.py: 31 lines"}},
		{"long text", map[string]string{"b/x.md": strings.Repeat("\n", 31)}, nil},
		{"long function", map[string]string{"a/c.go": "package a\n\nfunc f() " + fourLine}, []string{"function length: a/c.go:3: f has 4 lines"}},
		{"long test", map[string]string{"a/c_test.go": "package a\n\nfunc f() " + fourLine}, nil},
		{"wide interface", map[string]string{"a/c.go": "package a\n\ntype i interface {\n\tA()\n\tB()\n\tC()\n}\n"}, []string{"interface: a/c.go:3: i has 3"}},
		{"init", map[string]string{"a/c.go": "package a\n\nfunc init() {}\n\ntype t int\n\nfunc (t) init() {}\n"}, []string{"init: a/c.go:3"}},
		{"branch on the system", map[string]string{"a/c.go": "package a\n\nimport \"runtime\"\n\nvar x = runtime.GOOS == \"linux\"\n"}, []string{"system branch: a/c.go:5"}},
		{"switch on the system", map[string]string{"a/c.go": "package a\n\nimport \"runtime\"\n\nfunc f() {\n\tswitch runtime.GOARCH {\n\t}\n}\n"}, []string{"system branch: a/c.go:6"}},
		{"system printed", map[string]string{"a/c.go": "package a\n\nimport \"runtime\"\n\nvar x = runtime.GOOS + \"/\"\n"}, nil},
		{"skip", map[string]string{"a/c_test.go": "package a\n\nimport \"testing\"\n\nfunc TestC(t *testing.T) { t.Skip() }\n"}, []string{"skips: a/c_test.go:5: TestC may skip"}},
		{"skip in a helper", map[string]string{"a/c_test.go": "package a\n\nimport \"testing\"\n\nfunc need(tb testing.TB) { func() { tb.Skipf(\"x\") }() }\n"}, []string{"skips: a/c_test.go:5"}},
		{"skip of something else", map[string]string{"a/c_test.go": "package a\n\nfunc f(r reader) { r.Skip(1) }\n"}, nil},
		{"skip that is allowed", map[string]string{"a/c_test.go": "package a\n\nimport \"testing\"\n\nfunc TestMay(t *testing.T) { t.Skip() }\n"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wantViolations(t, tt.files, tt.want)
		})
	}
}

// TestWhatGitDoesNotKnow: notes and programs that somebody left in the root
// directory are nobody's business, in folders too.
func TestWhatGitDoesNotKnow(t *testing.T) {
	t.Parallel()
	fsys := goodTree()
	paths := []string{""}
	for name := range fsys {
		paths = append(paths, name)
	}
	for _, name := range []string{"pdlink", "notes.txt", "scratch/x.go"} {
		fsys[name] = &fstest.MapFile{Data: []byte("package scratch\n")}
	}
	for _, c := range []struct {
		fsys fs.FS
		bad  int
	}{{OnlyTop(fsys, TopOf(paths)), 0}, {fsys, 5}} {
		tree, err := Load(c.fsys)
		if err != nil {
			t.Fatal(err)
		}
		if got := Check(tree, fixturePolicy()); len(got) != c.bad {
			t.Errorf("%d violations, want %d: %q", len(got), c.bad, got)
		}
	}
}

func TestTwins(t *testing.T) {
	t.Parallel()
	const user = "package a\n\nvar y = x()\n"
	everywhere := func(what string) []string { return []string{what} }
	tests := []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"no twin", map[string]string{"a/c.go": user, "a/x_linux.go": "package a\n\nfunc x() int { return 1 }\n"}, []string{
			"x is not declared for darwin/arm64", "x is not declared for freebsd/amd64", "x is not declared for windows/amd64"}},
		{"twin for one system only", map[string]string{
			"a/c.go": user, "a/x_linux.go": "package a\n\nfunc x() int { return 1 }\n", "a/x_darwin.go": "package a\n\nfunc x() int { return 2 }\n"},
			[]string{"x is not declared for freebsd/amd64", "x is not declared for windows/amd64"}},
		{"twin", map[string]string{"a/c.go": user, "a/x_linux.go": "package a\n\nfunc x() int { return z() }\n\nfunc z() int { return 1 }\n",
			"a/x_other.go": "//go:build !linux\n\npackage a\n\nfunc x() int { return 0 }\n"}, nil},
		{"exported and unused", map[string]string{"a/x_linux.go": "package a\n\nfunc X() {}\n", "a/x_other.go": "//go:build !linux\n\npackage a\n\nconst y = 1\n"}, []string{
			"X is not declared for darwin/arm64", "X is not declared for freebsd/amd64", "X is not declared for windows/amd64"}},
		{"method", map[string]string{"a/c.go": "package a\n\ntype s struct{}\n\nfunc f(v s) { v.x() }\n",
			"a/x_unix.go": "//go:build unix\n\npackage a\n\nfunc (s) x() {}\n"}, everywhere("s.x is not declared for windows/amd64")},
		{"behind an interface", map[string]string{"a/c.go": "package a\n\ntype i interface{ x() }\n\nfunc f(v i) { v.x(); _ = y() }\n",
			"a/x_linux.go": "package a\n\ntype s struct{}\n\nfunc (s) x() {}\n\nfunc y() i { return s{} }\n",
			"a/x_other.go": "//go:build !linux\n\npackage a\n\nfunc y() i { return nil }\n"}, nil},
		{"method of an exported type", map[string]string{"a/c.go": "package a\n\ntype i interface{ x() }\n",
			"a/x_unix.go": "//go:build unix\n\npackage a\n\ntype S struct{}\n\nfunc (S) x() {}\n"}, []string{
			"S is not declared for windows/amd64", "S.x is not declared for windows/amd64"}},
		{"tag without a twin", map[string]string{"a/c.go": user, "a/x.go": "//go:build !noverbs\n\npackage a\n\nfunc x() int { return 1 }\n"}, []string{
			"x is not declared for darwin/arm64,noverbs", "x is not declared for freebsd/amd64,noverbs", "x is not declared for linux/amd64,noverbs",
			"x is not declared for linux/arm64,noverbs", "x is not declared for windows/amd64,noverbs"}},
		{"tag with a twin", map[string]string{"a/c.go": user, "a/x.go": "//go:build !noverbs\n\npackage a\n\nfunc x() int { return 1 }\n",
			"a/y.go": "//go:build noverbs\n\npackage a\n\nfunc x() int { return 1 }\n"}, nil},
		{"run by hand", map[string]string{"a/gen.go": "//go:build ignore\n\npackage main\n\nfunc X() {}\n"}, nil},
		{"test for one system", map[string]string{"a/c.go": "package a\n", "a/x_linux_test.go": "package a\n\nfunc X() {}\n"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wantViolations(t, tt.files, tt.want)
		})
	}
}

// wantViolations checks the good tree with some files replaced.
func wantViolations(t *testing.T, files map[string]string, want []string) {
	t.Helper()
	fsys := goodTree()
	for name, content := range files {
		if content == "" {
			delete(fsys, name)
			continue
		}
		fsys[name] = &fstest.MapFile{Data: []byte(content)}
	}
	tree, err := Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	got := Check(tree, fixturePolicy())
	for i, v := range got {
		if i >= len(want) || !strings.Contains(v.String(), want[i]) {
			t.Errorf("violation %d: %v", i, v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d violations, want %d: %q", len(got), len(want), want)
	}
}

func TestCheckDeps(t *testing.T) {
	t.Parallel()
	if got := CheckDeps("p", []string{"fmt", "io"}, fixturePolicy()); len(got) != 0 {
		t.Errorf("clean program: %v", got)
	}
	if got := CheckDeps("p", []string{"fmt", "testing"}, fixturePolicy()); len(got) != 1 || got[0].Where != "p" {
		t.Errorf("program with testing: %v", got)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(fstest.MapFS){
		"no go.mod":       func(m fstest.MapFS) { delete(m, "go.mod") },
		"broken go.mod":   func(m fstest.MapFS) { m["go.mod"].Data = []byte("go 1.26\n") },
		"broken Go file":  func(m fstest.MapFS) { m["a/a.go"].Data = []byte("package") },
		"empty directory": func(m fstest.MapFS) { clear(m) },
	} {
		fsys := goodTree()
		change(fsys)
		if _, err := Load(fsys); err == nil {
			t.Errorf("%s: loaded", name)
		}
	}
}

// TestPolicyHasReasons keeps the reasons in the policy from decaying to empty words.
func TestPolicyHasReasons(t *testing.T) {
	t.Parallel()
	p := Pdlink()
	reasons := map[string]map[string]string{"tests": p.TestImports, "cgo": p.Cgo, "binaries": p.NotInBinaries, "skips": p.Skips}
	for dir, entry := range p.Imports {
		reasons[dir] = entry.Modules
	}
	for where, list := range reasons {
		for name, why := range list {
			if len(strings.Fields(why)) < 2 {
				t.Errorf("%s: %s: %q is no reason", where, name, why)
			}
		}
	}
}
