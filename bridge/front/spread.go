package front

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"pdlink/bridge/prefill/calls"
)

// spread is an engine whose workers are on several hosts: each sends its part of every
// transfer, and one of them asks the engine.
type spread struct {
	name    string
	members []*host
	lead    int // index in members
	models  []string
	joint   joint
}

// Name implements Engine.
func (e *spread) Name() string { return e.name }

// Serves implements Engine.
func (e *spread) Serves(model string) bool {
	return slices.Contains(e.models, model) && e.Refused(model) == ""
}

// once is something that happens once.
type once struct {
	done chan struct{}
	o    sync.Once
}

func newOnce() *once { return &once{done: make(chan struct{})} }

func (o *once) do() { o.o.Do(func() { close(o.done) }) }

// ended is how the call to one member ended.
type ended struct {
	member int
	result Result
	err    error
}

// bad reports whether no further block can become whole.
func (x ended) bad() bool {
	return x.err != nil || x.result.State != calls.Complete && x.result.State != calls.Partial
}

// Prefill implements Engine. Those that follow are called first: the engine is asked when
// its workers find the transfer on every host. When one fails the others are ended.
func (e *spread) Prefill(ctx context.Context, j Job) (Result, error) {
	w, ctx, end := e.members[0].h.watch(ctx, j.Transfer, e.members...)
	defer end()
	calling, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &parts{
		e: e, j: j, ctx: calling, cancel: cancel, read: newOnce(),
		opened: make(chan int, len(e.members)), ends: make(chan ended, len(e.members)),
	}
	first, all := p.run()
	r := first.result
	r.Hosts = w.sent(e.members...)
	for _, x := range all {
		r.Blocks = max(r.Blocks, x.result.Blocks)
		r.Sealed = r.Sealed && (x.bad() || x.result.Sealed)
	}
	switch {
	case !first.bad():
		return r, nil
	case ctx.Err() != nil:
		return w.sums(r), context.Cause(ctx)
	}
	who := fmt.Sprintf("%s (part %d of %d of group %s)", e.members[first.member].name, first.member+1, len(e.members), e.name)
	if first.err != nil {
		return w.sums(r), fmt.Errorf("%s: %w", who, first.err)
	}
	r.Reason = who + ": " + r.Reason
	return w.sums(r), nil
}

// parts are the calls to the members of a group for one job.
type parts struct {
	e      *spread
	j      Job
	ctx    context.Context // of the calls
	cancel context.CancelFunc
	read   *once
	opened chan int   // members that have their part open; has room for all
	ends   chan ended // has room for all
}

// call begins a member's call.
func (p *parts) call(i int) {
	var told sync.Once
	s := share{
		part: i, parts: len(p.e.members), follows: i != p.e.lead, read: p.read,
		opened: func() { told.Do(func() { p.opened <- i }) },
	}
	go func() {
		r, err := p.e.members[i].call(p.ctx, p.j, s)
		p.ends <- ended{i, r, err}
	}()
}

// run makes the calls and returns how all of them ended, and the one that decides what
// became of the job: the first that failed, or else that of the one that leads.
func (p *parts) run() (first ended, all []ended) {
	running := 0
	for i := range p.e.members {
		if i != p.e.lead {
			p.call(i)
			running++
		}
	}
	var late <-chan time.Time
	decided, led, followers := false, false, running
	for running > 0 || !led && !decided {
		select {
		case <-p.opened:
			followers--
		case <-late: // all has come but a result
			p.cancel()
		case x := <-p.ends:
			running--
			all = append(all, x)
			if decided {
				continue // it was ended, or says the same
			}
			decided = x.bad() || x.member == p.e.lead
			switch {
			case x.bad():
				first = x
				p.cancel()
			case decided:
				first = x
				p.read.do()
				late = time.After(resultWait)
			}
		}
		if followers == 0 && !led && !decided {
			p.call(p.e.lead)
			running++
			led = true
		}
	}
	return first, all
}
