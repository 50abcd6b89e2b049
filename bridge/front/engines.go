package front

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// engines hands out places on the prefill engines: the least loaded that is well,
// first come first served when all are full. It may be used concurrently.
type engines struct {
	limit int
	now   func() time.Time

	mu      sync.Mutex // guards the rest
	all     []*place
	waiting []chan *place // oldest first; capacity 1; nil: nobody is well any more
}

// place is one engine and how it fares. The mutex of engines guards it.
type place struct {
	Engine
	busy     int
	rate     float64 // tokens a second, a moving mean; 0: not measured
	failures int     // in a row
	rests    time.Time
}

func newEngines(list []Engine, limit int) *engines {
	e := &engines{limit: limit, now: time.Now}
	for _, x := range list {
		e.all = append(e.all, &place{Engine: x})
	}
	return e
}

// rate is the best measured rate, 0 when nothing was measured.
func (e *engines) rate() float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	best := 0.0
	for _, p := range e.all {
		best = max(best, p.rate)
	}
	return best
}

// take returns a place, waiting for one where needed; not is left out. Errors:
// ErrNoEngine, ErrBusy (the context ended while waiting). The caller owes give.
func (e *engines) take(ctx context.Context, not []*place) (*place, float64, error) {
	e.mu.Lock()
	p, well := e.pick(not)
	if p != nil {
		defer e.mu.Unlock()
		p.busy++
		return p, p.rate, nil
	}
	if !well {
		e.mu.Unlock()
		return nil, 0, ErrNoEngine
	}
	ch := make(chan *place, 1)
	e.waiting = append(e.waiting, ch)
	e.mu.Unlock()
	select {
	case p = <-ch:
	case <-ctx.Done():
		e.mu.Lock()
		i := slices.Index(e.waiting, ch)
		if i >= 0 {
			e.waiting = slices.Delete(e.waiting, i, i+1)
		}
		e.mu.Unlock()
		if i < 0 { // it was served at the same moment
			if p = <-ch; p != nil {
				e.give(p, 0, 0, nil)
			}
		}
		return nil, 0, fmt.Errorf("%w: %w", ErrBusy, context.Cause(ctx))
	}
	if p == nil {
		return nil, 0, ErrNoEngine
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return p, p.rate, nil
}

// pick returns the least loaded engine that is well and has room, and whether any
// is well. It is called with mu held.
func (e *engines) pick(not []*place) (best *place, well bool) {
	now := e.now()
	for _, p := range e.all {
		if slices.Contains(not, p) || now.Before(p.rests) {
			continue
		}
		if p.failures > 0 && p.busy > 0 {
			well = true // one request at a time finds out whether it is back
			continue
		}
		well = true
		if p.busy < e.limit && (best == nil || p.busy < best.busy) {
			best = p
		}
	}
	return best, well
}

// give returns a place. tokens and took measure its rate when the work succeeded;
// an error that is not the caller's own end lets the engine rest.
func (e *engines) give(p *place, tokens int, took time.Duration, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p.busy--
	switch {
	case err == nil && tokens > 0 && took > 0:
		p.failures = 0
		r := float64(tokens) / took.Seconds()
		if p.rate > 0 {
			r = p.rate + rateWeight*(r-p.rate)
		}
		p.rate = r
	case err != nil && !errors.Is(err, context.Canceled):
		p.failures++
		p.rests = e.now().Add(min(probeMax, probeAfter<<min(p.failures-1, 8)))
	}
	for len(e.waiting) > 0 {
		next, well := e.pick(nil)
		if next == nil && well {
			return
		}
		if next != nil {
			next.busy++
		}
		e.waiting[0] <- next
		e.waiting = slices.Delete(e.waiting, 0, 1)
	}
}
