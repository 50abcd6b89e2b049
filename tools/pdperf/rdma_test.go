package main

import (
	"strings"
	"testing"

	"pdlink/rdma"
)

// TestRDMAURLs: parameters are those of every program here, and what has no effect is
// refused with the right ones.
func TestRDMAURLs(t *testing.T) {
	both := map[string]string{
		"gid=3":                 "device=NAME[:PORT]",
		"device=a&device=b":     "is there 2 times",
		"device=":               "want device=NAME",
		"fallback=maybe":        "want fallback=yes",
		"device=no-such-device": "link unavailable",
	}
	dials := map[string]string{"fallback=no": "is for the end that listens", "fallback=yes": "is for the end that listens"}
	listens := map[string]string{"fallback=yes": "leave it out", "fallback=no&device=no-such-device": "link unavailable"}
	for _, c := range []struct {
		args []string
		more map[string]string
	}{
		{quick("run", "--to"), dials},
		{[]string{"serve", "--listen"}, listens},
		{quick("local", "--link"), listens},
	} {
		for _, list := range []map[string]string{both, c.more} {
			for query, says := range list {
				status, out, errOut := cli(t, append(c.args, "rdma://127.0.0.1:0?"+query)...)
				if status == exitOK || out != "" || !strings.Contains(errOut, says) {
					t.Errorf("%v with %s: status %d, said %q and %q", c.args, query, status, out, errOut)
				}
			}
		}
	}
}

// TestHelpNamesRDMA: and the version is asked for as of pdlink.
func TestHelpNamesRDMA(t *testing.T) {
	for want, args := range map[string][]string{
		"rdma://host:port, unix://path": {"run", "--help"}, "rdma://ADDRESS:0 or unix://path": {"local", "--help"}, "pdperf " + buildVersion() + "\n": {"--version"},
	} {
		if status, out, _ := cli(t, args...); status != exitOK || !strings.Contains(out, want) {
			t.Errorf("%q: status %d, no %q in %s", args, status, want, out)
		}
	}
}

// TestStatusWithoutRDMA: what a host cannot have is no fault of the command line, and ends
// as with pdlink; a kind of link that there is nowhere is one.
func TestStatusWithoutRDMA(t *testing.T) {
	const none = "rdma://127.0.0.1:0?device=no-such-device"
	for _, c := range []struct {
		args   []string
		status int
		say    string
	}{
		{quick("run", "--to", none), exitFailed, "link unavailable"},
		{quick("run", "--to", none), exitFailed, rdmaHint},
		{[]string{"serve", "--listen", none}, exitFailed, "link unavailable"},
		{[]string{"serve", "--listen", none}, exitFailed, rdmaHint},
		{quick("local", "--link", none), exitFailed, "link unavailable"},
		{quick("local", "--link", none), exitFailed, rdmaHint},
		{quick("run", "--to", "tcp://127.0.0.1:1", "--to", none, "--links", "mem"), exitUsage, "want each of"},
		{quick("run", "--to", "ftp://127.0.0.1:1"), exitUsage, "this build has"},
		{[]string{"serve", "--listen", "ftp://127.0.0.1:1"}, exitUsage, "this build has"},
		{[]string{"serve", "--listen", "tcp://127.0.0.1:0", "--floor-listen", "tcp://127.0.0.1:65536"}, exitFailed, "invalid port"},
		{[]string{"serve", "--listen", "tcp://192.0.2.1:1", "--keys", t.TempDir()}, exitUsage, "pdlink keys init"},
	} {
		if status, out, errOut := cli(t, c.args...); status != c.status || !strings.Contains(errOut, c.say) {
			t.Errorf("%v: status %d, said %q and %q, want %d and %q", c.args, status, out, errOut, c.status, c.say)
		}
	}
}

// TestLocalDialsOverItsDevice: the parameters are not the other end's to print.
func TestLocalDialsOverItsDevice(t *testing.T) {
	for link, want := range map[string]string{
		"tcp://127.0.0.1:0":                            "tcp://127.0.0.1:9",
		"rdma://127.0.0.1:0":                           "rdma://127.0.0.1:9",
		"rdma://127.0.0.1:0?device=rxe0:1&fallback=no": "rdma://127.0.0.1:9?device=rxe0:1",
	} {
		scheme, _, _, err := splitURL(link)
		if err != nil {
			t.Fatal(err)
		}
		if got := dials(link, scheme+"://127.0.0.1:9"); got != want {
			t.Errorf("%s: dials %s, want %s", link, got, want)
		}
	}
	if _, addr, at, err := splitURL("rdma://h:1/?device=a"); err != nil || addr != "h:1" || at != (rdma.Addr{Host: "h:1", Device: "a"}) {
		t.Errorf("%s, %+v, %v", addr, at, err)
	}
}
