package transporttest

import (
	"context"
	"errors"
	"slices"

	"pdlink/transport"
	"pdlink/transport/session"
)

func flushChecks() []check {
	return []check{
		{name: "flush/waits for durable", run: flushWaits},
		{name: "flush/missing is listed once", run: flushMissing},
		{name: "flush/long missing list is cut", run: flushLong},
		{name: "flush/concurrent", run: flushConcurrent},
		{name: "flush/marks answered out of order", run: flushOrder},
	}
}

func finishChecks() []check {
	return []check{
		{name: "finish/result", run: finishResult},
		{name: "finish/missing, then again", run: finishMissing},
		{name: "finish/its context ends, then again", run: finishContext},
		{name: "finish/result before the end", run: finishEarly},
		{name: "finish/id is free afterwards", run: finishAgain},
		{name: "finish/too large a result", run: finishLarge},
	}
}

// missing checks that err lists exactly these pieces.
func (e *env) missing(err error, want ...piece) {
	e.Helper()
	var m *transport.MissingError
	if !errors.As(err, &m) || !errors.Is(err, transport.ErrMissing) {
		e.Errorf("error %v, want one that lists %v as missing", err, want)
		return
	}
	var have []piece
	for _, p := range m.Pieces {
		have = append(have, piece{p.Block, p.Offset, int(p.Length)})
	}
	if m.More || len(have) != len(want) || slices.ContainsFunc(want, func(p piece) bool { return !slices.Contains(have, p) }) {
		e.Errorf("missing %v (more: %v), want %v", have, m.More, want)
	}
}

// flushWaits: Flush returns when the receiver said that everything before the
// mark is durable, not before, and frames go on meanwhile.
func flushWaits(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	e.must(e.send(out, piece{0, 0, 1000}), "send")
	flushed := call(func() error { return out.Flush(e.ctx) })
	d := e.frame(in)
	e.blocks(flushed, "flush whose mark is not received")
	m := e.mark(in)
	e.blocks(flushed, "flush that the receiver has not answered")
	e.must(e.send(out, piece{0, 1000, 500}), "send during a flush")
	e.frame(in).Release()
	e.blocks(flushed, "flush that the receiver has not answered")
	e.must(m.Flushed(nil), "answer the mark")
	e.ends(flushed, nil, "flush")
	d.Release()
	panics(e, func() { m.Flushed(nil) }, "mark answered twice") //nolint:errcheck // must not return
	e.finishBoth(out, in)
}

// flushMissing: what the receiver lists reaches the sender once, bit for bit.
func flushMissing(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	lost := []piece{{3, 1 << 40, 77}, {0, 0, 1000}}
	flushed := call(func() error { return out.Flush(e.ctx) })
	e.must(e.mark(in).Flushed(asPieces(lost...)), "answer the mark")
	r := <-flushed
	e.missing(r.err, lost...)
	flushed = call(func() error { return out.Flush(e.ctx) })
	e.must(e.mark(in).Flushed(nil), "answer the mark")
	e.ends(flushed, nil, "flush after the missing pieces were listed")
	e.finishBoth(out, in)
}

// flushLong: a list longer than MaxMissing is cut, and says so.
func flushLong(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	for _, n := range []int{transport.MaxMissing, transport.MaxMissing + 1} {
		list := make([]transport.Piece, n)
		for i := range list {
			list[i] = transport.Piece{Block: uint32(i), Length: 1}
		}
		flushed := call(func() error { return out.Flush(e.ctx) })
		e.must(e.mark(in).Flushed(list), "answer the mark")
		r := <-flushed
		var m *transport.MissingError
		if !errors.As(r.err, &m) {
			e.Fatalf("flush: %v, want a list of missing pieces", r.err)
		}
		if len(m.Pieces) != transport.MaxMissing || m.More != (n > transport.MaxMissing) {
			e.Errorf("list of %d missing pieces arrived with %d, more %v", n, len(m.Pieces), m.More)
		}
		for i, p := range m.Pieces {
			if p.Block != uint32(i) || p.Length != 1 || p.Offset != 0 {
				e.Fatalf("entry %d of the missing list is %+v", i, p)
			}
		}
	}
	e.finishBoth(out, in)
}

