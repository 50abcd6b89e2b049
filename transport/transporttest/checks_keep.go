package transporttest

import (
	"context"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
)

func keepChecks() []check {
	return []check{
		{name: "keep/lease waits for a slot", run: keepLease},
		{name: "keep/until every block is acknowledged", run: keepBlocks},
		{name: "keep/replayable slots come back at once", run: keepReplayable},
		{name: "keep/end of transfer frees all", run: keepEnd},
		{name: "keep/strange acknowledgements", run: keepStrange},
		{name: "keep/damaged pieces are sent again", run: keepDamaged},
		{name: "keep/damage everywhere, sent again", run: keepStorm},
		{name: "keep/missing pieces are sent again", run: keepMissing},
		{name: "keep/a link that lets nothing through is lost", run: keepHopeless},
	}
}

// keepLease: with all slots leased, Lease waits, is ended by its context, and
// goes on when one is given back, sent or not.
func keepLease(e *env) {
	ring := e.ring(3, testPayload)
	p := e.pair(session.Options{SendRing: ring}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	var held [3]*transport.Lease
	for i := range held {
		l, err := out.Lease(e.ctx)
		e.must(err, "lease")
		held[i] = l
	}
	_, err := out.Lease(e.deadline())
	e.is(err, context.DeadlineExceeded, "lease without a free slot")
	for i, give := range []func() error{
		func() error { held[0].Release(); return nil },
		func() error { held[1].Append(0, 0, e.bytes(10, 0)); return out.Send(e.ctx, held[1]) },
	} {
		waiting := call(func() error {
			l, err := out.Lease(e.ctx)
			if err == nil {
				held[i] = l
			}
			return err
		})
		e.blocks(waiting, "lease without a free slot")
		e.must(give(), "give a slot back")
		e.ends(waiting, nil, "lease after a slot came back")
	}
	for _, l := range held {
		l.Release()
	}
	e.recv(in).Release()
}

// keepBlocks: a slot whose transfer cannot be replayed is free only when every
// block that its frame touches is acknowledged.
func keepBlocks(e *env) {
	ring := e.ring(4, testPayload)
	p := e.pair(session.Options{SendRing: ring}, session.Options{RecvRing: e.ring(8, testPayload), Window: 8})
	out, in := e.open(p.A, p.B, transport.Request{})
	for _, f := range [][]piece{
		{{1, 0, 100}, {2, 0, 100}},
		{{2, 100, 100}},
		{{1, 100, 100}, {3, 0, 100}, {1, 200, 50}},
		{{4, 0, 100}},
	} {
		e.must(e.send(out, f...), "send")
		e.frame(in).Release()
	}
	kept := func(want int, after string) {
		e.Helper()
		e.eventually(func() bool { return ring.InUse() <= want }, "slots come back after "+after)
		time.Sleep(quiet)
		if n := ring.InUse(); n != want {
			e.Fatalf("%d slots are kept after %s, want %d", n, after, want)
		}
	}
	kept(4, "nothing was acknowledged")
	_, err := out.Lease(e.deadline())
	e.is(err, context.DeadlineExceeded, "lease while every slot is kept")
	e.must(in.Ack(1), "acknowledge")
	kept(4, "block 1 was acknowledged")
	e.must(in.Ack(2), "acknowledge")
	kept(2, "blocks 1 and 2 were acknowledged")
	e.must(in.Ack(4, 3), "acknowledge")
	kept(0, "all blocks were acknowledged")
	s := e.sink(in)
	done := call(func() error { return s.run(e.ctx) })
	e.finish(out)
	e.ends(done, nil, "receive")
}

// keepReplayable: a source that can be read again needs no acknowledgement.
func keepReplayable(e *env) {
	ring := e.ring(2, testPayload)
	p := e.pair(session.Options{SendRing: ring}, session.Options{Window: 8})
	out, _ := e.open(p.A, p.B, transport.Request{Replayable: true})
	for i := range 8 {
		e.must(e.send(out, piece{uint32(i), 0, 100}), "send")
	}
	e.eventually(func() bool { return ring.InUse() == 0 }, "slots come back without being acknowledged")
}

// keepEnd: whichever way a transfer ends, its kept slots are free.
func keepEnd(e *env) {
	ring := e.ring(4, testPayload)
	p := e.pair(session.Options{SendRing: ring}, session.Options{})
	e.keepAndEnd(p, ring, "finish", e.finishBoth)
	e.keepAndEnd(p, ring, "sender cancels", func(out transport.Outgoing, _ transport.Incoming) { out.Cancel("check") })
	e.keepAndEnd(p, ring, "receiver cancels", func(_ transport.Outgoing, in transport.Incoming) { in.Cancel("check") })
	e.keepAndEnd(p, ring, "connection lost", func(transport.Outgoing, transport.Incoming) { e.must(p.B.Close(), "close") })
}

func (e *env) keepAndEnd(p Pair, ring *transport.Ring, what string, end func(transport.Outgoing, transport.Incoming)) {
	e.Helper()
	out, in := e.open(p.A, p.B, transport.Request{})
	for i := range 3 {
		e.must(e.send(out, piece{uint32(i), 0, 100}), "send")
	}
	if n := ring.InUse(); n != 3 {
		e.Errorf("%d slots kept of 3 frames", n)
	}
	end(out, in)
	e.eventually(func() bool { return ring.InUse() == 0 }, "kept slots are free after: "+what)
}

func (e *env) finishBoth(out transport.Outgoing, in transport.Incoming) {
	e.Helper()
	s := e.sink(in)
	done := call(func() error { return s.run(e.ctx) })
	e.finish(out)
	e.ends(done, nil, "receive")
}

// keepStrange: acknowledgements of blocks that were never touched, doubled
// ones and empty ones do nothing; many at a time work.
func keepStrange(e *env) {
	ring := e.ring(8, testPayload)
	p := e.pair(session.Options{SendRing: ring}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{})
	e.must(in.Ack(), "acknowledge nothing")
	e.must(in.Ack(5, 6, 4_000_000_000, 5), "acknowledge untouched blocks")
	e.must(e.send(out, piece{9, 0, 100}), "send")
	e.frame(in).Release()
	e.must(in.Ack(8, 10, 11), "acknowledge neighbours")
	time.Sleep(quiet)
	if n := ring.InUse(); n != 1 {
		e.Errorf("%d slots kept, want 1: its block is not acknowledged", n)
	}
	const n = 20_000
	many := make([]uint32, 0, 2*n)
	for b := range uint32(n) {
		many = append(many, b*2+9, 9) // single blocks, so that no range joins them
	}
	e.must(in.Ack(many...), "acknowledge many blocks")
	e.eventually(func() bool { return ring.InUse() == 0 }, "slot comes back")
	e.must(in.Ack(9), "acknowledge again")
	e.finishBoth(out, in)
}

// keepDamaged: a piece that arrived damaged is sent again from the slot that is
// kept, by itself, so that a ring full of a block's frames does not wait for a
// piece that nobody can send.
func keepDamaged(e *env) {
	ring := e.ring(3, testPayload)
	p, f := e.broken(session.Options{SendRing: ring}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{})
	s := e.sink(in)
	s.whole = 3000
	done := call(func() error { return s.run(e.ctx) })
	f.Corrupt(SentPayload, 1, 1500)
	for b := range uint32(2) {
		for i := range uint64(3) {
			at := i * 1000
			e.must(e.send(out, piece{b, at, 300}, piece{b, at + 300, 300}, piece{b, at + 600, 400}), "send with every slot kept")
			f.Corrupt(SentPayload, 0, 700)
		}
	}
	o := e.finish(out)
	e.ends(done, nil, "receive")
	s.covers(sized(2, 3000))
	got := in.Stats()
	if bad := uint64(f.Corrupted()); got.BadPiece != bad || o.Stats.BadPiece != bad || bad < 4 {
		e.Errorf("%d pieces were damaged, the receiver counted %d, the sender %d", bad, got.BadPiece, o.Stats.BadPiece)
	}
	if counted(got) != counted(o.Stats) || got.Repeats == 0 || got.RepeatBytes == 0 || got.RepeatBytes >= got.Bytes/2 || got.Bytes-got.RepeatBytes != 6000 {
		e.Errorf("sent %+v, received %+v, want the same with less repeated than sent first", o.Stats, got)
	}
}

// keepStorm: with damage at random, of repeated frames too, a transfer whose frames
// are kept ends right without its caller.
func keepStorm(e *env) {
	const blocks, size = 6, 60_000
	p, f := e.broken(session.Options{SendRing: e.ring(2*size/testPayload+4, testPayload), Lanes: 2}, session.Options{Lanes: 2})
	out, in := e.open(p.A, p.B, transport.Request{})
	s := e.sink(in)
	s.whole = size
	done := call(func() error { return s.run(e.ctx) })
	for b, n := uint32(0), 0; b < blocks; b++ {
		for ; n < f.Corrupted()+3; n++ { // so many of one frame are no reason to give up
			f.Corrupt(SentPayload, e.rng.IntN(6), -1)
		}
		for at := 0; at < size; at += 20_000 {
			e.must(e.send(out, piece{b, uint64(at), 15_000}, piece{b, uint64(at + 15_000), 5_000}), "send")
		}
		e.must(out.Flush(e.ctx), "flush")
	}
	o, err := deliver(e.ctx, e.data, e.rng, out, nil)
	e.must(err, "finish")
	e.ends(done, nil, "receive")
	s.covers(sized(blocks, size))
	n, got := uint64(f.Corrupted()), in.Stats()
	if counted(o.Stats) != counted(got) || got.BadPiece != n || got.Repeats == 0 || got.Repeats > n {
		e.Errorf("%d pieces were damaged, sent %+v, received %+v", n, o.Stats, got)
	}
}

// keepMissing: what the receiver says it lacks is sent again from kept slots, and
// Flush asks again before it returns.
func keepMissing(e *env) {
	ring := e.ring(3, testPayload)
	p := e.pair(session.Options{SendRing: ring}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{})
	e.must(e.send(out, piece{0, 0, 1000}, piece{1, 0, 1000}, piece{0, 1000, 1000}), "send")
	e.must(e.send(out, piece{0, 2000, 1000}), "send")
	for range 2 {
		e.frame(in).Release()
	}
	flushing := call(func() error { return out.Flush(e.ctx) })
	e.must(e.mark(in).Flushed(asPieces(piece{1, 200, 300}, piece{0, 1500, 600})), "answer the mark")
	again := map[piece]bool{}
	for range 2 {
		d := e.frame(in)
		for _, p := range d.Pieces() {
			again[piece{p.Block, p.Offset, int(p.Length)}] = true
		}
		d.Release()
	}
	for _, p := range []piece{{1, 0, 1000}, {0, 1000, 1000}, {0, 2000, 1000}} {
		if !again[p] {
			e.Errorf("%v was not sent again, only %v", p, again)
		}
	}
	e.blocks(flushing, "flush before the receiver was asked again")
	e.must(e.mark(in).Flushed(nil), "answer the second mark")
	e.ends(flushing, nil, "flush")
	if n := in.Stats().Repeats; n != 2 {
		e.Errorf("%d frames were sent again, want 2", n)
	}
	e.finishBoth(out, in)
}

// keepHopeless: a connection on which the same bytes arrive damaged time and again is
// lost, also for who waits for a slot that never comes back, and another one carries
// what was kept.
func keepHopeless(e *env) {
	ring, saved := e.ring(2, testPayload), &transport.Salvage{}
	defer saved.Close()
	p, f := e.broken(session.Options{SendRing: ring}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Salvage: saved})
	s := e.sink(in)
	s.whole = 2000
	done := call(func() error { return s.run(e.ctx) })
	for range 50 {
		f.Corrupt(SentPayload, 0, -1)
	}
	// The last slot comes first: the connection may be lost as soon as the frame is sent.
	l, err := out.Lease(e.ctx)
	e.must(err, "lease the last slot")
	e.must(e.send(out, piece{0, 0, 1000}), "send")
	_, err = out.Lease(e.ctx)
	e.is(err, transport.ErrLost, "lease a slot that never comes back")
	e.is(err, transport.ErrDamaged, "lease a slot that never comes back")
	l.Release()
	if n := f.Corrupted(); n < 2 || n > 10 {
		e.Errorf("a frame was sent %d times before the connection was lost", n)
	}
	if r := <-done; r.err == nil {
		e.Errorf("receive went on")
	}
	p.A.Close() //nolint:errcheck // it is lost
	leases := saved.Take()
	if len(leases) != 1 || leases[0].Size() != 1000 {
		e.Fatalf("%d leases were saved, want the one that was sent", len(leases))
	}
	leases[0].Release()
}
