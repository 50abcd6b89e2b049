package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/bridge/cost"
)

// costJSON runs `pdlink cost … --json`. Its ends are this test's binary.
func costJSON(t *testing.T, args ...string) (*cost.Report, string) {
	t.Helper()
	t.Setenv(mainEnv, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	status, out, errOut := cli(t, append([]string{"cost", "--json"}, args...)...)
	if status != exitOK {
		t.Fatalf("cost %v: status %d: %s%s", args, status, out, errOut)
	}
	r, err := cost.UnmarshalReport([]byte(out))
	if err != nil {
		t.Fatalf("cost %v: %v in %s", args, err, out)
	}
	return r, errOut
}

func TestCost(t *testing.T) {
	dir := t.TempDir()
	html, stores := filepath.Join(dir, "cost.html"), filepath.Join(dir, "stores")
	if err := os.Mkdir(stores, 0o755); err != nil {
		t.Fatal(err)
	}
	r, errOut := costJSON(t, "--measure", "2049,6145", "--runs", "2", "--tail-runs", "1", "--prefill-rate", "40000", "--native-rate", "400",
		"--store", stores, "--no-sync", "--html", html, "--at", "localhost")
	if !strings.Contains(errOut, "the page is in "+html) {
		t.Errorf("%s", errOut)
	}
	var names []string
	for _, l := range r.Links {
		names = append(names, l.Link)
		if l.MsPerToken <= 0 || l.MsLeast > l.MsPerToken || l.MsMost < l.MsPerToken || l.Tail <= 0 || !l.Paced || l.BreakEven == nil || !l.EvenKnown || len(l.Costs) != 5 || l.Line.Longest != 6144 {
			t.Errorf("%s: %+v", l.Link, l)
		}
		if (l.Link == "mem") != (l.Processes == 1) || l.SenderCPU <= 0 || (l.ReceiverCPU > 0) != (l.Processes == 2) {
			t.Errorf("%s: %d processes, CPU %g and %g", l.Link, l.Processes, l.SenderCPU, l.ReceiverCPU)
		}
		lengths := map[int]int{}
		for _, m := range l.Measurements {
			lengths[m.Tokens]++
			if m.Bytes != uint64(m.Blocks)*2048*9842 || m.Tokens != m.Blocks*2048 || m.Seconds <= 0 || m.Tail < 0 {
				t.Errorf("%s: %+v", l.Link, m)
			}
			if m.Paced && m.Seconds < 0.9*8192/40000 {
				t.Errorf("%s: %g s, faster than the prefill", l.Link, m.Seconds)
			}
		}
		if lengths[2048] != 2 || lengths[6144] != 2 || lengths[8192] != 1 {
			t.Errorf("%s: runs of lengths %v", l.Link, lengths)
		}
		for _, want := range []string{"project", "write", "adopt"} {
			if !slices.ContainsFunc(l.Phases, func(p cost.Phase) bool { return p.Phase == want }) {
				t.Errorf("%s: no phase %s in %v", l.Link, want, l.Phases)
			}
		}
		shares := map[string]float64{}
		for _, p := range l.Phases {
			shares[p.End] += p.Share
		}
		if math.Abs(shares["sender"]-1) > 1e-9 || math.Abs(shares["receiver"]-1) > 1e-9 {
			t.Errorf("%s: shares of the ends are %v", l.Link, shares)
		}
	}
	if !slices.Equal(names[:4], []string{"mem", "unix", "tcp", "tcp+tls"}) || len(r.Links)+len(r.Missing) != 5 {
		t.Errorf("links %v, missing %v", names, r.Missing)
	}
	if r.Store != "written" || r.BytesPerToken != 9842 || r.BlockTokens != 2048 || r.Engines.Source != "said on the command line" || r.Engines.Origins.Native != cost.Given || r.Engines.Origins.Cached != cost.Computed || len(r.Published) > 0 {
		t.Errorf("%+v", r)
	}
	page, err := os.ReadFile(html)
	if err != nil || !strings.Contains(string(page), "sealed TCP") {
		t.Errorf("page: %v", err)
	}
	if left, err := os.ReadDir(stores); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestCostOfACase: its own blocks and length, in words for people.
func TestCostOfACase(t *testing.T) {
	t.Setenv(mainEnv, "1")
	status, out, errOut := cli(t, "cost", "bundled:dsv4-b", "--links", "tcp,mem", "--runs", "1", "--discard")
	if status != exitOK || !strings.Contains(out, "4,096 tokens") || !strings.Contains(out, "\n   mem ") || !strings.Contains(out, "\n   tcp ") || !strings.Contains(out, "?") || !strings.Contains(errOut, "--engines") ||
		!strings.Contains(out, "if the decoder reads 400 tokens/s, prefill 2,000 tokens/s (assumed), it pays from: mem ") || strings.Contains(out, "82,000") {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
}

func TestCostRefuses(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		say    string
	}{
		{[]string{"--links", "tcp,tcp"}, exitUsage, "once at most"},
		{[]string{"--links", "pigeon"}, exitUsage, "once at most"},
		{[]string{"--runs", "0"}, exitUsage, "--runs 0"},
		{[]string{"--chunk", "0"}, exitUsage, "--chunk 0"},
		{[]string{"--measure", "0"}, exitUsage, "--measure 0"},
		{[]string{"--measure", "100"}, exitUsage, "a block is 2048 tokens"},
		{[]string{"--model", "gpt-2"}, exitUsage, "--model gpt-2: want one of"},
		{[]string{"--prefill-rate", "5"}, exitUsage, "go together"},
		{[]string{"--prefill-rate", "fast", "--native-rate", "5"}, exitUsage, "--prefill-rate: no time or rate"},
		{[]string{"--native-rate", "", "--prefill-rate", "5"}, exitUsage, "--native-rate is empty"},
		{[]string{"--engines", "http://a"}, exitUsage, "want two URLs"},
		{[]string{"--engines", "a,b"}, exitFailed, "want http://host:port"},
		{[]string{"--engines", "http://a,http://b", "--prefill-rate", "5", "--native-rate", "5"}, exitUsage, "give --engines, which asks, or rates"},
		{[]string{"--discard", "--no-sync"}, exitUsage, "no effect with --discard"},
		{[]string{"--at", "tcp://x"}, exitUsage, "--at"},
		{[]string{"bundled:dsv4-b", "--model", "qwen3-32b"}, exitUsage, "a case has its own model"},
		{[]string{"bundled:nope", "--links", "mem"}, exitFailed, "no case"},
		{[]string{"--store", "/nonexistent/x"}, exitFailed, "no such file"},
		{[]string{"compare", "a"}, exitUsage, "B is missing"},
		{[]string{"compare", os.DevNull, os.DevNull}, exitUsage, "no report of pdlink cost"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Setenv(mainEnv, "1")
			status, out, errOut := cli(t, append([]string{"cost"}, c.args...)...)
			if status != c.status || !strings.Contains(errOut, c.say) || out != "" {
				t.Errorf("status %d: %s%s", status, out, errOut)
			}
		})
	}
}

func TestCostEndAnswersNonsense(t *testing.T) {
	for _, o := range []costOrder{{Do: "dance"}, {Do: costSend, Link: "x"}, {Do: costListen, Link: "pigeon://a"}, {Do: costSend, Link: "mem://", Model: "none", Tokens: 1}} {
		e := costEnd{std: newStreams(&output{}, &output{})}
		if a, err := e.do(t.Context(), o); err == nil {
			t.Errorf("%+v: %+v", o, a)
		}
		if _, err := e.stop(); err != nil {
			t.Errorf("nothing to stop: %v", err)
		}
	}
}

// TestCostEndIsGone: what happened is said, with what the end had to say.
func TestCostEndIsGone(t *testing.T) {
	t.Setenv(mainEnv, "no such mode")
	status, _, errOut := cli(t, "cost", "--links", "mem", "--discard")
	if status != exitFailed || !strings.Contains(errOut, "an end is gone") || !strings.Contains(errOut, mainEnv+"=no such mode") {
		t.Errorf("status %d: %s", status, errOut)
	}
}

// heldSink keeps when pieces came.
type heldSink struct{ at []time.Time }

func (s *heldSink) Put(context.Context, int, int64, []byte) error {
	s.at = append(s.at, time.Now())
	return nil
}
func (*heldSink) Push(context.Context) error { return nil }
func (*heldSink) Wants(int) bool             { return true }

// layered is a source of layers of three blocks each.
type layered struct{ layers int }

func (l layered) Run(ctx context.Context, to bridge.Sink) error {
	for i := range l.layers {
		for b := range 3 {
			if err := to.Put(ctx, b, int64(i)*100, make([]byte, 100)); err != nil {
				return err
			}
		}
	}
	return to.Push(ctx)
}

// TestPacedSource: a layer's pieces are there when it is computed, not before.
func TestPacedSource(t *testing.T) {
	const layers, each = 4, 50 * time.Millisecond
	to, began := &heldSink{}, time.Now()
	s := &pacedSource{Source: layered{layers}, blocks: 3, rate: 300 / each.Seconds()}
	if err := s.Run(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	for i, at := range to.at {
		if least := began.Add(time.Duration(i/3+1) * each); at.Before(least) {
			t.Errorf("piece %d came %v early", i, least.Sub(at))
		}
	}
	if len(to.at) != 3*layers || s.ended.Load() < to.at[len(to.at)-1].UnixNano() {
		t.Errorf("%d pieces, ended %d", len(to.at), s.ended.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&pacedSource{Source: layered{1}, blocks: 3, rate: 1e-3}).Run(ctx, to); err == nil {
		t.Error("it waited after its end")
	}
}

// engine is an endpoint that reads so many tokens a millisecond; a word is a token.
func engine(t *testing.T, perMs, cached int, status int) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
			return
		}
		var q struct {
			Model, Prompt string
			MaxTokens     int `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Model != "m" || q.MaxTokens != 1 || r.URL.Path != "/v1/completions" {
			t.Errorf("%s: %+v, %v", r.URL.Path, q, err)
		}
		n := len(strings.Fields(q.Prompt))
		time.Sleep(time.Duration(n/perMs) * time.Millisecond)
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"usage":{"prompt_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`, n, cached)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestCostAsksEngines(t *testing.T) {
	f := costFlags{engines: []string{engine(t, 100, 0, 200), engine(t, 10, 0, 200) + "/"}, asked: []int{500, 1000}}
	k, err := f.ask(t.Context(), newStreams(&output{}, &output{}))
	if err != nil || len(k.Prefill) != 2 || k.Prefill[0].Tokens != 500 || k.Prefill[1].Seconds < 0.01 || k.Native[1].Seconds < 0.1 || k.Source == "" {
		t.Errorf("%+v, %v", k, err)
	}
	for say, url := range map[string]string{
		"in its cache": engine(t, 100, 400, 200), "503": engine(t, 100, 0, 503), "connection refused": "http://127.0.0.1:1",
	} {
		f.engines[0] = url
		if _, err := f.ask(t.Context(), newStreams(&output{}, &output{})); err == nil || !strings.Contains(err.Error(), say) || !strings.Contains(err.Error(), url) {
			t.Errorf("%s: %v", say, err)
		}
	}
}

// costFile writes a report whose runs take so many seconds.
func costFile(t *testing.T, model string, seconds ...float64) string {
	t.Helper()
	return costFileOf(t, cost.Report{Model: model}, seconds...)
}

// costFileOf writes a report of which something else is said, too.
func costFileOf(t *testing.T, r cost.Report, seconds ...float64) string {
	t.Helper()
	l := cost.LinkReport{Link: "tcp"}
	for _, s := range seconds {
		l.Measurements = append(l.Measurements, cost.Run{Tokens: 4096, Seconds: s, SenderCPU: s, ReceiverCPU: s}, cost.Run{Tokens: 2048, Seconds: 99}, cost.Run{Paced: true, Tokens: 8192, Tail: 1})
	}
	r.Schema, r.Links = cost.SchemaName, []cost.LinkReport{l, {Link: "mem"}}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "r.json")
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestCostCompare(t *testing.T) {
	a := costFile(t, "m", 1, 1.01, 1.02, 1.03, 1.04, 1.05)
	slower, few, other := costFile(t, "m", 2, 2.01, 2.02, 2.03, 2.04, 2.05), costFile(t, "m", 2), costFile(t, "n", 1)
	for _, c := range []struct {
		b, say string
		status int
	}{
		{a, "no difference seen", exitOK}, {slower, "B takes more", exitOK}, {few, "too few runs to tell", exitOK}, {other, "they are of different things", exitUsage},
	} {
		status, out, errOut := cli(t, "cost", "compare", a, c.b)
		if status != c.status || !strings.Contains(out+errOut, c.say) {
			t.Errorf("%s: status %d: %s%s", c.say, status, out, errOut)
		}
	}
	_, out, _ := cli(t, "cost", "compare", a, slower, "--json")
	var first costRatio
	if err := json.Unmarshal([]byte(strings.Split(out, "\n")[0]), &first); err != nil || !first.Differs || first.Ratio < 1.9 || first.Ratio > 2.1 || first.What != "seconds of 4,096 tokens" {
		t.Errorf("%v: %s", err, out)
	}
	if n := strings.Count(out, "\n"); n != 4 || strings.Contains(out, "mem") {
		t.Errorf("%s", out)
	}
}

// TestCostCompareOfUnlikeReports: what cannot be compared is refused, and what was disturbed
// or measured elsewhere is said to be.
func TestCostCompareOfUnlikeReports(t *testing.T) {
	a := costFile(t, "m", 1, 1.01, 1.02, 1.03, 1.04, 1.05)
	for say, r := range map[string]cost.Report{
		"case: A none, B synthetic:x":    {Model: "m", Case: "synthetic:x"},
		"tokens of a chunk: A 0, B 8192": {Model: "m", Chunk: 8192},
		"tokens of a block: A 0, B 256":  {Model: "m", BlockTokens: 256},
		"store: A none, B durable":       {Model: "m", Store: "durable"},
		"made before: A false, B true":   {Model: "m", Made: true},
		"bytes a token: A 0 B, B 9842 B": {Model: "m", BytesPerToken: 9842},
	} {
		if status, out, errOut := cli(t, "cost", "compare", a, costFileOf(t, r, 1)); status != exitUsage || out != "" || !strings.Contains(errOut, say) {
			t.Errorf("%s: status %d: %s%s", say, status, out, errOut)
		}
	}
	other := cost.Report{Model: "m", Host: "a Mac"}
	other.Engines.Prefill = cost.Rate(1000)
	status, out, _ := cli(t, "cost", "compare", a, costFileOf(t, other, 2, 2.01, 2.02, 2.03, 2.04, 2.05))
	if status != exitOK || !strings.Contains(out, "B takes more") || strings.Count(out, "not the same: host: A none, B a Mac") != 1 || !strings.Contains(out, "not the same: the prefill's pace: A none, B ") {
		t.Errorf("status %d: %s", status, out)
	}
	near, far := &cost.Report{BytesPerToken: 9842}, &cost.Report{BytesPerToken: 9842.25}
	if list := differences(near, far); !slices.Equal(list, []string{"bytes a token: A 9842 B, B 9842.25 B"}) {
		t.Errorf("%q", list)
	}
	near.Links, far.Links = []cost.LinkReport{{Link: "tcp", Processes: 2}, {Link: "mem", Processes: 1}}, []cost.LinkReport{{Link: "mem", Processes: 1}, {Link: "tcp", Processes: 1}}
	if far.BytesPerToken = 9842; !slices.Equal(differences(near, far), []string{"processes of tcp: A 2, B 1"}) {
		t.Errorf("%q", differences(near, far))
	}
	disturbed := costFile(t, "m", 2, 2.01, 2.02, 2.03, 2.04, 9)
	if _, out, _ = cli(t, "cost", "compare", a, disturbed); !strings.Contains(out, "disturbed: runs of B differ too much") || strings.Contains(out, "B takes more") {
		t.Errorf("%s", out)
	}
	if _, out, _ = cli(t, "cost", "compare", disturbed, a, "--json"); !strings.Contains(out, `"disturbed":["A"]`) || strings.Contains(out, `"differs":true`) {
		t.Errorf("%s", out)
	}
}

// TestCostDisturbedRows: the runs of a row count, and no others.
func TestCostDisturbedRows(t *testing.T) {
	link := func(change func(i int, runs []cost.Run)) *cost.Report {
		var all []cost.Run
		for i := range 6 {
			runs := []cost.Run{{Tokens: 4096, Seconds: 1, SenderCPU: 1, ReceiverCPU: 1}, {Tokens: 8192, Seconds: 2}, {Paced: true, Tokens: 8192, Seconds: 9, Tail: 1}}
			change(i, runs)
			all = append(all, runs...)
		}
		return &cost.Report{Links: []cost.LinkReport{{Link: "tcp", Measurements: all}}}
	}
	plain := link(func(_ int, runs []cost.Run) { runs[1].Tokens = 6144 }) // the longest in common has 4,096
	for name, c := range map[string]struct {
		change func(i int, runs []cost.Run)
		want   string // a letter for each row that is disturbed
	}{
		"nothing":           {func(int, []cost.Run) {}, "----"},
		"a longer one":      {func(i int, runs []cost.Run) { runs[1].Seconds += float64(i) }, "----"},
		"that of the row":   {func(i int, runs []cost.Run) { runs[0].Seconds += float64(i) }, "B-BB"},
		"the tail":          {func(i int, runs []cost.Run) { runs[2].Tail += float64(i) }, "-B--"},
		"the sender's CPU":  {func(i int, runs []cost.Run) { runs[0].SenderCPU += float64(i) }, "--B-"},
		"paced runs' times": {func(i int, runs []cost.Run) { runs[2].Seconds += 2 * float64(i) }, "-B--"},
	} {
		got := ""
		for _, r := range ratios(plain, link(c.change)) {
			got += cmp.Or(strings.Join(r.Disturbed, ""), "-")
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestCostLinksTakeTurns: each link is the first of a length as often as every other, and
// the second, and so on.
func TestCostLinksTakeTurns(t *testing.T) {
	const links = 4
	c := &costRunner{costFlags: &costFlags{runs: links, tails: 2 * links, chunk: 4096}}
	c.known.Prefill = cost.Rate(1000)
	var list []*cost.Measured
	for _, name := range []string{"mem", "unix", "tcp", "tcp+tls"} {
		list = append(list, &cost.Measured{Link: name})
	}
	at := map[string]map[string]int{} // by length and place, then by link
	asked, last := map[int]int{}, int64(0)
	once := func(_ context.Context, link string, tokens int, pace float64) (cost.Run, error) {
		place := fmt.Sprintf("%d tokens, place %d", tokens, asked[tokens]%links)
		asked[tokens]++
		if at[place] == nil {
			at[place] = map[string]int{}
		}
		at[place][link]++
		if (pace > 0) != (tokens == 4097) {
			t.Errorf("%d tokens at a pace of %g", tokens, pace)
		}
		return cost.Run{Tokens: tokens}, nil
	}
	err := c.rounds(t.Context(), &cost.Report{BlockTokens: 2048}, list, []int{100, 200}, once, func(done, total int64) {
		if last++; done != last || total != 4*links*links {
			t.Errorf("step %d of %d after %d", done, total, last)
		}
	})
	if err != nil || len(at) != 3*links {
		t.Fatalf("%v: %v", err, at)
	}
	for place, by := range at {
		want := 1
		if strings.HasPrefix(place, "4097") {
			want = 2
		}
		for _, l := range list {
			if by[l.Link] != want {
				t.Errorf("%s: %s %d times of %d: %v", place, l.Link, by[l.Link], want, by)
			}
		}
	}
}

// TestCostHoldsACase: its pieces are what its source makes, in its order, and no more is
// kept than may be.
func TestCostHoldsACase(t *testing.T) {
	o := costOrder{Case: "bundled:dsv4-b", Chunk: 1024}
	j, err := o.job()
	if err != nil {
		t.Fatal(err)
	}
	defer j.release()
	var e costEnd
	held, made, err := e.pieces(t.Context(), o, j)
	again, _, err2 := e.pieces(t.Context(), o, j)
	if err != nil || err2 != nil || !made || held != again {
		t.Fatalf("%v, %v, made %v", err, err2, made)
	}
	var a, b recordSink
	if err := errors.Join(j.parts[0].source.Run(t.Context(), &a), held.Run(t.Context(), &b)); err != nil {
		t.Fatal(err)
	}
	if len(a) == 0 || !slices.Equal(a, b) || !slices.Contains(a, "push") {
		t.Errorf("%d calls of the source, %d of what was held", len(a), len(b))
	}
	if s, made, err := e.pieces(t.Context(), costOrder{}, j); err != nil || made || s != j.parts[0].source {
		t.Errorf("of a made-up prompt: made %v, %v", made, err)
	}
	if err := j.parts[0].source.Run(t.Context(), &heldPieces{left: 1000}); !errors.Is(err, errHeld) {
		t.Errorf("more than may be held: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := held.Run(ctx, &b); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}

// recordSink notes what it is given.
type recordSink []string

func (r *recordSink) Put(_ context.Context, block int, off int64, p []byte) error {
	*r = append(*r, fmt.Sprintf("%d %d %x", block, off, sha256.Sum256(p)))
	return nil
}

func (r *recordSink) Push(context.Context) error {
	*r = append(*r, "push")
	return nil
}

func (*recordSink) Wants(int) bool { return true }

func TestCostSchemaIsPrinted(t *testing.T) {
	if status, out, _ := cli(t, "cost", "schema"); status != exitOK || out != cost.Schema {
		t.Errorf("status %d: %.100s", status, out)
	}
}
