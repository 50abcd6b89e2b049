package transporttest

import (
	"context"
	"errors"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
)

func cancelChecks() []check {
	return []check{
		{name: "cancel/by the sender", run: func(e *env) { cancelEverywhere(e, false) }},
		{name: "cancel/by the receiver", run: func(e *env) { cancelEverywhere(e, true) }},
		{name: "cancel/open before it is admitted", run: cancelOpen},
		{name: "cancel/undelivered frames are freed", run: cancelQueued},
		{name: "cancel/leases stay valid", run: cancelLeases},
		{name: "cancel/after finish does nothing", run: cancelLate},
		{name: "cancel/by both at once", run: cancelBoth},
		{name: "cancel/while finishing", run: cancelRace},
	}
}

// stage is a point of a transfer at which something can end it. reach brings
// a new transfer there and returns the calls that wait then, by side.
type stage struct {
	name  string
	reach func(e *env, out transport.Outgoing, in transport.Incoming) (sending, receiving waits)
}

// waits are calls that are going on.
type waits []<-chan outcome[struct{}]

// stages are all of them. Their transfers have a window of testWindow.
func stages() []stage {
	return []stage{
		{"admitted", func(*env, transport.Outgoing, transport.Incoming) (waits, waits) { return nil, nil }},
		{"receiving", func(e *env, _ transport.Outgoing, in transport.Incoming) (waits, waits) {
			return nil, waits{call(func() error { _, err := in.Recv(e.ctx); return err })}
		}},
		{"sending without a grant", func(e *env, out transport.Outgoing, _ transport.Incoming) (waits, waits) {
			for i := range testWindow {
				e.must(e.send(out, piece{0, uint64(i), 1}), "send")
			}
			return waits{call(func() error { return e.send(out, piece{0, 100, 1}) })}, nil
		}},
		{"flushing", func(e *env, out transport.Outgoing, in transport.Incoming) (waits, waits) {
			e.must(e.send(out, piece{0, 0, 1000}), "send")
			flushing := call(func() error { return out.Flush(e.ctx) })
			e.frame(in).Release()
			e.mark(in)
			return waits{flushing}, nil
		}},
		{"mark not received", func(e *env, out transport.Outgoing, _ transport.Incoming) (waits, waits) {
			return waits{call(func() error { return out.Flush(e.ctx) })}, nil
		}},
		{"finishing", func(e *env, out transport.Outgoing, in transport.Incoming) (waits, waits) {
			finishing := call(func() error { _, err := out.Finish(e.ctx); return err })
			e.must(e.mark(in).Flushed(nil), "answer the mark of finish")
			e.eof(in)
			return waits{finishing}, nil
		}},
	}
}

// at opens a transfer and brings it to the stage.
func (e *env) at(p Pair, s stage) (out transport.Outgoing, in transport.Incoming, sending, receiving waits) {
	e.Helper()
	out, in = e.open(p.A, p.B, transport.Request{})
	sending, receiving = s.reach(e, out, in)
	for _, w := range append(sending, receiving...) {
		e.blocks(w, s.name)
	}
	return out, in, sending, receiving
}

// cancelEverywhere: a cancel at any point reaches both ends with its reason,
// wakes every call, and leaves the connection whole.
func cancelEverywhere(e *env, byReceiver bool) {
	p := e.pair(session.Options{}, session.Options{})
	for _, s := range stages() {
		reason := "reason: " + s.name
		out, in, sending, receiving := e.at(p, s)
		cancel := out.Cancel
		if byReceiver {
			cancel = in.Cancel
		}
		cancel(reason)
		cancel("again")
		for _, w := range append(sending, receiving...) {
			e.ends(w, transport.ErrCancelled, s.name)
		}
		e.leaseFails(out, transport.ErrCancelled)
		_, err := out.Lease(e.ctx)
		e.cancelled(err, byReceiver, reason)
		e.cancelled(out.Flush(e.ctx), byReceiver, reason)
		_, err = out.Finish(e.ctx)
		e.cancelled(err, byReceiver, reason)
		if s.name != "finishing" { // there the receiver has seen the end
			e.cancelled(e.drain(in), !byReceiver, reason)
		}
		e.eventually(func() bool { return errors.Is(in.Ack(1), transport.ErrCancelled) }, "acknowledging fails after a cancel")
		e.is(in.Finish(nil), transport.ErrCancelled, "result after a cancel")
	}
	e.usable(p.A, p.B)
}

// leaseFails waits until a transfer gives no more leases.
func (e *env) leaseFails(out transport.Outgoing, want error) {
	e.Helper()
	e.eventually(func() bool {
		l, err := out.Lease(e.ctx)
		if err == nil {
			l.Release()
		}
		return errors.Is(err, want)
	}, "lease fails: "+want.Error())
}

// drain receives until an error, releasing what comes.
func (e *env) drain(in transport.Incoming) error {
	for {
		d, err := in.Recv(e.ctx)
		switch {
		case err != nil:
			return err
		case d.Mark():
			d.Flushed(nil) //nolint:errcheck // the transfer has ended
		default:
			d.Release()
		}
	}
}

// cancelled checks what a call on a cancelled transfer says.
func (e *env) cancelled(err error, remote bool, reason string) {
	e.Helper()
	var c *transport.CancelledError
	if !errors.As(err, &c) || !errors.Is(err, transport.ErrCancelled) {
		e.Errorf("error %v, want one that is %q", err, transport.ErrCancelled)
		return
	}
	if c.Remote != remote || c.Reason != reason {
		e.Errorf("cancelled by peer %v for %q, want %v for %q", c.Remote, c.Reason, remote, reason)
	}
}

