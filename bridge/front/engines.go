package front

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// engines hands out places on the prefill engines: of those that read a model's
// prompts the least loaded that is well, first come first served when all are full.
// Engines come and go. It may be used concurrently. Engines are asked what they serve
// without mu: that compares documents, and tells callers who may come back with another
// engine.
type engines struct {
	limit int
	now   func() time.Time

	mu      sync.Mutex // guards the rest
	all     []*place
	came    int       // engines that were added so far
	waiting []*waiter // oldest first
	halted  []*halted // hosts that are connected and take no calls yet, oldest first
}

// halted is a prefill host that is connected and takes no calls yet.
type halted struct{ name, why string }

// String is the host for people.
func (x *halted) String() string { return x.name + " is connected and waits: " + x.why }

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
	may   []*place    // that serve the model and are not left out; guarded by the mutex of engines
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
	e.all = append(e.all, p)
	e.came++
	waiting := slices.Clone(e.waiting)
	e.mu.Unlock()
	serves := make(map[string]bool) // of the models that are waited for
	for _, w := range waiting {
		if _, asked := serves[w.model]; !asked {
			serves[w.model] = p.Serves(w.model)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range waiting {
		if serves[w.model] {
			w.may = append(w.may, p)
		}
	}
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

// halt notes a host that takes no calls yet, and returns how it is forgotten.
func (e *engines) halt(x *halted) (remove func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.halted = append(e.halted, x)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if i := slices.Index(e.halted, x); i >= 0 {
			e.halted = slices.Delete(e.halted, i, i+1)
		}
	}
}

// halts are the hosts that take no calls yet, for people: the first ones, since more would
// not fit into a verdict. It is called with mu held.
func (e *engines) halts() (list []string) {
	const most = 3
	for _, x := range e.halted[:min(len(e.halted), most)] {
		list = append(list, x.String())
	}
	return list
}

// absent says why there are no engines; "" where there are.
func (e *engines) absent() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case len(e.all) > 0:
		return ""
	case len(e.halted) == 0:
		return "no prefill host is connected"
	}
	return "no prefill host takes prompts: " + strings.Join(e.halts(), "; ")
}

// rate is the best measured rate for a model, 0 when nothing was measured.
func (e *engines) rate(model string) float64 {
	may, _ := e.serving(model, nil)
	e.mu.Lock()
	defer e.mu.Unlock()
	best := 0.0
	for _, p := range may {
		best = max(best, p.rate)
	}
	return best
}

// serving returns the engines that serve a model, but for those of not, as of so many that
// came.
func (e *engines) serving(model string, not []*place) (may []*place, came int) {
	e.mu.Lock()
	all, came := slices.Clone(e.all), e.came
	e.mu.Unlock()
	return slices.DeleteFunc(all, func(p *place) bool { return slices.Contains(not, p) || !p.Serves(model) }), came
}

// take returns a place, waiting for one where needed; not is left out. Errors:
// ErrNoEngine, ErrBusy (the context ended while waiting). The caller owes give.
func (e *engines) take(ctx context.Context, model string, not []*place) (*place, float64, error) {
	for {
		p, err := e.wait(ctx, &waiter{model: model, not: not, got: make(chan *place, 1)})
		if err != nil {
			return nil, 0, err
		}
		if p == nil {
			return nil, 0, e.lacking(model)
		}
		if !p.Serves(model) { // since one of the two loaded something else meanwhile
			e.give(p, 0, 0, context.Canceled)
			continue
		}
		e.mu.Lock()
		rate := p.rate
		e.mu.Unlock()
		return p, rate, nil
	}
}

// enqueue gives a place to somebody who comes, or has him wait: he is served then, or will
// be.
func (e *engines) enqueue(w *waiter) {
	for {
		may, came := e.serving(w.model, w.not)
		if e.queue(w, may, came) {
			return
		}
	}
}

// queue is enqueue with the engines that serve him; false where one came since, which is
// not among them.
func (e *engines) queue(w *waiter, may []*place, came int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if came != e.came {
		return false
	}
	w.may = may
	if !e.offer(w) {
		e.waiting = append(e.waiting, w)
	}
	return true
}

// wait returns a place, nil where nobody is well. The error is ErrBusy.
func (e *engines) wait(ctx context.Context, w *waiter) (p *place, err error) {
	e.enqueue(w)
	select {
	case p = <-w.got:
		return p, nil
	default:
	}
	select {
	case p = <-w.got:
		return p, nil
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
		return nil, fmt.Errorf("%w: %w", ErrBusy, context.Cause(ctx))
	}
}

// pick returns the least loaded engine that is well and has room, and whether any
// is well. It is called with mu held.
func (e *engines) pick(w *waiter) (best *place, well bool) {
	now := e.now()
	for _, p := range e.all {
		if !slices.Contains(w.may, p) || now.Before(p.rests) {
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
	e.waiting = slices.DeleteFunc(e.waiting, e.offer)
}

// offer gives somebody a place, or the word that nobody is well; false: he has to wait. It
// is called with mu held, and not again once it gave something.
func (e *engines) offer(w *waiter) bool {
	next, well := e.pick(w)
	if next == nil && well {
		return false
	}
	if next != nil {
		next.busy++
	}
	w.got <- next
	return true
}
