//go:build linux && amd64

package cuda

// Not on arm64, whose tests run under an emulator too, which starts no scripts.

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// compiler stands in for nvcc and g++: it notes what it is asked for, and fails on what
// FAIL names.
const compiler = `#!/usr/bin/env bash
if [ "$1" = --version ]; then printf 'nvcc\n%s\nbuild\n' "release ${RELEASE:-1}"; exit; fi
output= what=
while [ $# -gt 0 ]; do
	case $1 in
	-o) output=$2; shift ;;
	-shared) what=link ;;
	*.cu) [ -e "$1" ] || exit 1; what=${1##*/} ;;
	esac
	shift
done
echo "$what" >>"$NOTES"
[ "$what" != "${FAIL:-}" ] || { echo half >"$output"; exit 1; }
echo whole >"$output"
`

// builder is a copy of the sources with build.sh, in a path with spaces.
type builder struct {
	tb  testing.TB
	dir string
}

func newBuilder(tb testing.TB) *builder {
	tb.Helper()
	b := &builder{tb, filepath.Join(tb.TempDir(), "a checkout [of it]")}
	must(tb, os.MkdirAll(filepath.Join(b.dir, "bin"), 0o700))
	for _, pattern := range []string{"build.sh", "*.cu", "*.cuh", "*.h"} {
		files, err := filepath.Glob(pattern)
		must(tb, err)
		for _, f := range files {
			text, err := os.ReadFile(f)
			must(tb, err)
			must(tb, os.WriteFile(filepath.Join(b.dir, f), text, 0o700))
		}
	}
	for _, f := range []string{"nvcc", "g++"} {
		must(tb, os.WriteFile(filepath.Join(b.dir, "bin", f), []byte(compiler), 0o700))
	}
	return b
}

// build makes the library, and returns what was compiled or linked, in order, and
// whether that went well.
func (b *builder) build(env ...string) ([]string, bool) {
	b.tb.Helper()
	notes := filepath.Join(b.dir, "notes")
	must(b.tb, os.WriteFile(notes, nil, 0o600))
	bin := filepath.Join(b.dir, "bin")
	c := exec.CommandContext(b.tb.Context(), "bash", filepath.Join(b.dir, "build.sh"), filepath.Join(b.dir, "out"), "lib")
	c.Env = append(os.Environ(), append([]string{"NVCC=" + filepath.Join(bin, "nvcc"), "NOTES=" + notes, "PATH=" + bin + ":" + os.Getenv("PATH")}, env...)...)
	said, err := c.CombinedOutput()
	b.tb.Logf("%v: %s", env, said)
	text, readErr := os.ReadFile(notes)
	must(b.tb, readErr)
	return strings.Fields(string(text)), err == nil
}

// library reports whether there is one, which is then whole, and that nothing else was
// left lying about.
func (b *builder) library() bool {
	b.tb.Helper()
	left, err := filepath.Glob(strings.NewReplacer("[", `\[`).Replace(b.dir) + "/out/making*")
	must(b.tb, err)
	if len(left) > 0 {
		b.tb.Errorf("%v is left", left)
	}
	text, err := os.ReadFile(filepath.Join(b.dir, "out", "libpdproj.so"))
	if err == nil && string(text) != "whole\n" {
		b.tb.Errorf("the library holds %q", text)
	}
	return err == nil
}

// edit adds a line to a source, which stays as old as it was.
func (b *builder) edit(name string) {
	b.tb.Helper()
	path := filepath.Join(b.dir, name)
	info, err := os.Stat(path)
	must(b.tb, err)
	text, err := os.ReadFile(path)
	must(b.tb, err)
	must(b.tb, os.WriteFile(path, append(text, "// and more\n"...), 0o700))
	must(b.tb, os.Chtimes(path, info.ModTime(), info.ModTime()))
}

// touch makes every source newer than what was built of it.
func (b *builder) touch() {
	b.tb.Helper()
	files, err := os.ReadDir(b.dir)
	must(b.tb, err)
	for _, f := range files {
		if !f.IsDir() {
			must(b.tb, os.Chtimes(filepath.Join(b.dir, f.Name()), time.Time{}, time.Now().Add(time.Hour)))
		}
	}
}

// TestBuild: the library is made anew when what it is made of or by did change, and
// then only; where that fails there is none, and the next build does what is missing.
func TestBuild(t *testing.T) {
	b := newBuilder(t)
	nothing := func() {}
	const all = "epilogue.cu gemm.cu ring.cu config.cu handle.cu products.cu project.cu request.cu device.cu kv.cu link"
	for _, c := range []struct {
		what   string
		before func()
		env    []string
		want   string
		good   bool
	}{
		{"the first time", nothing, nil, all, true},
		{"again", nothing, nil, "", true},
		{"sources that only look newer", b.touch, nil, "", true},
		{"a source that looks no newer", func() { b.edit("gemm.cu") }, nil, "gemm.cu link", true},
		{"a header", func() { b.edit("ring.cuh") }, nil, all, true},
		{"a program's source", func() { b.edit("bench.cu") }, nil, "", true},
		{"other GPUs", nothing, []string{"ARCHS=90a"}, all, true},
		{"another compiler", nothing, []string{"ARCHS=90a", "RELEASE=2"}, all, true},
		{"a compile that fails", func() { b.edit("kv.cu") }, []string{"ARCHS=90a", "RELEASE=2", "FAIL=kv.cu"}, "kv.cu", false},
		{"a link that fails", nothing, []string{"ARCHS=90a", "RELEASE=2", "FAIL=link"}, "kv.cu link", false},
		{"what is missing", nothing, []string{"ARCHS=90a", "RELEASE=2"}, "link", true},
	} {
		c.before()
		got, good := b.build(c.env...)
		if !slices.Equal(got, strings.Fields(c.want)) || good != c.good || b.library() != c.good {
			t.Fatalf("%s: made %v, good %v, library there %v; want %s and %v", c.what, got, good, b.library(), c.want, c.good)
		}
	}
}
