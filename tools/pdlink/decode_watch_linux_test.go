package main

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// bridged is a front door and a prefill host that know each other, both watched: the first
// request was bypassed, since there was no host yet, and the engine refused the prompt of
// the second.
type bridged struct{ decode, prefill string } // where their pages are

func bridgeOf(t *testing.T) bridged {
	t.Helper()
	p := play(t)
	mac, spark := paired(t)
	socket := filepath.Join(t.TempDir(), "engine.sock")
	decode := start(t, "decode", "--json", "--listen", "tcp://127.0.0.1:0", "--keys", mac, "--decoder", p.decoder.URL,
		"--front", "127.0.0.1:0", "--min-tokens", "100", "--min-tail", "100", "--metrics", "0")
	b := bridged{decode: watchedAt(t, decode, "listening")}
	door := eventsOf[listening](t, decode, "listening")[0]
	post := func() {
		t.Helper()
		body := fmt.Sprintf(`{"model":"tiny-qwen3","prompt":%q}`, strings.Repeat("x", 300))
		r, err := http.Post("http://"+door.Front+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if _, err := io.ReadAll(r.Body); err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%d %v", r.StatusCode, err)
		}
	}
	post()
	t.Setenv(engineKeyEnv, "secret")
	prefill := start(t, "prefill", "--json", "--to", door.Listen, "--keys", spark, "--engine", p.engine.URL, "--socket", socket,
		"--model", "tiny-qwen3=served", "--slots", "8", "--name", "spark", "--mem-floor", "-1", "--metrics", "0")
	b.prefill = watchedAt(t, prefill, "started")
	if _, text := fetched(t, b.prefill+"readyz"); !strings.Contains(text, "engine: ") {
		t.Errorf("the engine's workers are not there: %q", text)
	}
	prefill.await(t, "it waits for a worker", func() bool { return len(prefill.out.events("waiting")) > 0 })
	introduce(t, socket)
	prefill.await(t, "it is ready", func() bool { return len(prefill.out.events("ready")) == 1 })
	decode.await(t, "the host is known", func() bool { return strings.Contains(decode.err.String(), "reads prompts for") })
	post()
	return b
}

// TestBothEndsOfTheBridgeAreWatched: requests at the front door, calls at the prefill
// host, and that both are ready.
func TestBothEndsOfTheBridgeAreWatched(t *testing.T) {
	b := bridgeOf(t)
	for url, lines := range map[string][]string{
		b.decode: {
			"pdlink_requests_total{outcome=\"bypass\"} 1\n", "pdlink_requests_total{outcome=\"declined\"} 1\n", "pdlink_requests_running 0\n",
			"pdlink_request_first_byte_seconds_count{outcome=\"declined\"} 1\n", "pdlink_request_phase_seconds_count{phase=\"plan\"} 1\n", "pdlink_request_seconds_count{outcome=\"declined\"} 1\n", "pdlink_ready 1\n",
			"pdlink_connections{link=\"tcp\",peer=\"spark\",sealed=\"true\"} 1\n", "pdlink_store_free_bytes ", "pdlink_transfers_open 0\n",
		},
		b.prefill: {
			"pdlink_transfers_total{state=\"declined\"} 1\n", "pdlink_connections{link=\"tcp\",peer=\"mac\",sealed=\"true\"} 1\n", "pdlink_ready 1\n",
			"pdlink_ring_slots{ring=\"send\"} 8\n", "pdlink_transfers_open 0\n", "pdlink_dials_total{link=\"tcp\",result=\"connected\"} 1\n",
		},
	} {
		missing := ""
		if !eventually(processLimit/2, func() bool {
			_, text := fetched(t, url+"metrics")
			missing = ""
			for _, line := range lines {
				if !strings.Contains(text, line) {
					missing += line
				}
			}
			return missing == ""
		}) {
			t.Errorf("never: %s", missing)
		}
		if status, text := fetched(t, url+"readyz"); status != http.StatusOK {
			t.Errorf("%d %s", status, text)
		}
	}
	// What carries calls is no transfer.
	if s := stateAt(t, b.decode); len(s.Transfers) != 0 || s.Links[0].Received != 0 {
		t.Errorf("%+v", s)
	}
}
