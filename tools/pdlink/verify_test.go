package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/kernels/safetensors"
)

// verified runs `pdlink verify … --json`, demands a status, and returns the lines:
// a check each, and the summary.
func verified(t *testing.T, want int, args ...string) (checks map[string]map[string]any, sum map[string]any) {
	t.Helper()
	status, out, errOut := cli(t, append([]string{"verify", "--json"}, args...)...)
	if status != want {
		t.Fatalf("verify %v: status %d, want %d\n%s%s", args, status, want, out, errOut)
	}
	checks = map[string]map[string]any{}
	for _, l := range lines(t, out) {
		if l["event"] == "summary" {
			sum = l
		} else {
			checks[l["check"].(string)] = l
		}
	}
	if sum == nil || len(checks) != 5 {
		t.Fatalf("verify %v: %s", args, out)
	}
	return checks, sum
}

// noLibrary is a library that is not there: what a machine with a GPU computes is
// tested elsewhere.
func noLibrary(t *testing.T) string { return filepath.Join(t.TempDir(), "none.so") }

func TestVerifyTheBundledCases(t *testing.T) {
	for name := range theCases() {
		checks, sum := verified(t, exitOK, bundledPrefix+name, "--library", noLibrary(t))
		passed, left := 5.0, 0.0
		if name == "kv-qwen3" {
			passed, left = 1, 4
		} else if !strings.Contains(sum["why"].(string), "none.so") {
			t.Errorf("%s: %v does not say why there is no GPU", name, sum["why"])
		}
		if ok, _ := sum["ok"].(bool); !ok || sum["engine"] != "reference" || sum["passed"] != passed || sum["left_out"] != left || sum["failed"] != 0.0 {
			t.Errorf("%s: %v", name, sum)
		}
		if checks["blocks"]["result"] != "passed" {
			t.Errorf("%s: %v", name, checks["blocks"])
		}
	}
	status, out, _ := cli(t, "verify", bundledPrefix+"dsv4-a", "--engine", "reference", "--layers", "0,1,2", "--tokens", "700")
	if status != exitOK || !strings.Contains(out, "reference: it was asked for, mlx-cpu of 700 tokens\n") || !strings.Contains(out, "4 passed, 0 failed, 1 left out\n") ||
		!strings.Contains(out, "pooled 128      320 of 320 equal") {
		t.Errorf("status %d: %s", status, out)
	}
}

// TestVerifyFindsWhatDiffers: weights, inputs, recorded arrays and blocks that are
// not the decoder's.
func TestVerifyFindsWhatDiffers(t *testing.T) {
	for what, c := range map[string]struct {
		file   string
		change func(*testing.T, string)
		want   map[string]string
	}{
		"weights": {"weights.safetensors", damage, map[string]string{"self-test": "passed", "continuation": "passed"}},
		"input":   {"capture.safetensors", damage, map[string]string{"self-test": "passed", "continuation": "passed"}},
		"state":   {"state.safetensors", firstByte, map[string]string{"self-test": "passed", "blocks": "passed"}},
	} {
		dir := edited(t, "dsv4-a", func(map[string]any) {})
		c.change(t, filepath.Join(dir, c.file))
		checks, sum := verified(t, exitFailed, dir, "--engine", "reference")
		if ok, _ := sum["ok"].(bool); ok || sum["failed"] == 0.0 {
			t.Errorf("%s: %v", what, sum)
		}
		for name, want := range c.want {
			if checks[name]["result"] != want {
				t.Errorf("%s: %v", what, checks[name])
			}
		}
	}
	dir := edited(t, "kv-qwen3", func(map[string]any) {})
	blocks, err := filepath.Glob(filepath.Join(dir, "expected", "*", "*.safetensors"))
	must(err)
	damage(t, blocks[0])
	status, out, _ := cli(t, "verify", dir)
	if status != exitFailed || !strings.Contains(out, "blocks        failed: verdict complete: 4 identical, 1 different") || strings.Contains(out, "pdlink-verify-") {
		t.Errorf("status %d: %s", status, out)
	}
	for what, spoil := range map[string]func(string) error{
		"missing": os.Remove, "cut short": func(path string) error { return os.Truncate(path, 20) },
	} {
		dir := edited(t, "dsv4-a", func(map[string]any) {})
		blocks, err := filepath.Glob(filepath.Join(dir, "expected", "*", "*.safetensors"))
		must(err)
		must(spoil(blocks[0]))
		checks, _ := verified(t, exitFailed, dir, "--engine", "reference")
		if checks["blocks"]["result"] != "failed" || checks["arrays"]["result"] != "passed" {
			t.Errorf("a block that is %s: %v", what, checks)
		}
	}
}

