package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestAllArms: what is reported is what was asked and answered.
func TestAllArms(t *testing.T) {
	dec := &decoder{model: "m", key: "sesam", plugin: true, pause: time.Millisecond}
	eng := &decoder{model: "org/m", key: "open"}
	var told []Row
	var lines []string
	steps := 0
	r, err := Run(t.Context(), Options{
		Front: serve(t, &front{decoder: dec}), Native: serve(t, dec), Engine: serve(t, eng), DecoderKey: "sesam", EngineKey: "open",
		Tokens: []int{400, 150}, Runs: 2, Answer: 12, Seed: 7, Version: "v",
		OnRow: func(x Row) { told = append(told, x) }, OnLine: func(s string) { lines = append(lines, s) },
		OnStep: func(done, total int) {
			if steps++; done != steps || total != 20 {
				t.Errorf("step %d of %d, after %d", done, total, steps)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []Arm{Native, Bridged, Engine, Warm, Bridged, Engine, Warm, Native}
	if got := armsOf(r.Rows); !slices.Equal(got, append(want, want...)) || len(r.Rows) != 20 || len(told) != 20 {
		t.Fatalf("%v, %d told", got, len(told))
	}
	if !r.OK || !r.Whole || !r.Finds || r.IDs != fromPlugin || r.Model != "m" || r.Reads != "org/m" || len(r.Lacks) != 0 {
		t.Errorf("%+v", r)
	}
	seeds := map[uint64]int{}
	for i := range r.Rows {
		x := &r.Rows[i]
		seeds[x.Seed]++
		if x.Error != "" || x.Cached == nil || math.Abs(float64(x.Tokens-x.Want)) > 0.12*float64(x.Want) {
			t.Errorf("%+v", x)
		}
		held(t, x)
	}
	if len(seeds) != 10 { // of five rounds two prompts each
		t.Errorf("seeds %v", seeds)
	}
	sameIDs(t, dec, eng)
	if len(lines) != 5 || !strings.Contains(lines[1], "the engine took") || !strings.Contains(lines[1], "were added (plan 1.0 ms, engine to adoption 2.0 ms, then the decoder ") ||
		!strings.Contains(lines[1], "; native would take ") || !strings.HasPrefix(lines[1], "150 tokens, run 1 of 2: first token after ") || !strings.HasPrefix(lines[0], "150 tokens, warm-up 1 of 1: ") {
		t.Errorf("%q", lines)
	}
	if len(r.Lengths) != 2 || r.Lengths[0].Want != 150 || r.Lengths[0].Overhead.N != 2 || r.Lengths[1].Arms[Warm].First.N != 2 || r.Lengths[1].Sooner <= 0 {
		t.Errorf("%+v", r.Lengths)
	}
	for _, text := range []string{r.Markdown(), r.Text()} {
		for _, part := range []string{"model m, read by the engine as org/m", "overhead", "seed 7", "ids of the plug-in"} {
			if !strings.Contains(text, part) {
				t.Errorf("no %q in\n%s", part, text)
			}
		}
	}
	valid(t, r)
}

// held looks at the row of an arm.
func held(t *testing.T, x *Row) {
	t.Helper()
	whole := covered(x.Tokens)
	switch x.Arm {
	case Native:
		if *x.Cached != 0 || x.Verdict != "" || x.First <= 0 || x.Total < x.First || x.Said != 12 || x.Rate <= 0 || x.Marker != MarkerFound {
			t.Errorf("%+v", x)
		}
	case Bridged:
		if *x.Cached != whole || x.Promised != whole || x.Outcome != "complete" || x.Bytes != uint64(100*whole) || !x.Sealed ||
			x.Plan != 0.001 || x.Overhead == nil || *x.Overhead != x.First-x.Reading || x.Alone <= 0 || x.Marker != MarkerFound {
			t.Errorf("%+v", x)
		}
	case Engine:
		if *x.Cached != 0 || x.Tokens%fakeBlock != 0 || x.IDs != fromPlugin || x.Total <= 0 || x.First != 0 || x.Said != 1 {
			t.Errorf("%+v", x)
		}
	case Warm:
		if *x.Cached != whole || x.Outcome != "bypass" || x.Reason != "it is warm" || x.Marker != MarkerFound {
			t.Errorf("%+v", x)
		}
	}
}

// sameIDs: the engine read the beginnings of prompts that the front was asked with, one
// token each, and nothing that a cache of its own could answer.
func sameIDs(t *testing.T, dec, eng *decoder) {
	t.Helper()
	salts := map[any]bool{}
	for _, body := range eng.asked {
		_, ids := promptOf(body)
		begins := func(b map[string]any) bool {
			_, all := promptOf(b)
			return len(all) > len(ids) && slices.Equal(all[:len(ids)], ids)
		}
		if body["max_tokens"] != 1.0 || body["model"] != "org/m" || body["stream"] != nil || !slices.ContainsFunc(dec.asked, begins) {
			t.Errorf("%v", body)
		}
		salts[body["cache_salt"]] = true
	}
	if len(salts) != 5 || len(eng.asked) != 5 {
		t.Errorf("%d salts of %d", len(salts), len(eng.asked))
	}
}

// TestWhatThereIs: any of the endpoints alone, and what is then said to be missing.
func TestWhatThereIs(t *testing.T) {
	dec := func() *decoder { return &decoder{model: "m"} }
	for name, c := range map[string]struct {
		o       func() Options
		arms    []Arm
		missing []string
		check   string
		level   Level
	}{
		"native": {func() Options { return Options{Native: serve(t, dec())} }, []Arm{Native, Warm}, []string{"bridged: the front", "engine: the engine"}, "warm", LevelOK},
		"native, mute, completions": {func() Options { return Options{Native: serve(t, &decoder{model: "m", mute: true}), API: Completions} },
			[]Arm{Native, Warm}, []string{"exact lengths: ", "cached tokens", "tokens of prompts"}, "marker", LevelOK},
		"native only":      {func() Options { return Options{Native: serve(t, dec()), Arms: []Arm{Native}} }, []Arm{Native}, []string{"warm: it was not asked for"}, "cold", LevelOK},
		"engine":           {func() Options { return Options{Engine: serve(t, dec())} }, []Arm{Engine}, []string{"native: the decoder"}, "answered", LevelOK},
		"front":            {func() Options { return Options{Front: serve(t, &front{decoder: dec()})} }, []Arm{Bridged, Warm}, []string{"overhead: "}, "bridged", LevelOK},
		"no front":         {func() Options { return Options{Front: serve(t, dec())} }, []Arm{Bridged, Warm}, []string{"overhead: ", "verdicts: the front sends none"}, "bridged", LevelWarn},
		"front for native": {func() Options { return Options{Native: serve(t, &front{decoder: dec()})} }, []Arm{Native, Warm}, nil, "native", LevelFail},
		"ids of the engine": {func() Options {
			d := dec()
			return Options{Front: serve(t, &front{decoder: d}), Engine: serve(t, dec()), Arms: []Arm{Bridged, Engine}}
		}, []Arm{Bridged, Engine}, []string{"warm: it was not asked for"}, "cached", LevelOK},
		"dumb": {func() Options { return Options{Native: serve(t, &decoder{model: "m", dumb: true})} }, []Arm{Native, Warm}, nil, "marker", LevelWarn},
		"declined": {func() Options {
			return Options{Front: serve(t, &front{decoder: dec(), verdict: func(int, int) string { return "declined; no host" }})}
		}, []Arm{Bridged, Warm}, nil, "bridged", LevelFail},
		"too short": {func() Options {
			return Options{Front: serve(t, &front{decoder: dec(), verdict: func(int, int) string { return "bypass; shorter than 4096 tokens" }})}
		}, []Arm{Bridged, Warm}, nil, "bridged", LevelWarn},
	} {
		t.Run(name, func(t *testing.T) {
			o := c.o()
			o.Tokens, o.Runs, o.WarmUp, o.Answer = []int{100}, 1, -1, 20
			r, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if got := armsOf(r.Rows); !slices.Equal(got, c.arms) || check(r, c.check).Level != c.level {
				t.Errorf("%v, %+v", got, r.Checks)
			}
			for _, m := range c.missing {
				if !slices.ContainsFunc(r.Lacks, func(s string) bool { return strings.HasPrefix(s, m) }) {
					t.Errorf("no %q among %q", m, r.Lacks)
				}
			}
			if r.OK != (c.level != LevelFail) {
				t.Errorf("%v: %+v", r.OK, r.Checks)
			}
			valid(t, r)
		})
	}
}

// answers is a fault that sends a body.
func answers(status int, kind, body string) fault {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		io.WriteString(w, body)
		return true
	}
}

// TestFaults: each is a row that says so, and the next request is measured.
func TestFaults(t *testing.T) {
	const sse = "text/event-stream"
	text := `data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n"
	for name, c := range map[string]struct {
		f   fault
		say string
	}{
		"500":           {answers(500, "application/json", `{"error":{"message":"no\n memory"}}`), "answers 500: no memory"},
		"503 in plain":  {answers(503, "text/plain", "busy\x1b[31m"), "answers 503: busy?[31m"},
		"redirect":      {answers(307, "text/plain", ""), "answers 307"},
		"error in it":   {answers(200, sse, text+`data: {"error":{"message":"out of memory"}}`+"\n\n"), "broke off: the endpoint says: out of memory"},
		"cut":           {answers(200, sse, text), "broke off after 1 pieces of text"},
		"cut later":     {answers(200, sse, text+text), "broke off after 2 pieces of text"},
		"no JSON":       {answers(200, sse, "data: {\n\n"), "cannot be read"},
		"wrong types":   {answers(200, sse, `data: {"choices":7}`+"\n\n"), "cannot be read"},
		"endless line":  {answers(200, sse, "data: "+strings.Repeat("x", maxEvent+1)), "a line of more than"},
		"endless event": {answers(200, sse, strings.Repeat("data: "+strings.Repeat("x", 1<<20)+"\n", 5)), "an event of more than"},
		"whole, cut": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, `{"choices":[`)
			return true
		}, "broke off after 12 bytes"},
		"connection": {func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }, "broke off before it began"},
		"connection, in the middle": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", sse)
			io.WriteString(w, text)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "broke off after 1 pieces"},
	} {
		t.Run(name, func(t *testing.T) {
			dec := &decoder{model: "m", faults: []fault{nil, nil, nil, c.f}} // two counts and a marker go before
			r, err := Run(t.Context(), Options{Native: serve(t, dec), Tokens: []int{100}, Runs: 2, WarmUp: -1, Answer: 20, Arms: []Arm{Native}})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Rows) != 2 || !strings.Contains(r.Rows[0].Error, c.say) || r.Rows[1].Error != "" || r.OK || check(r, "answered").Level != LevelFail {
				t.Errorf("%+v\n%+v", r.Rows, r.Checks)
			}
			if a := r.Lengths[0].Arms[Native]; a.Total.N != 1 {
				t.Errorf("%+v", a)
			}
			if slices.ContainsFunc(r.Lacks, func(s string) bool { return strings.HasPrefix(s, "tokens of ") }) {
				t.Errorf("the decoder tells them: %q", r.Lacks)
			}
			valid(t, r)
		})
	}
}

// TestTimeout: a request that takes too long is a row, too.
func TestTimeout(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) bool {
		<-r.Context().Done()
		return true
	}
	dec := &decoder{model: "m", faults: []fault{nil, nil, nil, hang}}
	r, err := Run(t.Context(), Options{Native: serve(t, dec), Tokens: []int{100}, Runs: 1, WarmUp: -1, Answer: 20, Arms: []Arm{Native}, Timeout: 3 * time.Second})
	if err != nil || len(r.Rows) != 1 || !strings.Contains(r.Rows[0].Error, "the decoder takes longer than 3s") {
		t.Errorf("%v: %+v", err, r)
	}
}

// TestFieldsThatAreRefused are left out, once and for all.
func TestFieldsThatAreRefused(t *testing.T) {
	refuse := func(field string) fault {
		return answers(400, "application/json", `{"error":{"message":"Unknown field: `+field+`"}}`)
	}
	dec := &decoder{model: "m", faults: []fault{refuse("max_tokens"), refuse("temperature"), nil, nil, refuse("stream_options")}}
	r, err := Run(t.Context(), Options{Native: serve(t, dec), Tokens: []int{100}, Runs: 1, WarmUp: -1, Answer: 20, Arms: []Arm{Native}})
	if err != nil || !r.Whole || r.Rows[0].Error != "" {
		t.Fatalf("%v: %+v", err, r)
	}
	last := dec.asked[len(dec.asked)-1]
	if last["max_tokens"] != nil || last["max_completion_tokens"] != 20.0 || last["temperature"] != nil || last["stream_options"] != nil || !streams(last) {
		t.Errorf("%v", last)
	}
}

// TestInterrupt: what was measured is there.
func TestInterrupt(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	dec := &decoder{model: "m", plugin: true}
	eng := &decoder{model: "m", faults: []fault{nil, func(_ http.ResponseWriter, r *http.Request) bool {
		stop()
		<-r.Context().Done()
		return true
	}}}
	told := 0
	r, err := Run(ctx, Options{
		Front: serve(t, &front{decoder: dec}), Native: serve(t, dec), Engine: serve(t, eng), Tokens: []int{100}, Runs: 5, WarmUp: -1, Answer: 20,
		OnRow: func(Row) { told++ },
	})
	if !errors.Is(err, context.Canceled) || r == nil || r.Whole || r.OK || !slices.Equal(armsOf(r.Rows), []Arm{Native, Bridged, Engine, Warm, Bridged}) || told != 5 {
		t.Fatalf("%v: %+v, %d told", err, r, told)
	}
	if !strings.Contains(r.Text(), "interrupted") || r.Lengths[0].Overhead.N != 1 {
		t.Errorf("%s", r.Text())
	}
	valid(t, r)
}

// TestTargetsThatCannotBeMeasured end it before anything is.
func TestTargetsThatCannotBeMeasured(t *testing.T) {
	gone, err := url.Parse("http://user:secret@127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	many := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"data":[{"id":"a"},{"id":"b"}]}`) })
	for name, c := range map[string]struct {
		o   Options
		say string
	}{
		"nobody":    {Options{Native: gone}, "connection refused"},
		"key":       {Options{Native: serve(t, &decoder{model: "m", key: "sesam"}), DecoderKey: "open"}, "answers 401: wrong key"},
		"model":     {Options{Native: serve(t, &decoder{model: "m"}), Model: "n"}, `does not serve "n", but [m]`},
		"models":    {Options{Native: serve(t, many)}, "serves 2 models, so one must be named: [a b]"},
		"no models": {Options{Native: serve(t, http.NotFoundHandler())}, "answers 404"},
		"no JSON":   {Options{Native: serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }))}, "cannot be read"},
	} {
		r, err := Run(t.Context(), c.o)
		if r != nil || !errors.Is(err, ErrTarget) || !strings.Contains(err.Error(), c.say) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %+v", name, err, r)
		}
	}
}

