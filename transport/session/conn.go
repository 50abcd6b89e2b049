package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// conn implements transport.Conn on a driver.
type conn struct {
	d      Driver
	queuer Queuer // d, where it is one too
	packer Packer // what the link made, where it is one too
	o      Options
	terms  wire.Terms
	facts  transport.Facts
	sum    transport.SumFunc
	check  bool // sums are compared; false for transport.SumNone
	pings  bool // wire.FeaturePing was agreed

	send, recv lazyRing
	out        outbox
	pool       pools
	ready      sendQueue
	pulse      pulse

	mu         sync.Mutex // guards the fields down to metaHeld
	cause      error      // why the connection ended; nil while it lives
	lastHandle uint32     // handles are counted up and never used again
	outs       map[uint32]*outgoing
	ins        map[uint32]*incoming
	live       map[liveKey]*incoming // by id and part, for duplicates
	offers     []*incoming           // not accepted yet, oldest first
	metaHeld   int                   // bytes of Meta in ins
	offered    chan struct{}         // capacity 1: there may be an offer

	closed   atomic.Bool   // this end called Close
	farewell atomic.Bool   // the peer is still worth a Bye
	down     chan struct{} // closed when the connection has ended and all transfers with it
	quit     chan struct{} // closed when the driver is about to be closed
	written  chan struct{} // closed when the control writer has returned
	gone     chan struct{} // closed when all goroutines have returned
	workers  sync.WaitGroup
	fault    error // what closing the driver said; set before gone
}

// liveKey is what makes two transfers the same one.
type liveKey struct {
	id   transport.ID
	part uint16
}

// New starts a connection on a driver whose ends have agreed. It owns d from
// here on and closes it once. facts carries what only the link knows (Link,
// Local, Remote, ZeroCopy, Sealed); the rest is filled in from the agreement. A
// ring that the session makes itself is made by the first Open or Admit, which
// report when that fails. It panics on an agreement that Handshake did not make:
// on a checksum that this build does not know.
func New(d Driver, a Agreement, o Options, facts transport.Facts) transport.Conn {
	o = o.WithDefaults()
	packer, _ := d.(Packer)
	if o.Intercept != nil {
		d = o.Intercept(d)
	}
	facts.Peer, facts.PeerBoot = a.Peer, a.PeerBoot
	facts.MaxPayload, facts.MaxMeta = a.MaxPayload, a.MaxMeta
	facts.Lanes, facts.Sum = d.Lanes(), a.Sum
	sum, err := transport.SumByName(a.Sum)
	if err != nil {
		panic("session: New without an agreement: " + err.Error())
	}
	c := &conn{
		d: d, packer: packer, o: o, terms: a.Terms, facts: facts, sum: sum,
		check: a.Sum != transport.SumNone, pings: slices.Contains(a.Features, wire.FeaturePing),
		send: lazyRing{ring: o.SendRing}, recv: lazyRing{ring: o.RecvRing},
		out:   outbox{wake: make(chan struct{}, 1)},
		ready: sendQueue{wake: make(chan struct{}, 1)},
		outs:  make(map[uint32]*outgoing), ins: make(map[uint32]*incoming),
		live:    make(map[liveKey]*incoming),
		offered: make(chan struct{}, 1),
		down:    make(chan struct{}), quit: make(chan struct{}),
		written: make(chan struct{}), gone: make(chan struct{}),
	}
	c.queuer, _ = d.(Queuer)
	c.pool = newPools(c.send.slots(), c.recv.slots(), a.MaxPayload, a.Sum, c.takeBack)
	c.start()
	return c
}

// start starts the goroutines.
func (c *conn) start() {
	c.workers.Go(c.readControl)
	c.workers.Go(c.writeControl)
	c.workers.Go(c.watch)
	for lane := range c.d.Lanes() {
		c.workers.Go(func() { c.writeLane(lane) })
		c.workers.Go(func() { c.readLane(lane) })
	}
	go c.supervise()
}

// supervise takes the connection down when it has ended.
func (c *conn) supervise() {
	<-c.down
	if c.farewell.Load() {
		c.out.last(c.bye())
		t := time.NewTimer(c.o.Linger)
		select {
		case <-c.written:
		case <-t.C:
		}
		t.Stop()
	}
	close(c.quit)
	c.fault = c.d.Close()
	c.workers.Wait()
	close(c.gone)
}

// bye is the encoded farewell, with the reason when the peer is to blame or was
// not heard.
func (c *conn) bye() []byte {
	reason := "closed"
	if err := c.why(); errors.Is(err, transport.ErrProtocol) || errors.Is(err, errSilent) {
		reason = err.Error()
	}
	msg, err := wire.AppendBye(nil, &wire.Bye{Reason: reason})
	if err != nil {
		return nil
	}
	return msg
}

