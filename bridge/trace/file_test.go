package trace

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recorded is a timeline of one span.
func recorded() *Recorder {
	r := New(Options{})
	r.Begin(Write, "write").End(0, 1)
	return r
}

// alone checks that a directory has these files, and that they are whole timelines or have
// the text.
func alone(t *testing.T, dir, text string, names ...string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != len(names) {
		t.Errorf("%v: %v, want %q", err, list, names)
	}
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || text == "" && !json.Valid(b) || text != "" && string(b) != text {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
}

// TestLinkThatLeadsNowhere: what it leads to is made, by several, and the links stay.
func TestLinkThatLeadsNowhere(t *testing.T) {
	dir, to := t.TempDir(), t.TempDir()
	first, second, round := filepath.Join(dir, "first"), filepath.Join(dir, "second"), filepath.Join(dir, "round")
	if err := errors.Join(os.Symlink("second", first), os.Symlink(filepath.Join(to, "trace.json"), second), os.Symlink("round", round)); err != nil {
		t.Fatal(err)
	}
	if err := Check(first); err != nil {
		t.Error(err)
	}
	alone(t, to, "")
	if err := recorded().WriteFile(first); err != nil {
		t.Fatal(err)
	}
	alone(t, to, "", "trace.json")
	for _, link := range []string{first, second} {
		if info, err := os.Lstat(link); err != nil || info.Mode().Type() != os.ModeSymlink {
			t.Errorf("%v %v", info, err)
		}
	}
	if err := Check(round); err == nil || !strings.Contains(err.Error(), round+": ") {
		t.Errorf("a link to itself: %v", err)
	}
}

// TestNameThatCannotBeGiven: the file that has it is written over; where there is none the
// timeline stays beside it, and is said to.
func TestNameThatCannotBeGiven(t *testing.T) {
	busy := errors.New("device or resource busy")
	fails := func(_, _ string) error { return busy }
	for _, earlier := range []string{"", "earlier, and longer than what comes"} {
		dir := t.TempDir()
		name := filepath.Join(dir, "trace.json")
		if earlier != "" {
			if err := os.WriteFile(name, []byte(earlier), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w, err := begin(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, "{}"); err != nil {
			t.Fatal(err)
		}
		err = w.commit(fails)
		if earlier != "" {
			if err != nil {
				t.Error(err)
			}
			alone(t, dir, "{}", "trace.json")
			continue
		}
		if !errors.Is(err, busy) || !strings.HasSuffix(err.Error(), ": the timeline is in "+w.f.Name()) {
			t.Errorf("%v", err)
		}
		alone(t, dir, "{}", filepath.Base(w.f.Name()))
	}
}

// TestDirectoryThatTakesNoFile: a file that is there is written over, and only by WriteFile.
func TestDirectoryThatTakesNoFile(t *testing.T) {
	dir := t.TempDir()
	base := strings.Repeat("x", 250) // what is beside it has a name that is too long
	name, earlier := filepath.Join(dir, base), strings.Repeat("earlier ", 1000)
	if err := Check(name); err == nil || !strings.HasPrefix(err.Error(), "open "+name+": ") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(name, []byte(earlier), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Check(name); err != nil {
		t.Error(err)
	}
	alone(t, dir, earlier, base)
	if err := recorded().WriteFile(name); err != nil {
		t.Fatal(err)
	}
	alone(t, dir, "", base)
}
