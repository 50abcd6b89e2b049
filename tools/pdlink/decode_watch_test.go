package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/bridge/watch"
)

// watchedAt is where the live page of a process is, by its first event.
func watchedAt(t *testing.T, p *process, event string) string {
	t.Helper()
	p.await(t, event, func() bool { return len(p.out.events(event)) > 0 })
	var e struct{ Watch string }
	if err := json.Unmarshal(p.out.events(event)[0], &e); err != nil || e.Watch == "" {
		t.Fatalf("no live page: %v: %v", err, p)
	}
	return e.Watch
}

// fetched is the status and the text of a page.
func fetched(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// stateAt is what a live page would show.
func stateAt(t *testing.T, url string) (s watch.State) {
	t.Helper()
	_, text := fetched(t, url+"state")
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return s
}

// readyAt waits until a process is ready, and returns what it says: its checks have less
// than a second, which on a busy host can be too little.
func readyAt(t *testing.T, url string) (text string, ok bool) {
	t.Helper()
	ok = eventually(processLimit, func() bool {
		var status int
		status, text = fetched(t, url+"readyz")
		return status == http.StatusOK
	})
	return text, ok
}

// TestDecodeIsWatched: figures, log lines and readiness over a transfer between peers that
// know each other's keys, and one that is refused.
func TestDecodeIsWatched(t *testing.T) {
	store := t.TempDir()
	mac, spark := paired(t)
	file := filepath.Join(t.TempDir(), "trace.json")
	r := startReceiver(t, store, "--metrics", "0", "--log", "json", "--trace", file, "--keys", mac)
	url := watchedAt(t, r.process, "listening")
	if text, ok := readyAt(t, url); !ok || text != "ready\n" {
		t.Errorf("never ready: %q", text)
	}
	for range 2 { // the second has nothing to do
		p := start(t, "replay", filepath.Join(casesDir, "kv-qwen3"), "--to", "tcp://"+r.addr, "--format", "5", "--keys", spark)
		if status := p.wait(); status != exitOK {
			t.Fatalf("status %d: %v", status, p)
		}
	}
	text := ""
	eventually(processLimit, func() bool {
		_, text = fetched(t, url+"metrics")
		return strings.Contains(text, "pdlink_ready 1\n") // the checks have a second
	})
	for _, line := range []string{
		"pdlink_transfers_total{state=\"complete\"} 2\n", "pdlink_blocks_total 5\n", "pdlink_tokens_total{link=\"tcp\"} 1280\n", "pdlink_ready 1\n",
		"pdlink_received_bytes_total{link=\"tcp\",sealed=\"true\"} 1.96608e+06\n", "pdlink_connections_total{link=\"tcp\",sealed=\"true\"} 2\n",
		"pdlink_transfer_goodput_bytes_per_second_count{link=\"tcp\"} 1\n", "pdlink_transfer_phase_seconds_count{phase=\"seal\"} 1\n",
		"pdlink_ring_slots{ring=\"receive\"} 63\n", "pdlink_store_free_bytes ",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no %s in %s", line, text)
		}
	}
	s := stateAt(t, url)
	if len(s.Done) != 2 || s.Done[1].Tokens != 1280 || strings.Join(s.Done[1].Peers, ",") != "spark" || s.Store == nil || s.Store.Dir != store || s.Open != 0 {
		t.Errorf("%+v", s)
	}
	// A page beside it that somebody else's name leads to.
	req := httptest.NewRequest(http.MethodGet, url+"state", nil)
	req.RequestURI, req.Host = "", "evil.example"
	if a, err := http.DefaultClient.Do(req); err != nil || a.StatusCode != http.StatusForbidden {
		t.Errorf("%v %v", a, err)
	}
	if err := os.Rename(store, store+".gone"); err != nil {
		t.Fatal(err)
	}
	if !eventually(processLimit, func() bool { status, _ := fetched(t, url+"readyz"); return status == http.StatusServiceUnavailable }) {
		t.Error("ready without a store")
	}
	if _, text := fetched(t, url+"readyz"); !strings.HasPrefix(text, "store: ") {
		t.Errorf("%q", text)
	}
	r.signal()
	if status := r.wait(); status != exitOK {
		t.Errorf("status %d: %v", status, r)
	}
	var timeline struct{ TraceEvents []struct{ Name, Ph string } }
	if b, err := os.ReadFile(file); err != nil || json.Unmarshal(b, &timeline) != nil || len(timeline.TraceEvents) < 20 {
		t.Errorf("%v, %d events", err, len(timeline.TraceEvents))
	}
	var lines []map[string]any
	for line := range strings.Lines(r.err.String()) {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil && m["msg"] == "transfer" {
			lines = append(lines, m)
		}
	}
	if len(lines) != 2 || lines[0]["state"] != "complete" || lines[0]["bytes"] != 1966080. || lines[0]["links"] != "tcp sealed" || lines[0]["peers"] != "spark" {
		t.Errorf("%v: %v", lines, r)
	}
}

