package omlx

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// linkDisk publishes as on systems and file systems without an exclusive rename.
type linkDisk struct{ osDisk }

func (linkDisk) publish(temp, final string) error { return linkNew(temp, final) }

func TestPublishByLink(t *testing.T) {
	plan := tiny(Format3, 3)
	renamed := mustOpen(t, t.TempDir())
	linked := mustOpen(t, t.TempDir())
	linked.disk = linkDisk{}
	first, second := mustBegin(t, linked, plan), mustBegin(t, linked, plan)
	for _, j := range []*Job{mustBegin(t, renamed, plan), first, second} {
		if err := writeAll(j); err != nil {
			t.Fatal(err)
		}
	}
	if !second.Present(2) || !same(files(t, linked.root), files(t, renamed.root)) {
		t.Error("files differ from renamed ones")
	}
}

// TestPublishNeverReplaces holds both ways of publishing to their contract.
func TestPublishNeverReplaces(t *testing.T) {
	for name, publish := range map[string]func(temp, final string) error{"rename": renameNew, "link": linkNew} {
		dir := t.TempDir()
		temp, final := filepath.Join(dir, "temp"), filepath.Join(dir, "final")
		write := func(path, text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(temp, "new")
		write(final, "old")
		if err := publish(temp, final); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", name, err)
		}
		for path, want := range map[string]string{temp: "new", final: "old"} {
			if got, err := os.ReadFile(path); err != nil || string(got) != want {
				t.Errorf("%s: %s holds %q, %v", name, path, got, err)
			}
		}
		if err := errors.Join(os.Remove(final), publish(temp, final)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(final); err != nil || string(got) != "new" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if _, err := os.Lstat(temp); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: temporary name: %v", name, err)
		}
	}
}
