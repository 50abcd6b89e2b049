package transporttest

import (
	"context"
	"time"

	"pdlink/transport"
)

func keepChecks() []check {
	return []check{
		{name: "keep/lease waits for a slot", run: keepLease},
		{name: "keep/until every block is acknowledged", run: keepBlocks},
		{name: "keep/replayable slots come back at once", run: keepReplayable},
		{name: "keep/end of transfer frees all", run: keepEnd},
		{name: "keep/strange acknowledgements", run: keepStrange},
	}
}

// keepLease: with all slots leased, Lease waits, is ended by its context, and
// goes on when one is given back, sent or not.
func keepLease(e *env) {
	ring := e.ring(3, testPayload)
	p := e.pair(Options{SendRing: ring}, Options{})
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
	p := e.pair(Options{SendRing: ring}, Options{RecvRing: e.ring(8, testPayload), Window: 8})
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
	p := e.pair(Options{SendRing: ring}, Options{RecvRing: e.ring(8, testPayload), Window: 8})
	out, _ := e.open(p.A, p.B, transport.Request{Replayable: true})
	for i := range 8 {
		e.must(e.send(out, piece{uint32(i), 0, 100}), "send")
	}
	e.eventually(func() bool { return ring.InUse() == 0 }, "slots come back without being acknowledged")
}

// keepEnd: whichever way a transfer ends, its kept slots are free.
func keepEnd(e *env) {
	ring := e.ring(4, testPayload)
	p := e.pair(Options{SendRing: ring}, Options{})
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
	p := e.pair(Options{SendRing: ring}, Options{})
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
