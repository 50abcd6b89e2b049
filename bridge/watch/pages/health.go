package pages

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Check is one thing that has to be so for a process to be ready.
type Check struct {
	// Name is what it is about, for people: "store".
	Name string

	// Probe returns nil when it is so, else why not. It is called from one goroutine at a
	// time, never more often than every three seconds, and given up after one: then it does
	// not answer.
	Probe func(ctx context.Context) error
}

// errSilent is of a check that does not return.
var errSilent = errors.New("no answer in time")

// probe is a check and its last result. It may be used concurrently.
type probe struct {
	Check
	limit time.Duration

	mu   sync.Mutex    // guards the fields below
	busy chan struct{} // closed when the check that runs returns; nil: none does
	at   time.Time     // when the last one returned
	err  error         // its result
}

// look returns the result of the check, at most freshFor old.
func (p *probe) look() error {
	p.mu.Lock()
	if p.busy == nil {
		if !p.at.IsZero() && time.Since(p.at) < freshFor {
			defer p.mu.Unlock()
			return p.err
		}
		p.busy = make(chan struct{})
		go p.run(p.busy)
	}
	busy := p.busy
	p.mu.Unlock()
	t := time.NewTimer(p.limit)
	defer t.Stop()
	select {
	case <-busy:
	case <-t.C:
		return errSilent
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// run makes the check. One that hangs, in a file system that is gone, keeps this goroutine
// and no other.
func (p *probe) run(done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), p.limit)
	defer cancel()
	err := p.Probe(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.at, p.busy = err, time.Now(), nil
	close(done)
}

// health is all checks.
type health []*probe

func newHealth(checks []Check, limit time.Duration) health {
	h := make(health, len(checks))
	for i, c := range checks {
		h[i] = &probe{Check: c, limit: limit}
	}
	return h
}

// lacks is why the process is not ready, one reason for each check that failed; it is
// empty when it is.
func (h health) lacks() []string {
	errs := make([]error, len(h))
	var wg sync.WaitGroup
	for i, p := range h {
		wg.Go(func() { errs[i] = p.look() })
	}
	wg.Wait()
	list := []string{}
	for i, err := range errs {
		if err != nil {
			list = append(list, fmt.Sprintf("%s: %v", h[i].Name, err))
		}
	}
	return list
}
