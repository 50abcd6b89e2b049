package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// Ten thousand requests of every kind leave nothing behind: no goroutine, no
// descriptor, no transfer.
func TestManyRequestsLeaveNothing(t *testing.T) {
	total, clients := 10_000, 16
	if underRace {
		total = 1_000
	}
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Kind") != "stream" {
			fmt.Fprint(w, `{"usage":{"prompt_tokens_details":{"cached_tokens":90}}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range 5 {
			fmt.Fprint(w, "data: {}\n\n")
			http.NewResponseController(w).Flush()
		}
	})
	planner := &script{plan: func(a Ask) (Plan, error) {
		p := coldPlan()
		p.Key = a.Header.Get("X-Key")
		if a.Header.Get("X-Kind") == "stream" {
			p.Present = p.Blocks
		}
		return p, nil
	}}
	var h *house
	e := &engine{name: "a", work: func(ctx context.Context, j Job) (Result, error) {
		h.front.Block(j.Transfer, 4, 9)
		if strings.HasPrefix(j.Plan.Key, "left") {
			<-ctx.Done()
			return Result{Blocks: 4}, ctx.Err()
		}
		return Result{Blocks: 9, Bytes: 1}, nil
	}}
	h = build(t, up, Options{Planner: planner, Engines: []Engine{e}, PerEngine: clients})
	many := func(n int) {
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				for i := c; i < n; i += clients {
					h.one(t, i)
				}
			})
		}
		wg.Wait()
		waitFor(t, func() bool { return h.idle() })
	}
	many(total / 10) // connections and pools are there then
	goroutines, files := h.resources(t)
	many(total)
	now, open := h.resources(t)
	if now > goroutines+clients || open > files+clients {
		t.Errorf("after %d requests %d goroutines and %d files are there, before them %d and %d", total, now, open, goroutines, files)
	}
}

// one makes one request, of a kind that its number says.
func (h *house) one(t *testing.T, i int) {
	kind := []string{"stream", "cold", "other", "left"}[i%4]
	path, method := "/v1/chat/completions", http.MethodPost
	if kind == "other" {
		path, method = "/v1/models", http.MethodGet
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, h.url+path, strings.NewReader(chat(kind == "stream")))
	if err != nil {
		t.Error(err)
		return
	}
	r.Header.Set("X-Kind", kind)
	r.Header.Set("X-Key", fmt.Sprint(kind, i))
	if kind == "left" { // the client goes away while its prompt is read
		time.AfterFunc(time.Millisecond, cancel)
	}
	resp, err := h.client.Do(r)
	if err != nil {
		if kind != "left" || !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		return
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || len(b) == 0 || resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %d %q %v", kind, resp.StatusCode, b, err)
	}
}

// idle reports whether the front does nothing.
func (h *house) idle() bool {
	f, s := &h.front.flights, h.front.records
	f.mu.Lock()
	defer f.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(f.byKey) == 0 && len(f.byID) == 0 && s.running == 0
}

// resources are the goroutines and open files once their number has come to rest.
func (h *house) resources(t *testing.T) (goroutines, files int) {
	t.Helper()
	h.client.CloseIdleConnections()
	for range 1000 {
		was := goroutines
		goroutines = runtime.NumGoroutine()
		if was == goroutines {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	files, err := openFiles()
	if err != nil {
		t.Fatal(err)
	}
	return goroutines, files
}