// TestPrefillIsWatched: what it waits for, and that it dials again.
func TestPrefillIsWatched(t *testing.T) {
	r := startReceiver(t, t.TempDir())
	socket := filepath.Join(t.TempDir(), "page.sock")
	host := start(t, "prefill", "--json", "--to", "tcp://"+r.addr, "--engine", "http://127.0.0.1:1", "--socket", filepath.Join(t.TempDir(), "e.sock"),
		"--metrics", "unix://"+socket, "--retry", "1m")
	if url := watchedAt(t, host, "started"); url != "unix://"+socket {
		t.Errorf("%s", url)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", socket)
	}}}
	text := ""
	sees := func(parts ...string) bool {
		return eventually(processLimit, func() bool {
			a, err := client.Get("http://pdlink/metrics")
			if err != nil {
				return false
			}
			defer a.Body.Close()
			b, err := io.ReadAll(a.Body)
			text = string(b)
			for _, p := range parts {
				if err != nil || !strings.Contains(text, p) {
					return false
				}
			}
			return true
		})
	}
	if !sees("pdlink_ready 0\n", "pdlink_dials_total{link=\"tcp\",result=\"connected\"} 1\n", "pdlink_connections{link=\"tcp\",peer=\"other\",sealed=\"false\"} 1\n",
		"pdlink_ring_slots{ring=\"send\"} 192\n") {
		t.Errorf("%s", text)
	}
	r.kill()
	if !sees("pdlink_connections_lost_total{link=\"tcp\"} 1\n") || strings.Contains(text, "pdlink_connections{") {
		t.Errorf("%s", text)
	}
	host.signal()
	if status := host.wait(); status != exitOK {
		t.Errorf("status %d: %v", status, host)
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is left")
	}
}

// pageToken is a token for the live page.
const pageToken = "0123456789abcdef"

