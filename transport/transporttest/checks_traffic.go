package transporttest

import (
	"errors"
	"io"
	"sync"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
)

func trafficChecks() []check {
	return []check{
		{name: "traffic/random frames", run: trafficRandom},
		{name: "traffic/kept until acknowledged", run: trafficKept},
		{name: "traffic/mark after frames", run: trafficMarks},
		{name: "traffic/both directions", run: trafficBothWays},
		{name: "traffic/64 transfers", run: trafficMany},
		{name: "traffic/slow receiver", run: trafficSlow},
		{name: "traffic/repeated piece", run: trafficRepeat},
		{name: "traffic/empty transfer and empty lease", run: trafficEmpty},
		{name: "traffic/concurrent calls", run: trafficConcurrent},
		{name: "traffic/given checksum", run: trafficGivenSum},
	}
}

// transfer moves blocks of size bytes from one end to the other and checks
// every byte and every count.
func (e *env) transfer(from, to transport.Conn, blocks, size int) {
	e.Helper()
	out, in := e.open(from, to, transport.Request{Replayable: true})
	s := e.sink(in)
	s.result = []byte("result")
	done := call(func() error { return s.run(e.ctx) })
	e.must(sendAll(e.ctx, e.data, e.rng, out, cut(e.rng, blocks, size, 9000)), "send")
	o := e.finish(out)
	e.ends(done, nil, "receive")
	s.covers(sized(blocks, size))
	got := in.Stats()
	if string(o.Result) != "result" {
		e.Errorf("result %q", o.Result)
	}
	if counted(got) != counted(o.Stats) || got.Bytes != uint64(blocks*size) || got.Frames != uint64(s.frames) || got.BadPiece != 0 {
		e.Errorf("sent %+v, received %+v, want the same with %d bytes and %d frames", o.Stats, got, blocks*size, s.frames)
	}
}

// trafficRandom: frames of random sizes and piece counts arrive whole over one
// lane and over several, several transfers on one connection.
func trafficRandom(e *env) {
	p := e.pair(session.Options{Lanes: e.h.lanes()}, session.Options{Lanes: e.h.lanes()})
	for range 3 {
		e.transfer(p.A, p.B, 1+e.rng.IntN(6), 1+e.rng.IntN(300_000))
	}
}

// trafficKept: a transfer whose slots are kept passes through a ring that is
// smaller than it, by acknowledging blocks.
func trafficKept(e *env) {
	const blocks, size = 12, 50_000
	p := e.pair(session.Options{SendRing: e.ring(2*size/testPayload+4, testPayload)}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{})
	s := e.sink(in)
	s.whole = size
	done := call(func() error { return s.run(e.ctx) })
	for b := range blocks {
		for at := 0; at < size; at += testPayload {
			e.must(e.send(out, piece{uint32(b), uint64(at), min(testPayload, size-at)}), "send")
		}
	}
	e.finish(out)
	e.ends(done, nil, "receive")
	s.covers(sized(blocks, size))
}

// trafficMarks: a mark comes after every frame that was sent before its flush,
// over any number of lanes.
func trafficMarks(e *env) {
	p := e.pair(session.Options{Lanes: e.h.lanes()}, session.Options{Lanes: e.h.lanes()})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	sent := make(chan int, 64)
	done := call(func() error {
		frames := 0
		for {
			d, err := in.Recv(e.ctx)
			if errors.Is(err, io.EOF) {
				return in.Finish(nil)
			}
			if err != nil {
				return err
			}
			if !d.Mark() {
				frames++
				d.Release()
				continue
			}
			if want := <-sent; frames < want {
				e.Errorf("mark after %d frames, %d were sent before it", frames, want)
			}
			if err := d.Flushed(nil); err != nil {
				return err
			}
		}
	})
	total := 0
	for range 20 {
		for range e.rng.IntN(7) {
			e.must(e.send(out, piece{0, uint64(total), 1 + e.rng.IntN(testPayload)}), "send")
			total++
		}
		sent <- total
		e.must(out.Flush(e.ctx), "flush")
	}
	sent <- total
	e.finish(out)
	e.ends(done, nil, "receive")
}

// trafficBothWays: either end opens transfers to the other at the same time.
func trafficBothWays(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	var group sync.WaitGroup
	for i, ends := range [][2]transport.Conn{{p.A, p.B}, {p.B, p.A}} {
		out, in := e.open(ends[0], ends[1], transport.Request{Replayable: true})
		rng, s := newRand(e.seed+uint64(i)), e.sink(in)
		ps := cut(rng, 2, 300_000, 20_000)
		group.Go(func() { e.is(s.run(e.ctx), nil, "receive") })
		group.Go(func() {
			_, err := deliver(e.ctx, e.data, rng, out, ps)
			e.is(err, nil, "deliver")
			s.covers(sized(2, 300_000))
		})
	}
	group.Wait()
}

