package front

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdlink/bridge/facts"
	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
)

// recorded is what a real engine said of a model, with a change.
func recorded(t *testing.T, name string, change func(*facts.Facts)) *facts.Facts {
	t.Helper()
	f := must(facts.Parse(must(os.ReadFile(filepath.Join("..", "facts", "testdata", "tiny-qwen3", name)))))
	if change != nil {
		change(f)
	}
	return f
}

// matched is an inn whose decoder's model is known, and what was told.
type matched struct {
	*inn
	decoder atomic.Pointer[facts.Facts]
	learns  atomic.Int32

	mu    sync.Mutex
	found []MatchEvent
}

func newMatched(t *testing.T, o MatchOptions) *matched {
	m := &matched{inn: newInn(t)}
	m.decoder.Store(recorded(t, "omlx-0.5.3.json", nil))
	o.Decoder = func(string) *facts.Facts { return m.decoder.Load() }
	o.OnMatch = func(e MatchEvent) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.found = append(m.found, e)
	}
	m.hosts.o.Matches, m.hosts.o.Build = must(NewMatches(o)), "v9" // before anybody connects
	return m
}

// comes is a guest of a name that has loaded something.
func (m *matched) comes(name string, f *facts.Facts) {
	m.t.Helper()
	g := m.guest(says(calls.Result{State: calls.Complete, Blocks: 9, Total: 9}))
	h := calls.Host{Name: name, Models: []string{"m"}}
	if f != nil {
		h.Facts = must(f.Encode())
	}
	must(g.announce(must(h.Encode())))
	waitFor(m.t, func() bool {
		for _, e := range m.told() {
			if e.Name == name && e.Here {
				return true
			}
		}
		return false
	})
}

func (m *matched) verdict() string {
	m.t.Helper()
	r, _ := m.front.post(m.t, chat(false))
	return r.Header.Get(headerVerdict)
}

func (m *matched) events() []MatchEvent {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]MatchEvent(nil), m.found...)
}

// TestAnotherModelIsNotRead: a host whose model differs is left out, and everybody is
// told why; another one is used all the same.
func TestAnotherModelIsNotRead(t *testing.T) {
	m := newMatched(t, MatchOptions{})
	m.comes("wrong", recorded(t, "vllm-0.32.0.json", func(f *facts.Facts) { f.DType = "F16" }))
	waitFor(t, func() bool { return len(m.events()) == 1 })
	for range 2 {
		if v := m.verdict(); !strings.HasPrefix(v, "declined; front: no prefill engine is up: wrong is refused, its model is another: dtype: BF16 at the decoder, F16 at the engine") {
			t.Errorf("%q", v)
		}
	}
	if e := m.events(); len(e) != 1 || e[0].Host != "wrong" || e[0].Model != "m" || e[0].Refused == "" || len(e[0].Findings) == 0 {
		t.Errorf("told %+v", e)
	}
	m.comes("right", recorded(t, "vllm-0.32.0.json", nil))
	if v := m.verdict(); !strings.HasPrefix(v, "complete ") {
		t.Errorf("with another host: %q", v)
	}
}

// TestAModelThatIsLoadedAgain: what was right is not for ever.
func TestAModelThatIsLoadedAgain(t *testing.T) {
	m := newMatched(t, MatchOptions{})
	m.comes("spark", recorded(t, "vllm-0.28.0.json", nil))
	if v := m.verdict(); !strings.HasPrefix(v, "complete ") {
		t.Errorf("before: %q", v)
	}
	m.decoder.Store(recorded(t, "omlx-0.5.3.json", func(f *facts.Facts) { f.Rope["0"] = facts.Rope{} }))
	if v := m.verdict(); !strings.Contains(v, "rope of layer 0: none at the decoder") {
		t.Errorf("after: %q", v)
	}
}

// TestWhoDoesNotTell: is refused, unless that is allowed; and a decoder that nobody knows
// yet refuses nobody.
func TestWhoDoesNotTell(t *testing.T) {
	for name, c := range map[string]struct {
		o       MatchOptions
		decoder *facts.Facts
		doc     *facts.Facts
		say     string
	}{
		"an older host":          {MatchOptions{}, recorded(t, "omlx-0.5.3.json", nil), nil, "update pdlink-vllm"},
		"an older host, allowed": {MatchOptions{AllowUnknown: true}, recorded(t, "omlx-0.5.3.json", nil), nil, "complete "},
		"a difference is not":    {MatchOptions{AllowUnknown: true}, recorded(t, "omlx-0.5.3.json", nil), &facts.Facts{Layers: 7}, "layers: 3 at the decoder, 7 at the engine"},
		"an unknown decoder":     {MatchOptions{}, nil, recorded(t, "vllm-0.32.0.json", nil), "complete "},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMatched(t, c.o)
			m.decoder.Store(c.decoder)
			m.comes("spark", c.doc)
			if v := m.verdict(); !strings.Contains(v, c.say) {
				t.Errorf("%q, want %q", v, c.say)
			}
		})
	}
}

