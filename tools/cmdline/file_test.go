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