// flushConcurrent: many flushes at a time all end.
func flushConcurrent(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	s := e.sink(in)
	done := call(func() error { return s.run(e.ctx) })
	var flushes [16]<-chan outcome[struct{}]
	for i := range flushes {
		e.must(e.send(out, piece{0, uint64(i * 10), 10}), "send")
		flushes[i] = call(func() error { return out.Flush(e.ctx) })
	}
	for _, w := range flushes {
		e.ends(w, nil, "one of many flushes")
	}
	e.finish(out)
	e.ends(done, nil, "receive")
	s.covers(sized(1, 160))
}

// flushOrder: each answer ends the flush of its own mark.
func flushOrder(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	first := call(func() error { return out.Flush(e.ctx) })
	m1 := e.mark(in)
	second := call(func() error { return out.Flush(e.ctx) })
	m2 := e.mark(in)
	e.must(m2.Flushed(asPieces(piece{2, 0, 2})), "answer the second mark")
	select {
	case r := <-second:
		e.missing(r.err, piece{2, 0, 2})
	case r := <-first:
		e.Fatalf("answering the second mark ended the first flush (%v)", r.err)
	case <-e.ctx.Done():
		e.Fatalf("flush: %v", e.ctx.Err())
	}
	e.blocks(first, "flush whose mark is not answered")
	e.must(m1.Flushed(asPieces(piece{1, 0, 1})), "answer the first mark")
	r := <-first
	e.missing(r.err, piece{1, 0, 1})
	e.finishBoth(out, in)
}

// finishResult: Finish waits for the receiver's result and returns it; the
// transfer has ended then.
func finishResult(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	e.must(e.send(out, piece{0, 0, 1000}, piece{1, 0, 10}), "send")
	finished := start(func() (transport.Outcome, error) { return out.Finish(e.ctx) })
	e.frame(in).Release()
	e.must(e.mark(in).Flushed(nil), "answer the mark of finish")
	e.eof(in)
	select {
	case r := <-finished:
		e.Fatalf("finish ended (error %v) before the receiver's result", r.err)
	default:
	}
	e.must(in.Finish([]byte("done")), "finish the receiver")
	r := <-finished
	e.must(r.err, "finish")
	if string(r.v.Result) != "done" || counted(r.v.Stats) != (transport.Stats{Frames: 1, Bytes: 1010, Pieces: 2}) {
		e.Errorf("outcome %+v", r.v)
	}
	if _, err := out.Lease(e.ctx); err == nil {
		e.Errorf("lease of a finished transfer succeeded")
	}
	if err := out.Flush(e.ctx); err == nil {
		e.Errorf("flush of a finished transfer succeeded")
	}
}

// finishMissing: Finish reports missing pieces without ending the transfer.
func finishMissing(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	e.must(e.send(out, piece{0, 0, 1000}), "send")
	finished := start(func() (transport.Outcome, error) { return out.Finish(e.ctx) })
	e.frame(in).Release()
	e.must(e.mark(in).Flushed(asPieces(piece{0, 200, 300})), "answer the mark of finish")
	r := <-finished
	e.missing(r.err, piece{0, 200, 300})
	e.must(e.send(out, piece{0, 200, 300}), "send the missing piece")
	finished = start(func() (transport.Outcome, error) { return out.Finish(e.ctx) })
	e.frame(in).Release()
	e.must(e.mark(in).Flushed(nil), "answer the mark of finish")
	e.eof(in)
	e.must(in.Finish([]byte("second")), "finish the receiver")
	r = <-finished
	e.must(r.err, "second finish")
	if string(r.v.Result) != "second" {
		e.Errorf("result %q", r.v.Result)
	}
}

