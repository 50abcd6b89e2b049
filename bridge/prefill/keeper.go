package prefill

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
)

// Keeper keeps one connection to a decode host. Calls come over it and all
// transfers share it; when it is lost it is replaced, and the transfers go on. It
// may be used concurrently.
type Keeper struct {
	d        bridge.Dialer
	patience time.Duration

	mu      sync.Mutex // guards the fields below
	kept    *kept      // nil: there is none
	changed chan struct{}
	over    error // why there will be none; nil: Run goes on
}

// kept is a connection that is kept.
type kept struct {
	transport.Conn
	down atomic.Bool   // this end closes it
	gone chan struct{} // closed when it has ended, after err was set
	err  error
}

// end closes the connection.
func (x *kept) end() error {
	x.down.Store(true)
	return x.Close()
}

// lost makes an error that says that this end closed the connection one of a lost
// connection: whoever shares it did not close it.
func (x *kept) lost(err error) error {
	if errors.Is(err, transport.ErrClosed) && x.down.Load() && !errors.Is(err, transport.ErrLost) {
		return fmt.Errorf("%w: %w", transport.ErrLost, err)
	}
	return err
}

// NewKeeper returns a keeper that dials with d, which decides how long that is
// tried; its connections have to send from Server.Ring. patience is how long a
// transfer waits for a connection without progress; 0: DefaultPatience.
func NewKeeper(d bridge.Dialer, patience time.Duration) *Keeper {
	if patience <= 0 {
		patience = DefaultPatience
	}
	return &Keeper{d: d, patience: patience, changed: make(chan struct{})}
}

// Run keeps the connection until the context ends or the dialler has given up, and
// returns why. serve takes what the peer offers; it returns when the connection or
// the context has ended, with the reason, and must not wait for transfers.
func (k *Keeper) Run(ctx context.Context, serve func(context.Context, transport.Conn) error) error {
	for {
		conn, err := k.d.Dial(ctx)
		if err != nil {
			k.set(nil, fmt.Errorf("%w: %w", ErrClosed, err))
			return err
		}
		x := &kept{Conn: conn, gone: make(chan struct{})}
		k.set(x, nil)
		x.err = serve(ctx, conn)
		if x.err == nil {
			x.err = transport.ErrLost
		}
		close(x.gone)
		k.set(nil, nil)
		x.end() //nolint:errcheck // it has ended
		if err := ctx.Err(); err != nil {
			k.set(nil, fmt.Errorf("%w: %w", ErrClosed, err))
			return err
		}
		k.d.Lost(conn, x.err)
	}
}

// set replaces the connection and tells who waits for one.
func (k *Keeper) set(x *kept, over error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept, k.over = x, over
	close(k.changed)
	k.changed = make(chan struct{})
}

// Open opens a transfer towards the decode host and returns its carrier, and the
// room for Job.Room: that of the connection at hand. Errors: those of
// bridge.OpenCourier; ErrJob for a request that is Replayable; ErrClosed when Run
// has ended; ErrUnreachable when no connection came in time.
func (k *Keeper) Open(ctx context.Context, r transport.Request, shape bridge.Shape) (Carrier, int, error) {
	if r.Replayable {
		return nil, 0, fmt.Errorf("%w: request is replayable", ErrJob)
	}
	w := &way{k: k}
	w.since(time.Now())
	c, err := bridge.OpenCourier(ctx, w, r, shape)
	if err != nil {
		return nil, 0, err
	}
	return c, int(w.room.Load()), nil
}

// way is one transfer's dialler: it hands out the connection that is kept.
type way struct {
	k     *Keeper
	moved atomic.Int64 // when the patience began, Unix nanoseconds
	room  atomic.Int64 // payload bytes of a frame on the first connection
	bad   *kept        // that was lost; of the goroutine that dials
	waits int          // calls of Wait on the connection at hand; the same
	alone time.Time    // until when there was no connection that took the transfer; the same
}