// firstByte flips a bit of the first value of a safetensors file.
func firstByte(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(err)
	b[8+binary.LittleEndian.Uint64(b)] ^= 1
	must(os.WriteFile(path, b, 0o600))
}

// TestVerifyOfACaptureAlone: without anything recorded the reference has only itself
// to be held to.
func TestVerifyOfACaptureAlone(t *testing.T) {
	dir := edited(t, "dsv4-a", func(map[string]any) {})
	must(os.RemoveAll(filepath.Join(dir, "expected")))
	must(os.RemoveAll(filepath.Join(dir, "state.safetensors")))
	checks, sum := verified(t, exitOK, dir, "--engine", "reference")
	for name, want := range map[string]string{"arrays": "left out", "pooled": "left out", "self-test": "passed", "continuation": "passed", "blocks": "left out"} {
		if checks[name]["result"] != want {
			t.Errorf("%v", checks[name])
		}
	}
	if sum["passed"] != 2.0 {
		t.Errorf("%v", sum)
	}
}

// TestVerifyOfAPart: a right engine passes whatever part is taken, what there is nothing
// to compare of is told, and nothing at all is no success.
func TestVerifyOfAPart(t *testing.T) {
	for _, c := range []struct {
		args      []string
		status    int
		passed    float64
		tokens    float64
		check, in string
	}{
		{[]string{"dsv4-a", "--tokens", "100"}, exitOK, 2, 100, "pooled", "pooled 128 left out: 100 tokens complete no row"},
		{[]string{"dsv4-a", "--tokens", "100"}, exitOK, 2, 100, "arrays", "100 tokens end no block of 512, and not the prompt"},
		{[]string{"dsv4-a", "--tokens", "3"}, exitOK, 1, 3, "pooled", "3 tokens complete no row of a pool"},
		{[]string{"dsv4-a", "--tokens", "1"}, exitUsage, 0, 1, "self-test", "a prompt of one token cannot be cut"},
		{[]string{"dsv4-a", "--tokens", "1303"}, exitOK, 5, 1303, "blocks", "made with the reference"},
		{[]string{"kv-qwen3", "--tokens", "300"}, exitUsage, 0, 300, "blocks", "leave --tokens and --layers out"},
	} {
		checks, sum := verified(t, c.status, append([]string{bundledPrefix + c.args[0], "--library", noLibrary(t)}, c.args[1:]...)...)
		if sum["passed"] != c.passed || sum["failed"] != 0.0 || sum["tokens"] != c.tokens || sum["ok"] != (c.status == exitOK) {
			t.Errorf("%v: %v", c.args, sum)
		}
		if detail, _ := checks[c.check]["detail"].(string); !strings.Contains(detail, c.in) {
			t.Errorf("%v: %v", c.args, checks[c.check])
		}
	}
	status, _, errOut := cli(t, "verify", bundledPrefix+"kv-qwen3", "--tokens", "300")
	if status != exitUsage || !strings.Contains(errOut, "nothing was checked: take more of the case") {
		t.Errorf("status %d, %q", status, errOut)
	}
}

