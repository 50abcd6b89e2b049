//go:build faults

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReadyOnAFullDisk: /readyz says that a store is full, for whatever reason, and that it
// is no more.
func TestReadyOnAFullDisk(t *testing.T) {
	if os.Getenv(mountsEnv) != "1" {
		inNamespace(t)
		return
	}
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatalf("make mounts private: %v", err)
	}
	for _, options := range []string{"size=1m", "size=256m,nr_inodes=40"} {
		dir := t.TempDir()
		mount := func(flags uintptr, options string) {
			t.Helper()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
				t.Fatalf("mount tmpfs, %s: %v", options, err)
			}
		}
		mount(0, options)
		t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
		r := startReceiver(t, dir, "--metrics", "0")
		url := watchedAt(t, r.process, "listening")
		for i := range 100 { // until there are no names left
			if os.WriteFile(filepath.Join(dir, string(rune('A'+i%26))+strings.Repeat("x", i)), nil, 0o600) != nil {
				break
			}
		}
		says := func(want int) {
			t.Helper()
			text := ""
			if !eventually(processLimit, func() bool {
				var status int
				status, text = fetched(t, url+"readyz")
				return status == want
			}) {
				t.Errorf("%s: never %d: %s", options, want, text)
			}
		}
		says(http.StatusServiceUnavailable)
		mount(syscall.MS_REMOUNT, "size=256m,nr_inodes=1000")
		says(http.StatusOK)
		r.signal()
		if status := r.wait(); status != exitOK {
			t.Errorf("status %d: %v", status, r)
		}
	}
}
