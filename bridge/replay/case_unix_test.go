//go:build unix

package replay_test

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pdlink/bridge/replay"
)

// TestCaseIsAFile: a pipe is not waited for.
func TestCaseIsAFile(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "case.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := replay.Load(dir); !errors.Is(err, replay.ErrCase) || !strings.Contains(err.Error(), "not a regular file") {
		t.Error(err)
	}
}
