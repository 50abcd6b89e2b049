package front

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pdlink/bridge/omlx"
	"pdlink/bridge/omlx/plugin"
)

// pluginServer answers with the examples that the Python tests are held to as well.
type pluginServer struct {
	t *testing.T

	mu     sync.Mutex
	calls  []string          // method, path and query
	keys   []string          // Authorization and X-Api-Key
	bodies []string          // of the calls
	status map[string]int    // by endpoint, instead of 200
	body   map[string]string // by endpoint, instead of the example
}

func (s *pluginServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, r.Method+" "+r.URL.RequestURI())
	s.keys = append(s.keys, r.Header.Get("Authorization")+"|"+r.Header.Get("X-Api-Key"))
	s.bodies = append(s.bodies, string(body))
	name := filepath.Base(r.URL.Path)
	if status := s.status[name]; status != 0 {
		w.WriteHeader(status)
	}
	text := s.body[name]
	if text == "" {
		file := map[string]string{"plan": "plan.json", "info": "info.json", "adopt": "adoption.json"}[name]
		data, err := os.ReadFile(filepath.Join("..", "omlx", "plugin", "testdata", file))
		if err != nil {
			s.t.Error(err)
		}
		text = string(data)
	}
	_, _ = io.WriteString(w, text)
}

func (s *pluginServer) say(endpoint string, status int, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status[endpoint], s.body[endpoint] = status, body
}

func (s *pluginServer) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

func newPluginServer(t *testing.T) (*pluginServer, *Plugin) {
	t.Helper()
	s := &pluginServer{t: t, status: make(map[string]int), body: make(map[string]string)}
	srv := httptest.NewServer(s)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlugin(PluginOptions{Decoder: u})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Close()
		srv.Close()
	})
	return s, p
}

func pluginAsk() Ask {
	h := http.Header{}
	h.Set("Authorization", "Bearer sesam")
	h.Set("X-Api-Key", "other")
	h.Set("Cookie", "c=1")
	return Ask{Path: "/v1/completions", Header: h, Body: []byte(`{"model":"tiny","prompt":"a prompt of a few blocks"}`)}
}

func TestPluginPlan(t *testing.T) {
	s, p := newPluginServer(t)
	var planner Planner = p
	for range 2 {
		got, err := planner.Plan(t.Context(), pluginAsk())
		if err != nil {
			t.Fatal(err)
		}
		if got.Model != "tiny" || got.Tokens != 24 || got.Block != 4 || got.Present != 1 || got.Blocks != 5 || got.Kind != "omlx" || len(got.IDs) != 20 {
			t.Errorf("plan is %+v", got)
		}
		var transfer omlx.Plan
		if err := transfer.UnmarshalBinary(got.Meta); err != nil {
			t.Fatal(err)
		}
		if _, err := transfer.Check(); err != nil {
			t.Error(err)
		}
		if len(transfer.Hashes) != 5 || got.Key != transfer.Hashes[4].String() || transfer.Tokens != nil {
			t.Errorf("%d hashes, key %s", len(transfer.Hashes), got.Key)
		}
		want := omlx.Chain("tiny", 4, []uint32{'a', ' ', 'p', 'r'}, nil)[0]
		if transfer.Hashes[0] != want {
			t.Errorf("first hash %s, want %s", transfer.Hashes[0], want)
		}
	}
	calls := strings.Join(s.seen(), "\n")
	plan, info := "POST /pdlink/v1/plan?path=%2Fv1%2Fcompletions", "GET /pdlink/v1/info?model=tiny"
	if want := strings.Join([]string{plan, info, plan}, "\n"); calls != want { // the layout is proved once
		t.Errorf("calls:\n%s\nwant:\n%s", calls, want)
	}
	for i, key := range s.keys {
		if key != "Bearer sesam|other" {
			t.Errorf("call %d has key %q", i, key)
		}
	}
	if s.bodies[0] != string(pluginAsk().Body) {
		t.Errorf("body %q", s.bodies[0])
	}
}

