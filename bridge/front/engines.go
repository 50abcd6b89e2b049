package front

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// engines hands out places on the prefill engines: of those that read a model's
// prompts the least loaded that is well, first come first served when all are full.
// Engines come and go. It may be used concurrently.
type engines struct {
	limit int
	now   func() time.Time

	mu      sync.Mutex // guards the rest
	all     []*place
	waiting []*waiter // oldest first
}

// place is one engine and how it fares. The mutex of engines guards it.
type place struct {
	Engine
	busy     int
	rate     float64 // tokens a second, a moving mean; 0: not measured
	failures int     // in a row
	rests    time.Time
}

// waiter is a request that waits for a place.
type waiter struct {
	model string
	not   []*place
	got   chan *place // capacity 1; nil: nobody is well any more
}

func newEngines(list []Engine, limit int) *engines {
	e := &engines{limit: limit, now: time.Now}
	for _, x := range list {
		e.add(x)
	}
	return e
}

// add takes an engine on and returns how it is left out again.
func (e *engines) add(x Engine) (remove func()) {
	p := &place{Engine: x}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, p)
	e.serve()
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if i := slices.Index(e.all, p); i >= 0 {
			e.all = slices.Delete(e.all, i, i+1)
			e.serve()
		}
	}
}

// none reports whether there are no engines.
func (e *engines) none() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all) == 0
}

// rate is the best measured rate for a model, 0 when nothing was measured.
func (e *engines) rate(model string) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	best := 0.0
	for _, p := range e.all {
		if p.Serves(model) {
			best = max(best, p.rate)
		}
	}
	return best
}

// take returns a place, waiting for one where needed; not is left out. Errors:
// ErrNoEngine, ErrBusy (the context ended while waiting). The caller owes give.
func (e *engines) take(ctx context.Context, model string, not []*place) (*place, float64, error) {
	w := &waiter{model: model, not: not}
	e.mu.Lock()
	p, well := e.pick(w)
	if p != nil {
		defer e.mu.Unlock()
		p.busy++
		return p, p.rate, nil
	}
	if !well {
		e.mu.Unlock()
		return nil, 0, e.lacking(model)
	}
	w.got = make(chan *place, 1)
	e.waiting = append(e.waiting, w)
	e.mu.Unlock()
	select {
	case p = <-w.got:
	case <-ctx.Done():
		e.mu.Lock()
		i := slices.Index(e.waiting, w)
		if i >= 0 {
			e.waiting = slices.Delete(e.waiting, i, i+1)
		}
		e.mu.Unlock()
		if i < 0 { // it was served at the same moment
			if p = <-w.got; p != nil {
				e.give(p, 0, 0, context.Canceled)
			}
		}
		return nil, 0, fmt.Errorf("%w: %w", ErrBusy, context.Cause(ctx))
	}
	if p == nil {
		return nil, 0, e.lacking(model)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return p, p.rate, nil
}

// pick returns the least loaded engine that is well and has room, and whether any
// is well. It is called with mu held.
func (e *engines) pick(w *waiter) (best *place, well bool) {
	now := e.now()
	for _, p := range e.all {
		if slices.Contains(w.not, p) || now.Before(p.rests) || !p.Serves(w.model) {
			continue
		}
		well = true
		if p.failures > 0 && p.busy > 0 {
			continue // one request at a time finds out whether it is back
		}
		if p.busy < e.limit && (best == nil || p.busy < best.busy) {
			best = p
		}
	}
	return best, well
}

// give returns a place. tokens and took measure its rate where it did such work; an
// error that is not the caller's own end lets the engine rest.
func (e *engines) give(p *place, tokens int, took time.Duration, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p.busy--
	switch {
	case err == nil:
		p.failures = 0
		if tokens > 0 && took > 0 {
			r := float64(tokens) / took.Seconds()
			if p.rate > 0 {
				r = p.rate + rateWeight*(r-p.rate)
			}
			p.rate = r
		}
	case !errors.Is(err, context.Canceled):
		p.failures++
		p.rests = e.now().Add(min(probeMax, probeAfter<<min(p.failures-1, 8)))
	}
	e.serve()
}

// serve gives places to those who wait, the oldest first, as far as there are any. It
// is called with mu held.
func (e *engines) serve() {
	e.waiting = slices.DeleteFunc(e.waiting, func(w *waiter) bool {
		next, well := e.pick(w)
		if next == nil && well {
			return false
		}
		if next != nil {
			next.busy++
		}
		w.got <- next
		return true
	})
}
