//go:build unix

package trace_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pdlink/bridge/trace"
)

// TestPipeIsWritten to whoever reads it; nobody is waited for.
func TestPipeIsWritten(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	rec := trace.New(trace.Options{})
	rec.Begin(trace.Write, "write").End(0, 1)
	if err := trace.Check(name); err != nil {
		t.Error(err)
	}
	if err := rec.WriteFile(name); !errors.Is(err, syscall.ENXIO) || !strings.Contains(err.Error(), "nobody reads the pipe: open "+name) {
		t.Errorf("%v", err)
	}
	r, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := rec.WriteFile(name); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64<<10) // what a pipe holds
	n, err := r.Read(b)
	if err != nil || !json.Valid(b[:n]) {
		t.Errorf("%q %v", b[:n], err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().IsRegular() {
		t.Errorf("it was replaced: %v %v", info, err)
	}
}
