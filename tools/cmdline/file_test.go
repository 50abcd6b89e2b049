package cmdline

import (
	"context"
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
