package transporttest

import (
	"errors"

	"pdlink/transport"
	"pdlink/transport/session"
)

func salvageChecks() []check {
	return []check{
		{name: "salvage/kept frames outlive the connection", run: salvageFrames},
		{name: "salvage/frames go on over other connections", run: salvageCarry},
		{name: "salvage/frames of another ring", run: salvageMoved},
		{name: "salvage/frames that are too large for the next connection", run: salvageSplit},
		{name: "salvage/what the peer has is kept and not sent", run: salvageHeld},
		{name: "salvage/only what the peer lacks is sent", run: salvageNarrow},
		{name: "salvage/what ended leaves nothing", run: salvageEnded},
		{name: "salvage/cut at any time", run: salvageCut},
	}
}

// salvageFrames: frames that were kept when the connection ended, and one that
// came too late, are there with their pieces and bytes; those whose blocks were
// acknowledged are not.
func salvageFrames(e *env) {
	for _, end := range []func(Pair){
		func(p Pair) { p.B.Close() }, //nolint:errcheck // the connection is being lost
		func(p Pair) { p.A.Close() }, //nolint:errcheck // see its checks
	} {
		ring := e.ring(8, testPayload)
		p := e.pair(session.Options{SendRing: ring}, session.Options{})
		var saved transport.Salvage
		out, in := e.open(p.A, p.B, transport.Request{Salvage: &saved})
		late := e.filled(out, piece{3, 50, 70})
		e.must(e.send(out, piece{0, 0, 100}, piece{1, 0, 200}), "send")
		e.must(e.send(out, piece{2, 0, 300}), "send")
		e.must(e.send(out, piece{1, 200, 300}, piece{0, 100, 7}), "send")
		for range 3 {
			e.frame(in).Release()
		}
		e.must(in.Ack(2), "acknowledge")
		e.eventually(func() bool { return ring.InUse() == 3 }, "the acknowledged frame's slot comes back")
		end(p)
		_, err := out.Finish(e.ctx)
		if !errors.Is(err, transport.ErrLost) && !errors.Is(err, transport.ErrClosed) {
			e.Errorf("finish on a connection that ended: %v", err)
		}
		if err := out.Send(e.ctx, late); err == nil {
			e.Errorf("send on a connection that ended: no error")
		}
		p.Close()
		if n := ring.InUse(); n != 3 {
			e.Errorf("%d slots in use after the end, want those of 3 frames", n)
		}
		e.saved(saved.Take(), piece{0, 0, 100}, piece{1, 0, 200}, piece{1, 200, 300}, piece{0, 100, 7}, piece{3, 50, 70})
	}
}

// saved checks that leases have exactly these pieces, in this order, with their
// bytes, and releases them.
func (e *env) saved(leases []*transport.Lease, want ...piece) {
	e.Helper()
	var got []piece
	for _, l := range leases {
		for i, p := range l.Pieces() {
			got = append(got, piece{p.Block, p.Offset, int(p.Length)})
			if err := e.data.check(l.Data(i), p.Block, p.Offset); err != nil {
				e.Errorf("saved frame: %v", err)
			}
		}
		l.Release()
	}
	if len(got) != len(want) {
		e.Errorf("saved %v, want %v", got, want)
		return
	}
	for i := range want {
		if got[i] != want[i] {
			e.Errorf("saved %v, want %v", got, want)
			return
		}
	}
}

// salvageCarry: what one connection leaves the next one over the same ring sends
// without a copy, keeps, and leaves to the one after it.
func salvageCarry(e *env) {
	ring := e.ring(4, testPayload)
	var saved transport.Salvage
	req := transport.Request{ID: transport.NewID(), Salvage: &saved}
	for i := range 4 {
		p := e.pair(session.Options{SendRing: ring}, session.Options{})
		out, in := e.open(p.A, p.B, req)
		if i == 0 {
			for at := range uint64(4) { // every slot, so that a copy would find none
				e.must(e.send(out, piece{0, at * 1000, 1000}), "send")
			}
		}
		leases := saved.Take()
		if want := min(i, 1) * 4; len(leases) != want {
			e.Fatalf("%d frames saved after %d connections, want %d", len(leases), i, want)
		}
		for _, l := range leases {
			e.must(out.Send(e.ctx, l), "send what was saved")
		}
		if i < 3 {
			e.frame(in).Release()
			p.Close()
			continue
		}
		s := e.sink(in)
		s.whole = 4000
		done := call(func() error { return s.run(e.ctx) })
		o := e.finish(out)
		e.ends(done, nil, "receive")
		s.covers(sized(1, 4000))
		if o.Stats.Frames != 4 || o.Stats.Bytes != 4000 || o.Stats.Repeats != 0 {
			e.Errorf("sent %+v, want 4 frames of 1000 bytes", o.Stats)
		}
		p.Close()
	}
	e.saved(saved.Take())
}

