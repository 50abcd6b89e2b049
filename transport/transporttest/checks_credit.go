package transporttest

import (
	"context"
	"fmt"

	"pdlink/transport"
	"pdlink/transport/session"
)

func creditChecks() []check {
	return []check{
		{name: "credit/receiver that does not release", run: creditStalled},
		{name: "credit/every release grants a frame", run: creditEach},
		{name: "credit/busy when nothing is left to promise", run: creditBusy},
		{name: "credit/shared ring bounds memory", run: creditShared},
		{name: "credit/twenty transfers share a ring", run: creditMany},
		{name: "credit/idle transfers leave a ring to others", run: creditIdle},
		{name: "credit/busy transfers make room", run: creditRoom},
		{name: "credit/release twice", run: creditTwice},
	}
}

// stall sends frames of 500 bytes until the grants are used up: as many as the
// window has, and no more.
func (e *env) stall(out transport.Outgoing) { e.stallAt(out, testWindow) }

// stallAt is stall with a window of its own.
func (e *env) stallAt(out transport.Outgoing, window int) {
	e.Helper()
	what := fmt.Sprintf("send with a window of %d", window)
	for n := range window {
		e.must(e.send(out, piece{0, uint64(n * 500), 500}), what)
	}
	err := sendFrame(e.deadline(), e.data, out, []piece{{0, uint64(window * 500), 500}})
	if err == nil {
		e.Fatalf("%s: %d frames passed", what, window+1)
	}
	e.is(err, context.DeadlineExceeded, what)
}

// creditStalled: a receiver that does not release gets exactly a window of
// frames; Send then waits and is ended by its context, other transfers go on,
// and releasing lets the rest through.
func creditStalled(e *env) {
	ring := e.ring(testSlots, testPayload)
	p := e.pair(session.Options{SendRing: ring}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	e.stall(out)
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
	p := e.pair(session.Options{}, session.Options{})
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
	const slots = 6
	p := e.pair(session.Options{}, session.Options{RecvRing: e.ring(slots, testPayload)})
	outs, ins := e.openAll(p, slots)
	if n := len(outs); n < slots/2 {
		e.Errorf("%d transfers found room in a ring of %d slots", n, slots)
	}
	e.finishBoth(outs[0], ins[0])
	e.usable(p.A, p.B)
}

// openAll opens transfers until the receiver has no room, which has to come
// before there are more of them than limit.
func (e *env) openAll(p Pair, limit int) (outs []transport.Outgoing, ins []transport.Incoming) {
	e.Helper()
	for {
		opened := start(func() (transport.Outgoing, error) { return p.A.Open(e.ctx, transport.Request{Replayable: true}) })
		offer, err := p.B.Accept(e.ctx)
		e.must(err, "accept an offer")
		in, err := offer.Admit(nil)
		r := <-opened
		if err != nil {
			e.is(err, transport.ErrBusy, "admit without a slot to promise")
			e.is(r.err, transport.ErrBusy, "open without a slot to promise")
			return outs, ins
		}
		e.must(r.err, "open")
		if outs, ins = append(outs, r.v), append(ins, in); len(outs) > limit {
			e.Fatalf("%d transfers found room, the ring has %d slots", len(outs), limit)
		}
	}
}

// creditMany: a ring divides among transfers of several connections instead of
// refusing them, and all of them go on at the same time.
func creditMany(e *env) {
	const conns, each, size = 4, 5, 150_000
	ring := e.ring(63, testPayload)
	outs, sinks := make([]transport.Outgoing, 0, conns*each), make([]*sink, 0, conns*each)
	for range conns {
		p := e.pair(session.Options{}, session.Options{RecvRing: ring, Window: transport.DefaultWindow})
		for range each {
			out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
			outs, sinks = append(outs, out), append(sinks, e.sink(in))
		}
	}
	going := make(waits, 0, 2*conns*each)
	halfway := make(chan struct{})
	for i, out := range outs {
		rng, s := newRand(e.seed+uint64(i)), sinks[i]
		going = append(going, call(func() error { return s.run(e.ctx) }), call(func() error {
			ps := cut(rng, 1, size, 9000)
			if err := sendAll(e.ctx, e.data, rng, out, ps[:len(ps)/2]); err != nil {
				return err
			}
			<-halfway
			_, err := deliver(e.ctx, e.data, rng, out, ps[len(ps)/2:])
			return err
		}))
	}
	progress := within(e.h.soon(), func() bool {
		for _, s := range sinks {
			if s.bytes() == 0 {
				return false
			}
		}
		return true
	})
	close(halfway)
	if !progress {
		e.Errorf("a transfer gets nothing of a ring that others use")
	}
	for _, w := range going {
		e.ends(w, nil, "transfer over a shared ring")
	}
	for _, s := range sinks {
		s.covers(sized(1, size))
	}
}

// creditIdle: transfers that send nothing hold next to nothing of the ring: one
// that does gets all of its window.
func creditIdle(e *env) {
	const idle, window = 10, 16
	p := e.pair(session.Options{}, session.Options{RecvRing: e.ring(63, testPayload), Window: window})
	for range idle {
		e.open(p.A, p.B, transport.Request{Replayable: true})
	}
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	e.stallAt(out, window)
	in.Cancel("checked")
}

// creditRoom: a transfer that has grown gives slots back as it uses them when
// others come: whoever was refused finds room.
func creditRoom(e *env) {
	const slots = 8
	ring := e.ring(slots, testPayload)
	p := e.pair(session.Options{}, session.Options{RecvRing: ring, Window: slots})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	s := e.sink(in)
	done := call(func() error { return s.run(e.ctx) })
	frames := 0
	send := func(n int) {
		for range n {
			e.must(e.send(out, piece{0, uint64(frames) * 500, 500}), "send")
			frames++
		}
		e.must(out.Flush(e.ctx), "flush")
	}
	send(3 * slots)
	e.openAll(p, slots)
	send(3 * slots)
	e.usable(p.A, p.B)
	e.finish(out)
	e.ends(done, nil, "receive")
	s.covers(sized(1, frames*500))
}

// creditShared: connections that share a receive ring together never use more
// than its slots, whatever they are sent, and all get through.
func creditShared(e *env) {
	const conns, size = 3, 200_000
	ring := e.ring(8, testPayload)
	sinks := make([]*sink, 0, conns)
	going := make(waits, 0, 2*conns)
	for i := range conns {
		p := e.pair(session.Options{}, session.Options{RecvRing: ring, Window: 4})
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
	p := e.pair(session.Options{}, session.Options{})
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
