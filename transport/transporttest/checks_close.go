package transporttest

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
)

func deadlineChecks() []check {
	return []check{
		{name: "deadline/every call that waits", run: deadlineEvery},
		{name: "deadline/ended before the call", run: deadlineBefore},
		{name: "deadline/flush again afterwards", run: deadlineFlush},
	}
}

func closeChecks() []check {
	return []check{
		{name: "close/here ends every call", run: func(e *env) { closeEverywhere(e, true) }},
		{name: "close/by the peer ends every call", run: func(e *env) { closeEverywhere(e, false) }},
		{name: "close/calls afterwards", run: closeAfter},
		{name: "close/what is out stays valid", run: closeHeld},
		{name: "close/both at once, twice", run: closeBoth},
		{name: "close/result is not lost", run: closeResult},
	}
}

// deadlineEvery: every call that has to wait is ended by its context.
func deadlineEvery(e *env) {
	p := e.pair(session.Options{SendRing: e.ring(testWindow+2, testPayload)}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{})
	var held [2]*transport.Lease
	e.inTime("open", func(ctx context.Context) error { _, err := p.B.Open(ctx, transport.Request{}); return err })
	e.inTime("accept", func(ctx context.Context) error { _, err := p.B.Accept(ctx); return err })
	e.inTime("receive", func(ctx context.Context) error { _, err := in.Recv(ctx); return err })
	e.givenUp(in, out).Flushed(nil) //nolint:errcheck // nobody waits for it any more
	e.stall(out)
	for i := range held {
		l, err := out.Lease(e.ctx)
		e.must(err, "lease")
		held[i] = l
	}
	e.inTime("lease", func(ctx context.Context) error { _, err := out.Lease(ctx); return err })
	held[0].Append(0, 0, []byte{1})
	e.inTime("send", func(ctx context.Context) error { return out.Send(ctx, held[0]) })
	held[1].Release()
	e.inTime("finish", func(ctx context.Context) error { _, err := out.Finish(ctx); return err })
}

// inTime checks that f is ended by the deadline of its context.
func (e *env) inTime(what string, f func(context.Context) error) {
	e.Helper()
	begin := time.Now()
	ctx := e.deadline()
	e.ends(call(func() error { return f(ctx) }), context.DeadlineExceeded, what)
	if took := time.Since(begin); took > e.h.soon()/2 {
		e.Errorf("%s: ended %v after a deadline of %v", what, took, brief)
	}
}

// deadlineBefore: a call that has to wait does not begin to when its context
// has ended.
func deadlineBefore(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	for what, f := range map[string]func() error{
		"accept":  func() error { _, err := p.A.Accept(ctx); return err },
		"open":    func() error { _, err := p.A.Open(ctx, transport.Request{}); return err },
		"receive": func() error { _, err := in.Recv(ctx); return err },
		"flush":   func() error { return out.Flush(ctx) },
		"finish":  func() error { _, err := out.Finish(ctx); return err },
		"lease":   func() error { _, err := out.Lease(ctx); return err },
		"send":    func() error { return sendOn(ctx, e, out) },
	} {
		e.ends(call(f), context.Canceled, what)
	}
}

// sendOn sends a lease that was had in time.
func sendOn(ctx context.Context, e *env, out transport.Outgoing) error {
	l, err := out.Lease(e.ctx)
	if err != nil {
		return err
	}
	l.Append(0, 0, []byte{1})
	return out.Send(ctx, l)
}

// givenUp flushes, receives the mark, and ends the flush by its context before
// the mark is answered.
func (e *env) givenUp(in transport.Incoming, out transport.Outgoing) *transport.Delivery {
	e.Helper()
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	flushing := call(func() error { return out.Flush(ctx) })
	m := e.mark(in)
	cancel()
	e.ends(flushing, context.Canceled, "flush that nobody answers")
	return m
}

// deadlineFlush: a flush that was given up does not confuse the next one.
func deadlineFlush(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	old := e.givenUp(in, out)
	flushed := call(func() error { return out.Flush(e.ctx) })
	m := e.mark(in)
	e.must(old.Flushed(nil), "answer the mark of a flush that was given up")
	e.blocks(flushed, "flush whose own mark is not answered")
	e.must(m.Flushed(nil), "answer the mark")
	e.ends(flushed, nil, "flush")
	e.finishBoth(out, in)
}

// closeEverywhere: Close at any point of a transfer ends every call of both
// ends: with ErrClosed where it was called, with ErrLost at the peer.
func closeEverywhere(e *env, sender bool) {
	for _, s := range stages() {
		p := e.pair(session.Options{}, session.Options{})
		out, in, sending, receiving := e.at(p, s)
		accepts := func(c transport.Conn) <-chan outcome[struct{}] {
			return call(func() error { _, err := c.Accept(e.ctx); return err })
		}
		sending, receiving = append(sending, accepts(p.A)), append(receiving, accepts(p.B))
		time.Sleep(quiet)
		first, second := p.A, p.B
		if !sender {
			first, second = p.B, p.A
		}
		e.ends(call(first.Close), nil, "close while "+s.name)
		for _, w := range sending {
			e.closed(w, sender, s.name)
		}
		for _, w := range receiving {
			e.closed(w, !sender, s.name)
		}
		e.closed(call(func() error { _, err := out.Lease(e.ctx); return err }), sender, "lease after "+s.name)
		e.closed(call(func() error { return out.Flush(e.ctx) }), sender, "flush after "+s.name)
		e.closed(call(func() error { _, err := out.Finish(e.ctx); return err }), sender, "finish after "+s.name)
		e.closed(call(func() error { return in.Ack(1) }), !sender, "acknowledge after "+s.name)
		e.closed(call(func() error { return in.Finish(nil) }), !sender, "result after "+s.name)
		if s.name != "finishing" { // there the receiver has seen the end
			e.closed(call(func() error { return e.drain(in) }), !sender, "receive after "+s.name)
		}
		e.ends(call(second.Close), nil, "close of the other end")
	}
}