// salvageMoved: a connection with another ring, and another checksum, takes the
// frames along as well, by a copy.
func salvageMoved(e *env) {
	first, second := e.ring(4, testPayload), e.ring(4, testPayload)
	var saved transport.Salvage
	p := e.pair(session.Options{SendRing: first, Sums: []string{transport.Sums()[0]}}, session.Options{})
	out, _ := e.open(p.A, p.B, transport.Request{Salvage: &saved})
	e.must(e.send(out, piece{0, 0, 1000}, piece{1, 0, 1000}), "send")
	e.must(e.send(out, piece{0, 1000, 1000}), "send")
	p.Close()
	p = e.pair(session.Options{SendRing: second, Sums: []string{transport.Sums()[1]}}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Salvage: &saved})
	for _, l := range saved.Take() {
		e.must(out.Send(e.ctx, l), "send a frame of another ring")
	}
	if n, m := first.InUse(), second.InUse(); n != 0 || m != 2 {
		e.Errorf("%d slots in use of the old ring and %d of the new, want 0 and 2", n, m)
	}
	s := e.sink(in)
	done := call(func() error { return s.run(e.ctx) })
	e.finish(out)
	e.ends(done, nil, "receive")
	s.covers(map[uint32]uint64{0: 2000, 1: 1000})
	p.Close()
	saved.Release() // nothing was acknowledged
}

// salvageSplit: a connection with smaller frames takes larger ones along in parts,
// over the same ring and over another one, of what the peer lacks only, and leaves to
// the one after it what it kept. Slots come back once all parts have.
func salvageSplit(e *env) {
	const large = 3*testPayload + 100 // of one piece
	for _, same := range []bool{true, false} {
		ring := e.ring(2, 4*testPayload)
		var saved transport.Salvage
		req := transport.Request{ID: transport.NewID(), Salvage: &saved}
		p := e.pair(session.Options{SendRing: ring, RecvRing: e.ring(2, 4*testPayload), Sums: []string{transport.Sums()[0]}},
			session.Options{SendRing: e.ring(2, 4*testPayload), RecvRing: e.ring(4, 4*testPayload)})
		out, in := e.open(p.A, p.B, req)
		e.must(e.send(out, piece{0, 0, large}, piece{1, 0, 50}), "send")
		e.must(e.send(out, append(manyPieces(testPayload), piece{2, 1, testPayload})[1:]...), "send")
		for range 2 {
			e.frame(in).Release()
		}
		p.Close()
		next := session.Options{Sums: []string{transport.Sums()[1]}, Lanes: 2} // parts of one slot go at the same time
		if same {
			next.SendRing = ring
		}
		had := 0
		for i := range 2 {
			p = e.pair(next, session.Options{Lanes: 2})
			if p.A.Facts().MaxPayload != testPayload {
				e.Fatalf("frames of %d bytes, want %d", p.A.Facts().MaxPayload, testPayload)
			}
			out, in = e.open(p.A, p.B, req)
			s := e.sink(in)
			done := call(func() error { return s.run(e.ctx) })
			for _, l := range saved.Take() {
				if i == 0 && l.Size() == large+50 {
					l.Narrow(0, 1)
				}
				had += l.Size()
				e.must(out.Send(e.ctx, l), "send what was saved")
			}
			o := e.finish(out)
			e.ends(done, nil, "receive")
			want := uint64(large + 2*testPayload - testPayload/transport.MaxPieces)
			if i == 1 {
				want += 50 // the peer has none of it, and nobody said so
			}
			if got := s.bytes(); got != want || o.Stats.Bytes != want || o.Stats.Frames < 6 {
				e.Errorf("connection %d: %d bytes arrived of %d, sent %+v", i, got, want, o.Stats)
			}
			p.Close()
		}
		if had != 2*(large+50+2*testPayload-testPayload/transport.MaxPieces) {
			e.Errorf("%d bytes were saved", had)
		}
		saved.Release() // nothing was acknowledged
		e.eventually(func() bool { return ring.InUse() == 0 }, "slots whose frames went in parts come back")
	}
}

