package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is a planner whose answers a test says.
type script struct {
	plan  func(a Ask) (Plan, error)
	adopt func(p Plan, from, to int) (Adoption, error)
	hangs bool // it adopts nothing, and does not say so
	asked atomic.Int32
	tried atomic.Int32 // adoptions
}

func (s *script) Plan(_ context.Context, a Ask) (Plan, error) {
	s.asked.Add(1)
	return s.plan(a)
}

func (s *script) Adopt(ctx context.Context, _ http.Header, p Plan, from, to int) (Adoption, error) {
	s.tried.Add(1)
	if s.hangs {
		<-ctx.Done()
		return Adoption{}, ctx.Err()
	}
	if s.adopt == nil {
		return Adoption{Blocks: to}, nil
	}
	return s.adopt(p, from, to)
}

// coldPlan is a prompt of 100 tokens in blocks of 10, none of them there.
func coldPlan() Plan {
	return Plan{Model: "m", Tokens: 100, Block: 10, Blocks: 9, IDs: make([]int32, 90), Kind: "omlx", Key: "k"}
}

func always(p Plan) *script { return &script{plan: func(Ask) (Plan, error) { return p, nil }} }

// engine is one whose work a test says.
type engine struct {
	name string
	only string // the model that it reads prompts for; "": any
	work func(ctx context.Context, j Job) (Result, error)
	jobs atomic.Int32
}

func (e *engine) Name() string { return e.name }

func (e *engine) Serves(model string) bool { return e.only == "" || model == e.only }

func (e *engine) Prefill(ctx context.Context, j Job) (Result, error) {
	e.jobs.Add(1)
	return e.work(ctx, j)
}

// quick reads everything at once.
func quick(name string) *engine {
	return &engine{name: name, work: func(_ context.Context, j Job) (Result, error) {
		return Result{Blocks: j.Plan.Blocks, Bytes: 1000, State: "complete", Sealed: true}, nil
	}}
}

// broken cannot be used.
func broken(name string) *engine {
	return &engine{name: name, work: func(context.Context, Job) (Result, error) {
		return Result{}, errors.New("connection refused")
	}}
}

// house is a decoder, a front before it, and what the front said.
type house struct {
	front   *Front
	url     string
	client  *http.Client
	mu      sync.Mutex
	records []Record
}

// last is the newest record, once there is one.
func (h *house) last(t *testing.T) (r Record) {
	t.Helper()
	waitFor(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		if n := len(h.records); n > 0 {
			r = h.records[n-1]
		}
		return len(h.records) > 0
	})
	return r
}

// waitFor waits until something is so.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen")
		}
	}
}

// build starts a decoder and a front with options; what o leaves open is set so
// that 100 tokens are a long prompt.
func build(t *testing.T, decoder http.Handler, o Options) *house {
	t.Helper()
	up := httptest.NewServer(decoder)
	t.Cleanup(up.Close)
	u, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	h := &house{}
	o.Decoder = u
	if o.Cold == (Cold{}) {
		o.Cold = Cold{MinTokens: 20, MinTail: 10}
	}
	o.OnRecord = func(r Record) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.records = append(h.records, r)
	}
	if h.front, err = New(o); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h.front)
	t.Cleanup(func() {
		server.Close()
		if err := h.front.Close(); err != nil {
			t.Error(err)
		}
	})
	h.url, h.client = server.URL, server.Client()
	return h
}

// answering is a decoder that says how many tokens it found.
func answering(cached int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"choices":[{"message":{"content":"say \"cached_tokens\": 7"}}],"usage":{"prompt_tokens_details":{"cached_tokens":%d}}}`, cached)
	})
}

// chat is a request of some length.
func chat(stream bool) string {
	b, err := json.Marshal(map[string]any{"model": "m", "stream": stream, "messages": []string{strings.Repeat("x", 200)}})
	if err != nil {
		return ""
	}
	return string(b)
}

func (h *house) post(t *testing.T, body string) (*http.Response, string) {
	t.Helper()
	r, err := h.client.Post(h.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r, string(b)
}
