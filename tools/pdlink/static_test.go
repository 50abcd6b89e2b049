//go:build static

package main

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// build builds a package of this module for linux without cgo, and returns the file.
func build(t *testing.T, arch, pkg string, tags ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-tags", strings.Join(tags, ","), "-o", file, "pdlink/"+pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s for %s with %v: %v\n%s", pkg, arch, tags, err, out)
	}
	return file
}

// loader is the program that a file wants to be started by, and the libraries that it
// wants; empty for one that is linked statically.
func loader(t *testing.T, file string) (interp string, libraries []string) {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		interp = strings.TrimRight(string(b), "\x00")
	}
	libraries, err = f.ImportedLibraries()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		t.Fatal(err)
	}
	return interp, libraries
}

// TestStaticPrograms: with the tag nordma programs need neither a loader nor a library;
// without it they need both, so that the first says something.
func TestStaticPrograms(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		for _, pkg := range []string{"tools/pdlink", "tools/pdperf"} {
			if interp, libraries := loader(t, build(t, arch, pkg, "nordma")); interp != "" || len(libraries) > 0 {
				t.Errorf("%s for %s with nordma wants %s and %v", pkg, arch, interp, libraries)
			}
		}
		if interp, libraries := loader(t, build(t, arch, "tools/pdlink")); interp == "" || !slices.Contains(libraries, "libc.so.6") {
			t.Errorf("pdlink for %s wants %q and %v, and is expected to load libraries", arch, interp, libraries)
		}
	}
}

// TestStaticProgramRuns: without any file of the system beside it, where it can be tried,
// it says that it was built without RDMA, and does all else.
func TestStaticProgramRuns(t *testing.T) {
	file := build(t, runtime.GOARCH, "tools/pdlink", "nordma")
	out, err := exec.CommandContext(t.Context(), file, "doctor", "rdma").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "FAIL") || !strings.Contains(string(out), "built without RDMA") {
		t.Errorf("doctor: %v: %s", err, out)
	}
	out, err = exec.CommandContext(t.Context(), file, "replay", "bundled:kv-qwen3", "--to", "rdma://127.0.0.1:1").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "link unavailable") {
		t.Errorf("replay over rdma: %v: %s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), file, "replay", "bundled:kv-qwen3", "--store", t.TempDir(), "--link", "tcp://127.0.0.1:0").CombinedOutput(); err != nil {
		t.Errorf("replay over tcp: %v: %s", err, out)
	}
}

// TestStaticLoadersAreLeftOut: no package of the module draws the loader of libraries in.
func TestStaticLoadersAreLeftOut(t *testing.T) {
	const purego = "github.com/ebitengine/purego"
	list := func(tags string) string {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", tags, "pdlink/...")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if !strings.Contains(list("x"), purego) {
		t.Error("no package loads libraries, and two do")
	}
	if strings.Contains(list("nordma"), purego) {
		t.Error("with nordma there still is a package that loads libraries")
	}
}
