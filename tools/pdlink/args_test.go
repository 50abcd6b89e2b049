package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/bridge"
)

// TestMisuseIsToldWithItsCure: what a command line gets wrong ends with status
// 2, before anything is done, and the message says what to do.
func TestMisuseIsToldWithItsCure(t *testing.T) {
	kv := filepath.Join(casesDir, "kv-qwen3")
	file := filepath.Join(kv, "case.json")
	empty := t.TempDir()
	fresh := filepath.Join(empty, "fresh")
	to := "tcp://127.0.0.1:1"
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"relpay"}, "did you mean replay?"},
		{[]string{"store", "verfy"}, "did you mean verify?"},
		{[]string{"replay", "--jsno"}, "did you mean --json? (see pdlink replay --help)"},
		{[]string{"replay", "-json"}, "did you mean --json?"},
		{[]string{"replay", "--to"}, "flag needs an argument: --to (see pdlink replay --help)"},
		{[]string{"decode", "x"}, "takes no arguments"},
		{[]string{"store", "diff", "x"}, "pdlink store diff: B is missing"},
		{[]string{"store", "ls", "a", "b"}, `takes DIR, but there is also "b"`},
		{[]string{"replay", kv, "--store", ""}, "--store is empty"},
		{[]string{"replay", kv, "--to", " "}, "--to is empty"},
		{[]string{"decode", "--store="}, "--store is empty"},
		{[]string{"replay", "", "--store", fresh}, "case is empty"},
		{[]string{"replay", "kv-qwen3", "--store", fresh}, "bundled:kv-qwen3"},
		{[]string{"replay", "bundled:none", "--store", fresh}, "bundled:dsv4-a, bundled:dsv4-b, bundled:kv-qwen3"},
		{[]string{"replay", casesDir, "--store", fresh}, "name one of " + filepath.Join(casesDir, "dsv4-a")},
		{[]string{"replay", file, "--store", fresh}, "name the directory"},
		{[]string{"replay", empty, "--store", fresh}, "no case.json in it"},
		{[]string{"replay", kv, "--store", fresh, "--part", "1/2"}, "--part is for --to"},
		{[]string{"replay", kv, "--to", to, "--part", "1/2", "--senders", "2"}, "--senders is for one process"},
		{[]string{"replay", kv, "--to", to, "--link", "mem://"}, "--link is for"},
		{[]string{"replay", kv, "--to", to, "--no-sync"}, "--no-sync is for --store"},
		{[]string{"replay", kv, "--to", to, "--tokens", "5"}, "--tokens is for --synthetic"},
		{[]string{"replay", "--synthetic", "qwen3-32b", "--tokens", "999", "--discard", "--numerics", "ideal"}, "--numerics is for cases"},
		{[]string{"replay", kv, "--to", "mem://"}, "nobody else can reach it"},
		{[]string{"replay", kv, "--to", "tcp://127.0.0.1:0"}, "port 0 is for listening"},
		{[]string{"replay", kv, "--to", "tcp://127.0.0.1"}, "want tcp://host:port"},
		{[]string{"replay", kv, "--to", "tcp://127.0.0.1:70000"}, "port"},
		{[]string{"replay", kv, "--to", to, "--encrypt", "maybe"}, "want on, 256, off"},
		{[]string{"replay", kv, "--to", to, "--peer", "a b"}, "--peer: "},
		{[]string{"replay", kv, "--to", to, "--keys", ""}, "--keys is empty"},
		{[]string{"replay", kv, "--store", fresh, "--keys", empty}, "--keys is for --to"},
		{[]string{"replay", kv, "--discard", "--encrypt", "off"}, "--encrypt is for --to"},
		{[]string{"decode", "--discard", "--keys", empty}, "make one with `pdlink keys init --dir " + empty + "`"},
		{[]string{"decode", "--discard", "--encrypt", "1"}, "want on, 256, off"},
		{[]string{"decode", "--discard", "--peer", "x"}, "unknown flag: --peer"},
		{[]string{"replay", kv, "--to", "tcp://10.0.0.1:7"}, "ssh tunnel"},
		{[]string{"replay", kv, "--store", fresh, "--workers", "-1"}, "--workers"},
		{[]string{"replay", kv, "--store", fresh, "--timeout", "-1s"}, "--timeout"},
		{[]string{"replay", kv, "--store", file}, "not a directory"},
		{[]string{"decode", "--listen", "mem://x", "--discard"}, "nobody else can reach it"},
		{[]string{"decode", "--listen", "tcp://0.0.0.0:0", "--discard"}, "not loopback"},
		{[]string{"decode", "--discard", "--no-sync"}, "--no-sync is for a store"},
		{[]string{"decode", "--discard", "--ring", "99999"}, "4096 MiB"},
		{[]string{"store", "ls", empty}, "not a block store (no folders 0 to f)"},
		{[]string{"store", "verify", empty}, "not a block store (no folders 0 to f)"},
		{[]string{"store", "diff", empty, kv + "/expected"}, "not a block store (no folders 0 to f)"},
		{[]string{"store", "ls", file}, "`pdlink store show FILE`"},
		{[]string{"store", "verify", file}, "`pdlink store show FILE`"},
		{[]string{"store", "show", empty}, "HASH"},
		{[]string{"store", "show", kv + "/expected", "c"}, "3 blocks of"},
		{[]string{"store", "show", kv + "/expected", "00"}, "no block of"},
		{[]string{"store", "show", kv + "/expected", "../c"}, "want hex digits"},
		{[]string{"store", "verify", kv + "/expected", "--format", "5"}, "--format is for --case"},
	} {
		status, out, errOut := cli(t, c.args...)
		if status != exitUsage || !strings.Contains(errOut, c.say) || out != "" {
			t.Errorf("%q: status %d, want 2; said %q, want %q in it; printed %q", c.args, status, errOut, c.say, out)
		}
	}
	if _, err := os.Stat(fresh); err == nil {
		t.Error("a command line that was refused made a store")
	}
}

