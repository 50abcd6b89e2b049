package transporttest

import (
	"context"

	"pdlink/transport"
)

func creditChecks() []check {
	return []check{
		{name: "credit/receiver that does not release", run: creditStalled},
		{name: "credit/every release grants a frame", run: creditEach},
		{name: "credit/busy when nothing is left to promise", run: creditBusy},
		{name: "credit/shared ring bounds memory", run: creditShared},
		{name: "credit/release twice", run: creditTwice},
	}
}

// stall sends frames of 500 bytes until the grants are used up and returns how
// many passed.
func (e *env) stall(out transport.Outgoing) int {
	e.Helper()
	for n := 0; ; n++ {
		err := sendFrame(e.deadline(), e.data, out, []piece{{0, uint64(n * 500), 500}})
		if err != nil {
			e.is(err, context.DeadlineExceeded, "send without a grant")
			return n
		}
		if n > 10*testWindow {
			e.Fatalf("%d frames passed with a window of %d", n, testWindow)
		}
	}
}

// creditStalled: a receiver that does not release gets exactly a window of
// frames; Send then waits and is ended by its context, other transfers go on,
// and releasing lets the rest through.
func creditStalled(e *env) {
	ring := e.ring(testSlots, testPayload)
	p := e.pair(Options{SendRing: ring}, Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	if n := e.stall(out); n != testWindow {
		e.Errorf("%d frames passed with a window of %d", n, testWindow)
	}
	var held [testWindow]*transport.Delivery
	for i := range held {
		held[i] = e.frame(in)
	}
	e.nothing(in, "receive beyond the window")
	e.eventually(func() bool { return ring.InUse() == 0 }, "slots of sent frames and of failed sends come back")
	e.usable(p.A, p.B)
	e.usable(p.B, p.A)
	waiting := call(func() error { return e.send(out, piece{0, testWindow * 500, 500}) })
	e.blocks(waiting, "send without a grant")
	for _, d := range held {
		d.Release()
	}
	e.ends(waiting, nil, "send after the receiver released")
	e.frame(in).Release()
	s := e.sink(in)
	done := call(func() error { return s.run(e.ctx) })
	e.finish(out)
	e.ends(done, nil, "receive")
}

// creditEach: each release lets exactly one more frame through, in whatever
// order deliveries are released.
func creditEach(e *env) {
	p := e.pair(Options{}, Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	e.stall(out)
	var held [testWindow]*transport.Delivery
	for i := range held {
		held[i] = e.frame(in)
	}
	for range 3 * testWindow {
		i := e.rng.IntN(len(held))
		held[i].Release()
		e.must(e.send(out, piece{1, 0, 500}), "send after one release")
		held[i] = e.frame(in)
	}
	e.is(sendFrame(e.deadline(), e.data, out, []piece{{1, 0, 500}}), context.DeadlineExceeded, "second send after one release")
	for _, d := range held {
		d.Release()
	}
	out.Cancel("checked")
}

// creditBusy: Admit promises slots of the receive ring; when none is left the
// opener is told to come later, and later it works.
func creditBusy(e *env) {
	p := e.pair(Options{}, Options{RecvRing: e.ring(testWindow, testPayload)})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	opened := call(func() error { _, err := p.A.Open(e.ctx, transport.Request{}); return err })
	offer, err := p.B.Accept(e.ctx)
	e.must(err, "accept an offer")
	_, err = offer.Admit(nil)
	e.is(err, transport.ErrBusy, "admit without a slot to promise")
	e.ends(opened, transport.ErrBusy, "open without a slot to promise")
	s := e.sink(in)
	done := call(func() error { return s.run(e.ctx) })
	e.finish(out)
	e.ends(done, nil, "receive")
	e.usable(p.A, p.B)
}

// creditShared: connections that share a receive ring together never use more
// than its slots, whatever they are sent, and all get through.
func creditShared(e *env) {
	const conns, size = 3, 200_000
	ring := e.ring(8, testPayload)
	sinks := make([]*sink, 0, conns)
	going := make(waits, 0, 2*conns)
	for i := range conns {
		p := e.pair(Options{}, Options{RecvRing: ring, Window: 4})
		out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
		s, rng := e.sink(in), newRand(e.seed+uint64(i))
		sinks = append(sinks, s)
		going = append(going, call(func() error { return s.run(e.ctx) }), call(func() error {
			_, err := deliver(e.ctx, e.data, rng, out, cut(rng, 2, size, 9000))
			return err
		}))
		// The ring has promises for two transfers at a time.
		if len(going) == 4 {
			for _, w := range going {
				e.ends(w, nil, "transfer over a shared ring")
			}
			going = going[:0]
		}
	}
	for _, w := range going {
		e.ends(w, nil, "transfer over a shared ring")
	}
	for _, s := range sinks {
		s.covers(sized(2, size))
	}
}

// creditTwice: releasing a delivery twice, or a lease after its end, is caught
// before it gives memory to two owners, and harms nothing.
func creditTwice(e *env) {
	p := e.pair(Options{}, Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	e.must(e.send(out, piece{0, 0, 500}), "send")
	d := e.frame(in)
	d.Release()
	panics(e, d.Release, "delivery released twice")
	l, err := out.Lease(e.ctx)
	e.must(err, "lease")
	l.Release()
	panics(e, l.Release, "lease released twice")
	l, err = out.Lease(e.ctx)
	e.must(err, "lease")
	l.Append(0, 0, e.bytes(100, 5))
	out.Cancel("checked")
	e.is(out.Send(e.ctx, l), transport.ErrCancelled, "send on a cancelled transfer")
	panics(e, l.Release, "lease released after a failed send")
	e.usable(p.A, p.B)
}

func panics(e *env, f func(), what string) {
	e.Helper()
	defer func() {
		if recover() == nil {
			e.Errorf("%s: not caught", what)
		}
	}()
	f()
}