func TestPluginAdopt(t *testing.T) {
	s, p := newPluginServer(t)
	ask := pluginAsk()
	plan, err := p.Plan(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Adopt(t.Context(), ask.Header, plan, 0, 4)
	if err != nil {
		t.Fatal(err)
	}
	if got.Blocks != 3 || !strings.Contains(got.Reason, "there is no such file") {
		t.Errorf("adoption is %+v", got)
	}
	var call struct {
		Model  string   `json:"model"`
		Hashes []string `json:"hashes"`
	}
	if err := json.Unmarshal([]byte(s.bodies[len(s.bodies)-1]), &call); err != nil {
		t.Fatal(err)
	}
	if call.Model != "tiny" || len(call.Hashes) != 4 || len(call.Hashes[0]) != 64 {
		t.Errorf("call is %+v", call)
	}
	if _, err := p.Adopt(t.Context(), ask.Header, plan, 2, 3); err != nil {
		t.Fatal(err)
	}
	var some struct {
		First  int      `json:"first"`
		Hashes []string `json:"hashes"`
	}
	if err := json.Unmarshal([]byte(s.bodies[len(s.bodies)-1]), &some); err != nil {
		t.Fatal(err)
	}
	if some.First != 2 || len(some.Hashes) != 1 || some.Hashes[0] != call.Hashes[2] {
		t.Errorf("call for the third block is %+v", some)
	}
	for _, bad := range [][2]int{{0, 6}, {-1, 2}, {3, 2}} {
		if _, err := p.Adopt(t.Context(), ask.Header, plan, bad[0], bad[1]); err == nil {
			t.Errorf("blocks %d to %d are adopted", bad[0], bad[1])
		}
	}
	if _, err := p.Adopt(t.Context(), ask.Header, Plan{Meta: []byte("x")}, 0, 1); !errors.Is(err, omlx.ErrPlan) {
		t.Errorf("no plan: %v", err)
	}
	s.say("adopt", 0, `{"blocks":9}`)
	if _, err := p.Adopt(t.Context(), ask.Header, plan, 0, 4); !errors.Is(err, plugin.ErrAnswer) {
		t.Errorf("too many blocks: %v", err)
	}
}

// TestPluginStarting: as the plug-in of a decoder says it that loads a model.
func TestPluginStarting(t *testing.T) {
	s, p := newPluginServer(t)
	if got := p.Starting(t.Context(), nil); got != "" {
		t.Errorf("a decoder that has loaded its model: %q", got)
	}
	data, err := os.ReadFile(filepath.Join("..", "omlx", "plugin", "testdata", "starting.json"))
	if err != nil {
		t.Fatal(err)
	}
	s.say("info", 0, string(data))
	if got := p.Starting(t.Context(), pluginAsk().Header); got != "model tiny is being loaded" {
		t.Errorf("a decoder that loads it: %q", got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys[0] != "|" || s.keys[1] != "Bearer sesam|other" {
		t.Errorf("keys %q", s.keys)
	}
}

func TestPluginPlanWithoutBlocks(t *testing.T) {
	s, p := newPluginServer(t)
	s.say("plan", 0, `{"model":"tiny","hash_model":"tiny","layout":"x","tokens":3,"block_tokens":4,"blocks":0,"present":0,"hashes":[],"ids":""}`)
	got, err := p.Plan(t.Context(), pluginAsk())
	if err != nil || got.Blocks != 0 || got.Tokens != 3 || got.Meta != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if n := len(s.seen()); n != 1 {
		t.Errorf("%d calls for nothing to transfer", n)
	}
}

func TestPluginRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		endpoint    string
		status      int
		body        string
		unplannable bool
		says        string
	}{
		"unplannable":    {"plan", 422, `{"error":{"code":"unplannable","message":"several prompts"}}`, true, "several prompts"},
		"too large":      {"plan", 413, `{"error":{"code":"too-large","message":"64 MB"}}`, true, "64 MB"},
		"no room":        {"plan", 507, `{"error":{"code":"space","message":"no room"}}`, false, "refuses (space): no room"},
		"canary":         {"info", 409, `{"error":{"code":"canary","message":"no block"}}`, false, "refuses (canary)"},
		"no key":         {"plan", 401, `{"detail":"API key required"}`, true, "API key"},
		"no plug-in":     {"plan", 404, `{"detail":"Not Found"}`, false, "install pdlink-omlx"},
		"not the API":    {"plan", 502, `<html>`, false, "status 502"},
		"no JSON":        {"plan", 0, `<html>`, false, "does not follow the API"},
		"another API":    {"info", 0, `{"api":2,"model":{"layout":"x"}}`, false, "version 2"},
		"another layout": {"info", 0, `{"api":1,"model":{"layout":"x"}}`, false, "changed between two calls"},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := newPluginServer(t)
			s.say(c.endpoint, c.status, c.body)
			_, err := p.Plan(t.Context(), pluginAsk())
			if err == nil || errors.Is(err, ErrUnplannable) != c.unplannable || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q, unplannable %v", err, c.says, c.unplannable)
			}
		})
	}
}

// A decoder whose own block is not ours gets nothing, and the reason names the place.
func TestPluginForeignDecoder(t *testing.T) {
	s, p := newPluginServer(t)
	data, err := os.ReadFile(filepath.Join("..", "omlx", "plugin", "testdata", "info.json"))
	if err != nil {
		t.Fatal(err)
	}
	s.say("info", 0, strings.Replace(string(data), `\"token_count\"`, `\"new_key\":\"1\",\"token_count\"`, 1))
	for range 2 { // it is not remembered as proved
		_, err := p.Plan(t.Context(), pluginAsk())
		if !errors.Is(err, plugin.ErrForeign) || !strings.Contains(err.Error(), "new_key") {
			t.Errorf("%v", err)
		}
	}
}

func TestPluginCancelled(t *testing.T) {
	block := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-block }))
	defer srv.Close()
	defer close(block)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlugin(PluginOptions{Decoder: u})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := p.Plan(ctx, pluginAsk()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestNewPluginRefuses(t *testing.T) {
	for _, text := range []string{"", "localhost:8000", "ftp://host", "http://"} {
		u, _ := url.Parse(text)
		if _, err := NewPlugin(PluginOptions{Decoder: u}); !errors.Is(err, ErrOptions) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
