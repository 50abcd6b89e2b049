package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// traced is how many payload bytes each row of a timeline has.
func traced(t *testing.T, file string) map[string]uint64 {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var timeline struct {
		TraceEvents []struct {
			Cat, Ph string
			Args    struct{ Bytes uint64 }
		}
	}
	if err := json.Unmarshal(text, &timeline); err != nil {
		t.Fatal(err)
	}
	rows := map[string]uint64{}
	for _, e := range timeline.TraceEvents {
		if e.Ph == "X" {
			rows[e.Cat] += e.Args.Bytes
		}
	}
	return rows
}

// TestTrace has the timelines of both ends, in one process and in two.
func TestTrace(t *testing.T) {
	dir := t.TempDir()
	both, from, to := filepath.Join(dir, "both.json"), filepath.Join(dir, "from.json"), filepath.Join(dir, "to.json")
	res := replayJSON(t, exitOK, filepath.Join(casesDir, "kv-qwen3"), "--store", filepath.Join(dir, "one"), "--link", "tcp://127.0.0.1:0", "--trace", both)
	rows := traced(t, both)
	for _, row := range []string{"project", "grant", "wire out", "wire in", "verify", "write"} {
		if rows[row] != res.Bytes {
			t.Errorf("%s has %d bytes of %d", row, rows[row], res.Bytes)
		}
	}
	for _, row := range []string{"lease", "fsync", "adopt"} {
		if _, ok := rows[row]; !ok {
			t.Errorf("no %s", row)
		}
	}
	r := startReceiver(t, filepath.Join(dir, "two"), "--trace", to)
	replayJSON(t, exitOK, filepath.Join(casesDir, "kv-qwen3"), "--to", listeningEvent(t, r).Listen, "--trace", from)
	r.signal()
	r.wait()
	if rows := traced(t, from); rows["wire out"] != res.Bytes || rows["write"] != 0 {
		t.Errorf("sender: %v", rows)
	}
	if rows := traced(t, to); rows["wire in"] != res.Bytes || rows["write"] != res.Bytes || rows["wire out"] != 0 {
		t.Errorf("receiver: %v", rows)
	}
	if status, _, said := cli(t, "replay", filepath.Join(casesDir, "kv-qwen3"), "--discard", "--trace", filepath.Join(dir, "no", "where")); status == exitOK {
		t.Errorf("a file that cannot be made: status %d, %s", status, said)
	}
}