// finishContext: a Finish that its context ends leaves the transfer as it is,
// wherever it was; another goes on.
func finishContext(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	e.must(e.send(out, piece{0, 0, 1000}), "send")
	stop := func() (context.CancelFunc, <-chan outcome[struct{}]) {
		ctx, cancel := context.WithCancel(e.ctx)
		return cancel, call(func() error { _, err := out.Finish(ctx); return err })
	}
	// While it flushes: more may be sent.
	cancel, finishing := stop()
	e.frame(in).Release()
	m := e.mark(in)
	cancel()
	e.ends(finishing, context.Canceled, "finish while it flushes")
	e.must(e.send(out, piece{0, 1000, 1000}), "send after a finish that was given up")
	e.frame(in).Release()
	e.must(m.Flushed(nil), "answer the mark of a finish that was given up")
	// While it waits for the result: nothing may.
	cancel, finishing = stop()
	e.must(e.mark(in).Flushed(nil), "answer the mark of finish")
	e.eof(in)
	cancel()
	e.ends(finishing, context.Canceled, "finish while it waits for the result")
	finishing = call(func() error { _, err := out.Finish(e.ctx); return err })
	e.blocks(finishing, "finish before the receiver's result")
	e.must(in.Finish([]byte("late")), "finish the receiver")
	e.ends(finishing, nil, "finish")
	if o := e.finish(out); string(o.Result) != "late" || o.Stats.Bytes != 2000 {
		e.Errorf("outcome %+v", o)
	}

	// Or it is cancelled.
	out, in = e.open(p.A, p.B, transport.Request{Replayable: true})
	cancel, finishing = stop()
	e.mark(in)
	cancel()
	e.ends(finishing, context.Canceled, "finish")
	out.Cancel("given up")
	_, err := in.Recv(e.ctx)
	e.is(err, transport.ErrCancelled, "receive")
}

// finishEarly: a receiver may finish before the end: the sender's calls fail
// as cancelled, and its Finish returns the result.
func finishEarly(e *env) {
	ring := e.ring(testSlots, testPayload)
	p := e.pair(session.Options{SendRing: ring}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{})
	for i := range testWindow {
		e.must(e.send(out, piece{0, uint64(i), 1}), "send")
	}
	held, err := out.Lease(e.ctx)
	e.must(err, "lease")
	waiting := call(func() error { return e.send(out, piece{0, 9, 1}) })
	flushed := call(func() error { return out.Flush(e.ctx) })
	e.blocks(waiting, "send without a grant")
	e.frame(in).Release()
	e.must(in.Finish([]byte("enough")), "finish before the end")
	e.leaseFails(out, transport.ErrCancelled)
	// One frame had been released, so the waiting send may have passed.
	if r := <-waiting; r.err != nil {
		e.is(r.err, transport.ErrCancelled, "send")
	}
	e.ends(flushed, transport.ErrCancelled, "flush")
	held.Append(0, 100, []byte{1})
	e.is(out.Send(e.ctx, held), transport.ErrCancelled, "send after the receiver finished")
	if o := e.finish(out); string(o.Result) != "enough" {
		e.Errorf("result %q", o.Result)
	}
	e.eventually(func() bool { return ring.InUse() == 0 }, "kept slots come back")
	e.usable(p.A, p.B)
}

// finishAgain: the id of a finished transfer may be used again.
func finishAgain(e *env) {
	p := e.pair(session.Options{}, session.Options{})
	id := transport.NewID()
	for range 5 {
		out, in := e.open(p.A, p.B, transport.Request{ID: id})
		e.must(e.send(out, piece{0, 0, 1000}), "send")
		e.finishBoth(out, in)
	}
}

// finishLarge: a result above MaxMeta is refused here, and a smaller one may
// follow.
func finishLarge(e *env) {
	p := e.pair(session.Options{MaxMeta: 1000}, session.Options{})
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	finished := start(func() (transport.Outcome, error) { return out.Finish(e.ctx) })
	e.must(e.mark(in).Flushed(nil), "answer the mark of finish")
	e.eof(in)
	e.is(in.Finish(make([]byte, 1001)), transport.ErrTooLarge, "result above the largest meta")
	e.must(in.Finish(make([]byte, 1000)), "result of the largest meta")
	r := <-finished
	e.must(r.err, "finish")
	if len(r.v.Result) != 1000 {
		e.Errorf("result of %d bytes, want 1000", len(r.v.Result))
	}
}
