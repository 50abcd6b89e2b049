package prefill

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"pdlink/bridge/facts"
	"pdlink/bridge/prefill/calls"
)

// TestHost: what is announced, of what the engine serves and its workers have loaded.
func TestHost(t *testing.T) {
	type names = map[string]string
	var engine struct{ Engine }
	group := &calls.Group{Name: "g", Member: 1, Members: 2}
	many := make([]string, calls.MaxModels+1)
	for i := range many {
		many[i] = fmt.Sprintf("%04d", i)
	}
	for name, x := range map[string]struct {
		o      ServiceOptions
		served []string
		want   []string
	}{
		"its own ids":                 {ServiceOptions{Engine: engine}, []string{"b", "a"}, []string{"a", "b"}},
		"names of what it serves":     {ServiceOptions{Engine: engine, Models: names{"d": "a", "gone": "x"}}, []string{"a"}, []string{"a", "d"}},
		"a name that it serves too":   {ServiceOptions{Engine: engine, Models: names{"a": "b"}}, []string{"a", "b"}, []string{"a", "b"}},
		"an id that means another":    {ServiceOptions{Engine: engine, Models: names{"a": "x"}}, []string{"a"}, nil},
		"nothing":                     {ServiceOptions{Engine: engine}, nil, nil},
		"another host has the engine": {ServiceOptions{Group: group, Models: names{"d": "a", "c": "x"}}, nil, []string{"c", "d"}},
		"as many as travel":           {ServiceOptions{Engine: engine}, many, many[:calls.MaxModels]},
	} {
		x.o.Name = "spark"
		h := x.o.Host(x.served, nil, nil)
		if !slices.Equal(h.Models, x.want) || h.Name != "spark" || h.Group != x.o.Group || h.Facts != nil {
			t.Errorf("%s: %+v, want %q", name, h, x.want)
		}
		if _, err := h.Encode(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHostSaysFacts: with what the tokenizer makes of the probe text, unless workers have
// said that; a document that does not fit says why.
func TestHostSaysFacts(t *testing.T) {
	own, engines := facts.TextOf([]int32{1}), facts.TextOf([]int32{1, 2})
	for name, x := range map[string]struct {
		loaded facts.Facts
		text   *facts.Text
		want   int // tokens
	}{
		"the engine's":   {facts.Facts{Version: facts.Version, Kind: facts.KindKV}, engines, 2},
		"the workers'":   {facts.Facts{Version: facts.Version, Kind: facts.KindKV, Text: own}, engines, 1},
		"it is not said": {facts.Facts{Version: facts.Version, Kind: facts.KindKV}, nil, 0},
	} {
		before := x.loaded.Text
		h := ServiceOptions{}.Host(nil, &x.loaded, x.text)
		f, err := facts.Parse(h.Facts)
		if err != nil || f.Kind != facts.KindKV || (f.Text == nil) != (x.want == 0) || f.Text != nil && f.Text.Count != x.want {
			t.Errorf("%s: %s, %v", name, h.Facts, err)
		}
		if x.loaded.Text != before {
			t.Errorf("%s: the caller's document has changed", name)
		}
	}
	long := &facts.Facts{Version: facts.Version, Kind: facts.KindKV, Unknown: map[string]string{"x": strings.Repeat("y", facts.MaxSize)}}
	f, err := facts.Parse(ServiceOptions{}.Host(nil, long, nil).Facts)
	if err != nil || f.Kind != "" || f.Unknown[""] == "" {
		t.Errorf("%+v, %v", f, err)
	}
}

// TestUnauthorized: an engine that wants another key is told from one that is not there.
func TestUnauthorized(t *testing.T) {
	for status, want := range map[int]bool{http.StatusUnauthorized: true, http.StatusForbidden: false, http.StatusInternalServerError: false} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "error 401: nobody's", status)
		}))
		u, err := url.Parse(srv.URL)
		must(t, err)
		v := NewVLLM(u, "")
		_, models := v.Models(t.Context())
		_, tokens := v.Tokens(t.Context(), "m", "a")
		read := v.Prefill(t.Context(), Prompt{Model: "m", IDs: []int32{1}})
		for _, err := range []error{models, tokens, read} {
			if err == nil || errors.Is(err, ErrUnauthorized) != want {
				t.Errorf("%d: %v", status, err)
			}
		}
		if !errors.Is(read, ErrEngine) || errors.Is(read, ErrPrompt) {
			t.Errorf("%d: %v", status, read)
		}
		must(t, v.Close())
		srv.Close()
	}
}

// TestIdleEngine: a connection is given up before vLLM's server closes it, after 5 s.
func TestIdleEngine(t *testing.T) {
	v := NewVLLM(&url.URL{Scheme: "http", Host: "127.0.0.1:1"}, "")
	if tr, ok := v.client.Transport.(*http.Transport); !ok || tr.IdleConnTimeout <= 0 || tr.IdleConnTimeout >= 5*time.Second {
		t.Errorf("%+v", v.client.Transport)
	}
	must(t, v.Close())
}
