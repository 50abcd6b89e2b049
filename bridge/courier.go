package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"pdlink/transport"
)

// Dialer connects a Courier to its receiver, again where needed. It knows how
// long to try; package transport/failover has one. It may be used concurrently.
type Dialer interface {
	// Dial returns the next connection, which is the caller's. It waits between
	// attempts. An error says that there is no way: one that Is
	// transport.ErrUnreachable that there was none for long enough, another one
	// that there will be none.
	Dial(ctx context.Context) (transport.Conn, error)

	// Wait pauses before the receiver is asked again that said cause: that it
	// has the transfer still, or no room. Its error says that this was done for
	// long enough; it Is cause.
	Wait(ctx context.Context, cause error) error

	// Lost says that a connection of Dial ended, and why. While it lived nobody
	// waited for one.
	Lost(c transport.Conn, err error)

	// Done says that this end ended a connection of Dial in order.
	Done(c transport.Conn)

	// Progress says that a receiver has more than any had before. It is called
	// when a transfer is opened on another connection.
	Progress()
}

// Courier sends one transfer, or one part of it, over as many connections as
// that takes. Each time that a connection is lost it opens the transfer on
// another one and goes on with what the receiver's answer leaves.
//
// A source that can be read again (Request.Replayable) is run again, and the
// receiver is spared what it has. One that cannot is not told: it waits in Put or
// Push meanwhile, and what the links had kept of it goes along to the new
// connection, without a copy where both links send from one ring. What nobody has
// any more, because a process ended that kept it, is missing in the verdict, which
// says how far the blocks reach.
//
// A connection that is lost while the source has nothing to say is replaced at
// once: the receiver does not wait long for a sender that is gone.
//
// A Courier is the Sink of the source that Run runs, whose goroutine calls Wants,
// Put, Push and Give. Sent and Close may be called concurrently.
type Courier struct {
	d     Dialer
	req   transport.Request
	shape Shape
	saved transport.Salvage // frames without a connection
	sent  tally

	life    context.Context // ends with the transfer
	stop    context.CancelFunc
	watches sync.WaitGroup         // a goroutine for each connection
	now     atomic.Pointer[sender] // of the connection at hand

	ran bool // the source has been run; of Run

	use          chan struct{}     // capacity 1: held by whoever uses what follows
	conn         transport.Conn    // nil: none
	made         *history          // of the source's runs; nil: it cannot be run again
	untried      []transport.Piece // begin the frames among those saved that no link has taken yet
	lease        *transport.Lease  // half full, without a connection
	visible, had uint64            // the most bytes that a receiver said to have for good, and in all
	damaged      int               // connections lost since then because they damage the same bytes again and again
	stale        bool              // the connection is not the one that the run of a source that can be read again began with
	err          error             // why it cannot go on
	word         *Verdict          // of a receiver that stopped and was not reached again; nil: none
	over         bool              // Close was called
}

// OpenCourier connects and opens a transfer. Errors: those of the dialler; those of
// transport.Conn.Open where trying again does not help; ErrAnswer for a receiver that
// cannot be understood, or that expects blocks of another shape.
func OpenCourier(ctx context.Context, d Dialer, req transport.Request, shape Shape) (*Courier, error) {
	if req.ID == (transport.ID{}) {
		req.ID = transport.NewID()
	}
	c := &Courier{d: d, req: req, shape: shape, use: make(chan struct{}, 1)}
	if req.Replayable {
		c.made = newHistory(min(max(shape.Blocks, 0), MaxBlocks))
	} else {
		c.req.Salvage = &c.saved
	}
	c.life, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	err := c.connect(ctx) // nobody else is here yet
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Wants implements Sink.
func (c *Courier) Wants(block int) bool { return c.now.Load().wants(block) }

// Put implements Sink. Errors: the context's, which end the transfer; those of the
// dialler; ErrPlan for bytes that the blocks do not have; transport.ErrCancelled when
// the receiver ended the transfer; ErrClosed.
func (c *Courier) Put(ctx context.Context, block int, off int64, p []byte) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	for {
		s, err := c.sender()
		if err != nil {
			return err
		}
		n, err := s.put(ctx, block, off, p)
		if err == nil {
			return nil
		}
		off, p = off+int64(n), p[n:]
		if err := c.mend(ctx, err); err != nil {
			return err
		}
	}
}