// TestWhatAHostSaysMayBeNonsense: then it tells nothing.
func TestWhatAHostSaysMayBeNonsense(t *testing.T) {
	if f := toldFacts([]byte(`{"version":9}`)); !strings.Contains(f.Unknown[""], "version 9") {
		t.Errorf("%+v", f)
	}
	if toldFacts(nil) != nil {
		t.Error("of nothing something is told")
	}
}

// TestProbe: a host is told what is made of it, and is not taken for an engine.
func TestProbe(t *testing.T) {
	var m *matched
	m = newMatched(t, MatchOptions{Learn: func(context.Context, string) { m.learns.Add(1) }})
	g := m.guest(nil)
	ask := func(f *facts.Facts) calls.Opinion {
		t.Helper()
		h := calls.Host{Models: []string{"m"}, Facts: must(f.Encode())}
		out := must(g.conn.Open(t.Context(), transport.Request{Kind: calls.KindProbe, Replayable: true, Meta: must(h.Encode())}))
		defer out.Cancel("enough")
		return must(calls.ParseOpinion(out.Answer()))
	}
	right := recorded(t, "vllm-0.21.0.json", nil)
	if o := ask(right); o.Build != "v9" || o.Millis == 0 || !o.Models["m"].Known || o.Models["m"].Refused != "" {
		t.Errorf("%+v", o)
	}
	if o := ask(recorded(t, "vllm-0.21.0.json", func(f *facts.Facts) { f.Heads = 9 })); !strings.Contains(o.Models["m"].Refused, "heads: 4") || len(o.Models["m"].Findings) != 1 {
		t.Errorf("%+v", o)
	}
	m.decoder.Store(nil)
	if o := ask(right); o.Models["m"].Known || m.learns.Load() != 1 {
		t.Errorf("%+v, learned %d times", o, m.learns.Load())
	}
	if _, err := g.conn.Open(t.Context(), transport.Request{Kind: calls.KindProbe, Meta: []byte("x")}); !errors.Is(err, transport.ErrRefused) {
		t.Errorf("nonsense: %v", err)
	}
	if v := m.verdict(); !strings.HasPrefix(v, "bypass; no prefill host is connected") {
		t.Errorf("%q", v)
	}
}

// TestJoint: hosts of one engine tell together, and again when one says something else.
func TestJoint(t *testing.T) {
	part := func(layer string) *facts.Facts {
		return recorded(t, "vllm-0.32.0.json", func(f *facts.Facts) { f.Rope = map[string]facts.Rope{layer: f.Rope[layer]} })
	}
	a, b := &host{name: "a"}, &host{name: "b"}
	both := []*host{a, b}
	var j joint
	a.told.Store(part("0"))
	if f := j.of(both); f != nil {
		t.Errorf("one is silent: %+v", f)
	}
	b.told.Store(part("2"))
	f := j.of(both)
	if f == nil || len(f.Rope) != 2 || j.of(both) != f {
		t.Errorf("%+v", f)
	}
	b.told.Store(recorded(t, "vllm-0.32.0.json", func(f *facts.Facts) { f.Layers = 9 }))
	if f := j.of(both); f == nil || !strings.Contains(f.Unknown[""], "layers is 3 at one and 9 at another") {
		t.Errorf("%+v", f)
	}
}