// TestWatchText: people get an address that they can open.
func TestWatchText(t *testing.T) {
	const others = ", from other hosts at an address of this one"
	for url, want := range map[string]string{
		"": "", "http://127.0.0.1:9411/": ", watch it at http://127.0.0.1:9411/", "unix:///run/x": ", watch it at unix:///run/x",
		"http://[::]:9411/": ", watch it at http://localhost:9411/" + others, "http://0.0.0.0:9411/": ", watch it at http://localhost:9411/" + others,
	} {
		if got := watchText(url); got != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
}

// TestPageForOtherHosts: with a token, and with --metrics-open, which is warned of.
func TestPageForOtherHosts(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(pageToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args    []string
		status  int // without the token
		warning bool
	}{
		{[]string{"--metrics-token", token}, http.StatusUnauthorized, false},
		{[]string{"--metrics-open"}, http.StatusOK, true},
	} {
		r := startReceiver(t, t.TempDir(), append([]string{"--metrics", "0.0.0.0:0"}, c.args...)...)
		url := strings.Replace(watchedAt(t, r.process, "listening"), "[::]", "127.0.0.1", 1)
		if text, ok := readyAt(t, url); !ok {
			t.Errorf("%q: never ready: %s", c.args, text)
		}
		if status, _ := fetched(t, url+"metrics"); status != c.status {
			t.Errorf("%q: status %d", c.args, status)
		}
		for path, want := range map[string]int{"healthz": http.StatusOK, "state": c.status, "": c.status} {
			if status, _ := fetched(t, url+path); status != want {
				t.Errorf("%q: /%s: %d", c.args, path, status)
			}
		}
		if !eventually(processLimit, func() bool {
			status, text := fetched(t, strings.Replace(url, "://", "://pdlink:"+pageToken+"@", 1)+"metrics")
			return status == http.StatusOK && strings.Contains(text, "pdlink_ready 1\n")
		}) {
			t.Errorf("%q: with the token: no figures", c.args)
		}
		r.signal()
		if status := r.wait(); status != exitOK {
			t.Errorf("status %d: %v", status, r)
		}
		if said := strings.Contains(r.err.String(), "(--metrics-open)"); said != c.warning || strings.Contains(r.err.String()+r.out.String(), pageToken) {
			t.Errorf("%q: %v", c.args, r)
		}
	}
}

// TestFailedStartKeepsTheTrace: a command that did nothing leaves an earlier timeline, and
// makes no file where there was none.
func TestFailedStartKeepsTheTrace(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, earlier := range []string{"", "earlier"} {
		dir := t.TempDir()
		file := filepath.Join(dir, "trace.json")
		if earlier != "" {
			if err := os.WriteFile(file, []byte(earlier), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, command := range [][]string{
			{"decode", "--discard", "--listen", "tcp://" + taken.Addr().String()},
			{"decode", "--discard", "--listen", "tcp://127.0.0.1:0", "--metrics", taken.Addr().String()},
			{"prefill", "--to", "tcp://127.0.0.1:1", "--socket", filepath.Join(t.TempDir(), "e.sock"), "--metrics", taken.Addr().String()},
		} {
			if status, _, errOut := cli(t, append(command, "--trace", file)...); status != exitFailed {
				t.Errorf("%q: status %d: %s", command, status, errOut)
			}
			b, err := os.ReadFile(file)
			if string(b) != earlier || (err == nil) != (earlier != "") {
				t.Errorf("%q: %q %v", command, b, err)
			}
			if list, err := os.ReadDir(dir); err != nil || len(list) != min(len(earlier), 1) {
				t.Errorf("%q: %v %v", command, list, err)
			}
		}
	}
}

// TestWatchFlagsAreChecked: before anything is done.
func TestWatchFlagsAreChecked(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	good, short := filepath.Join(dir, "good"), filepath.Join(dir, "short")
	for name, text := range map[string]string{good: pageToken + "\n", short: "secret\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open, wide := filepath.Join(dir, "open"), filepath.Join(dir, "wide")
	if err := errors.Join(os.WriteFile(open, []byte(pageToken), 0o600), os.Chmod(open, 0o604),
		os.WriteFile(wide, []byte(pageToken), 0o600), os.Chmod(wide, 0o620)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		status int
		say    string
	}{
		{[]string{"--metrics", "x"}, exitUsage, `--metrics "x": want a port`},
		{[]string{"--metrics", ""}, exitUsage, "--metrics"},
		{[]string{"--metrics", "unix://~/x"}, exitUsage, "whole path"},
		{[]string{"--trace", "/nowhere/x.json"}, exitUsage, "--trace: open /nowhere/x.json"},
		{[]string{"--metrics", "0.0.0.0:0"}, exitUsage, "--metrics 0.0.0.0:0: other hosts can reach this address, where names of models, peers and the store are: give --metrics-token FILE, or --metrics-open"},
		{[]string{"--metrics", "0.0.0.0:0", "--metrics-open", "--metrics-token", good}, exitUsage, "--metrics-token and --metrics-open exclude each other"},
		{[]string{"--metrics-open"}, exitUsage, "--metrics-open is for --metrics"},
		{[]string{"--metrics-token", good}, exitUsage, "--metrics-token is for --metrics"},
		{[]string{"--metrics", "0", "--metrics-token", ""}, exitUsage, "--metrics-token"},
		{[]string{"--metrics", "0", "--metrics-token", "/nowhere/token"}, exitUsage, "--metrics-token: open /nowhere/token"},
		{[]string{"--metrics", "0", "--metrics-token", wide}, exitUsage, "--metrics-token: others can write " + wide + " (mode 0620): run `chmod go-w " + wide + "`"},
		{[]string{"--metrics", "0", "--metrics-token", open}, exitUsage, "everybody can read " + open + " (mode 0604): run `chmod o-r " + open + "`"},
		{[]string{"--metrics", "0", "--metrics-token", short}, exitUsage, "--metrics-token " + short + ": want one line of 16 or more"},
		{[]string{"--log", "xml"}, exitUsage, "--log xml: want text or json"},
		{[]string{"--metrics", taken.Addr().String()}, exitFailed, fmt.Sprintf("--metrics %s: ", taken.Addr())},
	} {
		for _, command := range [][]string{{"decode", "--discard", "--listen", "tcp://127.0.0.1:0"},
			{"prefill", "--to", "tcp://127.0.0.1:1", "--socket", filepath.Join(t.TempDir(), "e.sock")}} {
			status, out, errOut := cli(t, append(command, c.args...)...)
			if status != c.status || !strings.Contains(errOut, c.say) || strings.Contains(out, "listening") {
				t.Errorf("%s %q: status %d: %s%s", command[0], c.args, status, out, errOut)
			}
		}
	}
}
