package front

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"pdlink/transport"
)

// flight is one transfer and the requests that wait for it. It ends when its
// work does, or when nobody waits any more.
type flight struct {
	id     transport.ID
	done   chan struct{} // closed when the fields of the last group are final
	cancel context.CancelCauseFunc

	waiting int // guarded by flights.mu
	land    *landing

	engine   string
	result   Result
	adoption Adoption
	adopting time.Duration // that was left to do when the last block had come
	err      error         // why nothing, or not everything, came of it
}

// flights are the transfers that run, by what they bring. It may be used
// concurrently.
type flights struct {
	mu     sync.Mutex
	byKey  map[string]*flight
	byID   map[transport.ID]*flight
	closed bool
	wg     sync.WaitGroup
}

// errAlone ends a flight that nobody waits for.
var errAlone = errors.New("front: no client waits for it")

// join returns the flight that brings a plan's blocks, and whether somebody else
// began it. The caller owes leave.
func (f *Front) join(p Plan, h http.Header) (fl *flight, shared bool, err error) {
	s := &f.flights
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, ErrClosed
	}
	key := p.Model + "\x00" + p.Key
	if fl = s.byKey[key]; fl != nil {
		fl.waiting++
		return fl, true, nil
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	fl = &flight{
		id: transport.NewID(), done: make(chan struct{}), cancel: cancel, waiting: 1, land: newLanding(f.o.Planner, f.o.waits.adopt, p, h),
	}
	s.byKey[key], s.byID[fl.id] = fl, fl
	s.wg.Go(func() { fl.land.run(f.landings) })
	s.wg.Go(func() {
		f.fly(ctx, fl, p)
		cancel(nil)
		s.mu.Lock()
		delete(s.byID, fl.id)
		if s.byKey[key] == fl {
			delete(s.byKey, key)
		}
		s.mu.Unlock()
		close(fl.done)
	})
	return fl, false, nil
}

// leave says that a request does not wait any more. The last one ends the work.
func (f *Front) leave(fl *flight, p Plan) {
	s := &f.flights
	s.mu.Lock()
	defer s.mu.Unlock()
	fl.waiting--
	if fl.waiting > 0 {
		return
	}
	if key := p.Model + "\x00" + p.Key; s.byKey[key] == fl {
		delete(s.byKey, key) // who comes now begins anew
	}
	fl.cancel(errAlone)
}

// fly has an engine do the work, another one where the first fails, while the decoder
// adopts what comes.
func (f *Front) fly(ctx context.Context, fl *flight, p Plan) {
	var tried []*place
	for {
		eng, rate, err := f.take(ctx, p.Model, tried)
		if err != nil {
			if fl.err == nil && len(tried) == 0 { // what those that were tried said is the better reason
				fl.err = err
			}
			break
		}
		fl.engine = eng.Name()
		began := time.Now()
		bounded, cancel := context.WithTimeout(ctx, f.deadline(p, rate))
		fl.result, err = eng.Prefill(bounded, Job{fl.id, p})
		timedOut := bounded.Err() != nil && ctx.Err() == nil
		cancel()
		if ctx.Err() != nil {
			err = context.Canceled
		}
		f.engines.give(eng, fl.result.read(p), time.Since(began), err)
		fl.err = err
		if timedOut || ctx.Err() != nil || fl.result.Blocks > p.Present { // nothing new is nothing done: another one may
			break
		}
		tried = append(tried, eng)
	}
	if ctx.Err() != nil {
		fl.err = context.Cause(ctx)
	}
	fl.land.saw(fl.result.Blocks)
	fl.land.end()
	fl.adoption, fl.adopting = fl.land.got, fl.land.took
	if fl.land.err != nil {
		fl.err = fl.land.err
	}
}

// read is how many tokens an engine has read for a result that is whole; 0 for
// another, and where nothing travelled: those measure nothing.
func (r Result) read(p Plan) int {
	if r.Blocks < p.All() || r.Bytes == 0 {
		return 0
	}
	return p.Covered(p.All())
}

// take is a place on an engine within QueueWait.
func (f *Front) take(ctx context.Context, model string, not []*place) (*place, float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.o.QueueWait, fmt.Errorf("waited %v", f.o.QueueWait))
	defer cancel()
	return f.engines.take(ctx, model, not)
}

// deadline is how long an engine may take for a plan.
func (f *Front) deadline(p Plan, rate float64) time.Duration {
	slowest := f.o.Slowest
	if rate > 0 {
		slowest = rate / deadlineSlack
	}
	return deadlineBase + time.Duration(float64(p.Covered(p.Blocks))/slowest*float64(time.Second))
}
