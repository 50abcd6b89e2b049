package bridge

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"pdlink/transport"
)

// Options set a Receiver up. Open is required; the zero value of the rest works.
type Options struct {
	// Open checks a transfer's plan and opens its target.
	Open Opener

	// PartWait is how long an incomplete transfer stays open for senders that
	// are missing or lost, after the last frame of the others came. 0 means
	// DefaultPartWait; negative: not at all once the others finished, else
	// DefaultPartWait.
	PartWait time.Duration

	// IdleWait is how long a transfer stays open without a frame while all its
	// senders are there. 0 means DefaultIdleWait.
	IdleWait time.Duration

	// OnVerdict is called once for each transfer that was admitted, from a
	// goroutine of the receiver, when its senders are told. They do not wait for
	// it; Close does.
	OnVerdict func(Verdict)

	// OnDecline is called for each offer that was refused, with the reason that
	// the sender was told.
	OnDecline func(r transport.Request, reason string)

	// OnBlock is called after a block became visible, in chain order within a
	// transfer, with the number of visible blocks and of blocks in the plan. The
	// blocks behind wait for it: it must not block.
	OnBlock func(id transport.ID, visible, total int)
}

// Receiver takes transfers from any number of connections and puts their blocks
// into targets. It may be used concurrently.
type Receiver struct {
	o      Options
	wg     sync.WaitGroup // finishers
	conns  atomic.Uint64  // connections served so far
	ranges atomic.Int64   // of the coverage of all blocks of all transfers
	eased  atomic.Int64   // when a transfer ended last, by clock
	began  time.Time

	mu     sync.Mutex // guards what follows
	live   map[transport.ID]*assembly
	opened uint64 // transfers that were opened so far
	closed bool
}

// NewReceiver returns a receiver with nothing to do.
func NewReceiver(o Options) *Receiver {
	if o.PartWait == 0 {
		o.PartWait = DefaultPartWait
	}
	if o.IdleWait <= 0 {
		o.IdleWait = DefaultIdleWait
	}
	return &Receiver{o: o, began: time.Now(), live: make(map[transport.ID]*assembly)}
}

// Serve takes the transfers that a connection's peer offers until the
// connection or the context ends, and returns why. The caller closes the
// connection.
func (r *Receiver) Serve(ctx context.Context, conn transport.Conn) error {
	var offers sync.WaitGroup
	v := via{conn.Facts(), r.conns.Add(1)}
	gone := make(chan struct{})
	defer func() {
		close(gone)
		offers.Wait()
	}()
	for {
		offer, err := conn.Accept(ctx)
		if err != nil {
			return err
		}
		offers.Go(func() { r.take(ctx, gone, v, offer) })
	}
}

// Close ends all transfers with what is visible so far, and waits for them.
func (r *Receiver) Close() error {
	r.mu.Lock()
	r.closed = true
	live := make([]*assembly, 0, len(r.live))
	for _, a := range r.live {
		live = append(live, a)
	}
	r.mu.Unlock()
	for _, a := range live {
		a.fail(ErrClosed)
	}
	r.wg.Wait()
	return nil
}

// take sees one offer through to its end. gone is closed when its connection
// is.
func (r *Receiver) take(ctx context.Context, gone <-chan struct{}, v via, offer transport.Offer) {
	req := offer.Request()
	a, m, was, err := r.join(ctx, req, v)
	for errors.Is(err, errOver) { // it came after the others of its transfer ended: a new one
		select {
		case <-a.done:
			a, m, was, err = r.join(ctx, req, v)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		r.decline(offer, err)
		return
	}
	if was != nil {
		was.await(ctx)
	}
	answer, err := a.answer(v.facts.MaxMeta)
	var in transport.Incoming
	if err == nil {
		in, err = offer.Admit(answer)
	}
	if err != nil {
		r.decline(offer, err)
		a.leave(m, err)
		return
	}
	a.serve(ctx, gone, m, in)
}

// decline refuses an offer, unless Admit has done so, and tells of it. A receiver
// that is stopping has no room: the one that comes after it may.
func (r *Receiver) decline(offer transport.Offer, err error) {
	refused := &transport.RefusedError{Reason: err.Error()}
	if errors.Is(err, ErrClosed) {
		refused.Code, refused.Reason = transport.RefuseBusy, stopping
	} else {
		errors.As(err, &refused)
	}
	if r.o.OnDecline != nil {
		r.o.OnDecline(offer.Request(), refused.Reason)
	}
	offer.Refuse(refused.Code, refused.Reason) //nolint:errcheck // it fails when nobody is left to tell
}

// join finds or opens the transfer that a request belongs to and makes the
// sender a member of it.
func (r *Receiver) join(ctx context.Context, req transport.Request, v via) (a *assembly, m, was *member, err error) {
	digest := planDigest(req)
	a, mine, err := r.find(req, digest, v)
	switch {
	case err != nil:
		return nil, nil, nil, err
	case mine:
		r.open(a, req)
	default:
		if err := a.opened(ctx, digest); err != nil {
			return nil, nil, nil, err
		}
	}
	if a.openErr != nil {
		return nil, nil, nil, a.openErr
	}
	m, was, err = a.join(req, digest, v)
	return a, m, was, err
}

// find is the live transfer that a request belongs to. With mine it is new, and
// the caller's to open.
func (r *Receiver) find(req transport.Request, digest [sha256.Size]byte, v via) (a *assembly, mine bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch a = r.live[req.ID]; {
	case r.closed:
		return nil, false, ErrClosed
	case a != nil:
		return a, false, nil
	}
	busy := ""
	if len(r.live) >= maxLive {
		busy = fmt.Sprintf("%d transfers are being received", maxLive)
	} else if r.crowded() {
		busy = "another transfer needs all blocks that may be open at once"
	}
	if busy != "" {
		return nil, false, &transport.RefusedError{Transfer: req.ID, Code: transport.RefuseBusy, Reason: busy}
	}
	a = newAssembly(r, req, digest, v)
	r.opened++
	a.age = r.opened
	r.live[req.ID] = a
	r.wg.Add(1) // ended by open
	return a, true, nil
}

// open opens a transfer that find made and starts its finisher, or ends it where
// it cannot be opened.
func (r *Receiver) open(a *assembly, req transport.Request) {
	a.open(req)
	close(a.ready)
	if a.openErr != nil {
		r.forget(a)
		r.wg.Done()
		return
	}
	go func() {
		defer r.wg.Done()
		a.finisher()
	}()
}

// forget makes the id free for a new transfer.
func (r *Receiver) forget(a *assembly) {
	r.ranges.Add(-a.ranges.Swap(0))
	r.eased.Store(r.clock())
	r.mu.Lock()
	if r.live[a.id] == a {
		delete(r.live, a.id)
	}
	r.mu.Unlock()
}

// planDigest tells plans apart: senders of one transfer must agree on it.
func planDigest(req transport.Request) [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%d %s\n", len(req.Kind), req.Kind)
	h.Write(req.Meta)
	return [sha256.Size]byte(h.Sum(nil))
}