func TestVerifyRefuses(t *testing.T) {
	none := noLibrary(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{}, "CASE"},
		{[]string{"bundled:nobody"}, "bundled"},
		{[]string{bundledPrefix + "dsv4-a", "--engine", "quantum"}, "--engine"},
		{[]string{bundledPrefix + "dsv4-a", "--engine", ""}, "--engine is empty"},
		{[]string{bundledPrefix + "dsv4-a", "--tokens", "-1"}, "--tokens"},
		{[]string{bundledPrefix + "dsv4-a", "--workers", "-1"}, "--workers"},
		{[]string{bundledPrefix + "dsv4-a", "--workers", "1025"}, "--workers 1025: want 1 to 1024, or 0"},
		{[]string{bundledPrefix + "dsv4-a", "--layers", "9"}, "layers"},
		{[]string{bundledPrefix + "dsv4-a", "--engine", "reference", "--library", none}, "--library"},
		{[]string{bundledPrefix + "dsv4-a", "--engine", "cuda", "--library", none}, "no CUDA projection"},
		{[]string{bundledPrefix + "kv-qwen3", "--engine", "cuda"}, "moved"},
		{[]string{bundledPrefix + "kv-qwen3", "--layers", "0"}, "--layers: plain keys and values are moved"},
		{[]string{bundledPrefix + "dsv4-a", "--layers="}, `"" is no number of a layer: give some, as 0,2,3, or leave it out`},
		{[]string{bundledPrefix + "dsv4-a", "--layers", "0,x"}, `"x" is no number of a layer`},
	} {
		status, out, errOut := cli(t, append([]string{"verify"}, c.args...)...)
		if status != exitUsage || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("%v: status %d, %q, %q", c.args, status, out, errOut)
		}
	}
}

// TestACaseThatCannotBeUsedHasOneStatus: whoever reads it, and wherever that shows.
func TestACaseThatCannotBeUsedHasOneStatus(t *testing.T) {
	lacks := func(name, file, tensor string) string { // a case whose file has another name for a tensor
		dir := edited(t, name, func(map[string]any) {})
		path := filepath.Join(dir, file)
		b, err := os.ReadFile(path)
		must(err)
		if !bytes.Contains(b, []byte(`"`+tensor+`"`)) {
			t.Fatalf("%s of %s has no %s", file, name, tensor)
		}
		must(os.WriteFile(path, bytes.Replace(b, []byte(`"`+tensor+`"`), []byte(`"`+strings.ToUpper(tensor)+`"`), 1), 0o600))
		return dir
	}
	for what, dir := range map[string]string{
		"kv, no keys":      lacks("kv-qwen3", "capture.safetensors", "layer_1.k"),
		"dsv4, no input":   lacks("dsv4-a", "capture.safetensors", "layer_1.x"),
		"dsv4, no weights": lacks("dsv4-a", "weights.safetensors", firstTensor(t, filepath.Join(casesDir, "dsv4-a", "weights.safetensors"))),
		"no numerics":      edited(t, "dsv4-a", func(m map[string]any) { m["numerics"] = "none-such" }),
		"no geometry":      edited(t, "dsv4-a", func(m map[string]any) { delete(m, "config") }),
	} {
		for _, args := range [][]string{{"verify", dir, "--library", noLibrary(t)}, {"replay", dir, "--discard"}} {
			if status, out, errOut := cli(t, args...); status != exitUsage || out != "" || errOut == "" {
				t.Errorf("%s: %s: status %d, %q, %q", what, args[0], status, out, errOut)
			}
		}
	}
}

// firstTensor is the name that comes first in a safetensors file.
func firstTensor(t *testing.T, path string) string {
	t.Helper()
	f, err := safetensors.Open(path)
	must(err)
	defer f.Close()
	return f.Tensors()[0].Name
}

// TestTemporaryFilesNeedAPlace: which the message says how to give, before anything is
// computed.
func TestTemporaryFilesNeedAPlace(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(casesDir, "none"))
	for _, args := range [][]string{{"verify", filepath.Join(casesDir, "dsv4-a")}, {"verify", bundledPrefix + "kv-qwen3"}, {"replay", bundledPrefix + "kv-qwen3", "--discard"}} {
		if status, out, errOut := cli(t, args...); status != exitUsage || out != "" || !strings.Contains(errOut, "set $TMPDIR to a directory that this user can write") {
			t.Errorf("%v: status %d, %q, %q", args, status, out, errOut)
		}
	}
}
