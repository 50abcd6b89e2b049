package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/bridge"
	"pdlink/transport/failover"
)

// TestPrefillSaysWhyNoBetterRoute: where the preferred way cannot be had the next one is
// taken, which is said with the reason, to programs too.
func TestPrefillSaysWhyNoBetterRoute(t *testing.T) {
	r := startReceiver(t, t.TempDir())
	to := []string{"prefill", "--to", "rdma://" + r.addr + noDevice, "--to", "tcp://" + r.addr, "--engine", "http://127.0.0.1:1", "--slots", "8", "--mem-floor", "-1"}
	p := start(t, append(to, "--socket", filepath.Join(t.TempDir(), "s"))...)
	p.await(t, "it is connected", func() bool { return strings.Contains(p.out.String(), "connected to ") })
	if said := p.out.String(); !strings.Contains(said, "connected to tcp://"+r.addr+", no better route: rdma://"+r.addr+noDevice+": link unavailable: ") ||
		!strings.Contains(said, ": "+rdmaHint+"\n") {
		t.Errorf("said %q", said)
	}
	p = start(t, append(to, "--socket", filepath.Join(t.TempDir(), "s"), "--json")...)
	p.await(t, "it is connected", func() bool { return len(p.out.events("connected")) == 1 })
	if e := eventsOf[sidecarLink](t, p, "connected")[0]; e.To != "tcp://"+r.addr || !strings.Contains(e.Why, "link unavailable") {
		t.Errorf("%+v", e)
	}
}

// TestPrefillNamesWhatEachWayLacks: when the last one is down too, and what to do.
func TestPrefillNamesWhatEachWayLacks(t *testing.T) {
	p := start(t, "prefill", "--to", "rdma://127.0.0.1:1"+noDevice, "--to", "tcp://127.0.0.1:1", "--engine", "http://127.0.0.1:1", "--slots", "8", "--mem-floor", "-1",
		"--socket", filepath.Join(t.TempDir(), "s"))
	p.await(t, "it tries on", func() bool { return strings.Contains(p.err.String(), "cannot connect, trying on") })
	said := p.err.String()
	for _, say := range []string{"connection refused", "is `pdlink decode` running", "; rdma://127.0.0.1:1" + noDevice + ": link unavailable: "} {
		if !strings.Contains(said, say) {
			t.Errorf("no %q in %q", say, said)
		}
	}
	var out output
	std := newStreams(&out, &output{})
	s := &sidecar{prefillFlags: &prefillFlags{ways: []linkURL{{scheme: "rdma", addr: "h:1"}, {scheme: "tcp", addr: "h:1"}}}, std: std, down: map[string]error{}}
	s.linkEvent(t.Context(), failover.Event{Kind: failover.Barred, Route: "rdma", Addr: "h:1", Err: errors.New("no driver")})
	s.linkEvent(t.Context(), failover.Event{Kind: failover.Connected, Route: "rdma", Addr: "h:1"})
	if got := s.others(failover.Event{Route: "tcp", Addr: "h:1"}); got != "" {
		t.Errorf("a way that is connected lacks %q", got)
	}
}

// TestWithoutRDMAAServiceTriesAgain: the command line is right, and a driver may be
// loaded later, so the status is not the one that keeps a service down; the message says
// what to do.
func TestWithoutRDMAAServiceTriesAgain(t *testing.T) {
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"prefill", "--to", "rdma://127.0.0.1:1" + noDevice, "--socket", filepath.Join(t.TempDir(), "s"), "--slots", "8"}, "tcp://host:port"},
		{[]string{"decode", "--discard", "--listen", "rdma://127.0.0.1:0" + noDevice}, "tcp://127.0.0.1:0"},
	} {
		status, _, errOut := cli(t, c.args...)
		if status != exitFailed || !strings.Contains(errOut, "link unavailable") || strings.Count(errOut, "`pdlink doctor rdma` says what is missing; without RDMA use "+c.say) != 1 {
			t.Errorf("%v: status %d: %s", c.args, status, errOut)
		}
	}
	res := replayJSON(t, exitFailed, "bundled:kv-qwen3", "--to", "rdma://127.0.0.1:1"+noDevice)
	if res.State != stateFailed || !strings.Contains(res.Reason, "link unavailable") {
		t.Errorf("%+v", res)
	}
}

// TestReplayWithAnEndThatHasNoKeys: the refused handshake is in the one object, too.
func TestReplayWithAnEndThatHasNoKeys(t *testing.T) {
	_, spark := paired(t)
	r := startReceiver(t, t.TempDir())
	res := replayJSON(t, exitFailed, "bundled:kv-qwen3", "--to", "tcp://"+r.addr, "--keys", spark)
	if res.State != stateFailed || res.Reason == "" || res.State == bridge.Complete {
		t.Errorf("%+v", res)
	}
}

// TestEndedSaysWhatIsResident: memory that was set aside and never used is not in it.
func TestEndedSaysWhatIsResident(t *testing.T) {
	for want, e := range map[string]sidecarEnded{
		"ended: peak RSS 15.5 MB\n":                                      {"ended", 15_500_000, 202_100_000},
		"ended: peak RSS 300.0 MB, of which the ring at most 202.1 MB\n": {"ended", 300_000_000, 202_100_000},
	} {
		var out output
		e.text(newStreams(&out, &out))
		if out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	}
}
