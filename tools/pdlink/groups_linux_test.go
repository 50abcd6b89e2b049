package main

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/bridge/front"
)

// TestPrefillGroup: two prefill hosts of one engine, with keys over TCP: requests are
// bridged while both are there, and only the one with the engine asks it.
func TestPrefillGroup(t *testing.T) {
	p := play(t)
	mac, spark := paired(t)
	decode := start(t, "decode", "--json", "--listen", "tcp://127.0.0.1:0", "--keys", mac, "--decoder", p.decoder.URL,
		"--front", "127.0.0.1:0", "--min-tokens", "100", "--min-tail", "100", "--allow-unknown")
	decode.await(t, "it listens", func() bool { return len(decode.out.events("listening")) == 1 })
	door := eventsOf[listening](t, decode, "listening")[0]
	t.Setenv(engineKeyEnv, "secret")
	sockets := [2]string{filepath.Join(t.TempDir(), "0.sock"), filepath.Join(t.TempDir(), "1.sock")}
	host := func(rank int, more ...string) *process {
		h := start(t, append([]string{
			"prefill", "--json", "--to", door.Listen, "--keys", spark, "--peer", "mac", "--socket", sockets[rank], "--slots", "8",
			"--mem-floor", "-1", "--name", []string{"a", "b"}[rank], "--group", "qwen", "--rank", fmt.Sprintf("%d/2", rank),
		}, more...)...)
		h.await(t, "it waits for a worker", func() bool { return len(h.out.events("waiting")) > 0 })
		introduce(t, sockets[rank])
		h.await(t, "it is ready", func() bool { return len(h.out.events("ready")) == 1 })
		return h
	}
	post := func() string {
		t.Helper()
		body := fmt.Sprintf(`{"model":"tiny-qwen3","prompt":%q}`, strings.Repeat("x", 300))
		r, err := http.Post("http://"+door.Front+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if b, err := io.ReadAll(r.Body); err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%d %s %v", r.StatusCode, b, err)
		}
		return r.Header.Get("X-PDLink")
	}
	whole := func(times int) func() bool {
		return func() bool {
			return strings.Count(decode.err.String(), "prefill group qwen (a, b) reads prompts for served, tiny-qwen3") == times
		}
	}
	lead := host(0, "--engine", p.engine.URL, "--model", "tiny-qwen3=served")
	decode.await(t, "it knows of one", func() bool {
		return strings.Contains(decode.err.String(), "is part 1 of 2 of group qwen, which waits for part 2")
	})
	if v := post(); !strings.HasPrefix(v, "bypass; no prefill host is connected") {
		t.Errorf("with one of two: %q", v)
	}
	other := host(1)
	decode.await(t, "the group is whole", whole(1))
	const refused = "declined; a (part 1 of 2 of group qwen): engine: prefill: engine refuses the prompt"
	if v := post(); !strings.HasPrefix(v, refused) {
		t.Errorf("with both: %q", v)
	}
	other.signal()
	if status := other.wait(); status != exitOK {
		t.Errorf("status %d: %v", status, other)
	}
	decode.await(t, "it is not whole", func() bool { return strings.Contains(decode.err.String(), "so the group does not") })
	if v := post(); !strings.HasPrefix(v, "bypass; no prefill host is connected") {
		t.Errorf("with one of two again: %q", v)
	}
	again := host(1)
	decode.await(t, "the group is whole again", whole(2))
	if v := post(); !strings.HasPrefix(v, refused) {
		t.Errorf("with both again: %q", v)
	}
	for i, h := range []*process{lead, other, again} {
		want := []int{2, 1, 1}[i]
		h.await(t, "it tells of its calls", func() bool { return len(h.out.events("call")) >= want })
		if e := eventsOf[sidecarCall](t, h, "call"); len(e) != want || e[0].Parts != 2 || e[0].Part != []int{1, 2, 2}[i] {
			t.Errorf("host %d: calls %+v", i, e)
		}
	}
	if started := eventsOf[sidecarStarted](t, again, "started")[0]; started.Engine != "" || started.Rank != "1/2" {
		t.Errorf("%+v", started)
	}
	decode.await(t, "the requests are told", func() bool { return len(decode.out.events("request")) == 4 })
	if e := eventsOf[requestEvent](t, decode, "request"); e[1].Outcome != front.Declined || e[1].Engine != "qwen" || len(e[1].Hosts) != 2 || e[1].Hosts[1].Name != "b" {
		t.Errorf("requests %+v", e)
	}
	for _, x := range []*process{lead, again, decode} {
		x.signal()
		if status := x.wait(); status != exitOK {
			t.Errorf("status %d: %v", status, x)
		}
		if why := x.crashed(); why != "" {
			t.Error(why)
		}
	}
}

// TestGroupFlags: what cannot be is said, with what to give instead.
func TestGroupFlags(t *testing.T) {
	to := []string{"prefill", "--to", "tcp://127.0.0.1:1", "--socket", filepath.Join(t.TempDir(), "e.sock")}
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"--group", "g"}, "needs --rank I/N"},
		{[]string{"--rank", "0/2"}, "is for --group NAME"},
		{[]string{"--group", "g", "--rank", "1"}, "want I/N"},
		{[]string{"--group", "g", "--rank", "2/2"}, "want I/N"},
		{[]string{"--group", "g", "--rank", "0/1"}, "want I/N"},
		{[]string{"--group", "g", "--rank", "0/65"}, "from 2 to 64"},
		{[]string{"--group", "g", "--rank", "-1/2"}, "want I/N"},
		{[]string{"--group", strings.Repeat("g", 2000), "--rank", "0/2"}, "--group: "},
		{[]string{"--group", "g", "--rank", "1/2", "--engine", "http://127.0.0.1:8000"}, "only rank 0 of a group asks the engine"},
	} {
		if status, _, errOut := cli(t, append(to, c.args...)...); status != exitUsage || !strings.Contains(errOut, c.say) {
			t.Errorf("%v: status %d: %s", c.args, status, errOut)
		}
	}
}