// TestUselessCasesAreToldBeforeTheJob: files of a case that cannot be used.
func TestUselessCasesAreToldBeforeTheJob(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"capture.safetensors": func(d string) error { return os.Truncate(filepath.Join(d, "capture.safetensors"), 1000) },
		"weights.safetensors": func(d string) error { return os.Remove(filepath.Join(d, "weights.safetensors")) },
	} {
		dir := edited(t, "dsv4-a", func(map[string]any) {})
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		status, out, errOut := cli(t, "replay", dir, "--to", "tcp://127.0.0.1:1", "--json")
		var res replayResult
		if err := json.Unmarshal([]byte(out), &res); err != nil || status != exitUsage || !strings.Contains(errOut, name) || res.State != stateFailed || !strings.Contains(res.Reason, name) {
			t.Errorf("%s: status %d, %v: %s%s", name, status, err, out, errOut)
		}
	}
}

func TestLinkURLs(t *testing.T) {
	for url, want := range map[string]string{
		"tcp://127.0.0.1:7411": "tcp://127.0.0.1:7411", "TCP://[::1]:7411/": "tcp://[::1]:7411", "Mem://": "mem://", "mem://a/": "mem://a",
		"unix:///run/x.sock": "unix:///run/x.sock",
	} {
		if u, err := parseLink(url); err != nil || u.String() != want {
			t.Errorf("%s: %v, %v", url, u, err)
		}
	}
	for _, url := range []string{"", "tcp", "tcp:/1.2.3.4:5", "tcp://", "tcp://:", "tcp://[::1:5", "tcp://h:-1", "udp://h:1", "unix://"} {
		if u, err := parseLink(url); err == nil {
			t.Errorf("%q was read as %v", url, u)
		}
	}
}

func TestBundledCases(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	res := replayJSON(t, exitOK, "bundled:kv-qwen3", "--store", filepath.Join(t.TempDir(), "store"))
	if res.Case != "kv-qwen3" || res.Identical != 5 {
		t.Errorf("%+v", res)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("unpacked cases are left: %v %v", left, err)
	}
	for typed, want := range map[string]string{"": "bundled:dsv4-b\n", "bundled:k": "bundled:kv-qwen3\n"} {
		if _, out, _ := cli(t, "__complete", "replay", typed); !strings.Contains(out, want) {
			t.Errorf("completion of %q: %s", typed, out)
		}
	}
	status, out, errOut := cli(t, "store", "verify", filepath.Join(casesDir, "kv-qwen3", "expected"), "--case", "bundled:kv-qwen3")
	if status != exitOK {
		t.Errorf("verify against a bundled case: status %d: %s%s", status, out, errOut)
	}
}