// filled returns a lease with pieces.
func (e *env) filled(out transport.Outgoing, ps ...piece) *transport.Lease {
	e.Helper()
	l, err := out.Lease(e.ctx)
	e.must(err, "lease")
	for _, p := range ps {
		mem, err := l.Reserve(p.block, p.offset, p.length)
		e.must(err, "reserve")
		e.data.fill(mem, p.block, p.offset)
	}
	return l
}

// salvageHeld: a frame that the peer has needs no grant, comes not at all, is kept
// until its blocks are durable, also where that was said before, and is sent when
// the peer turns out to miss it.
func salvageHeld(e *env) {
	ring := e.ring(8, testPayload)
	p := e.pair(session.Options{SendRing: ring}, session.Options{Window: 1})
	out, in := e.open(p.A, p.B, transport.Request{})
	for b := range uint32(5) { // more than are granted
		l := e.filled(out, piece{b, 0, 100}, piece{b, 100, 50})
		l.Narrow(0, 0)
		if _, err := l.Reserve(b, 500, 1); err == nil {
			e.Errorf("a piece was added to a lease after it was narrowed")
		}
		e.must(out.Send(e.ctx, l), "keep a frame")
	}
	e.nothing(in, "receive what is only kept")
	e.must(in.Ack(1, 9), "acknowledge")
	e.eventually(func() bool { return ring.InUse() == 4 }, "the slot of a durable block comes back")
	flushing := call(func() error { return out.Flush(e.ctx) })
	e.must(e.mark(in).Flushed(asPieces(piece{3, 110, 10})), "answer the mark")
	d := e.frame(in)
	if got := d.Pieces(); len(got) != 1 || got[0].Block != 3 || got[0].Offset != 100 || got[0].Length != 50 {
		e.Errorf("pieces %v were sent, want the one that was missing", got)
	}
	d.Release()
	e.must(e.mark(in).Flushed(nil), "answer the second mark")
	e.ends(flushing, nil, "flush")
	l := e.filled(out, piece{9, 0, 100})
	l.Narrow(0, 0)
	e.must(out.Send(e.ctx, l), "keep a frame of a block that is durable")
	if n := ring.InUse(); n != 4 {
		e.Errorf("%d slots kept, want 4: one more frame's block was durable before it came", n)
	}
	e.must(in.Ack(0, 2, 3, 4), "acknowledge")
	e.eventually(func() bool { return ring.InUse() == 0 }, "slots of durable blocks come back")
	e.finishBoth(out, in)
}

// salvageNarrow: of a frame that is narrowed only some pieces are sent, and counted;
// the others are kept with them.
func salvageNarrow(e *env) {
	ring := e.ring(4, testPayload)
	p := e.pair(session.Options{SendRing: ring}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{})
	l := e.filled(out, piece{0, 0, 100}, piece{1, 0, 200}, piece{2, 0, 300}, piece{3, 0, 400})
	l.Narrow(1, 3)
	e.must(out.Send(e.ctx, l), "send")
	d := e.frame(in)
	if got := d.Pieces(); len(got) != 2 || got[0].Block != 1 || got[1].Block != 2 {
		e.Errorf("pieces %v were sent, want those of blocks 1 and 2", got)
	}
	d.Release()
	flushing := call(func() error { return out.Flush(e.ctx) })
	e.must(e.mark(in).Flushed(asPieces(piece{0, 0, 100})), "answer the mark")
	e.frame(in).Release()
	e.must(e.mark(in).Flushed(nil), "answer the second mark")
	e.ends(flushing, nil, "flush")
	if n := ring.InUse(); n != 1 {
		e.Errorf("%d slots kept, want 1", n)
	}
	s := e.sink(in)
	done := call(func() error { return s.run(e.ctx) })
	o := e.finish(out)
	e.ends(done, nil, "receive")
	if got := in.Stats(); counted(got) != counted(o.Stats) || got.Bytes != 600 || got.RepeatBytes != 100 {
		e.Errorf("sent %+v, received %+v, want 600 bytes, 100 of them repeated", o.Stats, got)
	}
}