// Push implements Sink. Errors: those of Put.
func (c *Courier) Push(ctx context.Context) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	for {
		s, err := c.sender()
		if err != nil {
			return err
		}
		if err = s.push(ctx); err == nil {
			return nil
		}
		if err := c.mend(ctx, err); err != nil { // then the frame is among those that were saved
			return err
		}
	}
}

// Sent is what was sent so far.
func (c *Courier) Sent() Sent { return c.sent.total() }

// Close ends the transfer, unless Run has, and waits for its goroutines. What is
// visible at the receiver stays. It is idempotent.
func (c *Courier) Close() { c.close("the sender gave it up") }

func (c *Courier) close(reason string) {
	c.stop()
	c.use <- struct{}{} // whoever holds it sees the end of life
	if !c.over {
		c.over = true
		if c.conn != nil {
			s := c.now.Load()
			s.abort(reason)
			c.conn.Close() //nolint:errcheck // the transfer is over
			c.leave(c.life, s)
			c.d.Done(c.conn)
		}
		if c.lease != nil {
			c.lease.Release()
		}
		c.saved.Close() // a connection that is not the courier's alone may save more
	}
	c.unlock()
	c.watches.Wait()
}

func (c *Courier) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c.use <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Courier) unlock() { <-c.use }

// sender is the sender of the connection at hand. The caller holds use.
func (c *Courier) sender() (*sender, error) {
	switch {
	case c.over:
		return nil, ErrClosed
	case c.err != nil:
		return nil, c.err
	case c.stale:
		return nil, errAgain
	}
	return c.now.Load(), nil
}

// progress tells the dialler when a receiver has more than any had before: in blocks
// for good, or in all. What was only sent is no progress.
func (c *Courier) progress(a Answer) {
	if visible, had := a.visible(), a.bytes(); visible > c.visible || had > c.had {
		c.visible, c.had = max(c.visible, visible), max(c.had, had)
		c.damaged = 0
		c.d.Progress()
	}
}

// mend replaces the connection if that helps against err, and returns err or why
// it could not. The caller holds use.
func (c *Courier) mend(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, transport.ErrLost):
		if hopeless := c.hopeless(err); hopeless != nil {
			return hopeless
		}
		return c.replace(ctx, err)
	case errors.Is(err, transport.ErrCancelled):
		if _, stopped := c.verdict(ctx, c.now.Load()); stopped {
			return c.replace(ctx, errStopped)
		}
	}
	return err
}

// hopeless ends a transfer whose connections were lost, several in a row, because each
// damaged the same bytes again and again; err is why the last one was. The caller
// holds use.
func (c *Courier) hopeless(err error) error {
	if !errors.Is(err, transport.ErrDamaged) {
		return nil
	}
	if c.damaged++; c.damaged <= MaxPasses {
		return nil
	}
	c.err = fmt.Errorf("%w: over %d connections: %w", ErrIncomplete, c.damaged, err)
	return c.err
}

// verdict reports whether the receiver has ended the transfer of s, whose calls fail
// by now, with a verdict, and whether it stopped: then that is kept as its word. The
// caller holds use.
func (c *Courier) verdict(ctx context.Context, s *sender) (came, stopped bool) {
	out, err := s.out.Finish(ctx) // does not wait for anything
	if err != nil {
		return false, false
	}
	v, err := s.verdict(out.Result)
	if err == nil && v.Stopped {
		c.word = &v
		return true, true
	}
	return true, false
}

// replace goes on over another connection. cause is why this one is lost; nil: it
// is not. The caller holds use.
func (c *Courier) replace(ctx context.Context, cause error) error {
	c.conn.Close() //nolint:errcheck // all that it kept is saved now
	if cause != nil {
		c.d.Lost(c.conn, cause)
	} else {
		c.d.Done(c.conn)
	}
	s := c.now.Load()
	c.leave(ctx, s)
	c.conn, c.stale = nil, c.req.Replayable
	if c.req.Replayable {
		s.drop()
	} else {
		c.lease, s.lease = s.lease, nil
	}
	return c.connect(ctx)
}

