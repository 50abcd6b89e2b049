//go:build unix

package keys_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pdlink/transport/keys"
)

// wantMode checks the mode of a file.
func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != want {
		t.Errorf("%s: mode %v, want %v: %v", filepath.Base(path), fi.Mode(), want, err)
	}
}

func TestModesOfNewFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if _, err := keys.Init(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	if err := keys.AddPeer(t.Context(), dir, keys.Peer{Name: "p", Key: parse(t, rfcText)}); err != nil {
		t.Fatal(err)
	}
	wantMode(t, dir, 0o700)
	wantMode(t, filepath.Join(dir, keys.IdentityFile), 0o600)
	wantMode(t, filepath.Join(dir, keys.PeersFile), 0o600)
	// A peers file that others may read may stay readable only by its owner.
	os.Chmod(filepath.Join(dir, keys.PeersFile), 0o644)
	if _, err := keys.RemovePeer(t.Context(), dir, "p"); err != nil {
		t.Fatal(err)
	}
	wantMode(t, filepath.Join(dir, keys.PeersFile), 0o600)
	wantMode(t, filepath.Join(dir, ".lock"), 0o600)
	if names := list(t, dir); len(names) != 3 {
		t.Errorf("files left: %v", names)
	}
}

// list is the names in dir.
func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestUnsafeFiles(t *testing.T) {
	load := map[string]func(dir string) error{
		keys.IdentityFile: func(dir string) error { _, err := keys.LoadIdentity(dir); return err },
		keys.PeersFile:    func(dir string) error { _, err := keys.LoadPeers(dir); return err },
	}
	chmod := func(mode fs.FileMode) func(dir, path string) error {
		return func(_, path string) error { return os.Chmod(path, mode) }
	}
	tests := []struct {
		name, file string
		change     func(dir, path string) error
		ok         bool
		says       string
	}{
		{"as made", keys.IdentityFile, chmod(0o600), true, ""},
		{"read only", keys.IdentityFile, chmod(0o400), true, ""},
		{"group reads", keys.IdentityFile, chmod(0o640), false, "chmod 600 "},
		{"world reads", keys.IdentityFile, chmod(0o604), false, "chmod 600 "},
		{"group writes", keys.IdentityFile, chmod(0o620), false, "chmod 600 "},
		{"peers as made", keys.PeersFile, chmod(0o600), true, ""},
		{"world reads peers", keys.PeersFile, chmod(0o644), true, ""},
		{"group writes peers", keys.PeersFile, chmod(0o664), false, "chmod go-w "},
		{"world writes peers", keys.PeersFile, chmod(0o606), false, "chmod go-w "},
		{"group writes the directory", keys.PeersFile, func(dir, _ string) error { return os.Chmod(dir, 0o770) }, false, "chmod go-w "},
		{"world writes the directory", keys.IdentityFile, func(dir, _ string) error { return os.Chmod(dir, 0o1777) }, false, "chmod go-w "},
		{"link", keys.IdentityFile, func(dir, path string) error {
			return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path))
		}, false, "symbolic link"},
		{"linked peers", keys.PeersFile, func(dir, path string) error {
			return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path))
		}, false, "symbolic link"},
		{"pipe", keys.IdentityFile, func(_, path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) }, false, "regular"},
		{"directory", keys.PeersFile, func(_, path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, false, "regular"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "keys")
			if _, err := keys.Init(t.Context(), dir, false); err != nil {
				t.Fatal(err)
			}
			if err := keys.AddPeer(t.Context(), dir, keys.Peer{Name: "p", Key: parse(t, rfcText)}); err != nil {
				t.Fatal(err)
			}
			if err := tt.change(dir, filepath.Join(dir, tt.file)); err != nil {
				t.Fatal(err)
			}
			switch err := load[tt.file](dir); {
			case tt.ok && err != nil:
				t.Error(err)
			case !tt.ok && (!errors.Is(err, keys.ErrPermissions) || !strings.Contains(err.Error(), tt.says)):
				t.Errorf("%v, want %q", err, tt.says)
			}
		})
	}
}

// TestUnsafeDirectoryIsNotWritten: nothing is made where others can replace it.
func TestUnsafeDirectoryIsNotWritten(t *testing.T) {
	dir := t.TempDir()
	os.Chmod(dir, 0o777)
	if _, err := keys.Init(t.Context(), dir, false); !errors.Is(err, keys.ErrPermissions) {
		t.Errorf("Init: %v", err)
	}
	if err := keys.AddPeer(t.Context(), dir, keys.Peer{Name: "p", Key: parse(t, rfcText)}); !errors.Is(err, keys.ErrPermissions) {
		t.Errorf("AddPeer: %v", err)
	}
	if names := list(t, dir); len(names) != 0 {
		t.Errorf("made %v", names)
	}
}
