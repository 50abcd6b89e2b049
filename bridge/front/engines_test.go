package front

import (
	"context"
	"errors"
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
