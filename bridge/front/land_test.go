package front

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pdlink/transport"
)

// adoptions are those that a planner was asked for, as "from-to".
type adoptions struct {
	mu   sync.Mutex
	list []string
	came chan string // each of them
}

func newAdoptions() *adoptions { return &adoptions{came: make(chan string, 100)} }

func (a *adoptions) add(from, to int) {
	s := fmt.Sprintf("%d-%d", from, to)
	a.mu.Lock()
	a.list = append(a.list, s)
	a.mu.Unlock()
	a.came <- s
}

func (a *adoptions) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.list)
}

// wait returns the next adoption.
func (a *adoptions) wait(t *testing.T) string {
	t.Helper()
	select {
	case s := <-a.came:
		return s
	case <-time.After(30 * time.Second):
		t.Fatal("nothing is adopted")
		return ""
	}
}

// Blocks are adopted while the others come, a few at a time, and with the last one
// all are looked at again.
func TestAdoptsAsTheyCome(t *testing.T) {
	asked := newAdoptions()
	planner := always(coldPlan())
	planner.adopt = func(_ Plan, from, to int) (Adoption, error) {
		asked.add(from, to)
		return Adoption{Blocks: to}, nil
	}
	var h *house
	var id transport.ID
	e := &engine{name: "a", work: func(_ context.Context, j Job) (Result, error) {
		id = j.Transfer
		h.front.Block(id, 2, 9)
		asked.wait(t)
		h.front.Block(id, 1, 9) // late news
		h.front.Block(id, 2, 9)
		h.front.Block(id, 5, 9)
		asked.wait(t)
		h.front.Block(id, 9, 9)
		asked.wait(t)
		return Result{Blocks: 9, Bytes: 1}, nil
	}}
	h = build(t, answering(90), Options{Planner: planner, Engines: []Engine{e}})
	h.post(t, chat(false))
	rec := h.last(t)
	if rec.Outcome != Bridged || rec.Promised != 90 || rec.AdoptSeconds <= 0 {
		t.Errorf("got %+v", rec)
	}
	if got, want := asked.all(), []string{"0-2", "2-5", "0-9"}; !slices.Equal(got, want) {
		t.Errorf("adopted %v, want %v", got, want)
	}
	h.front.Block(id, 9, 9) // of a transfer that has ended
}

// The tokens behind the last whole block come as one more block, and count only when
// the decoder took them.
func TestTail(t *testing.T) {
	plan := coldPlan()
	plan.Tail, plan.IDs = 9, make([]int32, 99)
	for name, c := range map[string]struct {
		adopted  int
		outcome  Outcome
		promised int
		cached   int
	}{
		"taken":       {10, Bridged, 99, 99},
		"not taken":   {9, Part, 90, 90},
		"not found":   {10, Bridged, 99, 90},
		"few blocks":  {5, Part, 50, 50},
		"without any": {0, Declined, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			asked := newAdoptions()
			planner := always(plan)
			planner.adopt = func(_ Plan, from, to int) (Adoption, error) {
				asked.add(from, to)
				if from == 0 && to == 10 {
					return Adoption{Blocks: c.adopted, Reason: "its rows are odd"}, nil
				}
				return Adoption{Blocks: min(c.adopted, to)}, nil
			}
			var h *house
			e := &engine{name: "a", work: func(_ context.Context, j Job) (Result, error) {
				if len(j.Plan.IDs) != 99 || j.Plan.All() != 10 {
					t.Errorf("%d ids, %d blocks", len(j.Plan.IDs), j.Plan.All())
				}
				h.front.Block(j.Transfer, 9, 10)
				asked.wait(t)
				return Result{Blocks: 10, Bytes: 1}, nil
			}}
			h = build(t, answering(c.cached), Options{Planner: planner, Engines: []Engine{e}})
			h.post(t, chat(false))
			rec := h.last(t)
			if rec.Outcome != c.outcome || rec.Promised != c.promised || (rec.Check == CheckLess) != (c.cached < c.promised) {
				t.Errorf("got %+v", rec)
			}
			if got := asked.all(); got[len(got)-1] != "0-10" {
				t.Errorf("adopted %v", got)
			}
		})
	}
}

