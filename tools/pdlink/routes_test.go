package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdlink/bridge"
)

// TestSecondRoute: where nobody is at the preferred address the next one is taken,
// which is said at once and in the result.
func TestSecondRoute(t *testing.T) {
	r := startReceiver(t, t.TempDir())
	dir, err := os.MkdirTemp("", "pdlink") // short: a socket's path has some 100 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	nobody := "unix://" + filepath.Join(dir, "s")
	p := start(t, "replay", "bundled:kv-qwen3", "--to", nobody, "--to", "tcp://"+r.addr, "--senders", "2", "--json")
	res := resultOf(t, p, exitOK)
	if res.State != bridge.Complete || len(res.Links) != 1 || res.Links[0].Link != "tcp" || len(res.Routes) != 2 || res.Reconnects != 0 {
		t.Fatalf("%+v", res)
	}
	if a, b := res.Routes[0], res.Routes[1]; a.Route != "unix" || a.Connects != 0 || a.Failures != 2 || !strings.Contains(a.Reason, "no such file") ||
		b.Route != "tcp" || b.Addr != r.addr || b.Connects != 2 || b.Failures != 0 {
		t.Errorf("routes %+v", res.Routes)
	}
	if text := p.err.String(); strings.Count(text, "connected over tcp to "+r.addr+", no better route: unix to") != 2 {
		t.Errorf("said %q", text)
	}
	res = replayJSON(t, exitOK, "bundled:kv-qwen3", "--to", "tcp://"+r.addr, "--to", nobody)
	if len(res.Routes) != 2 || res.Routes[1].Failures+res.Routes[1].Connects != 0 {
		t.Errorf("the first route is there, and the second was not left alone: %+v", res.Routes)
	}
}

// TestRequireLeavesRoutesOut: another scheme is not a way, whatever it leads to.
func TestRequireLeavesRoutesOut(t *testing.T) {
	r := startReceiver(t, t.TempDir())
	if res := replayJSON(t, exitOK, "bundled:kv-qwen3", "--to", "unix:///nowhere/s", "--to", "tcp://"+r.addr, "--require", "tcp"); len(res.Routes) != 1 || res.Link != "tcp" {
		t.Errorf("%+v", res)
	}
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--to", "unix:///nowhere/s", "--to", "tcp://" + r.addr, "--require", "unix"}, exitFailed, "nobody listens"},
		{[]string{"--to", "tcp://" + r.addr, "--require", "unix"}, exitUsage, "no --to is of that scheme"},
		{[]string{"--to", "tcp://" + r.addr, "--require", "ib"}, exitUsage, "this build has mem, tcp"},
		{[]string{"--to", "tcp://" + r.addr, "--require", ""}, exitUsage, "--require is empty"},
		{[]string{"--discard", "--require", "tcp"}, exitUsage, "--require is for --to"},
		{[]string{"--to", "tcp://" + r.addr, "--to", "tcp://h:0"}, exitUsage, "port 0 is for listening only"},
		{[]string{"--to", "tcp://" + r.addr, "--to", ""}, exitUsage, "want scheme://address"},
	} {
		if status, _, errOut := cli(t, append([]string{"replay", "bundled:kv-qwen3"}, c.args...)...); status != c.status || !strings.Contains(errOut, c.says) {
			t.Errorf("%v: status %d, want %d, %s", c.args, status, c.status, errOut)
		}
	}
}

// TestTakeOverInTheMiddle: the preferred way dies in the middle of a transfer for
// good, and another one to the same receiver brings the rest.
func TestTakeOverInTheMiddle(t *testing.T) {
	want := expect(t, "kv-qwen3", "5")
	for _, kept := range []bool{false, true} {
		store := t.TempDir()
		r := startReceiver(t, store)
		total := resumeTotal(t, r)
		proxy, half := slowProxy(t, r.addr, total)
		p := start(t, append(resumeArgs(proxy.Addr(), kept), "--to", "tcp://"+r.addr, "--format", want.format)...)
		half.await(t, p)
		begin := time.Now()
		closed := make(chan struct{})
		go func() { proxy.Close(); close(closed) }() // it waits for what stands at the gate
		p.await(t, "it is lost", func() bool { return strings.Contains(p.err.String(), "lost the connection over tcp") })
		half.open()
		<-closed
		res := ended1(t, p, exitOK)
		if took := time.Since(begin); res.State != bridge.Complete || res.Reconnects != 1 || res.SentBytes-res.Resent != total || took > soonerThanRetry {
			t.Errorf("kept %v: %+v, %v after the cut", kept, res, took)
		}
		if a, b := res.Routes[0], res.Routes[1]; a.Connects != 1 || a.Losses != 1 || a.Failures == 0 || a.Reason == "" || b.Connects != 1 || b.Losses != 0 {
			t.Errorf("kept %v: routes %+v", kept, res.Routes)
		}
		if c := want.check(t, store); c.visible != len(want.hashes) {
			t.Errorf("kept %v: %d of %d blocks", kept, c.visible, len(want.hashes))
		}
		r.stop(t, want, store)
	}
}
