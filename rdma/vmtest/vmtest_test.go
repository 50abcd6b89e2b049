package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// entry is what unpack finds.
type entry struct {
	mode uint64
	body string
}

// unpack reads an archive, written after the kernel's description of the format.
func unpack(t *testing.T, data []byte) map[string]entry {
	t.Helper()
	found := map[string]entry{}
	for len(data) > 0 {
		if !bytes.HasPrefix(data, []byte("070701")) {
			t.Fatalf("no header but %q", data[:min(len(data), 16)])
		}
		field := func(i int) uint64 {
			v, err := strconv.ParseUint(string(data[6+8*i:14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		mode, size, name := field(1), int(field(6)), int(field(11))
		body := (110 + name + 3) &^ 3
		key := string(data[110 : 110+name-1])
		if key == "TRAILER!!!" {
			if rest := bytes.Trim(data[body:], "\x00"); len(rest) > 0 {
				t.Fatalf("%d bytes behind the end", len(rest))
			}
			return found
		}
		if _, twice := found[key]; twice {
			t.Errorf("%s is there twice", key)
		}
		found[key] = entry{mode, string(data[body : body+size])}
		data = data[(body+size+3)&^3:]
	}
	t.Fatal("no end")
	return nil
}

func TestArchive(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a": "", "sub/b": "12345", "sub/deep/c": "x"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("b", filepath.Join(dir, "sub", "link")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := newArchive(&out)
	a.text("init", "#!", 0o755)
	a.link("bin/sh", "dash")
	a.tree("job", dir)
	a.text("init", "other", 0o600) // the first stays
	a.file("job/one", filepath.Join(dir, "a"))
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	got := unpack(t, out.Bytes())
	for name, want := range map[string]entry{
		"init": {0o100755, "#!"}, "bin": {0o040755, ""}, "bin/sh": {0o120777, "dash"}, "job": {0o040755, ""}, "job/a": {0o100750, ""}, "job/one": {0o100750, ""},
		"job/sub": {0o040755, ""}, "job/sub/b": {0o100750, "12345"}, "job/sub/link": {0o100750, "12345"}, "job/sub/deep": {0o040755, ""}, "job/sub/deep/c": {0o100750, "x"},
	} {
		if got[name] != want {
			t.Errorf("%s is %+v, want %+v", name, got[name], want)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("more: %v", got)
	}
	if out.Len()%512 != 0 {
		t.Errorf("%d bytes: another archive behind would not be found", out.Len())
	}
	a = newArchive(&out)
	a.file("x", filepath.Join(dir, "none"))
	if err := a.close(); err == nil {
		t.Error("an archive without its file was closed")
	}
}

// TestScript runs what the machine would run.
func TestScript(t *testing.T) {
	words := []string{"printf", "%s|", "plain", "two words", "it's", `"$HOME"`, "a\nb", "", "*"}
	j := job{env: []string{"A=1 2", "B='$(x)'"}, command: words}
	script := j.script() + `printf '%s,%s' "$A" "$B"`
	out, err := exec.CommandContext(t.Context(), "sh", "-c", script).Output()
	want := "plain|two words|it's|\"$HOME\"|a\nb||*|1 2,'$(x)'"
	if err != nil || string(out) != want {
		t.Errorf("%q, want %q: %v", out, want, err)
	}
	if got := (job{command: []string{"a | b; exit 3"}}).script(); got != "a | b; exit 3\n" {
		t.Errorf("line of shell became %q", got)
	}
}

func TestOfGoTest(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.Mkdir("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	j := ofGoTest(job{files: []string{"more"}, command: []string{"/tmp/b/x.test", "-test.testlogfile=/tmp/log", "-test.run=A|B"}})
	if want := []string{"exec", "./x.test", "-test.run=A|B"}; !slices.Equal(j.command, want) {
		t.Errorf("command %q, want %q", j.command, want)
	}
	if want := []string{"more", "/tmp/b/x.test", "testdata"}; !slices.Equal(j.files, want) {
		t.Errorf("files %q, want %q", j.files, want)
	}
}

func TestStatusPort(t *testing.T) {
	for text, want := range map[string]string{
		"": "0, no, no", "run\n": "0, yes, no", "run\nrc 0\n": "0, yes, yes", "run\nrc 7\n": "7, yes, yes", "rc 125\n": "125, no, yes",
		"run\nrc 300\n": "0, yes, no", "run\nrc x\n": "0, yes, no", "ru": "0, no, no",
	} {
		p := &statusPort{begun: make(chan struct{})}
		for i := range len(text) { // as it may come
			if _, err := p.Write([]byte{text[i]}); err != nil {
				t.Fatal(err)
			}
		}
		status, started, found := p.result()
		if got := fmt.Sprintf("%d, %s, %s", status, yes(started), yes(found)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
		select {
		case <-p.begun:
			if !started {
				t.Errorf("%q: the job counts as begun", text)
			}
		default:
			if started {
				t.Errorf("%q: nobody was told that the job began", text)
			}
		}
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"run", "-nosuch"}, {"run", "-limit", "x", "--", "a"}, {"run", "-steady", "3", "--", "a"}} {
		status, err := run(t.Context(), args, &bytes.Buffer{}, &bytes.Buffer{})
		if status != 2 || err == nil || !strings.Contains(err.Error(), "usage") && !strings.Contains(err.Error(), "-steady 3") {
			t.Errorf("%q: %d, %v", args, status, err)
		}
	}
}

func TestModuleNames(t *testing.T) {
	for path, want := range map[string]string{"kernel/net/sch_tbf.ko\n": "sch_tbf", "a/crc32-pclmul.ko": "crc32_pclmul", "ib_core": "ib_core"} {
		if got := moduleName(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}

// TestProcessors: a clock that counts instructions is of one processor.
func TestProcessors(t *testing.T) {
	for m, want := range map[machine]string{
		{cpus: 2}:            "-accel tcg,thread=multi -smp 2",
		{cpus: 2, steady: 1}: "-accel tcg,thread=single -smp 1 -icount shift=0,sleep=off,align=off",
		{cpus: 4, steady: 4}: "-accel tcg,thread=single -smp 1 -icount shift=2,sleep=off,align=off",
	} {
		if got := strings.Join(m.processors(), " "); got != want {
			t.Errorf("%+v: %q, want %q", m, got, want)
		}
		if all := strings.Join(m.arguments("tmp", "console", "initrd"), " "); !strings.HasPrefix(all, want+" ") {
			t.Errorf("%+v: arguments %q", m, all)
		}
	}
}