// end ends the connection and every transfer of it, once. farewell says that
// the peer is still to be told.
func (c *conn) end(cause error, farewell bool) {
	c.mu.Lock()
	if c.cause != nil {
		c.mu.Unlock()
		return
	}
	c.cause = cause
	outs := make([]*outgoing, 0, len(c.outs))
	for _, o := range c.outs {
		outs = append(outs, o)
	}
	ins := make([]*incoming, 0, len(c.ins))
	for _, in := range c.ins {
		ins = append(ins, in)
	}
	c.mu.Unlock()
	c.farewell.Store(farewell)
	for _, o := range outs {
		o.lose(cause)
	}
	for _, in := range ins {
		in.end(cause)
	}
	close(c.down)
}

// lose ends the connection because a channel of it failed. What the peer said
// last, a result or a farewell, may still be on the control channel while its
// lanes are gone already, so the control reader gets a moment to find it.
func (c *conn) lose(what string, err error) {
	if errors.Is(err, transport.ErrProtocol) {
		c.violated(err)
		return
	}
	t := time.NewTimer(controlGrace)
	defer t.Stop()
	select {
	case <-c.down:
	case <-t.C:
		c.end(c.lostError(what, err), false)
	}
}

// violated ends the connection because the peer broke the protocol.
func (c *conn) violated(err error) {
	c.end(fmt.Errorf("%w: peer %q at %s: %w", transport.ErrLost, c.facts.Peer, c.facts.Remote, err), true)
}

func (c *conn) lostError(what string, err error) error {
	return fmt.Errorf("%w: peer %q at %s: %s: %w", transport.ErrLost, c.facts.Peer, c.facts.Remote, what, err)
}

// why is the error of calls after the end; nil while the connection lives.
func (c *conn) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.explain(c.cause)
}

// explain is err, or ErrClosed in its place when the connection was lost first
// and closed by this end since.
func (c *conn) explain(err error) error {
	if c.closed.Load() && errors.Is(err, transport.ErrLost) {
		return errClosed
	}
	return err
}

// Facts implements transport.Conn.
func (c *conn) Facts() transport.Facts { return c.facts }

// Close implements transport.Conn. Messages that are queued, results above all,
// go out first, for at most Options.Linger. A ring that the session made is
// unmapped when the last lease or delivery of it has ended.
func (c *conn) Close() error {
	c.closed.Store(true)
	c.end(errClosed, true)
	<-c.gone
	return errors.Join(c.fault, c.send.retire(), c.recv.retire())
}

// Open implements transport.Conn.
func (c *conn) Open(ctx context.Context, r transport.Request) (transport.Outgoing, error) {
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if n, limit := len(r.Meta), c.facts.MaxMeta; n > limit {
		return nil, fmt.Errorf("open: %w: meta of %d bytes, agreed limit %d", transport.ErrTooLarge, n, limit)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if r.ID == (transport.ID{}) {
		r.ID = transport.NewID()
	}
	ring, err := c.send.get()
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	o, err := c.register(r, ring)
	if err != nil {
		return nil, err
	}
	if err := o.offer(r); err != nil {
		o.end(err)
		return nil, err
	}
	if err := o.await(ctx); err != nil {
		return nil, err
	}
	return o, nil
}

// register makes an outgoing transfer with a handle of its own.
func (c *conn) register(r transport.Request, ring *transport.Ring) (*outgoing, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.cause != nil:
		return nil, c.explain(c.cause)
	case len(c.outs) >= transport.MaxTransfers:
		return nil, &transport.RefusedError{
			Transfer: r.ID, Code: transport.RefuseBusy,
			Reason: fmt.Sprintf("this end has %d transfers open on the connection already", len(c.outs)),
		}
	case c.lastHandle == ^uint32(0):
		return nil, fmt.Errorf("open: %w: all handles are used up, connect again", transport.ErrTooLarge)
	}
	c.lastHandle++
	o := newOutgoing(c, c.lastHandle, r, ring)
	c.outs[o.handle] = o
	return o, nil
}

// Accept implements transport.Conn.
func (c *conn) Accept(ctx context.Context) (transport.Offer, error) {
	for {
		c.mu.Lock()
		if c.cause != nil {
			err := c.explain(c.cause)
			c.mu.Unlock()
			return nil, err
		}
		if len(c.offers) > 0 {
			in := c.offers[0]
			c.offers = append(c.offers[:0], c.offers[1:]...)
			if len(c.offers) > 0 {
				signal(c.offered)
			}
			c.mu.Unlock()
			return &offer{in}, nil
		}
		c.mu.Unlock()
		select {
		case <-c.offered:
		case <-c.down:
		case <-ctx.Done():
			return nil, fmt.Errorf("accept transfer: %w", ctx.Err())
		}
	}
}

// signal wakes one waiter of a channel of capacity 1. A waiter that leaves
// something for others signals again.
func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
