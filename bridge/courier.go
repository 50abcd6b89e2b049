package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"pdlink/transport"
)

// Dialer connects a Courier to its receiver, again where needed. It knows how
// long to try; package transport/failover has one. It may be used concurrently.
type Dialer interface {
	// Dial returns the next connection, which is the caller's. It waits between
	// attempts. An error says that there is no way and will be none.
	Dial(ctx context.Context) (transport.Conn, error)

	// Wait pauses before the receiver is asked again that said cause: that it
	// has the transfer still, or no room. Its error says that this was done for
	// long enough; it Is cause.
	Wait(ctx context.Context, cause error) error

	// Lost says that a connection of Dial ended, and why.
	Lost(c transport.Conn, err error)

	// Progress says that the receiver has taken something for good. It is
	// called often.
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
// Put and Push. Sent and Close may be called concurrently.
type Courier struct {
	d     Dialer
	req   transport.Request
	shape Shape
	saved transport.Salvage // frames without a connection
	sent  tally

	life    context.Context // ends with the transfer
	stop    context.CancelFunc
	watches sync.WaitGroup         // a goroutine for each connection
	now     atomic.Pointer[Sender] // of the connection at hand

	ran bool // the source has been run; of Run

	use   chan struct{}    // capacity 1: held by whoever uses what follows
	conn  transport.Conn   // nil: none
	lease *transport.Lease // half full, without a connection
	had   uint64           // the most bytes that the receiver said to have
	stale bool             // the connection is not the one that the run of a source that can be read again began with
	err   error            // why it cannot go on
	word  *Verdict         // of a receiver that stopped and was not reached again; nil: none
	over  bool             // Close was called
}

// OpenCourier connects and opens a transfer. Errors: those of the dialler, and of
// OpenSender where trying again does not help.
func OpenCourier(ctx context.Context, d Dialer, req transport.Request, shape Shape) (*Courier, error) {
	if req.ID == (transport.ID{}) {
		req.ID = transport.NewID()
	}
	c := &Courier{d: d, req: req, shape: shape, use: make(chan struct{}, 1)}
	if !req.Replayable {
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
func (c *Courier) Wants(block int) bool { return c.now.Load().Wants(block) }

// Put implements Sink. Errors: the context's, which end the transfer, those of the
// dialler, and of Sender.Put.
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
			c.progress()
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
		if err = s.Push(ctx); err == nil {
			c.progress()
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
			c.now.Load().Abort(reason)
			c.conn.Close() //nolint:errcheck // the transfer is over
		}
		if c.lease != nil {
			c.lease.Release()
		}
		c.saved.Release()
	}
	c.unlock()
	c.watches.Wait()
}

func (c *Courier) lock(ctx context.Context) error {
	select {
	case c.use <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Courier) unlock() { <-c.use }

// sender is the sender of the connection at hand. The caller holds use.
func (c *Courier) sender() (*Sender, error) {
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

// progress tells the dialler that the receiver takes frames: it grants few before
// the first of them have arrived.
func (c *Courier) progress() {
	if c.sent.onConnection() > firstGrants {
		c.d.Progress()
	}
}

// mend replaces the connection if that helps against err, and returns err or why
// it could not. The caller holds use.
func (c *Courier) mend(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, transport.ErrLost):
		return c.replace(ctx, err)
	case errors.Is(err, transport.ErrCancelled) && c.verdictCame(ctx) && c.word != nil:
		return c.replace(ctx, errStopped)
	}
	return err
}

// verdictCame reports whether the receiver has ended the transfer, whose calls fail
// by now, with a verdict. That of one that is stopping is kept as its word. The
// caller holds use.
func (c *Courier) verdictCame(ctx context.Context) bool {
	s := c.now.Load()
	out, err := s.out.Finish(ctx) // does not wait for anything
	if err != nil {
		return false
	}
	if v, err := s.verdict(out.Result); err == nil && v.Stopped {
		c.word = &v
	}
	return true
}

// replace goes on over another connection. The caller holds use.
func (c *Courier) replace(ctx context.Context, cause error) error {
	c.conn.Close() //nolint:errcheck // it is lost; all that it kept is saved now
	c.d.Lost(c.conn, cause)
	c.conn, c.stale = nil, c.req.Replayable
	if s := c.now.Load(); s.lease != nil && c.req.Replayable {
		s.lease.Release()
		s.lease = nil
	} else {
		c.lease, s.lease = s.lease, nil
	}
	return c.connect(ctx)
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
			c.err = err
			return err
		}
		c.d.Lost(conn, err)
	}
}

// begin opens the transfer on a connection and takes along what was saved.
func (c *Courier) begin(ctx context.Context, conn transport.Conn) error {
	s, err := OpenSender(ctx, conn, c.req, c.shape)
	for errors.Is(err, transport.ErrDuplicate) || errors.Is(err, transport.ErrBusy) {
		if err := c.d.Wait(ctx, err); err != nil {
			return err
		}
		s, err = OpenSender(ctx, conn, c.req, c.shape)
	}
	if err != nil {
		return err
	}
	if n := s.answer.bytes(); n > c.had {
		c.had = n
		c.d.Progress()
	}
	c.sent.open(conn.Facts())
	s.sent = &c.sent
	leases := c.saved.Take()
	for i, l := range leases {
		if !s.narrow(l) {
			l.Release()
			continue
		}
		if err := s.send(ctx, l); err != nil { // then l is saved again, if there is a way on
			c.saved.Add(leases[i+1:]...)
			return err
		}
	}
	s.lease, c.lease = c.lease, nil
	c.conn, c.word = conn, nil
	c.now.Store(s)
	c.watches.Go(func() { c.watch(conn) })
	return nil
}

