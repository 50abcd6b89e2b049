package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/transport/failover"
)

// TestHomesInSocketPaths: wherever an address is read, and as it is said.
func TestHomesInSocketPaths(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	for text, want := range map[string]string{
		"unix://~/x":      filepath.Join(home, "x"),
		"UNIX://~/a/x/":   filepath.Join(home, "a", "x"),
		"unix://./~":      "./~",
		"unix:///run/~/x": "/run/~/x",
		"unix://a/~/x":    "a/~/x",
	} {
		if u, err := parseLink(text); err != nil || u.addr != want || u.String() != "unix://"+want {
			t.Errorf("%q: %v, %v", text, u, err)
		}
	}
	if _, err := parseLink("unix://~ada/x"); err == nil || !strings.Contains(err.Error(), "write the whole path, or ./~ada/x for a file of that name") {
		t.Errorf("somebody else's: %v", err)
	}
	decode := &decodeFlags{listen: "unix://~/l", discard: true, ringMiB: 64}
	if u, err := decode.check(func(flag string) bool { return flag == "discard" }); err != nil || u.addr != filepath.Join(home, "l") {
		t.Errorf("decode --listen: %v, %v", u, err)
	}
	prefill := &prefillFlags{to: []string{"unix://~/p"}}
	replay := &replayFlags{to: []string{"unix://~/p"}}
	if err := errors.Join(prefill.parseRoutes(), replay.parseRoutes()); err != nil || prefill.ways[0].addr != filepath.Join(home, "p") || replay.routes[0] != prefill.ways[0] {
		t.Errorf("--to: %v, %v, %v", prefill.ways, replay.routes, err)
	}
}

// TestLinksAreHostAndPort: what else a URL can have is refused, by every command alike.
func TestLinksAreHostAndPort(t *testing.T) {
	for text, says := range map[string]string{
		"tcp://h:1/foo":           "no path",
		"rdma://h:1/foo":          "no path",
		"rdma://h:1/foo?device=a": "no path",
		"tcp://h:1?device=a":      "only rdma:// has parameters",
		"tcp://me@h:1":            "no path, user",
		"tcp://h:1#x":             "fragment",
		"TCP://h h:1":             "no path",
		"tcp://h:65536":           "not in 0 to 65535",
	} {
		if u, err := parseLink(text); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "link ") {
			t.Errorf("%q: %v, %v, want an error that says %q", text, u, err, says)
		}
	}
	for _, text := range []string{"tcp://h:1/", "TCP://[fe80::1%en0]:7411", "Rdma://h:1/?device=a", "tcp://:0", "tcp://h:http"} {
		if _, err := parseLink(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestWaysOverTwoDevices: what happens on one of two ways that differ in nothing but the
// device is told of that one.
func TestWaysOverTwoDevices(t *testing.T) {
	const one, two, plain = "rdma://h:1?device=a:1", "rdma://h:1?device=a:2", "rdma://h:1"
	f := &prefillFlags{to: []string{one, two, plain, "tcp://h:1"}}
	if err := f.parseRoutes(); err != nil {
		t.Fatal(err)
	}
	routes := f.routes(linkOptions{})
	for i, want := range []string{one, two, "rdma", "tcp"} {
		if routes[i].Name != want || routes[i].Addr != "h:1" {
			t.Errorf("route %d: %q at %q", i, routes[i].Name, routes[i].Addr)
		}
		if got := f.way(failover.Event{Route: want, Addr: "h:1"}); got != f.to[i] {
			t.Errorf("an event of route %q is one of %q", want, got)
		}
	}
	var out output
	s := &sidecar{prefillFlags: f, std: newStreams(&out, &output{}), down: map[string]error{}}
	s.linkEvent(t.Context(), failover.Event{Kind: failover.Barred, Route: one, Addr: "h:1", Err: errors.New("no cable")})
	s.linkEvent(t.Context(), failover.Event{Kind: failover.Connected, Route: two, Addr: "h:1"})
	if len(s.down) != 1 || s.down[one] == nil || !strings.Contains(out.String(), "connected to "+two) {
		t.Errorf("%v, %q", s.down, out.String())
	}
	r := &replayFlags{to: f.to}
	if err := r.parseRoutes(); err != nil {
		t.Fatal(err)
	}
	named, err := r.ways(new(sender))
	if err != nil || named[0].Name != one || named[1].Name != two || named[3].Name != "tcp" {
		t.Errorf("replay: %v, %v", named, err)
	}
}