// Dial implements bridge.Dialer.
func (w *way) Dial(ctx context.Context) (transport.Conn, error) {
	timer := time.NewTimer(w.left())
	defer timer.Stop()
	for {
		w.k.mu.Lock()
		x, changed, over := w.k.kept, w.k.changed, w.k.over
		w.k.mu.Unlock()
		switch {
		case over != nil:
			return nil, over
		case x != nil && x != w.bad:
			w.room.CompareAndSwap(0, int64(x.Facts().MaxPayload))
			w.waits, w.alone = 0, time.Now()
			return &shared{kept: x}, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil, fmt.Errorf("%w: no connection for %v", ErrUnreachable, w.k.patience)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// left is how long may pass without progress from now on.
func (w *way) left() time.Duration {
	return max(0, w.k.patience-time.Since(time.Unix(0, w.moved.Load())))
}

// Wait implements bridge.Dialer.
func (w *way) Wait(ctx context.Context, cause error) error {
	w.waits++
	pause := min(waitFirst<<min(w.waits-1, 8), waitMax)
	if pause >= w.left() {
		return fmt.Errorf("%w: %w", ErrUnreachable, cause)
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		w.alone = time.Now()
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), cause)
	}
}

// Lost implements bridge.Dialer. The time on the connection needed no patience.
func (w *way) Lost(c transport.Conn, _ error) {
	if s, ok := c.(*shared); ok {
		w.bad = s.kept
		if moved := time.Unix(0, w.moved.Load()); moved.After(w.alone) {
			w.since(time.Now())
		} else {
			w.since(moved.Add(time.Since(w.alone)))
		}
	}
}

// Done implements bridge.Dialer.
func (w *way) Done(c transport.Conn) {
	if s, ok := c.(*shared); ok {
		w.bad = s.kept
	}
}

// Progress implements bridge.Dialer.
func (w *way) Progress() {
	w.since(time.Now())
	w.k.d.Progress()
}

func (w *way) since(t time.Time) { w.moved.Store(t.UnixNano()) }

// shared is a kept connection as one transfer sees it: closing it ends the
// connection only where the transfer has to go on over another one.
type shared struct {
	*kept
	open atomic.Bool // the transfer is, and was not cancelled
}

// Open implements transport.Conn.
func (s *shared) Open(ctx context.Context, r transport.Request) (transport.Outgoing, error) {
	out, err := s.Conn.Open(ctx, r)
	if err != nil {
		return nil, s.lost(err)
	}
	s.open.Store(true)
	return &sharedOut{out, s}, nil
}

// Accept implements transport.Conn: it offers nothing, since offers are the
// keeper's, and returns with the connection.
func (s *shared) Accept(ctx context.Context) (transport.Offer, error) {
	select {
	case <-s.gone:
		return nil, s.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close implements transport.Conn.
func (s *shared) Close() error {
	if s.open.Load() {
		return s.end() // what the transfer needs on the next one is there then
	}
	return nil
}

// sharedOut is a transfer on a shared connection.
type sharedOut struct {
	transport.Outgoing
	s *shared
}

// Lease implements transport.Outgoing.
func (o *sharedOut) Lease(ctx context.Context) (*transport.Lease, error) {
	l, err := o.Outgoing.Lease(ctx)
	return l, o.s.lost(err)
}

// Send implements transport.Outgoing.
func (o *sharedOut) Send(ctx context.Context, l *transport.Lease) error {
	return o.s.lost(o.Outgoing.Send(ctx, l))
}

// Flush implements transport.Outgoing.
func (o *sharedOut) Flush(ctx context.Context) error { return o.s.lost(o.Outgoing.Flush(ctx)) }

// Finish implements transport.Outgoing.
func (o *sharedOut) Finish(ctx context.Context) (transport.Outcome, error) {
	out, err := o.Outgoing.Finish(ctx)
	return out, o.s.lost(err)
}

// Cancel implements transport.Outgoing.
func (o *sharedOut) Cancel(reason string) {
	o.s.open.Store(false)
	o.Outgoing.Cancel(reason)
}
