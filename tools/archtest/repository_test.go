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

func TestRepository(t *testing.T) {
	t.Parallel()
	tree, err := Load(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range Check(tree, Pdlink()) {
		t.Error(v)
	}
}

// TestRepositoryIsSeen guards TestRepository: an empty tree breaks no rule.
func TestRepositoryIsSeen(t *testing.T) {
	t.Parallel()
	tree, err := Load(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
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
