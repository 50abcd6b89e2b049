package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	bridgebench "pdlink/bridge/bench"
)

// benched is an endpoint that speaks the OpenAI API, of which a test counts what is asked for.
type benched struct {
	asked   atomic.Int64 // requests for text
	keys    atomic.Value // string: the last one's
	verdict string       // of every answer; empty: none
	stop    func()       // called in the fifth request for text, which then hangs; nil: none does
}

func (b *benched) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.keys.Store(r.Header.Get("Authorization"))
	switch {
	case r.URL.Path == "/v1/models":
		io.WriteString(w, `{"data":[{"id":"m"}]}`)
		return
	case !strings.HasSuffix(r.URL.Path, "/completions"):
		http.NotFound(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	if b.verdict != "" {
		w.Header().Set("X-PDLink", b.verdict)
	}
	if b.asked.Add(1) == 5 && b.stop != nil {
		b.stop()
		<-r.Context().Done()
		return
	}
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":0}}`, len(bytes.Fields(body)))
	if !bytes.Contains(body, []byte(`"stream":true`)) {
		fmt.Fprintf(w, `{"choices":[{"text":"x"}],"usage":%s}`, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for range 20 {
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")
		w.(http.Flusher).Flush()
	}
	fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":%s}\n\ndata: [DONE]\n\n", usage)
}

func serveBenched(t *testing.T, b *benched) string {
	t.Helper()
	s := httptest.NewServer(b)
	t.Cleanup(s.Close)
	return s.URL
}

// TestBenchSays: lines for people, the report's files, and a key of the environment.
func TestBenchSays(t *testing.T) {
	t.Setenv(decoderKeyEnv, "sesam")
	b := &benched{}
	dir := t.TempDir()
	report, doc := filepath.Join(dir, "r.json"), filepath.Join(dir, "r.md")
	status, out, errOut := cli(t, "bench", "--native", serveBenched(t, b)+"/v1", "--tokens", "0.1k,200", "--runs", "2", "--seed", "5", "--report", report, "--markdown", doc)
	if status != exitOK || errOut != "" || b.keys.Load() != "Bearer sesam" {
		t.Fatalf("status %d, key %v: %s%s", status, b.keys.Load(), out, errOut)
	}
	for _, part := range []string{"native ", "100 tokens, run 2 of 2: native takes ", "200 tokens, warm-up", "seed 5", "ok    answered: 8 of 8", "not measured  bridged: the front's URL is not given"} {
		if part == "200 tokens, warm-up" {
			part = "100 tokens, warm-up 1 of 1: "
		}
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	var r bridgebench.Report
	data, err := os.ReadFile(report)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil || !r.OK || len(r.Rows) != 10 || r.Seed != 5 || r.Version != thisBuild().Version {
		t.Errorf("%v: %+v", err, r)
	}
	if text, err := os.ReadFile(doc); err != nil || !strings.Contains(string(text), "## Every run") {
		t.Errorf("%v: %s", err, text)
	}
}

// TestBenchJSON: a line a request, and a summary that is the report.
func TestBenchJSON(t *testing.T) {
	status, out, errOut := cli(t, "bench", "--native", serveBenched(t, &benched{}), "--tokens", "100", "--runs", "1", "--warm-up", "0", "--arms", "native", "--json")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var row benchRow
	var sum benchSummary
	if status != exitOK || errOut != "" || len(lines) != 2 || json.Unmarshal([]byte(lines[0]), &row) != nil || json.Unmarshal([]byte(lines[1]), &sum) != nil {
		t.Fatalf("status %d: %s%s", status, out, errOut)
	}
	if row.Event != "row" || row.Arm != bridgebench.Native || sum.Event != "summary" || !sum.OK || len(sum.Rows) != 1 || sum.Rows[0].First != row.First {
		t.Errorf("%+v\n%+v", row, sum)
	}
	if status, out, _ := cli(t, "bench", "--schema"); status != exitOK || !json.Valid([]byte(out)) || !strings.Contains(out, "overhead_seconds") {
		t.Errorf("status %d: %s", status, out)
	}
}

// TestBenchFails: where something is not as expected, the report is there all the same.
func TestBenchFails(t *testing.T) {
	status, out, errOut := cli(t, "bench", "--front", serveBenched(t, &benched{verdict: "partial 50/100 tokens; the link was cut"}), "--tokens", "100", "--runs", "1", "--warm-up", "0")
	if status != exitFailed || errOut != "" || !strings.Contains(out, "fail  bridged: 1 of 1 were not wholly bridged; first bridged, 100 tokens, run 1: partial 50/100") {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
	status, out, errOut = cli(t, "bench", "--native", "http://127.0.0.1:1")
	if status != exitFailed || out != "" || !strings.Contains(errOut, "the decoder at http://127.0.0.1:1: ask for its models: ") {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
}

// TestBenchOfAnyEndpoint: one that sends no verdicts is measured, and what is then not known
// is said.
func TestBenchOfAnyEndpoint(t *testing.T) {
	status, out, errOut := cli(t, "bench", "--front", serveBenched(t, &benched{}), "--arms", "bridged", "--tokens", "100", "--runs", "1", "--warm-up", "0")
	if status != exitOK || errOut != "" || !strings.Contains(out, "warn  bridged: 1 of 1 have no verdict, so whether they were bridged is not known") ||
		!strings.Contains(out, "not measured  verdicts: the front sends none (X-PDLink)") || !strings.Contains(out, "\n  bridged ") {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
}

// TestBenchInterrupted: it prints what was measured.
func TestBenchInterrupted(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		ctx, stop := context.WithCancel(t.Context())
		args := []string{"bench", "--native", serveBenched(t, &benched{stop: stop}), "--tokens", "100", "--runs", "9", "--warm-up", "0", "--arms", "native"}
		want := "interrupted: this is what was measured until then"
		if asJSON {
			args, want = append(args, "--json"), `"whole":false`
		}
		var o, e bytes.Buffer
		status := run(ctx, args, newStreams(&o, &e))
		if status != exitStopped || !strings.Contains(o.String(), want) || e.String() != "pdlink: stopped\n" {
			t.Errorf("status %d: %s%s", status, o.String(), e.String())
		}
		if lines := strings.Split(strings.TrimSpace(o.String()), "\n"); asJSON && (len(lines) != 2 || !strings.HasPrefix(lines[1], `{"event":"summary"`)) {
			t.Errorf("%q", lines)
		}
	}
}

// TestBenchCommandLine: mistakes, before anything is asked.
func TestBenchCommandLine(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none", "x")
	for _, c := range []struct {
		args []string
		say  string
	}{
		{nil, "give at least one of --front URL, --native URL and --engine URL"},
		{[]string{"--native", "x"}, `--native "x": want http://host:port`},
		{[]string{"--native", ""}, "--native is empty"},
		{[]string{"--native", "http://h", "--tokens", "8q"}, `--tokens "8q"`},
		{[]string{"--native", "http://h", "--tokens", "NaN"}, `--tokens "NaN"`},
		{[]string{"--native", "http://h", "--tokens", "0.0001k"}, "want 64 to"},
		{[]string{"--native", "http://h", "--tokens", "100.5"}, "want 64 to"},
		{[]string{"--native", "http://h", "--tokens", "1e30k"}, "want 64 to"},
		{[]string{"--native", "http://h", "--tokens", strings.Repeat("8k,", 40) + "8k"}, "41 lengths"},
		{[]string{"--native", "http://h", "--arms", "hot"}, `--arms "hot": want one of native, bridged, engine, warm`},
		{[]string{"--native", "http://h", "--arms", "bridged"}, "arm bridged: the front's URL is not given"},
		{[]string{"--native", "http://h", "--api", "messages"}, `--api "messages"`},
		{[]string{"--native", "http://h", "--runs", "0"}, "--runs 0"},
		{[]string{"--native", "http://h", "--warm-up", "-1"}, "--warm-up -1"},
		{[]string{"--native", "http://h", "--answer", "1"}, "--answer 1"},
		{[]string{"--native", "http://h", "--timeout", "0s"}, "--timeout 0s"},
		{[]string{"--native", "http://h", "--seed", "9007199254740992"}, "--seed 9007199254740992"},
		{[]string{"--native", "http://h", "--report", none}, "no such file"},
		{[]string{"surplus"}, "takes no arguments"},
	} {
		if status, out, errOut := cli(t, append([]string{"bench"}, c.args...)...); status != exitUsage || out != "" || !strings.Contains(errOut, c.say) {
			t.Errorf("%v: status %d: %s%s", c.args, status, out, errOut)
		}
	}
	for args, want := range map[string]string{"--api": "chat\ncompletions\n:4\n", "--arms": "native\nbridged\nengine\nwarm\n:4\n"} {
		if status, out, _ := cli(t, "__complete", "bench", args, ""); status != exitOK || out != want {
			t.Errorf("%s: status %d: %q", args, status, out)
		}
	}
}