// watch replaces a connection that ends while nobody uses it. What its peer
// offers is refused.
func (c *Courier) watch(conn transport.Conn) {
	for {
		offer, err := conn.Accept(c.life)
		if err == nil {
			offer.Refuse(transport.RefuseOther, "this end only sends") //nolint:errcheck // it fails when nobody is left to tell
			continue
		}
		if c.lock(c.life) != nil {
			return
		}
		if c.conn == conn && !c.over && (!c.verdictCame(c.life) || c.word != nil) {
			c.replace(c.life, err) //nolint:errcheck // the next call of the source's says so
		}
		c.unlock()
		return
	}
}

// Run has the source make its pieces and returns the receiver's verdict, also when
// the receiver ended the transfer early. It returns when the transfer is over.
// Errors: ErrIncomplete, those of Put, and the source's.
func (c *Courier) Run(ctx context.Context, src Source) (Verdict, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	release := context.AfterFunc(c.life, func() { cancel(ErrClosed) })
	defer release()
	v, err := c.run(ctx, src)
	if err != nil && ctx.Err() == nil {
		v, err = c.lastWord(v, err)
	}
	reason := "the sender is done"
	if err != nil {
		reason = err.Error()
	}
	c.close(reason)
	return v, err
}

// lastWord is the verdict of a receiver that stopped, if it did not come back.
func (c *Courier) lastWord(v Verdict, err error) (Verdict, error) {
	c.use <- struct{}{}
	defer c.unlock()
	if c.word == nil {
		return v, err
	}
	return *c.word, nil
}

func (c *Courier) run(ctx context.Context, src Source) (v Verdict, err error) {
	for passes := 0; passes < MaxPasses; {
		err = c.pass(ctx, src)
		if c.outdated(ctx) {
			continue
		}
		if err != nil && !errors.Is(err, transport.ErrCancelled) {
			return Verdict{}, err
		}
		v, err = c.finish(ctx)
		var missing *transport.MissingError
		switch {
		case errors.Is(err, errAgain):
		case errors.As(err, &missing):
			passes++
			err = fmt.Errorf("%w: after %d passes: %w", ErrIncomplete, MaxPasses, err)
			if again := c.again(ctx, missing); again != nil {
				return v, errors.Join(err, again)
			}
		default:
			return v, err
		}
	}
	for missing := new(transport.MissingError); !c.req.Replayable && errors.As(err, &missing); {
		v, err = c.finish(ctx) // nobody can send what is missing, and each piece is named once
	}
	return v, err
}

// pass runs the source, if it can do something.
func (c *Courier) pass(ctx context.Context, src Source) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	c.stale = false
	s, err := c.sender()
	c.unlock()
	if err != nil {
		return err
	}
	if c.ran && (!c.req.Replayable || !s.wantsAny()) {
		return nil
	}
	c.ran = true
	if err := src.Run(ctx, c); err != nil {
		return err
	}
	return c.Push(ctx)
}

// outdated reports whether the source has to run again on another connection.
func (c *Courier) outdated(ctx context.Context) bool {
	if c.lock(ctx) != nil {
		return false
	}
	defer c.unlock()
	return c.stale && c.err == nil && !c.over
}

// finish waits for the receiver's verdict. Errors: errAgain, those of
// Outgoing.Finish.
func (c *Courier) finish(ctx context.Context) (Verdict, error) {
	if err := c.lock(ctx); err != nil {
		return Verdict{}, err
	}
	defer c.unlock()
	for {
		s, err := c.sender()
		if err != nil {
			return Verdict{}, err
		}
		var out transport.Outcome
		if err = s.Push(ctx); err == nil || errors.Is(err, transport.ErrCancelled) {
			out, err = s.out.Finish(ctx)
		}
		if err == nil {
			c.sent.repeated(out.Stats)
			v, wrong := s.verdict(out.Result)
			if wrong != nil || !v.Stopped {
				return v, wrong
			}
			c.word = &v
			err = c.replace(ctx, errStopped)
		} else {
			err = c.mend(ctx, err)
		}
		if err != nil {
			return Verdict{}, err
		}
	}
}

// again makes ready for sending pieces that the receiver lacks although they were
// sent as often as a link does that. Kept frames go over another connection.
func (c *Courier) again(ctx context.Context, missing *transport.MissingError) error {
	if !c.req.Replayable {
		return c.renew(ctx, missing)
	}
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	if !c.stale {
		c.now.Load().ask(missing.Pieces)
	}
	return nil
}

// renew replaces a connection that works.
func (c *Courier) renew(ctx context.Context, cause error) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	if _, err := c.sender(); err != nil && !errors.Is(err, errAgain) {
		return err
	}
	return c.replace(ctx, cause)
}