// leave takes from the sender of a connection that has ended what the next one has
// to know.
func (c *Courier) leave(ctx context.Context, s *sender) {
	out, _ := s.out.Finish(ctx) // does not wait for anything
	c.sent.repeated(out.Stats)
	if s.untried.Length > 0 {
		c.untried = append(c.untried, s.untried)
	}
}

// connect dials until the transfer is open and what was saved is on its way. Its
// error is final. The caller holds use.
func (c *Courier) connect(ctx context.Context) error {
	for {
		conn, err := c.d.Dial(ctx)
		if err != nil {
			c.err = err
			return err
		}
		if err = c.begin(ctx, conn); err == nil {
			return nil
		}
		conn.Close() //nolint:errcheck // nothing was done with it that is not saved
		if !errors.Is(err, transport.ErrLost) {
			c.d.Done(conn)
			c.err = err
			return err
		}
		c.d.Lost(conn, err)
		if err := c.hopeless(err); err != nil {
			return err
		}
	}
}

// begin opens the transfer on a connection and takes along what was saved.
func (c *Courier) begin(ctx context.Context, conn transport.Conn) error {
	s, err := openSender(ctx, conn, c.req, c.shape)
	for errors.Is(err, transport.ErrDuplicate) || errors.Is(err, transport.ErrBusy) {
		if err := c.d.Wait(ctx, err); err != nil {
			return err
		}
		s, err = openSender(ctx, conn, c.req, c.shape)
	}
	if err != nil {
		return err
	}
	c.progress(s.answer)
	c.sent.open(conn.Facts())
	s.sent, s.made = &c.sent, c.made
	if err := c.resend(ctx, s); err != nil {
		c.leave(ctx, s)
		return err
	}
	s.lease, c.lease = c.lease, nil
	c.conn, c.word = conn, nil
	c.now.Store(s)
	c.watches.Go(func() { c.watch(conn) })
	return nil
}

// resend takes along what was saved. A receiver that ends the transfer meanwhile
// with its verdict is heard when the source goes on; one that is stopping is lost.
func (c *Courier) resend(ctx context.Context, s *sender) error {
	leases := c.saved.Take()
	for i, l := range leases {
		if !s.narrow(l) {
			l.Release()
			continue
		}
		begin, twice := l.Pieces()[0], bytesOf(l)
		fresh := slices.IndexFunc(c.untried, func(p transport.Piece) bool { return p.Block == begin.Block && p.Offset == begin.Offset })
		if fresh >= 0 {
			twice = 0
		}
		err := s.send(ctx, l, twice)
		if err == nil {
			if fresh >= 0 {
				c.untried = slices.Delete(c.untried, fresh, fresh+1)
			}
			continue
		}
		c.saved.Add(leases[i+1:]...) // l is saved again, if there is a way on
		if !errors.Is(err, transport.ErrCancelled) {
			return err
		}
		switch came, stopped := c.verdict(ctx, s); {
		case stopped:
			return fmt.Errorf("%w: %w", transport.ErrLost, errStopped)
		case came:
			return nil
		}
		return err
	}
	return nil
}

// watch replaces a connection that ends while nobody uses it. What its peer
// offers is refused.
func (c *Courier) watch(conn transport.Conn) {
	offer, err := conn.Accept(c.life)
	for err == nil {
		offer.Refuse(transport.RefuseOther, "this end only sends") //nolint:errcheck // it fails when nobody is left to tell
		offer, err = conn.Accept(c.life)
	}
	if c.lock(c.life) != nil {
		return
	}
	defer c.unlock()
	if c.life.Err() != nil || c.conn != conn || c.over {
		return // this end is closing the connection, or has replaced it
	}
	if came, stopped := c.verdict(c.life, c.now.Load()); came && !stopped {
		return
	}
	if c.hopeless(err) == nil {
		c.replace(c.life, err) //nolint:errcheck // the next call of the source's says so
	}
}