// closed checks the error of a call that a Close ended: here or by the peer.
func (e *env) closed(w <-chan outcome[struct{}], here bool, what string) {
	e.Helper()
	want, not := transport.ErrClosed, transport.ErrLost
	if !here {
		want, not = not, want
	}
	select {
	case r := <-w:
		e.is(r.err, want, what)
		if errors.Is(r.err, not) {
			e.Errorf("%s: error %v is %q too", what, r.err, not)
		}
	case <-time.After(e.h.soon()):
		e.Fatalf("%s: not ended by close within %v", what, e.h.soon())
	}
}

// closeAfter: after Close everything says ErrClosed, which Is net.ErrClosed,
// and Close says nothing.
func closeAfter(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{})
	back, backIn := e.open(p.B, p.A, transport.Request{})
	e.must(p.A.Close(), "close")
	e.must(p.A.Close(), "close again")
	for what, f := range map[string]func() error{
		"open":    func() error { _, err := p.A.Open(e.ctx, transport.Request{}); return err },
		"accept":  func() error { _, err := p.A.Accept(e.ctx); return err },
		"lease":   func() error { _, err := out.Lease(e.ctx); return err },
		"flush":   func() error { return out.Flush(e.ctx) },
		"finish":  func() error { _, err := out.Finish(e.ctx); return err },
		"receive": func() error { _, err := backIn.Recv(e.ctx); return err },
		"result":  func() error { return backIn.Finish(nil) },
		"ack":     func() error { return backIn.Ack(1) },
	} {
		e.ends(call(f), transport.ErrClosed, what)
		e.ends(call(f), net.ErrClosed, what)
	}
	out.Cancel("after close")
	backIn.Cancel("after close")
	e.closed(call(func() error { return e.drain(in) }), false, "receive at the peer")
	e.closed(call(func() error { _, err := back.Finish(e.ctx); return err }), false, "finish at the peer")
	e.closed(call(func() error { _, err := p.B.Open(e.ctx, transport.Request{}); return err }), false, "open at the peer")
}

// closeHeld: leases and deliveries that are out when the connection ends stay
// valid until they are given back, here and at the peer.
func closeHeld(e *env) {
	send, recv := e.ring(testSlots, testPayload), e.ring(testSlots, testPayload)
	p := e.pair(session.Options{SendRing: send}, session.Options{RecvRing: recv})
	out, in := e.open(p.A, p.B, transport.Request{})
	e.must(e.send(out, piece{0, 0, 5000}), "send")
	d := e.frame(in)
	a, err := out.Lease(e.ctx)
	e.must(err, "lease")
	b, err := out.Lease(e.ctx)
	e.must(err, "lease")
	mem, err := a.Reserve(1, 0, 5000)
	e.must(err, "reserve")
	p.Close()
	e.data.fill(mem, 1, 0)
	e.is(e.data.check(d.Data(0), 0, 0), nil, "delivery held over close")
	e.is(out.Send(e.ctx, a), transport.ErrClosed, "send after close")
	b.Release()
	d.Release()
	if s, r := send.InUse(), recv.InUse(); s != 0 || r != 0 {
		e.Errorf("%d and %d slots in use after everything was given back", s, r)
	}
}

// closeBoth: Close from many goroutines at both ends while traffic flows.
func closeBoth(e *env) {
	for range 5 {
		p := e.pair(session.Options{}, session.Options{})
		out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
		s, rng := e.sink(in), newRand(e.rng.Uint64())
		receiving := call(func() error { return s.run(e.ctx) })
		sending := call(func() error { return sendAll(e.ctx, e.data, rng, out, cut(rng, 40, 400_000, 20_000)) })
		e.eventually(func() bool { return s.bytes() > 100_000 }, "traffic flows")
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() { e.is(p.A.Close(), nil, "close") })
			group.Go(func() { e.is(p.B.Close(), nil, "close") })
		}
		group.Wait()
		for what, w := range map[string]<-chan outcome[struct{}]{"receive": receiving, "send": sending} {
			r := <-w
			if !errors.Is(r.err, transport.ErrClosed) && !errors.Is(r.err, transport.ErrLost) {
				e.Errorf("%s: error %v, want closed or lost", what, r.err)
			}
		}
	}
}

// closeResult: what was said before Close in order reaches the peer: a result,
// and a finished transfer's bytes.
func closeResult(e *env) {
	for range 10 {
		p := e.pair(session.Options{}, session.Options{})
		out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
		e.must(e.send(out, piece{0, 0, 20_000}), "send")
		s := e.sink(in)
		s.result = e.bytes(100_000, 8)
		receiving := call(func() error {
			err := s.run(e.ctx)
			return errors.Join(err, p.B.Close())
		})
		if o := e.finish(out); len(o.Result) != len(s.result) {
			e.Errorf("result of %d bytes, want %d", len(o.Result), len(s.result))
		}
		e.ends(receiving, nil, "receive and close")
		p.Close()
	}
}