// TestNoKeyLeaves: redirects are not followed, and each key goes to its own endpoint.
func TestNoKeyLeaves(t *testing.T) {
	thief := &decoder{model: "m"}
	there := serve(t, thief)
	r, err := Run(t.Context(), Options{Native: serve(t, http.RedirectHandler(there.String()+"/v1/models", http.StatusTemporaryRedirect)), DecoderKey: "sesam"})
	if r != nil || !errors.Is(err, ErrTarget) || len(thief.seen) != 0 {
		t.Errorf("%v: %v", err, thief.seen)
	}
	dec, eng := &decoder{model: "m", plugin: true}, &decoder{model: "m"}
	_, err = Run(t.Context(), Options{Native: serve(t, dec), Engine: serve(t, eng), DecoderKey: "sesam", EngineKey: "open", Tokens: []int{100}, Runs: 1, WarmUp: -1, Answer: 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range dec.seen {
		if h.Get("Authorization") != "Bearer sesam" {
			t.Errorf("%v", h)
		}
	}
	for _, h := range eng.seen {
		if h.Get("Authorization") != "Bearer open" {
			t.Errorf("%v", h)
		}
	}
}

// TestOptions: what makes no sense is refused before anything is asked.
func TestOptions(t *testing.T) {
	u := &url.URL{Scheme: "http", Host: "127.0.0.1:1"}
	for _, c := range []struct {
		o   Options
		say string
	}{
		{Options{}, "no endpoint"},
		{Options{Native: u, API: "messages"}, `API "messages"`},
		{Options{Native: u, Tokens: []int{MinTokens - 1}}, "a prompt of 63 tokens"},
		{Options{Native: u, Tokens: []int{MaxTokens + 1}}, "a prompt of"},
		{Options{Native: u, Tokens: make([]int, MaxLengths+1)}, "a prompt of 0"},
		{Options{Native: u, Runs: -1}, "-1 runs"},
		{Options{Native: u, Runs: MaxRuns + 1}, "runs"},
		{Options{Native: u, WarmUp: MaxRuns + 1}, "do not count"},
		{Options{Native: u, Answer: 1}, "answers of 1"},
		{Options{Native: u, Timeout: -1}, "timeout"},
		{Options{Native: u, Arms: []Arm{"hot"}}, `arm "hot"`},
		{Options{Native: u, Arms: []Arm{Bridged}}, "the front's URL is not given"},
	} {
		if r, err := Run(t.Context(), c.o); r != nil || !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
	o, err := Options{Native: u}.checked()
	if err != nil || o.API != Chat || o.Runs != DefaultRuns || o.WarmUp != 1 || o.Answer != DefaultAnswer || o.Timeout != DefaultTimeout || len(o.Tokens) == 0 {
		t.Errorf("%v: %+v", err, o)
	}
}

// TestPrompts: equal seeds are equal prompts, others differ from their first words on, and
// the marker lies in the middle.
func TestPrompts(t *testing.T) {
	begins := map[string]bool{}
	for i := range 200 {
		seed := seedOf(9, "native run", 8000, i)
		p := newPrompt(seed, 500, false)
		if again := newPrompt(seed, 500, false); p != again || seed >= 1<<53 {
			t.Fatalf("seed %d", seed)
		}
		begins[p.text[:8]] = true
		if at := strings.Index(p.text, p.marker); at < len(p.text)/3 || at > len(p.text)*2/3 || strings.Count(p.text, p.marker) != 1 {
			t.Fatalf("marker at %d of %d", at, len(p.text))
		}
		if !p.found("It is "+p.marker[:4]+" "+p.marker[4:]+".") || p.found("It is "+p.marker[:7]) {
			t.Errorf("%s", p.marker)
		}
	}
	if len(begins) < 199 {
		t.Errorf("%d beginnings of 200", len(begins))
	}
	if p := newPrompt(1, 1, true); !strings.Contains(p.text, p.marker) || !strings.HasSuffix(p.text, "document is") {
		t.Errorf("%q", p.text)
	}
}

// TestRowsAreJSON: what was not measured is left out, and that nothing was said of a cache is said.
func TestRowsAreJSON(t *testing.T) {
	b, err := json.Marshal(Row{Arm: Native, Want: 100, Run: 1})
	if want := `{"arm":"native","want_tokens":100,"run":1,"counted":false,"seed":0,"cached_tokens":null,"host":{}}`; err != nil || string(b) != want {
		t.Errorf("%v: %s", err, b)
	}
	for s, want := range map[float64]string{0.0123: "12.3 ms", -0.0123: "-12.3 ms", 9.876: "9.88 s", 732.3: "732.3 s"} {
		if got := secondsText(s); got != want {
			t.Errorf("%v: %s", s, got)
		}
	}
	if got := fmt.Sprint(Row{Arm: Native, Tokens: 5, Run: 1, Counted: true, Total: 1.5}); got != "native        5 tokens, run 1: all 1.50 s, cached tokens not told" {
		t.Errorf("%q", got)
	}
}
