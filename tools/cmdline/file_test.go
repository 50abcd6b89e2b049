package cmdline

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestReadFile reads only what has an end.
func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, say := range map[string]string{dir: "no regular file", socket: "no regular file", plain + "x": "no such file", plain: ""} {
		b, err := ReadFile(path, 5, nil)
		if say == "" && (err != nil || string(b) != "12345") || say != "" && (err == nil || !strings.Contains(err.Error(), say)) {
			t.Errorf("%s: %q, %v, want %q", path, b, err, say)
		}
	}
	if _, err := ReadFile(plain, 4, nil); err == nil || !strings.Contains(err.Error(), "more than 4 bytes") {
		t.Errorf("a byte too many: %v", err)
	}
}

// TestReadFileOfAPipe does not wait for a writer that never comes.
func TestReadFileOfAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if !makePipe(t, path) {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	said := make(chan error, 1)
	go func() {
		_, err := ReadFile(path, 5, nil)
		said <- err
	}()
	select {
	case err := <-said:
		if err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%v", err)
		}
	case <-ctx.Done():
		t.Fatal("it waits for the pipe's other end")
	}
}

// TestReadFileLooksAtWhatItOpened: a name that leads to another file later is of no use.
func TestReadFileLooksAtWhatItOpened(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	swap := func(*os.File) error {
		if err := os.Remove(path); err != nil {
			return err
		}
		return os.WriteFile(path, []byte("2"), 0o600)
	}
	if b, err := ReadFile(path, 5, swap); err != nil || string(b) != "1" {
		t.Errorf("%q, %v", b, err)
	}
	if err := os.Symlink(os.DevNull, filepath.Join(dir, "null")); err != nil {
		t.Fatal(err)
	}
	for _, null := range []string{os.DevNull, filepath.Join(dir, "null")} {
		if b, err := ReadFile(null, 5, nil); err != nil || len(b) != 0 {
			t.Errorf("%s: %q, %v", null, b, err)
		}
	}
}

// TestManyFaultsAreToldInShort: a file of which no line is right is looked through once,
// and its first faults are told, in order.
func TestManyFaultsAreToldInShort(t *testing.T) {
	const keys = 10_000
	var text strings.Builder
	text.WriteString("[serve]\n")
	for i := range keys {
		fmt.Fprintf(&text, "k%d = 1\n", i)
	}
	dir := t.TempDir()
	write := func(text string) Settings {
		path := filepath.Join(dir, "config.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Settings{Path: path}
	}
	var v values
	s := write(text.String())
	serve, _ := Find(program(s, &v), []string{"serve"})
	_, err := s.load(serve)
	if err == nil {
		t.Fatal("no error")
	}
	said := strings.Split(err.Error(), "\n")
	if len(said) != maxFaults+1 || said[maxFaults] != fmt.Sprintf("%s: and %d more", s.Path, keys-maxFaults) {
		t.Fatalf("%d lines, the last is %q", len(said), said[len(said)-1])
	}
	for i, line := range said[:maxFaults] {
		if want := fmt.Sprintf("line %d: unknown setting k%d of [serve]", i+2, i); !strings.Contains(line, want) {
			t.Errorf("%q, want %q", line, want)
		}
	}

	// Each line is read once, and of what is wrong only what is told is thought about.
	f := &file{path: s.Path, text: text.String(), lines: indexOf(text.String()), tables: map[string]any{}}
	thought := 0
	var wrong []suspect
	for i := range keys {
		wrong = append(wrong, suspect{f.lineOf([]string{"serve"}, fmt.Sprintf("k%d", i)), func() string { thought++; return "x" }})
	}
	if f.told(wrong) == nil || f.lines.read != keys+1 || thought != maxFaults || wrong[keys-1].line != keys+1 {
		t.Errorf("%d lines were read, %d of %d faults thought about, the last in line %d", f.lines.read, thought, keys, wrong[keys-1].line)
	}
}

// TestWhatAFileBeginsWith: the mark of UTF-8 is none of its text, another encoding is
// named, and what is no file of settings is not read.
func TestWhatAFileBeginsWith(t *testing.T) {
	if v, _, err := applied(t, "\xef\xbb\xbf[serve]\nlisten = 'x'\n", nil, "serve"); err != nil || v.listen != "x" {
		t.Errorf("%+v, %v", v, err)
	}
	long := strings.Repeat("k", 10_000)
	for text, say := range map[string]string{
		"\xef\xbb\xbf[serve]\nlistne = 'x'\n":                   "line 2: unknown setting listne of [serve]: did you mean listen?",
		"\xff\xfe[\x00s\x00]\x00":                               "it is in UTF-16: save it as UTF-8",
		"\xfe\xff\x00[\x00s\x00]":                               "it is in UTF-16: save it as UTF-8",
		strings.Repeat("[a]\n", maxEntries+1):                   "more than 12000 values and tables",
		strings.Repeat("a.a=1\n", maxEntries/2+1):               "more than 12000 values and tables",
		"a={" + strings.Repeat("a=1,", maxEntries) + "a=1}":     "more than 12000 values and tables",
		"a=[" + strings.Repeat("{a=1},", maxEntries) + "{a=1}]": "more than 12000 values and tables",
		"[serve]\n" + long + " = 1\n":                           "unknown setting " + long[:maxShown] + "... of [serve]",
		"[serve]\nlisten = 'a'\n[[x]]\na=1\n[b]\nc=1":           "line 5: unknown table [b]",
	} {
		_, _, err := applied(t, text, nil, "serve")
		if err == nil || !strings.Contains(err.Error(), say) || len(err.Error()) > 1000 {
			t.Errorf("%.20q: %.1000v, want %q", text, err, say)
		}
	}
}

// TestCommentsAndTextsAreNoEntries: a file of settings that explains itself is read,
// whatever stands in what it says.
func TestCommentsAndTextsAreNoEntries(t *testing.T) {
	comment := strings.Repeat("# [serve] listen = \"a\", a = b\n", maxEntries/2)
	list := strings.Repeat("=[", maxEntries)
	for _, text := range []string{
		"[serve]\n" + comment + "listen = 'x' # " + list + "\n",
		"[serve]\nlisten = \"\"\"" + list + "\"\"\"\n",
		"[serve]\nlisten = \"" + list + "\"\n",
		"[serve]\nlisten = '" + list + "'\n",
	} {
		if v, _, err := applied(t, text, nil, "serve"); err != nil || v.listen != "x" && v.listen != list {
			t.Errorf("%.40q: listen is %.40q, %v", text, v.listen, err)
		}
	}
	for text, want := range map[string]int{
		"": 0, "# a=1": 0, "a=1": 1, "[a]\nb=1": 2, "[a.b]\n": 2, "[[a]]\n\"b=c\".d=[1,2,[3]]": 3, "a={b={c=1}}": 3, "a=[{b=1},{b=2}]": 3, "a=1\nb=\nc=1": 1,
	} {
		if n := entries([]byte(text)); n != want {
			t.Errorf("%q has %d entries, want %d", text, n, want)
		}
	}
}