// What was refused, or failed, is tried once more when all has come, and what the
// decoder takes counts.
func TestAdoptsAgainAtTheEnd(t *testing.T) {
	asked := newAdoptions()
	planner := always(coldPlan())
	planner.adopt = func(_ Plan, from, to int) (Adoption, error) {
		asked.add(from, to)
		switch len(asked.all()) {
		case 1:
			return Adoption{Blocks: 1, Reason: "block 1 is bad"}, nil
		case 2:
			return Adoption{Blocks: 4, Reason: "block 4 is bad"}, nil
		}
		return Adoption{}, errors.New("asked too often")
	}
	var h *house
	e := &engine{name: "a", work: func(_ context.Context, j Job) (Result, error) {
		h.front.Block(j.Transfer, 2, 9)
		asked.wait(t)
		h.front.Block(j.Transfer, 6, 9)
		return Result{Blocks: 7, Bytes: 1}, nil
	}}
	h = build(t, answering(40), Options{Planner: planner, Engines: []Engine{e}})
	h.post(t, chat(false))
	rec := h.last(t)
	if rec.Outcome != Part || rec.Promised != 40 || !strings.Contains(rec.Reason, "block 4 is bad") {
		t.Errorf("got %+v", rec)
	}
	if got, want := asked.all(), []string{"0-2", "0-7"}; !slices.Equal(got, want) {
		t.Errorf("adopted %v, want %v", got, want)
	}
}

// A client that goes away ends the transfer; what has come is adopted, and nothing of
// it is left running.
func TestAdoptsForNobody(t *testing.T) {
	asked := newAdoptions()
	planner := always(coldPlan())
	planner.adopt = func(_ Plan, from, to int) (Adoption, error) {
		asked.add(from, to)
		return Adoption{Blocks: to}, nil
	}
	var h *house
	begun := make(chan struct{})
	e := &engine{name: "a", work: func(ctx context.Context, j Job) (Result, error) {
		h.front.Block(j.Transfer, 3, 9)
		close(begun)
		<-ctx.Done()
		return Result{Blocks: 3}, ctx.Err()
	}}
	h = build(t, answering(0), Options{Planner: planner, Engines: []Engine{e}})
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/v1/chat/completions", strings.NewReader(chat(false)))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-begun
		cancel()
	}()
	if _, err := h.client.Do(r); !errors.Is(err, context.Canceled) { //nolint:bodyclose // there is none
		t.Errorf("the request ended with %v", err)
	}
	if got := asked.wait(t); got != "0-3" {
		t.Errorf("adopted %s", got)
	}
}

// A decoder that does not answer an adoption holds up neither the end of a front nor a
// request twice.
func TestHungAdoption(t *testing.T) {
	for name, w := range map[string]waits{
		"closed":      {closing: 20 * time.Millisecond, adopt: time.Hour},
		"not in time": {adopt: 20 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			planner := always(coldPlan())
			planner.hangs = true
			var h *house
			e := &engine{name: "a", work: func(_ context.Context, j Job) (Result, error) {
				h.front.Block(j.Transfer, 5, 9) // an adoption begins before the last
				waitFor(t, func() bool { return planner.tried.Load() == 1 })
				return Result{Blocks: 9, Bytes: 1}, nil
			}}
			h = build(t, answering(0), Options{Planner: planner, Engines: []Engine{e}, waits: w})
			verdict := make(chan string, 1)
			go func() {
				r, _ := h.post(t, chat(false))
				verdict <- r.Header.Get(headerVerdict)
			}()
			waitFor(t, func() bool { return planner.tried.Load() == 1 })
			if w.closing > 0 {
				closed := make(chan error, 1)
				go func() { closed <- h.front.Close() }()
				select {
				case <-closed:
				case <-time.After(30 * time.Second):
					t.Fatal("the front does not close")
				}
			}
			if v := <-verdict; !strings.HasPrefix(v, "declined; adopt: ") {
				t.Errorf("%q", v)
			}
			if n := planner.tried.Load(); n != 1 {
				t.Errorf("asked %d times", n)
			}
		})
	}
}