// salvageEnded: a transfer that either end cancelled, or whose source can be read
// again, or whose blocks were all acknowledged leaves nothing. One with a result
// and without an acknowledgement leaves what it kept.
func salvageEnded(e *env) {
	for what, c := range map[string]struct {
		replayable bool
		leaves     int
		end        func(Pair, transport.Outgoing, transport.Incoming)
	}{
		"finish": {leaves: 1, end: func(_ Pair, out transport.Outgoing, in transport.Incoming) { e.finishBoth(out, in) }},
		"acknowledged": {end: func(_ Pair, out transport.Outgoing, in transport.Incoming) {
			e.must(in.Ack(0), "acknowledge")
			e.finishBoth(out, in)
		}},
		"result before the end": {leaves: 1, end: func(_ Pair, out transport.Outgoing, in transport.Incoming) {
			e.must(in.Finish(nil), "finish")
			e.finish(out)
		}},
		"sender cancels":   {end: func(_ Pair, out transport.Outgoing, _ transport.Incoming) { out.Cancel("check") }},
		"receiver cancels": {end: func(_ Pair, _ transport.Outgoing, in transport.Incoming) { in.Cancel("check") }},
		"replayable":       {replayable: true, end: func(p Pair, _ transport.Outgoing, _ transport.Incoming) { p.Close() }},
	} {
		ring := e.ring(4, testPayload)
		p := e.pair(session.Options{SendRing: ring}, session.Options{})
		var saved transport.Salvage
		out, in := e.open(p.A, p.B, transport.Request{Salvage: &saved, Replayable: c.replayable})
		e.must(e.send(out, piece{0, 0, 100}), "send")
		c.end(p, out, in)
		e.eventually(func() bool { return ring.InUse() == c.leaves }, "slots come back after: "+what)
		p.Close()
		e.saved(saved.Take(), []piece{{0, 0, 100}}[:c.leaves]...)
	}
}

// salvageCut: wherever the connection is cut, every byte that was given to Send is
// in a block that the receiver acknowledged, or is saved; a second connection
// brings the rest.
func salvageCut(e *env) {
	const blocks, size = 6, 30_000
	middle := 0
	for range max(e.h.tries()/8, 10) {
		todo := cut(e.rng, blocks, size, 9_000)
		ring := e.ring(2*len(todo)+2, testPayload) // all of them at both connections
		p, f := e.broken(session.Options{SendRing: ring, Lanes: 2}, session.Options{Lanes: 2})
		var saved transport.Salvage
		req := transport.Request{ID: transport.NewID(), Salvage: &saved}
		out, in := e.open(p.A, p.B, req)
		s := e.sink(in)
		s.whole = size
		done := call(func() error { return s.run(e.ctx) })
		f.CutAfter(e.rng.IntN(blocks * size * 5 / 4))
		for len(todo) > 0 && sendFrame(e.ctx, e.data, out, todo[:1]) == nil {
			todo = todo[1:]
		}
		if len(todo) == 0 {
			out.Flush(e.ctx) //nolint:errcheck // the cut comes sooner or later, or not at all
		}
		p.Close()
		<-done
		leases := saved.Take()
		if n := ring.InUse(); n != len(leases) {
			e.Fatalf("%d slots in use, %d frames saved", n, len(leases))
		}
		if len(todo) > 0 && len(leases) > 0 {
			middle++
		}
		e.complete(s, req, ring, leases, todo, sized(blocks, size))
	}
	if middle == 0 {
		e.Errorf("no connection was cut while frames were kept: the check shows nothing")
	}
}

// complete opens the transfer on a new connection, sends what was saved and what is
// left, and checks that the two connections brought everything.
func (e *env) complete(had *sink, req transport.Request, ring *transport.Ring, leases []*transport.Lease, todo []piece, want map[uint32]uint64) {
	e.Helper()
	p := e.pair(session.Options{SendRing: ring}, session.Options{})
	defer p.Close()
	out, in := e.open(p.A, p.B, req)
	s := e.sink(in)
	s.blocks, s.whole = had.blocks, had.whole
	done := call(func() error { return s.run(e.ctx) })
	for _, l := range leases {
		e.must(out.Send(e.ctx, l), "send what was saved")
	}
	for _, x := range todo {
		e.must(e.send(out, x), "send what is left")
	}
	e.finish(out)
	e.ends(done, nil, "receive")
	s.covers(want)
	p.Close()
	req.Salvage.Release() // of blocks that were whole before
}
