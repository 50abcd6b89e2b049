package cmdline

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// namesItself reports that a file has a text that begins with its package's name as
// errors do.
func namesItself(f *ast.File) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		found = found || ok && lit.Kind == token.STRING && strings.HasPrefix(lit.Value[1:], f.Name.Name+": ")
		return true
	})
	return found
}

// TestPackagesAreThoseOfTheModule: each package whose errors begin with its name is left
// out for people, and no other word is.
func TestPackagesAreThoseOfTheModule(t *testing.T) {
	want := map[string]bool{"unix": true}
	root := filepath.Join("..", "..")
	for _, top := range []string{"transport", "tcp", "rdma", "bridge", "kernels", "tools"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist): // somebody takes it away
				return nil
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err == nil && f.Name.Name != "main" && namesItself(f) {
				want[f.Name.Name] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, of := range []string{"transporttest", "fakeverbs", "cmdline"} { // of tests alone, and of a program that is wrong
		delete(want, of)
	}
	if got := slices.Sorted(slices.Values(packages())); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
		t.Errorf("left out are %v, packages that name themselves are %v", got, slices.Sorted(maps.Keys(want)))
	}
}

func TestErrorsArePlain(t *testing.T) {
	for raw, want := range map[string]string{
		"tcp to 127.0.0.1:1: tcp: dial 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused: nobody listens there":                                      "tcp to 127.0.0.1:1: connect: connection refused: nobody listens there",
		"failover: transport: no way to the peer: no progress for 1s: tcp to [::1]:7: tcp: dial [::1]:7: handshake: transport: connection lost: the peer hung up": "no way to the peer: no progress for 1s: tcp to [::1]:7: handshake: connection lost: the peer hung up",
		"tcp to mac:7: tcp: dial mac:7: dial tcp 10.0.0.5:7: connect: connection refused\ndial tcp 10.0.0.6:7: connect: no route to host":                         "tcp to mac:7: 10.0.0.5:7: connect: connection refused\n10.0.0.6:7: connect: no route to host",
		"unix to /run/x.sock: unix: dial /run/x.sock: dial unix /run/x.sock: connect: no such file or directory":                                                  "unix to /run/x.sock: connect: no such file or directory",
		"read control prefix: read tcp 127.0.0.1:46148->127.0.0.1:39391: read: connection reset by peer":                                                          "read control prefix: read: connection reset by peer",
		"rdma://h:7?device=a:1 to h:7: rdma: link unavailable":                                                                                                    "rdma://h:7?device=a:1: link unavailable",
		"connected over rdma://h:7?device=a to h:7, no better route: none":                                                                                        "connected over rdma://h:7?device=a, no better route: none",
		"rdma://h:7?device=a to other:7: refused":                                                                                                                 "rdma://h:7?device=a to other:7: refused",
		"keys: bad key: it is mistyped":                                            "bad key: it is mistyped",
		"transport: connection lost: keys: unsafe permissions: /tmp has mode 1777": "connection lost: unsafe permissions: /tmp has mode 1777",
		"--keys: no such directory, in keys: that is meant":                        "--keys: no such directory, in keys: that is meant",
		"case bridge: it is a file":                                                "case bridge: it is a file",
		"":                                                                         "",
	} {
		if got := Plain(errors.New(raw)); got != want {
			t.Errorf("%q\n  became %q\n  want   %q", raw, got, want)
		}
	}
}
