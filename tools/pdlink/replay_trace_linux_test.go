package main

import (
	"path/filepath"
	"strings"
	"testing"

	"pdlink/bridge"
)

// TestTraceThatCannotBeWritten: the job's result is said once, as it is, and the status is
// that of a job that ran and lacks something.
func TestTraceThatCannotBeWritten(t *testing.T) {
	kv := filepath.Join(casesDir, "kv-qwen3")
	res := replayJSON(t, exitFailed, kv, "--discard", "--trace", "/dev/full") // demands one object
	if res.State != bridge.Complete || res.Blocks != 5 {
		t.Errorf("%+v", res)
	}
	status, out, errOut := cli(t, "replay", kv, "--discard", "--trace", "/dev/full")
	if status != exitFailed || !strings.Contains(out, "complete") || !strings.Contains(errOut, "pdlink: write trace: ") || !strings.Contains(errOut, "no space left") {
		t.Errorf("status %d: %q, %q", status, out, errOut)
	}
	res = replayJSON(t, exitUsage, kv, "--discard", "--trace", "/no/such/directory/file") // nothing was done
	if res.State != stateFailed || !strings.Contains(res.Reason, "--trace: ") {
		t.Errorf("%+v", res)
	}
}
