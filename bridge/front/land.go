package front

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"pdlink/transport"
)

// landing has the decoder adopt a flight's blocks as they become visible, while
// others are on their way: at the end only the last ones are left to adopt. All
// methods may be called concurrently.
type landing struct {
	planner  Planner
	patience time.Duration // how long one adoption may take
	plan     Plan
	header   http.Header // of the request that the plan was made for

	wake chan struct{} // capacity 1: visible has grown
	over chan struct{} // closed by end
	done chan struct{} // closed when the fields of the last group are final

	mu      sync.Mutex // guards the next two
	visible int        // blocks of the plan, from the first, that are in the store
	at      time.Time  // when that grew last

	got  Adoption
	err  error         // why the last attempt came to nothing
	hung bool          // the decoder did not answer in time: it is not asked again
	took time.Duration // from the last block's becoming visible to its adoption; 0: nothing was adopted
}

func newLanding(planner Planner, patience time.Duration, p Plan, h http.Header) *landing {
	return &landing{
		planner: planner, patience: patience, plan: p, header: h, visible: p.Present, got: Adoption{Blocks: p.Present},
		wake: make(chan struct{}, 1), over: make(chan struct{}), done: make(chan struct{}),
	}
}

// saw says how many blocks are visible. It does not wait.
func (l *landing) saw(visible int) {
	l.mu.Lock()
	visible = min(visible, l.plan.All())
	grown := visible > l.visible
	if grown {
		l.visible, l.at = visible, time.Now()
	}
	l.mu.Unlock()
	if grown {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// end says that no more blocks come, and returns when those that came are adopted, as
// far as the decoder takes them. It is called once.
func (l *landing) end() {
	close(l.over)
	<-l.done
}

// run adopts until end is called, and then what is left. What has arrived is worth
// having even when nobody waits for it: only the end of ctx, which is the front's, ends
// it.
func (l *landing) run(ctx context.Context) {
	defer close(l.done)
	good := true
	for more := true; more; {
		select {
		case <-l.wake:
		case <-l.over:
			more = false
		}
		if !l.hung && (good || !more) { // after a failure once more, at the end
			good = l.adopt(ctx, !more)
		}
	}
}

// adopt has what is visible adopted and reports whether the decoder took all of it.
func (l *landing) adopt(ctx context.Context, last bool) bool {
	l.mu.Lock()
	n, at := l.visible, l.at
	l.mu.Unlock()
	if n <= l.got.Blocks {
		return true
	}
	from := l.got.Blocks
	if last || n == l.plan.All() {
		from = 0 // the decoder may have evicted some meanwhile
	}
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	got, err := l.planner.Adopt(ctx, l.header, l.plan, from, n)
	if err != nil {
		l.err, l.hung = fmt.Errorf("adopt: %w", err), ctx.Err() != nil
		return false
	}
	l.got, l.err = got, nil
	l.took = time.Since(at)
	return got.Blocks == n
}

// Block is told of a block that became visible, as bridge.Options.OnBlock is: the
// decoder then adopts what is there while the rest is on its way. It does not wait.
func (f *Front) Block(id transport.ID, visible, _ int) {
	s := &f.flights
	s.mu.Lock()
	fl := s.byID[id]
	s.mu.Unlock()
	if fl != nil {
		fl.land.saw(visible)
	}
}