// TestPluginFacts: what the decoder says of a model is learned with a plan, and again
// when plans have another name for it; before that with the key of the options.
func TestPluginFacts(t *testing.T) {
	read := func(name string) string {
		return string(must(os.ReadFile(filepath.Join("..", "omlx", "plugin", "testdata", "omlx-0.5.3", name))))
	}
	var infos atomic.Int32
	var plan, info atomic.Value
	plan.Store(read("plan.json"))
	info.Store(read("info.json"))
	mux := http.NewServeMux()
	mux.HandleFunc("POST /pdlink/v1/plan", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(plan.Load().(string))) })
	mux.HandleFunc("GET /pdlink/v1/info", func(w http.ResponseWriter, r *http.Request) {
		if k := r.Header.Get("Authorization"); k != "Bearer own" && k != "Bearer client" {
			http.Error(w, "no key", http.StatusUnauthorized)
			return
		}
		if r.URL.Query().Get("model") != "" {
			infos.Add(1)
		}
		w.Write([]byte(info.Load().(string)))
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	ask := func(p *Plugin) {
		t.Helper()
		must(p.Plan(t.Context(), Ask{Path: "/v1/completions", Header: http.Header{"Authorization": {"Bearer client"}}}))
	}
	keyless := must(NewPlugin(PluginOptions{Decoder: must(url.Parse(s.URL))}))
	keyless.Learn(t.Context(), "tiny-qwen3")
	if keyless.Facts("tiny-qwen3") != nil {
		t.Error("learned without a key")
	}
	p := must(NewPlugin(PluginOptions{Decoder: must(url.Parse(s.URL)), Key: "own"}))
	p.Learn(t.Context(), "tiny-qwen3")
	if f := p.Facts("tiny-qwen3"); f == nil || f.Layers != 3 || infos.Load() != 1 {
		t.Errorf("%+v, asked %d times", f, infos.Load())
	}
	for range 3 {
		ask(p)
	}
	if infos.Load() != 2 { // the plan's name was new
		t.Errorf("asked %d times", infos.Load())
	}
	before := p.Facts("tiny-qwen3")
	plan.Store(strings.Replace(read("plan.json"), `"facts": "`, `"facts": "new`, 1))
	info.Store(strings.Replace(read("info.json"), `"eps": 1e-06`, `"eps": 1e-05`, 1))
	ask(p)
	if f := p.Facts("tiny-qwen3"); f == before || f.Eps != 1e-5 || infos.Load() != 3 {
		t.Errorf("%+v, asked %d times", f, infos.Load())
	}
}

// TestLearnsOnlyWhatIsThere: names that a peer makes up cost one call for all of them, and
// none that the decoder would take for a model's.
func TestLearnsOnlyWhatIsThere(t *testing.T) {
	info := must(os.ReadFile(filepath.Join("..", "omlx", "plugin", "testdata", "omlx-0.5.3", "info.json")))
	var calls []string
	var mu sync.Mutex
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, r.URL.RawQuery)
		w.Write(info)
	}))
	defer s.Close()
	p := must(NewPlugin(PluginOptions{Decoder: must(url.Parse(s.URL))}))
	for i := range 50 {
		p.Learn(t.Context(), fmt.Sprint("made-up-", i))
	}
	p.Learn(t.Context(), "../../tiny-qwen3")
	mu.Lock()
	named := slices.DeleteFunc(slices.Clone(calls), func(q string) bool { return q == "" })
	if len(named) > 0 || len(calls) > 25 { // one a second
		t.Errorf("%d calls, of them %q with a name", len(calls), named)
	}
	mu.Unlock()
	if p.Learn(t.Context(), "tiny-qwen3"); p.Facts("tiny-qwen3") == nil || p.Facts("made-up-1") != nil {
		t.Error("what is there is not learned, or what is not")
	}
}

// TestComparedByContents: what an engine says is compared again when it says something
// else, and not told again when it says the same, as after each new connection.
func TestComparedByContents(t *testing.T) {
	var told []MatchEvent
	decoder := recorded(t, "omlx-0.5.3.json", nil)
	m := must(NewMatches(MatchOptions{Decoder: func(string) *facts.Facts { return decoder }, OnMatch: func(e MatchEvent) { told = append(told, e) }}))
	wrong := func() *facts.Facts {
		return recorded(t, "vllm-0.32.0.json", func(f *facts.Facts) { f.DType = "F16" })
	}
	for range 3 {
		if m.refusal("spark", "m", wrong()) == "" {
			t.Error("another model is taken")
		}
	}
	if len(told) != 1 {
		t.Errorf("told %d times of the same", len(told))
	}
	if why := m.refusal("spark", "m", recorded(t, "vllm-0.32.0.json", nil)); why != "" {
		t.Errorf("started again with the right model: %s", why)
	}
	decoder = recorded(t, "omlx-0.5.3.json", func(f *facts.Facts) { f.DType = "F16" })
	if why := m.refusal("spark", "m", recorded(t, "vllm-0.32.0.json", nil)); why == "" {
		t.Error("the decoder's other model is not noticed")
	}
	for i := range 2 * maxSums {
		m.refusal("spark", "m", &facts.Facts{Layers: i})
	}
	if len(m.sums) > maxSums {
		t.Errorf("%d documents are kept", len(m.sums))
	}
}

// TestLearningIsBounded: all models that one host names share the time that there is, and
// what has no time left is not asked for.
func TestLearningIsBounded(t *testing.T) {
	var models []string
	for i := range 256 {
		models = append(models, fmt.Sprint("m", i))
	}
	ends := make(map[time.Time]bool)
	learns := 0
	late, stop := context.WithCancel(t.Context())
	m := must(NewMatches(MatchOptions{Decoder: func(string) *facts.Facts { return nil }, Learn: func(ctx context.Context, _ string) {
		end, ok := ctx.Deadline()
		if learns++; !ok || time.Until(end) > learnTime {
			t.Errorf("learns until %v, %v", end, ok)
		}
		if ends[end] = true; learns == 300 {
			stop()
		}
	}}))
	if m.met(late, "spark", models, nil); learns != 256 || len(ends) != 1 {
		t.Errorf("%d calls, with %d deadlines", learns, len(ends))
	}
	if m.met(late, "spark", models, nil); learns != 300 {
		t.Errorf("%d calls, the time was up at 300", learns)
	}
	if o := m.opinion(late, "m0", nil); o.Known || learns != 300 {
		t.Errorf("%+v, %d calls", o, learns)
	}
}

// TestRequiredOptions: what is missing is said at once.
func TestRequiredOptions(t *testing.T) {
	if _, err := NewMatches(MatchOptions{}); !errors.Is(err, ErrOptions) {
		t.Errorf("%v, want ErrOptions", err)
	}
	if _, err := NewHosts(HostsOptions{}); !errors.Is(err, ErrOptions) {
		t.Errorf("%v, want ErrOptions", err)
	}
}