// stopped runs a command line that is interrupted before it begins.
func stopped(t *testing.T, args ...string) (status int, out, errOut string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var o, e bytes.Buffer
	status = run(ctx, args, newStreams(&o, &e))
	return status, o.String(), e.String()
}

func TestInterruptsHaveTheirOwnStatus(t *testing.T) {
	kv := filepath.Join(casesDir, "kv-qwen3")
	store := filepath.Join(kv, "expected")
	for _, args := range [][]string{
		{"replay", kv, "--store", t.TempDir()}, {"replay", kv, "--discard"}, {"replay", kv, "--to", "tcp://127.0.0.1:1"},
		{"demo"}, {"demo", "--json"}, {"store", "ls", store}, {"store", "verify", store}, {"store", "diff", store, store},
		{"decode", "--listen", "tcp://127.0.0.1:0", "--discard", "--once"},
	} {
		if status, out, errOut := stopped(t, args...); status != exitStopped || !strings.HasSuffix(errOut, "pdlink: stopped\n") {
			t.Errorf("%v: status %d: %s%s", args, status, out, errOut)
		}
	}
	// A receiver's end is an interrupt.
	status, out, errOut := stopped(t, "decode", "--listen", "tcp://127.0.0.1:0", "--discard")
	if status != exitOK || !strings.Contains(out, "ended: ") || !strings.Contains(errOut, "leaves temporary files") {
		t.Errorf("decode: status %d: %s%s", status, out, errOut)
	}
}

// TestReplayPrintsOneObjectInEveryCase: whatever becomes of the transfer.
func TestReplayPrintsOneObjectInEveryCase(t *testing.T) {
	kv := filepath.Join(casesDir, "kv-qwen3")
	short := edited(t, "kv-qwen3", func(m map[string]any) {
		m["tokens"] = m["tokens"].([]any)[:100]
		m["captured_tokens"] = 100
		delete(m, "blocks")
	})
	other := t.TempDir()
	replayJSON(t, exitOK, kv, "--store", other, "--format", "5")
	for _, c := range []struct {
		args   []string
		stop   bool
		status int
		state  bridge.State
		reason string
	}{
		{[]string{kv, "--store", t.TempDir()}, false, exitOK, bridge.Complete, ""},
		{[]string{short, "--store", t.TempDir()}, false, exitOK, bridge.Skipped, "no whole block"},
		{[]string{kv, "--store", other}, false, exitFailed, bridge.Declined, "taken"},
		{[]string{kv, "--to", "tcp://127.0.0.1:1"}, false, exitFailed, stateFailed, "refused"},
		{[]string{kv, "--discard", "--timeout", "1ns"}, false, exitFailed, stateFailed, "--timeout"},
		{[]string{kv, "--discard"}, true, exitStopped, stateStopped, "interrupted"},
	} {
		args := append([]string{"replay", "--json"}, c.args...)
		command := cli
		if c.stop {
			command = stopped
		}
		status, out, errOut := command(t, args...)
		var res replayResult
		if err := json.Unmarshal([]byte(out), &res); err != nil || strings.Count(out, "\n") != 1 {
			t.Errorf("%v: no JSON object on a line: %v: %q%s", c.args, err, out, errOut)
			continue
		}
		text := string(c.state)
		if res.Reason != "" {
			text += ": " + res.Reason
		}
		if status != c.status || res.State != c.state || !strings.Contains(res.Reason, c.reason) || res.Verdict != text ||
			res.Transfer == "" || res.Kind != "kv" || (res.Total == 5) == (c.state == bridge.Skipped) {
			t.Errorf("%v: status %d: %s%s", c.args, status, out, errOut)
		}
	}
}