// cancelOpen: an Open that its context ends before it was admitted leaves
// nothing at the peer, whether the offer was accepted there or not, and its id
// is free.
func cancelOpen(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	r := transport.Request{ID: transport.NewID(), Replayable: true}
	for range 3 {
		opening := call(func() error { _, err := p.A.Open(e.deadline(), r); return err })
		offer, err := p.B.Accept(e.ctx)
		e.must(err, "accept an offer")
		e.ends(opening, context.DeadlineExceeded, "open that nobody admits")
		e.withdrawn(offer)
	}
	_, err := p.A.Open(e.deadline(), r)
	e.is(err, context.DeadlineExceeded, "open that nobody accepts")
	// Whether Accept still returns that offer is the link's choice. Admitting
	// it is not.
	r.Kind = "last"
	opened := start(func() (transport.Outgoing, error) { return p.A.Open(e.ctx, r) })
	offer, err := p.B.Accept(e.ctx)
	e.must(err, "accept an offer")
	if offer.Request().Kind != r.Kind {
		e.withdrawn(offer)
		offer, err = p.B.Accept(e.ctx)
		e.must(err, "accept an offer")
	}
	in, err := offer.Admit(nil)
	e.must(err, "admit")
	o := <-opened
	e.must(o.err, "open an id that was given up")
	e.finishBoth(o.v, in)
}

// withdrawn checks that an offer whose opener gave up is cancelled.
func (e *env) withdrawn(offer transport.Offer) {
	e.Helper()
	in, err := offer.Admit(nil)
	if err == nil {
		// The news was still on its way.
		_, err = in.Recv(e.ctx)
	}
	e.is(err, transport.ErrCancelled, "an offer whose opener gave up")
}

// cancelQueued: frames that nobody received go back to the ring by themselves.
func cancelQueued(e *env) {
	ring := e.ring(testSlots, testPayload)
	p := e.pair(session.Options{}, session.Options{RecvRing: ring})
	for _, byReceiver := range []bool{false, true} {
		out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
		e.stall(out)
		held := e.frame(in)
		if byReceiver {
			in.Cancel("check")
		} else {
			out.Cancel("check")
		}
		e.eventually(func() bool { return ring.InUse() <= 1 }, "frames of a cancelled transfer leave the ring")
		if n := ring.InUse(); n != 1 {
			e.Errorf("%d slots in use while one delivery is held", n)
		}
		d := held.Data(0)
		e.is(e.data.check(d, held.Pieces()[0].Block, held.Pieces()[0].Offset), nil, "held delivery after cancel")
		held.Release()
		if n := ring.InUse(); n != 0 {
			e.Errorf("%d slots in use after the last release", n)
		}
	}
}

// cancelLeases: leases that are out when a transfer is cancelled end by Send,
// which fails, or by Release.
func cancelLeases(e *env) {
	ring := e.ring(testSlots, testPayload)
	p := e.pair(session.Options{SendRing: ring}, session.Options{})
	out, _ := e.open(p.A, p.B, transport.Request{})
	a, err := out.Lease(e.ctx)
	e.must(err, "lease")
	b, err := out.Lease(e.ctx)
	e.must(err, "lease")
	mem, err := a.Reserve(0, 0, 5000)
	e.must(err, "reserve")
	out.Cancel("check")
	e.data.fill(mem, 0, 0) // the memory is still the lease's
	if n := ring.InUse(); n != 2 {
		e.Errorf("%d slots in use, want 2: two leases are out", n)
	}
	e.is(out.Send(e.ctx, a), transport.ErrCancelled, "send on a cancelled transfer")
	b.Release()
	if n := ring.InUse(); n != 0 {
		e.Errorf("%d slots in use after the leases ended", n)
	}
}

// cancelLate: cancelling a finished transfer, at either end, does nothing, not
// even to a new transfer of the same id.
func cancelLate(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	id := transport.NewID()
	out, in := e.open(p.A, p.B, transport.Request{ID: id, Replayable: true})
	e.finishBoth(out, in)
	next, nextIn := e.open(p.A, p.B, transport.Request{ID: id, Replayable: true})
	out.Cancel("late")
	in.Cancel("late")
	e.must(e.send(next, piece{0, 0, 1000}), "send on the new transfer")
	e.finishBoth(next, nextIn)
}

// cancelBoth: cancels from both ends that cross each other end the transfer
// and nothing else.
func cancelBoth(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	for range 30 {
		out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
		e.must(e.send(out, piece{0, 0, 1000}), "send")
		other := call(func() error { in.Cancel("receiver"); return nil })
		out.Cancel("sender")
		e.ends(other, nil, "cancel")
		_, err := out.Lease(e.ctx)
		e.is(err, transport.ErrCancelled, "lease")
		e.is(e.drain(in), transport.ErrCancelled, "receive")
	}
	e.usable(p.A, p.B)
}

// cancelRace: a cancel that races with the end of a transfer ends it one way or
// the other at both ends.
func cancelRace(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	for i := range 40 {
		out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
		s := e.sink(in)
		receiving := call(func() error { return s.run(e.ctx) })
		e.must(e.send(out, piece{0, 0, 1000}), "send")
		finishing := call(func() error { _, err := out.Finish(e.ctx); return err })
		time.Sleep(time.Duration(e.rng.IntN(100)) * time.Microsecond)
		if i%2 == 0 {
			out.Cancel("race")
		} else {
			in.Cancel("race")
		}
		for what, w := range map[string]<-chan outcome[struct{}]{"finish": finishing, "receive": receiving} {
			select {
			case r := <-w:
				if r.err != nil {
					e.is(r.err, transport.ErrCancelled, what)
				}
			case <-e.ctx.Done():
				e.Fatalf("%s: still going on", what)
			}
		}
	}
	e.usable(p.A, p.B)
}
