//go:build faults

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestVerifyOnAFullDisk: no room for the blocks is nothing that the engine did wrong. The
// other checks are told, the status is the one for what the user has to mend, and so is
// the summary's word.
func TestVerifyOnAFullDisk(t *testing.T) {
	if os.Getenv(mountsEnv) != "1" {
		inNamespace(t)
		return
	}
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatalf("make mounts private: %v", err)
	}
	for _, options := range []string{"size=64k", "size=64m,nr_inodes=8", "size=64m,nr_inodes=20"} {
		dir := t.TempDir()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
			t.Fatalf("mount tmpfs, %s: %v", options, err)
		}
		t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
		t.Setenv("TMPDIR", dir)
		status, out, errOut := cli(t, "verify", filepath.Join(casesDir, "dsv4-a"), "--engine", "reference", "--json")
		blocks, sum, last := map[string]any{}, map[string]any{}, map[string]any{}
		for _, l := range lines(t, out) {
			switch {
			case l["check"] == checkBlocks:
				blocks = l
			case l["event"] == "summary":
				sum = l
			}
			last = l
		}
		ok, _ := sum["ok"].(bool)
		if ok || status != exitUsage || blocks["result"] != "left out" || sum["passed"] != 4.0 || sum["failed"] != 0.0 || last["event"] != "error" {
			t.Errorf("%s: status %d, %v, %v, %v", options, status, blocks, sum, last)
		}
		if !strings.Contains(errOut, "free that disk, or set $TMPDIR") || strings.Contains(out+errOut, "pdlink-verify-") {
			t.Errorf("%s: %q", options, errOut)
		}
	}
}