// trafficMany: MaxTransfers transfers live on one connection at the same time,
// and one more is refused for now.
func trafficMany(e *env) {
	const n, size = transport.MaxTransfers, 20_000
	p := e.pair(session.Options{Lanes: 2}, session.Options{Lanes: 2, RecvRing: e.ring(n+2, testPayload/7), Window: 1})
	outs, sinks := make([]transport.Outgoing, n), make([]*sink, n)
	for i := range n {
		out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
		outs[i], sinks[i] = out, e.sink(in)
	}
	_, err := p.A.Open(e.ctx, transport.Request{})
	e.is(err, transport.ErrBusy, "one transfer too many")
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { e.is(sinks[i].run(e.ctx), nil, "receive") })
		group.Go(func() {
			rng := newRand(e.seed + uint64(i))
			_, err := deliver(e.ctx, e.data, rng, outs[i], cut(rng, 1, size, 3000))
			e.is(err, nil, "deliver")
		})
	}
	group.Wait()
	for _, s := range sinks {
		s.covers(sized(1, size))
	}
	e.usable(p.A, p.B)
}

// trafficSlow: a receiver that takes its time slows the sender and loses
// nothing.
func trafficSlow(e *env) {
	ring := e.ring(testSlots, testPayload)
	p := e.pair(session.Options{}, session.Options{RecvRing: ring, Window: 3})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	s := e.sink(in)
	s.pause = 2 * time.Millisecond
	done := call(func() error { return s.run(e.ctx) })
	for i := range 40 {
		e.must(e.send(out, piece{0, uint64(i * 1000), 1000}), "send")
		if n := ring.InUse(); n > 3+p.A.Facts().Lanes {
			e.Errorf("%d receive slots in use with a window of 3", n)
		}
	}
	e.finish(out)
	e.ends(done, nil, "receive")
	s.covers(sized(1, 40_000))
}

// trafficRepeat: the same piece may be sent again; what it means is the
// receiver's business.
func trafficRepeat(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	s := e.sink(in)
	done := call(func() error { return s.run(e.ctx) })
	for range 10 {
		e.must(e.send(out, piece{7, 100, 500}, piece{7, 0, 100}, piece{7, 50, 300}), "send")
	}
	e.finish(out)
	e.ends(done, nil, "receive")
	s.covers(map[uint32]uint64{7: 600})
	if s.frames != 10 || in.Stats().Pieces != 30 {
		e.Errorf("%d frames and %d pieces arrived, want 10 and 30", s.frames, in.Stats().Pieces)
	}
}

// trafficEmpty: a transfer without frames ends in order, and an empty lease is
// no frame.
func trafficEmpty(e *env) {
	ring := e.ring(testSlots, testPayload)
	p := e.pair(session.Options{SendRing: ring}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{})
	s := e.sink(in)
	done := call(func() error { return s.run(e.ctx) })
	e.must(e.send(out), "send an empty lease")
	if n := ring.InUse(); n != 0 {
		e.Errorf("%d slots in use after an empty lease was sent", n)
	}
	if o := e.finish(out); o.Stats != (transport.Stats{}) || len(o.Result) != 0 {
		e.Errorf("outcome of an empty transfer: %+v", o)
	}
	e.ends(done, nil, "receive")
	if s.frames != 0 {
		e.Errorf("%d frames arrived of an empty transfer", s.frames)
	}
}

// trafficConcurrent: several goroutines send and flush on one transfer, and
// several receive.
func trafficConcurrent(e *env) {
	const workers, frames = 4, 25
	p := e.pair(session.Options{Lanes: 2}, session.Options{Lanes: 2})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	s := e.sink(in)
	var receivers, senders sync.WaitGroup
	for range 3 {
		receivers.Go(func() {
			for {
				d, err := in.Recv(e.ctx)
				if errors.Is(err, io.EOF) {
					return
				}
				if err == nil {
					err = s.take(d)
				}
				if err != nil {
					e.Errorf("receive: %v", err)
					return
				}
			}
		})
	}
	for w := range workers {
		senders.Go(func() {
			for i := range frames {
				e.is(e.send(out, piece{uint32(w), uint64(i * 700), 700}), nil, "send")
			}
			e.is(out.Flush(e.ctx), nil, "flush")
		})
	}
	senders.Wait()
	done := call(func() error { _, err := out.Finish(e.ctx); return err })
	receivers.Wait()
	e.must(in.Finish(nil), "finish receiver")
	e.ends(done, nil, "finish")
	s.covers(sized(workers, frames*700))
}

// trafficGivenSum: a checksum that the caller gave is the one that is checked,
// so bytes that differ from it are not delivered.
func trafficGivenSum(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	sum, err := transport.SumByName(p.A.Facts().Sum)
	e.must(err, "checksum")
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	s := e.sink(in)
	done := call(func() error { return s.run(e.ctx) })
	for i, wrong := range []uint64{0, 1} {
		l, err := out.Lease(e.ctx)
		e.must(err, "lease")
		mem, err := l.Reserve(uint32(i), 0, 5000)
		e.must(err, "reserve")
		e.data.fill(mem, uint32(i), 0)
		l.SetSum(sum(mem) ^ wrong)
		e.must(out.Send(e.ctx, l), "send")
	}
	e.missing(out.Flush(e.ctx), piece{1, 0, 5000})
	e.must(e.send(out, piece{1, 0, 5000}), "send again")
	e.finish(out)
	e.ends(done, nil, "receive")
	s.covers(sized(2, 5000))
}
