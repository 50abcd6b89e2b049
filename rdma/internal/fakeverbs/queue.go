package fakeverbs

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"pdlink/rdma/internal/verbs"
)

// channel implements verbs.Channel.
type channel struct {
	p      *domain
	wake   chan struct{} // capacity 1
	gone   chan struct{}
	queues int
	closed bool
}

// NewChannel implements verbs.PD.
func (p *domain) NewChannel() (verbs.Channel, error) {
	h := p.d.h
	if h.p.NoChannel {
		return nil, verbs.ErrUnsupported
	}
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	p.users++
	h.counts.Channels++
	return &channel{p: p, wake: make(chan struct{}, 1), gone: make(chan struct{})}, nil
}

// Wait implements verbs.Channel.
func (c *channel) Wait(ctx context.Context) error {
	select {
	case <-c.wake:
		return nil
	case <-c.gone:
		return verbs.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wake implements verbs.Channel.
func (c *channel) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Close implements verbs.Channel.
func (c *channel) Close() error {
	h := c.p.d.h
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	switch {
	case c.closed:
		return nil
	case c.queues > 0:
		return verbs.ErrBusy
	}
	c.closed = true
	close(c.gone)
	c.p.users--
	h.counts.Channels--
	return nil
}

// entry is a completion and the places in a send queue that are free with it.
type entry struct {
	c    verbs.Completion
	q    *pair
	free int
}

// queue implements verbs.CQ.
type queue struct {
	p      *domain
	ch     *channel
	depth  int
	ready  []entry
	armed  bool
	pairs  int
	dead   error
	closed bool
}

// errStrange is for an object of another provider.
var errStrange = errors.New("fakeverbs: an object is another provider's")

// errRetired is what polling a queue says that is dead.
var errRetired = errors.New("fakeverbs: completion queue is dead")

// NewCQ implements verbs.PD.
func (p *domain) NewCQ(depth int, ch verbs.Channel) (verbs.CQ, error) {
	h := p.d.h
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if depth < 1 || h.p.MaxCQE > 0 && depth > h.p.MaxCQE {
		return nil, fmt.Errorf("fakeverbs: completion queue of %d: %w", depth, syscall.EINVAL)
	}
	c := &queue{p: p, depth: depth}
	if ch != nil {
		mine, ok := ch.(*channel)
		if !ok {
			return nil, errStrange
		}
		c.ch = mine
		c.ch.queues++
	}
	p.users++
	h.counts.CQs++
	return c, nil
}

// Poll implements verbs.CQ.
func (c *queue) Poll(out []verbs.Completion) (int, error) {
	c.p.d.h.net.mu.Lock()
	defer c.p.d.h.net.mu.Unlock()
	switch {
	case c.closed:
		return 0, verbs.ErrClosed
	case c.dead != nil:
		return 0, c.dead
	}
	n := min(len(out), len(c.ready))
	for i := range n {
		e := c.ready[i]
		out[i] = e.c
		if e.q != nil {
			e.q.used -= e.free
		}
	}
	c.ready = append(c.ready[:0], c.ready[n:]...)
	return n, nil
}

// Arm implements verbs.CQ.
func (c *queue) Arm() error {
	c.p.d.h.net.mu.Lock()
	defer c.p.d.h.net.mu.Unlock()
	if c.ch == nil {
		return verbs.ErrUnsupported
	}
	c.armed = true
	return nil
}

// Close implements verbs.CQ.
func (c *queue) Close() error {
	h := c.p.d.h
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	switch {
	case c.closed:
		return nil
	case c.pairs > 0:
		return verbs.ErrBusy
	}
	c.closed = true
	if c.ch != nil {
		c.ch.queues--
	}
	c.p.users--
	h.counts.CQs--
	return nil
}

// put adds a completion. One too many kills the queue. The caller holds mu.
func (c *queue) put(e entry) {
	if c.dead != nil {
		return
	}
	if len(c.ready) == c.depth {
		c.kill(fmt.Errorf("%w: it had %d completions", errRetired, c.depth))
		return
	}
	c.ready = append(c.ready, e)
	c.notify()
}

// kill makes the queue useless for good. The caller holds mu.
func (c *queue) kill(err error) {
	c.dead = err
	c.notify()
	if h := c.p.d.h; !h.p.PortEvents && !h.p.NoEvents {
		c.p.d.tell(verbs.Event{Kind: verbs.EventCQError})
	}
}

func (c *queue) notify() {
	if c.armed {
		c.armed = false
		c.ch.Wake()
	}
}
