package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// root is the module's directory, seen from this package's.
const root = "../.."

// repository loads the module: of what lies in its root directory only what git
// knows, or everything where there is no git or no repository.
func repository(t *testing.T) *Tree {
	t.Helper()
	fsys := os.DirFS(root)
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	cmd.Dir = root
	if out, err := cmd.Output(); err == nil && len(out) > 0 {
		fsys = OnlyTop(fsys, TopOf(strings.Split(string(out), "\x00")))
	}
	tree, err := Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestRepository(t *testing.T) {
	t.Parallel()
	tree := repository(t)
	for _, v := range Check(tree, Pdlink()) {
		t.Error(v)
	}
}

// TestRepositoryIsSeen guards TestRepository: an empty tree breaks no rule.
func TestRepositoryIsSeen(t *testing.T) {
	t.Parallel()
	tree := repository(t)
	if tree.Module != "pdlink" {
		t.Errorf("module %q, want pdlink", tree.Module)
	}
	seen := map[string]bool{}
	for _, pkg := range tree.Packages {
		seen[pkg.Dir] = len(pkg.Files) > 0
	}
	for _, dir := range []string{"transport", "tcp", "bridge", "kernels", "tools/pdlink", "tools/archtest"} {
		if !seen[dir] {
			t.Errorf("package %s was not loaded", dir)
		}
	}
}

func TestBinaries(t *testing.T) {
	t.Parallel()
	for _, goos := range []string{"linux", "darwin"} {
		for _, program := range []string{"tools/pdlink", "tools/pdperf"} {
			t.Run(goos+"/"+filepath.Base(program), func(t *testing.T) {
				t.Parallel()
				cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./"+program)
				cmd.Dir = root
				cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH=arm64", "CGO_ENABLED=0", "GOFLAGS=")
				out, err := cmd.Output()
				if err != nil {
					t.Fatalf("%v: %v", cmd, err)
				}
				deps := strings.Fields(string(out))
				if len(deps) < 50 {
					t.Errorf("go list names %d packages only", len(deps))
				}
				for _, v := range CheckDeps(program, deps, Pdlink()) {
					t.Error(v)
				}
			})
		}
	}
}
