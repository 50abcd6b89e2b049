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

// TestTraceOfAJobThatFails: what it did is told, and where it did nothing an earlier file
// stays as it is, or there is none.
func TestTraceOfAJobThatFails(t *testing.T) {
	dir := t.TempDir()
	store, file := filepath.Join(dir, "store"), filepath.Join(dir, "trace.json")
	v4 := filepath.Join(casesDir, "dsv4-a")
	for _, args := range [][]string{
		{v4, "--to", "tcp://127.0.0.1:1", "--retry", "0"}, // nobody is there
		{filepath.Join(dir, "none"), "--store", store},    // no such case
		{v4, "--store", store, "--format", "7"},
	} {
		if status, _, _ := cli(t, append([]string{"replay", "--trace", file}, args...)...); status == exitOK {
			t.Errorf("%v succeeds", args)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "*trace*")); err != nil || len(left) > 0 {
			t.Errorf("%v: left behind: %v, %v", args, left, err)
		}
	}
	replayJSON(t, exitOK, v4, "--store", store, "--trace", file)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	replayJSON(t, exitFailed, v4, "--to", "tcp://127.0.0.1:1", "--retry", "0", "--trace", file)
	if now, err := os.ReadFile(file); err != nil || string(now) != string(whole) {
		t.Errorf("a job that did not begin changed the trace of an earlier one: %d bytes of %d, %v", len(now), len(whole), err)
	}
	replayJSON(t, exitFailed, v4, "--store", store, "--format", "5", "--trace", file) // the name is taken
	if rows := traced(t, file); rows["write"] != 0 || len(rows) == 0 {
		t.Errorf("a job that failed: %v", rows)
	}
}
