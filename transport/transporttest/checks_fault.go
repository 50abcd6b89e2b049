package transporttest

import (
	"context"
	"errors"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

func faultChecks() []check {
	return []check{
		{name: "fault/damaged payload", run: faultPayload},
		{name: "fault/damage in a frame of many pieces", run: faultOnePiece},
		{name: "fault/damage everywhere, sent again", run: faultStorm},
		{name: "fault/damaged header", run: faultHeader},
		{name: "fault/damaged control message", run: faultControl},
		{name: "fault/cut at a random byte", run: faultCut},
		{name: "fault/cut while calls wait", run: faultCutWaiting},
		{name: "fault/truncated frame", run: faultTruncate},
		{name: "fault/half-closed", run: faultHalf},
		{name: "fault/black hole", run: faultHole},
		{name: "fault/delay", run: faultDelay},
	}
}

// broken is a pair with faults at the dialling end.
func (e *env) broken(a, b session.Options) (Pair, *Faults) {
	e.Helper()
	f := NewFaults(e.rng.Uint64())
	a.Intercept = f.Intercept
	return e.pair(a, b), f
}

// faultPayload: a damaged payload is never delivered, is reported by the next
// flush exactly once where the link does not keep it, is counted at both ends,
// and passes when sent again.
func faultPayload(e *env) {
	p, f := e.broken(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	s := e.sink(in)
	s.whole = 3000
	done := call(func() error { return s.run(e.ctx) })
	f.Corrupt(SentPayload, 1, -1)
	for i := range 3 {
		e.must(e.send(out, piece{0, uint64(i * 1000), 1000}), "send")
	}
	e.missing(out.Flush(e.ctx), piece{0, 1000, 1000})
	e.is(out.Flush(e.ctx), nil, "flush after the damaged piece was reported")
	if n := s.bytes(); n != 2000 {
		e.Errorf("%d bytes were delivered, want 2000", n)
	}
	e.must(e.send(out, piece{0, 1000, 1000}), "send again")
	o := e.finish(out)
	e.ends(done, nil, "receive")
	s.covers(sized(1, 3000))
	if got := in.Stats(); got.BadPiece != 1 || o.Stats.BadPiece != 1 {
		e.Errorf("%d bad pieces counted by the receiver, %d by the sender, want 1", got.BadPiece, o.Stats.BadPiece)
	}
}

// faultOnePiece: of a frame with several pieces only the damaged one is lost.
func faultOnePiece(e *env) {
	p, f := e.broken(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	f.Corrupt(SentPayload, 0, 1500)
	e.must(e.send(out, piece{0, 0, 1000}, piece{5, 7, 1000}, piece{2, 100, 1000}), "send")
	d := e.frame(in)
	got := d.Pieces()
	if len(got) != 2 || got[0].Block != 0 || got[1].Block != 2 {
		e.Errorf("pieces %v were delivered, want those of blocks 0 and 2", got)
	}
	d.Release()
	flushed := call(func() error { return out.Flush(e.ctx) })
	e.must(e.mark(in).Flushed(asPieces(piece{9, 0, 9})), "answer the mark")
	r := <-flushed
	e.missing(r.err, piece{5, 7, 1000}, piece{9, 0, 9})
	e.finishBoth(out, in)
}

// faultStorm: with one frame in a few damaged at a random byte a transfer ends
// right after some repeats, and no wrong byte is delivered.
func faultStorm(e *env) {
	p, f := e.broken(session.Options{Lanes: 2}, session.Options{Lanes: 2})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	for range 40 {
		f.Corrupt(SentPayload, e.rng.IntN(4), -1)
	}
	s := e.sink(in)
	done := call(func() error { return s.run(e.ctx) })
	o, err := deliver(e.ctx, e.data, e.rng, out, cut(e.rng, 3, 400_000, 15_000))
	e.must(err, "deliver")
	e.ends(done, nil, "receive")
	s.covers(sized(3, 400_000))
	if o.Stats.BadPiece == 0 || in.Stats().BadPiece != o.Stats.BadPiece {
		e.Errorf("%d bad pieces counted by the sender, %d by the receiver", o.Stats.BadPiece, in.Stats().BadPiece)
	}
}

// faultHeader: a damaged frame header ends the connection; nothing of the
// frame is delivered.
func faultHeader(e *env) {
	for at := range wire.FixedHeader + wire.PieceSize {
		p, f := e.broken(session.Options{}, session.Options{})
		out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
		f.Corrupt(SentHeader, 0, at)
		e.must(e.send(out, piece{0, 0, 100}), "send")
		d, err := in.Recv(e.ctx)
		if err == nil {
			e.Errorf("byte %d of a header: frame of %v was delivered", at, d.Pieces())
			d.Release()
		}
		e.is(err, transport.ErrProtocol, "receive a damaged header")
		_, err = out.Finish(e.ctx)
		e.is(err, transport.ErrLost, "finish after a damaged header")
		p.Close()
	}
}

// faultControl: a control message that is damaged anywhere, in the middle of
// whatever goes on, ends the connection with ErrProtocol at the end that reads
// it and with ErrLost at the other, and no wrong byte is delivered.
func faultControl(e *env) {
	hit := 0
	for i := range 40 {
		p, f := e.broken(session.Options{}, session.Options{})
		site, reads, says := SentControl, p.B, p.A
		if i%2 == 1 {
			site, reads, says = TakenControl, p.A, p.B
		}
		f.Corrupt(site, e.rng.IntN(4), -1)
		e.survive(p)
		if f.Corrupted() > 0 { // else the transfer had fewer messages
			hit++
			_, err := reads.Accept(e.ctx)
			e.is(err, transport.ErrProtocol, "accept at the end that read a damaged message")
			_, err = says.Accept(e.ctx)
			e.is(err, transport.ErrLost, "accept at the end whose message was damaged")
		}
		p.Close()
	}
	if hit < 20 {
		e.Errorf("only %d of 40 connections had a damaged message: they show too little", hit)
	}
}

// survive runs a transfer over a connection that is broken somehow: it may
// fail, and has to come to an end without a wrong byte. Without an error every
// byte has arrived.
func (e *env) survive(p Pair) {
	e.Helper()
	const blocks, size = 2, 60_000
	ctx, cancel := context.WithTimeout(e.ctx, 5*brief)
	defer cancel()
	var s *sink
	receiving := call(func() error {
		offer, err := p.B.Accept(ctx)
		if err != nil {
			return err
		}
		in, err := offer.Admit(nil)
		if err != nil {
			return err
		}
		s = e.sink(in)
		return s.run(ctx)
	})
	sent := e.attempt(ctx, p, blocks, size)
	if sent != nil {
		cancel()
	}
	r := <-receiving
	for _, err := range []error{sent, r.err} {
		if err != nil && !known(err) {
			e.Errorf("unnamed error: %v", err)
		}
	}
	if sent == nil && r.err == nil {
		s.covers(sized(blocks, size))
	}
}

// attempt sends one transfer from A.
func (e *env) attempt(ctx context.Context, p Pair, blocks, size int) error {
	out, err := p.A.Open(ctx, transport.Request{Replayable: true})
	if err != nil {
		return err
	}
	_, err = deliver(ctx, e.data, e.rng, out, cut(e.rng, blocks, size, 9000))
	return err
}

// known reports whether an error is one that the contract names for a
// connection that breaks.
func known(err error) bool {
	for _, want := range []error{
		transport.ErrLost, transport.ErrProtocol, transport.ErrCancelled, transport.ErrRefused, transport.ErrMissing,
		context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, want) {
			return true
		}
	}
	return false
}

// faultCut: a connection that is cut at any byte of any message or frame is
// lost for both ends, and no wrong byte is delivered.
func faultCut(e *env) {
	a := session.Options{SendRing: e.ring(testSlots, testPayload), RecvRing: e.ring(testSlots, testPayload)}
	b := session.Options{SendRing: e.ring(testSlots, testPayload), RecvRing: e.ring(testSlots, testPayload)}
	lost := 0
	for i := range e.h.tries() {
		f := NewFaults(e.rng.Uint64())
		f.CutAfter(e.rng.IntN(130_000))
		a.Intercept, b.Intercept = f.Intercept, nil
		if i%2 == 1 {
			a.Intercept, b.Intercept = nil, f.Intercept
		}
		p := e.h.Pair(e, e.fill(a), e.fill(b))
		lost += e.cutOnce(p)
		p.Close()
		for _, r := range []*transport.Ring{a.SendRing, a.RecvRing, b.SendRing, b.RecvRing} {
			idle(e, r)
		}
		if e.Failed() {
			e.Fatalf("connection %d", i)
		}
	}
	if lost < e.h.tries()/2 {
		e.Errorf("only %d of %d connections were lost: the cuts come too late to show anything", lost, e.h.tries())
	}
}

// cutOnce runs a transfer over a connection that may be cut and returns 1 when
// it was.
func (e *env) cutOnce(p Pair) int {
	const blocks, size = 2, 60_000
	var s *sink
	receiving := call(func() error {
		offer, err := p.B.Accept(e.ctx)
		if err != nil {
			return err
		}
		in, err := offer.Admit(nil)
		if err != nil {
			return err
		}
		s = e.sink(in)
		return s.run(e.ctx)
	})
	err := e.attempt(e.ctx, p, blocks, size)
	r := <-receiving
	if err == nil {
		// The receiver's last word passed, so it has finished.
		e.is(r.err, nil, "receive")
		s.covers(sized(blocks, size))
		return 0
	}
	e.is(err, transport.ErrLost, "send over a connection that was cut")
	if errors.Is(err, transport.ErrClosed) {
		e.Errorf("send over a connection that was cut: %v is %q", err, transport.ErrClosed)
	}
	// A receiver whose result was lost on the way cannot know.
	if r.err != nil {
		e.is(r.err, transport.ErrLost, "receive over a connection that was cut")
	}
	for _, c := range []transport.Conn{p.A, p.B} {
		_, err := c.Accept(e.ctx)
		e.is(err, transport.ErrLost, "accept on a connection that was cut")
	}
	return 1
}

// faultCutWaiting: a cut wakes every call of both ends.
func faultCutWaiting(e *env) {
	for _, s := range stages() {
		p, f := e.broken(session.Options{}, session.Options{})
		_, _, sending, receiving := e.at(p, s)
		f.Cut()
		for _, w := range append(sending, receiving...) {
			e.closed(w, false, "cut while "+s.name)
		}
		p.Close()
	}
}

// faultTruncate: a frame that ends too e.h.soon() is not delivered.
func faultTruncate(e *env) {
	for range 8 {
		p, f := e.broken(session.Options{}, session.Options{})
		out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
		e.must(e.send(out, piece{0, 0, 1000}), "send")
		e.frame(in).Release()
		f.Truncate()
		e.must(e.send(out, piece{0, 1000, 1 + e.rng.IntN(20_000)}), "send")
		d, err := in.Recv(e.ctx)
		if err == nil {
			e.Fatalf("a truncated frame was delivered: %v", d.Pieces())
		}
		if !errors.Is(err, transport.ErrLost) && !errors.Is(err, transport.ErrProtocol) {
			e.Errorf("receive a truncated frame: %v", err)
		}
		_, err = out.Finish(e.ctx)
		e.is(err, transport.ErrLost, "finish")
		p.Close()
	}
}

// faultHalf: a connection of which the peer ended one direction is lost for
// both ends.
func faultHalf(e *env) {
	p, f := e.broken(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	receiving := call(func() error { return e.drain(in) })
	f.HalfClose()
	e.must(e.send(out, piece{0, 0, 1000}), "send")
	e.ends(call(func() error { return out.Flush(e.ctx) }), transport.ErrLost, "flush over a half-closed connection")
	e.ends(receiving, transport.ErrLost, "receive over a half-closed connection")
}

// faultHole: on a connection that swallows everything calls end by their
// deadline, and Close does not wait for the peer.
func faultHole(e *env) {
	p, f := e.broken(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{})
	f.BlackHole()
	e.must(e.send(out, piece{0, 0, 1000}), "send")
	e.inTime("flush", out.Flush)
	e.inTime("receive", func(ctx context.Context) error { _, err := in.Recv(ctx); return err })
	e.inTime("open", func(ctx context.Context) error { _, err := p.A.Open(ctx, transport.Request{}); return err })
	e.inTime("open at the peer", func(ctx context.Context) error { _, err := p.B.Open(ctx, transport.Request{}); return err })
	begin := time.Now()
	e.ends(call(p.A.Close), nil, "close")
	e.ends(call(p.B.Close), nil, "close of the peer")
	if took := time.Since(begin); took > e.h.soon()/2 {
		e.Errorf("close took %v", took)
	}
}

// faultDelay: frames and messages that are late in any pattern change nothing.
func faultDelay(e *env) {
	p, f := e.broken(session.Options{Lanes: e.h.lanes()}, session.Options{Lanes: e.h.lanes()})
	f.Delay(2 * time.Millisecond)
	for range 2 {
		e.transfer(p.A, p.B, 2, 200_000)
		e.transfer(p.B, p.A, 1, 100_000)
	}
}
