package front

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestEnginesRestAndReturn(t *testing.T) {
	e := newEngines([]Engine{quick("a"), quick("b")}, 2)
	now := time.Unix(0, 0)
	e.now = func() time.Time { return now }
	take := func() *place {
		p, _, err := e.take(t.Context(), "m", nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	a, b := take(), take()
	if a == b {
		t.Fatal("the second place is on the loaded engine")
	}
	e.give(a, 0, 0, errors.New("down"))
	e.give(b, 1000, time.Second, nil)
	if e.rate("m") != 1000 {
		t.Errorf("rate %v", e.rate("m"))
	}
	if p := take(); p != b {
		t.Error("an engine that failed was used at once")
	}
	now = now.Add(probeAfter)
	if p := take(); p != a {
		t.Error("an engine that has rested was not tried")
	}
	p2 := take()
	if p2 != b {
		t.Error("an engine that is not known to be back got a second request")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := e.take(ctx, "m", nil); !errors.Is(err, ErrBusy) {
		t.Errorf("all full: %v", err)
	}
	e.give(a, 0, 0, errors.New("down"))
	if _, _, err := e.take(t.Context(), "m", []*place{b}); !errors.Is(err, ErrNoEngine) {
		t.Errorf("none well: %v", err)
	}
}

// meddler is an engine that has another one added whenever it is asked.
type meddler struct {
	*engine
	e *engines
	n atomic.Int32
}

func (m *meddler) Serves(string) bool {
	if m.n.Add(1) <= 20 {
		m.e.add(&engine{name: "more", only: "another"})
	}
	return false
}

func (m *meddler) Reads() []string { return []string{"another"} }

func (m *meddler) Refused(string) string {
	m.Serves("")
	return "no"
}

// queued reports that one waits for a place.
func queued(e *engines) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiting) == 1
}

// TestEnginesMayBringOthers: whoever is asked what it serves may add an engine, whatever is
// going on: a comparison is told, and who is told may act on it.
func TestEnginesMayBringOthers(t *testing.T) {
	e := newEngines(nil, 1)
	only := quick("only")
	e.add(only)
	done := make(chan struct{})
	go func() {
		defer close(done)
		one, _, err := e.take(t.Context(), "m", nil)
		if err != nil {
			t.Error(err)
			return
		}
		second := make(chan error, 1)
		go func() {
			p, _, err := e.take(t.Context(), "m", nil)
			if err == nil {
				e.give(p, 10, time.Second, nil)
			}
			second <- err
		}()
		for !queued(e) {
			time.Sleep(time.Millisecond)
		}
		m := &meddler{engine: quick("meddler"), e: e}
		remove := e.add(m)
		e.give(one, 10, time.Second, nil)
		if err := <-second; err != nil {
			t.Error(err)
		}
		if got := e.rate("m"); got != 10 {
			t.Errorf("rate %v", got)
		}
		if err := e.lacking("m"); !errors.Is(err, ErrNoEngine) || !strings.Contains(err.Error(), "meddler is refused") {
			t.Error(err)
		}
		if _, _, err := e.take(t.Context(), "m", []*place{one}); !errors.Is(err, ErrNoEngine) {
			t.Error(err)
		}
		remove()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("it waits for itself")
	}
}

// TestEngineThatComesServesWhoWaits: one that is added while somebody waits for his model
// serves him, and one of another model does not.
func TestEngineThatComesServesWhoWaits(t *testing.T) {
	e := newEngines([]Engine{quick("full")}, 1)
	if _, _, err := e.take(t.Context(), "m", nil); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	go func() {
		p, _, err := e.take(t.Context(), "m", nil)
		if err != nil {
			got <- err.Error()
			return
		}
		got <- p.Name()
	}()
	waitFor(t, func() bool { return queued(e) })
	e.add(&engine{name: "other", only: "n"})
	e.add(&engine{name: "right", only: "m"})
	if name := <-got; name != "right" {
		t.Errorf("served by %s", name)
	}
}

// turncoat is an engine that stops serving after it was first asked.
type turncoat struct {
	*engine
	asked atomic.Int32
}

func (x *turncoat) Serves(string) bool { return x.asked.Add(1) == 1 }

// TestEngineThatChangedItsModel: what an engine said before somebody waited is not taken
// for what it says when he gets it.
func TestEngineThatChangedItsModel(t *testing.T) {
	e := newEngines([]Engine{&turncoat{engine: quick("a")}}, 1)
	if _, _, err := e.take(t.Context(), "m", nil); !errors.Is(err, ErrNoEngine) {
		t.Errorf("%v, want ErrNoEngine", err)
	}
	if e.all[0].busy != 0 {
		t.Error("its place was not given back")
	}
}
