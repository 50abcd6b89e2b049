package front

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// plan asks the planner, within its time, and holds its answer against itself.
func (f *Front) plan(a *alive, r *http.Request, body []byte) (Plan, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	over := make(chan struct{})
	limit := f.o.waits.plan + time.Duration(len(body)>>20)*time.Second
	late := time.AfterFunc(limit, func() {
		defer close(over)
		cancel(f.outwait(ctx, a, r, limit, body))
	})
	p, err := f.o.Planner.Plan(ctx, Ask{Path: r.URL.Path, Header: r.Header, Body: body})
	if !late.Stop() {
		cancel(nil)
		<-over // it may be talking to the client
	}
	if why := context.Cause(ctx); err != nil && why != nil && !errors.Is(why, context.Canceled) {
		err = why
	}
	if err != nil {
		return p, fmt.Errorf("plan: %w", err)
	}
	if p.Block < 1 || p.Present < 0 || p.Blocks < p.Present || p.Blocks > p.Tokens/p.Block ||
		p.Tail < 0 || p.Tail >= p.Block || (p.Blocks > 0 && p.Covered(p.All()) >= p.Tokens) ||
		p.Present < p.Blocks && len(p.IDs) != p.Covered(p.All()) {
		return p, fmt.Errorf("plan: the plug-in contradicts itself: %d tokens, blocks of %d, %d of %d present, %d ids",
			p.Tokens, p.Block, p.Present, p.Blocks, len(p.IDs))
	}
	return p, nil
}

// outwait is called when a plan is late. It waits on while the decoder is starting, and
// as long again as a plan may take when that is over; it returns why not longer. A client
// that streams is kept alive meanwhile.
func (f *Front) outwait(ctx context.Context, a *alive, r *http.Request, limit time.Duration, body []byte) error {
	s, ok := f.o.Planner.(Starter)
	late := fmt.Errorf("the decoder made no plan within %v", limit)
	if !ok {
		return late
	}
	var tick <-chan time.Time
	if f.o.KeepAlive > 0 && streams(body) {
		t := time.NewTicker(f.o.KeepAlive)
		defer t.Stop()
		tick = t.C
	}
	pause := func(d time.Duration) bool {
		t := time.NewTimer(d)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				return true
			case <-tick:
				a.comment("pdlink: the decoder is starting")
			case <-ctx.Done():
				return false
			}
		}
	}
	end := time.Now().Add(f.o.waits.start)
	for what := s.Starting(ctx, r.Header); what != ""; what = s.Starting(ctx, r.Header) {
		for ; what != ""; what = s.Starting(ctx, r.Header) {
			if time.Now().After(end) {
				return fmt.Errorf("the decoder is not ready after %v: %s", f.o.waits.start, what)
			}
			if !pause(f.o.waits.poll) {
				return ctx.Err()
			}
		}
		if !pause(limit) { // now the plan takes what plans take
			return ctx.Err()
		}
	}
	return late
}
