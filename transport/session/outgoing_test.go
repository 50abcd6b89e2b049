package session_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// ack says that ranges of blocks, given as first and count, are durable.
func (b *bench) ack(handle uint32, ranges ...uint32) {
	m := &wire.Ack{Handle: handle}
	for i := 0; i < len(ranges); i += 2 {
		m.Ranges = append(m.Ranges, wire.BlockRange{First: ranges[i], Count: ranges[i+1]})
	}
	b.say(m)
}

// kept waits until n slots of the send ring are in use and checks that it stays
// so.
func (b *bench) kept(n int) {
	b.tb.Helper()
	eventually(b.tb, "slots are kept", func() bool { return b.send.InUse() == n })
	time.Sleep(5 * time.Millisecond)
	if got := b.send.InUse(); got != n {
		b.tb.Fatalf("%d slots kept, want %d", got, n)
	}
}

// TestKeep follows the slots of a source that cannot be read again: each is kept
// until every block that its frame touches is durable.
func TestKeep(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{})
	must(t, put(t.Context(), out, 1, 2, 1))
	must(t, put(t.Context(), out, 2, 9))
	must(t, put(t.Context(), out, 100))
	for range 3 {
		b.sent()
	}
	b.ack(n, 3, 6, 0, 1, 10, 90, 101, math.MaxUint32-100) // untouched, in any order
	b.kept(3)
	b.ack(n, 2, 1)
	b.kept(3)
	b.ack(n, 50, 60, 0, 2, 40, 70, 60, 1) // overlapping ranges that hold 1 and 100
	b.kept(1)
	// Another sender's bytes can make a block durable before ours leave.
	must(t, put(t.Context(), out, 1, 2))
	b.sent()
	b.kept(1)
	b.ack(n, 0, math.MaxUint32)
	b.kept(0)
	// What was durable before it was sent is not kept.
	b.say(&wire.Grant{Handle: n, Epoch: testEpoch, Total: testWindow + 1})
	must(t, put(t.Context(), out, 3, math.MaxUint32))
	b.sent()
	b.kept(0)
	out.Cancel("done")
	hear[*wire.Cancel](b.script)

	out, n = b.outgoing(transport.Request{})
	must(t, put(t.Context(), out, 3, math.MaxUint32))
	b.sent()
	b.ack(n, 1, math.MaxUint32-1)
	b.kept(1)
	b.ack(n, 1, math.MaxUint32, 0, 5, 2, 1) // up to the last block there can be
	b.kept(0)
	out.Cancel("done")
}

// TestReplayable frees slots when the link is done with them.
func TestReplayable(t *testing.T) {
	b := start(t, nil)
	out, _ := b.outgoing(transport.Request{Replayable: true})
	must(t, put(t.Context(), out, 1))
	b.sent()
	b.kept(0)
	out.Cancel("done")
}

// TestGrants sends what is granted and no more, whatever happens to grants on
// the way.
func TestGrants(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{Replayable: true})
	grant := func(total uint64, epoch uint32) { b.say(&wire.Grant{Handle: n, Epoch: epoch, Total: total}) }
	seen := make(map[uint64]bool)
	send := func(frames int) {
		t.Helper()
		for range frames {
			must(t, put(t.Context(), out, 1))
			seen[b.sent().Seq] = true
		}
	}
	blocked := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		is(t, put(ctx, out, 1), context.DeadlineExceeded)
	}
	send(testWindow)
	blocked()
	grant(testWindow+9, testEpoch+1) // of a connection that is gone
	grant(1, testEpoch)              // late
	blocked()
	grant(testWindow+2, testEpoch)
	grant(testWindow+1, testEpoch) // out of order
	send(2)
	blocked()
	// One grant wakes one of several, two wake two.
	waiting := []<-chan result[struct{}]{}
	for range 3 {
		waiting = append(waiting, asyncErr(func() error { return put(t.Context(), out, 1) }))
	}
	grant(testWindow+5, testEpoch)
	for _, w := range waiting {
		_, err := wait(t, w)
		must(t, err)
		seen[b.sent().Seq] = true
	}
	for seq := range uint64(testWindow + 5) {
		if !seen[seq] {
			t.Errorf("frame %d was not sent", seq)
		}
	}
	out.Cancel("done")
}

// TestMissing collects what is missing, from damaged frames and from the
// receiver's answers, and lists each piece once.
func TestMissing(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{Replayable: true})
	must(t, put(t.Context(), out, 1, 2))
	b.sent()
	piece := func(block uint32, at uint64) transport.Piece {
		return transport.Piece{Block: block, Offset: at, Length: 1}
	}
	// An answer that nobody waits for any more is kept for the next flush.
	ctx, cancel := context.WithCancel(t.Context())
	flushing := asyncErr(func() error { return out.Flush(ctx) })
	m := hear[*wire.Flush](b.script)
	if m.Frames != 1 {
		t.Errorf("flush of %d frames", m.Frames)
	}
	cancel()
	_, err := wait(t, flushing)
	is(t, err, context.Canceled)
	b.say(&wire.Flushed{Handle: n, Token: m.Token, Missing: []transport.Piece{piece(7, 0), piece(2, 0)}})
	b.say(&wire.Nack{Handle: n, Seq: 0, Pieces: []transport.Piece{piece(2, 0), piece(1, 0)}})

	flushing = asyncErr(func() error { return out.Flush(t.Context()) })
	b.say(&wire.Flushed{Handle: n, Token: hear[*wire.Flush](b.script).Token, More: true})
	_, err = wait(t, flushing)
	is(t, err, transport.ErrMissing)
	var missing *transport.MissingError
	if !errors.As(err, &missing) || !missing.More || len(missing.Pieces) != 3 ||
		missing.Pieces[0] != piece(1, 0) || missing.Pieces[1] != piece(2, 0) || missing.Pieces[2] != piece(7, 0) {
		t.Errorf("missing %+v", missing)
	}
	flushing = asyncErr(func() error { return out.Flush(t.Context()) })
	b.say(&wire.Flushed{Handle: n, Token: hear[*wire.Flush](b.script).Token})
	_, err = wait(t, flushing)
	must(t, err)
	out.Cancel("done")
}

// TestMissingBounded cuts a long list, lists the rest by the next flush, and
// gives a transfer up that misses without end.
func TestMissingBounded(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{Replayable: true})
	must(t, put(t.Context(), out, 1))
	at := uint64(0)
	pieces := func(count int) (list []transport.Piece) {
		for range count {
			at++
			list = append(list, transport.Piece{Block: 1, Offset: at, Length: 1})
		}
		return list
	}
	nack := func(frames int) {
		for range frames {
			b.say(&wire.Nack{Handle: n, Seq: 0, Pieces: pieces(transport.MaxPieces)})
		}
	}
	nack(40) // 5,040 pieces
	for _, want := range []int{transport.MaxMissing, 5040 - transport.MaxMissing, 0} {
		flushing := asyncErr(func() error { return out.Flush(t.Context()) })
		b.say(&wire.Flushed{Handle: n, Token: hear[*wire.Flush](b.script).Token})
		_, err := wait(t, flushing)
		var missing *transport.MissingError
		errors.As(err, &missing)
		switch {
		case want == 0:
			must(t, err)
		case missing == nil || len(missing.Pieces) != want || missing.More != (want == transport.MaxMissing):
			t.Errorf("want %d pieces, error %v", want, err)
		}
	}
	nack(600)
	if m := hear[*wire.Cancel](b.script); !m.FromOpener {
		t.Errorf("cancel %+v", m)
	}
	_, err := out.Lease(t.Context())
	is(t, err, transport.ErrCancelled)
}

// TestFlushes keeps within what a receiver takes at a time.
func TestFlushes(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{})
	var flushing []<-chan result[struct{}]
	for range 6 {
		flushing = append(flushing, asyncErr(func() error { return out.Flush(t.Context()) }))
	}
	seen := make(map[uint64]bool)
	next := func() uint64 {
		token := hear[*wire.Flush](b.script).Token
		if seen[token] {
			t.Errorf("token %d twice", token)
		}
		seen[token] = true
		return token
	}
	open := []uint64{next(), next(), next(), next()}
	b.silent()
	for answered := range 6 {
		b.say(&wire.Flushed{Handle: n, Token: open[0]})
		open = open[1:]
		if answered < 2 {
			open = append(open, next())
		}
	}
	for _, f := range flushing {
		if _, err := wait(t, f); err != nil {
			t.Fatal(err)
		}
	}
	out.Cancel("done")
}

// TestFinish says Finish only when all is durable, and once.
func TestFinish(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{Replayable: true})
	must(t, put(t.Context(), out, 1))
	finishing := async(func() (transport.Outcome, error) { return out.Finish(t.Context()) })
	first := hear[*wire.Flush](b.script)
	must(t, put(t.Context(), out, 1)) // while it flushes
	b.say(&wire.Flushed{Handle: n, Token: first.Token, Missing: []transport.Piece{{Block: 1, Length: 1}}})
	_, err := wait(t, finishing)
	is(t, err, transport.ErrMissing)
	must(t, put(t.Context(), out, 1))

	ctx, cancel := context.WithCancel(t.Context())
	finishing = async(func() (transport.Outcome, error) { return out.Finish(ctx) })
	m := hear[*wire.Flush](b.script)
	if m.Frames != 3 {
		t.Errorf("flush of %d frames", m.Frames)
	}
	must(t, put(t.Context(), out, 1)) // while it flushes again: flushed, too, before the end
	b.say(&wire.Flushed{Handle: n, Token: m.Token})
	m = hear[*wire.Flush](b.script)
	b.say(&wire.Flushed{Handle: n, Token: m.Token})
	if f := hear[*wire.Finish](b.script); f.Frames != 4 || m.Frames != 4 {
		t.Errorf("finish %d frames after a flush of %d", f.Frames, m.Frames)
	}
	_, err = out.Lease(t.Context())
	is(t, err, transport.ErrClosed)
	cancel()
	_, err = wait(t, finishing)
	is(t, err, context.Canceled)

	finishing = async(func() (transport.Outcome, error) { return out.Finish(t.Context()) })
	b.silent()
	b.say(&wire.Result{Handle: n, Meta: []byte("result")})
	o, err := wait(t, finishing)
	must(t, err)
	if string(o.Result) != "result" || o.Stats.Frames != 4 || o.Stats.Bytes != 4 || o.Stats.Pieces != 4 {
		t.Errorf("outcome %+v", o)
	}
	b.kept(0)
	b.say(&wire.Result{Handle: n}) // of a transfer that has ended: not heard
	b.say(&wire.Cancel{Handle: n})
	out.Cancel("late")
	b.silent()
}

// TestResultFirst lets a receiver finish while the sender is at work.
func TestResultFirst(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{})
	must(t, put(t.Context(), out, 1))
	flushing := asyncErr(func() error { return out.Flush(t.Context()) })
	hear[*wire.Flush](b.script)
	b.say(&wire.Result{Handle: n, Meta: []byte("enough")})
	_, err := wait(t, flushing)
	is(t, err, transport.ErrCancelled)
	is(t, put(t.Context(), out, 1), transport.ErrCancelled)
	for range 2 {
		o, err := out.Finish(t.Context())
		must(t, err)
		if string(o.Result) != "enough" {
			t.Errorf("result %q", o.Result)
		}
	}
	b.kept(0)
}

// TestCancelQueued drops frames that wait for a lane.
func TestCancelQueued(t *testing.T) {
	b := start(t, nil)
	b.written = make(chan frame) // lanes stall
	out, _ := b.outgoing(transport.Request{})
	for range testWindow {
		must(t, put(t.Context(), out, 1))
	}
	b.kept(testWindow)
	out.Cancel("enough")
	b.kept(2) // in the hands of the two lanes
	<-b.written
	<-b.written
	b.kept(0)
	select {
	case <-b.written:
		t.Error("a frame of a cancelled transfer was written")
	case <-time.After(10 * time.Millisecond):
	}
}

// TestLease covers what a caller can do wrong with a lease.
func TestLease(t *testing.T) {
	b := start(t, nil)
	out, _ := b.outgoing(transport.Request{Replayable: true})
	l, err := out.Lease(t.Context())
	must(t, err)
	if l.Room() != testPayload {
		t.Errorf("room of %d", l.Room())
	}
	must(t, out.Send(t.Context(), l)) // empty: nothing is sent
	mustPanic(t, "send of an ended lease", func() { out.Send(t.Context(), l) })
	b.kept(0)

	large, err := transport.NewRing(2, 4*testPayload)
	must(t, err)
	slot, err := large.Take(t.Context(), nil)
	must(t, err)
	l = transport.NewLease(large.Payload(), "", nil)
	l.Held().Reset(slot)
	if _, err := l.Reserve(0, 5, testPayload+1); err != nil {
		t.Fatal(err)
	}
	must(t, out.Send(t.Context(), l)) // in parts
	// Over whichever lane, so in any order.
	for range 2 {
		h := b.sent()
		if p := h.Pieces[0]; len(h.Pieces) != 1 || p.Range() != (transport.Range{Begin: 5, End: testPayload + 5}) && p.Range() != (transport.Range{Begin: testPayload + 5, End: testPayload + 6}) {
			t.Errorf("sent %+v", h.Pieces)
		}
	}
	idle(t, large)
	out.Cancel("done")
}

// TestSendOfPartsThatEnds: when the connection ends between the parts of a large
// frame, all of it is saved; when the context does, what was not queued is lost.
func TestSendOfPartsThatEnds(t *testing.T) {
	large, err := transport.NewRing(2, (testWindow+2)*testPayload+transport.HeaderRoom)
	must(t, err)
	for _, lost := range []bool{true, false} {
		var saved transport.Salvage
		b := start(t, func(o *session.Options) { o.SendRing = large })
		out, _ := b.outgoing(transport.Request{Salvage: &saved})
		slot, err := large.Take(t.Context(), nil)
		must(t, err)
		l := transport.NewLease(large.Payload(), "", nil)
		l.Held().Reset(slot)
		if _, err := l.Reserve(0, 0, (testWindow+2)*testPayload); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		sending := asyncErr(func() error { return out.Send(ctx, l) })
		for range testWindow {
			b.sent()
		}
		left, want := 0, context.Canceled
		if lost {
			left, want = testWindow+2, transport.ErrLost
			close(b.laneEnd)
			_, err = wait(t, sending)
			cancel()
		} else {
			cancel()
			_, err = wait(t, sending)
		}
		is(t, err, want)
		if !lost {
			out.Cancel("a part is lost")
		}
		must(t, b.c.Close())
		leases := saved.Take()
		covered := transport.BlockCoverage{}
		for _, l := range leases {
			for _, p := range l.Pieces() {
				covered.Add(p)
			}
			l.Release()
		}
		if len(leases) != left || lost && !covered.Covers(transport.Piece{Length: (testWindow + 2) * testPayload}) {
			t.Errorf("lost %v: %d parts saved, want %d, with %+v", lost, len(leases), left, covered[0])
		}
		if n := large.InUse(); n != 0 {
			t.Errorf("lost %v: %d slots in use", lost, n)
		}
	}
	must(t, large.Close())
}

// TestFinishTellsWhatWasSent, also when it fails.
func TestFinishTellsWhatWasSent(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{})
	must(t, put(t.Context(), out, 1, 2))
	h := b.sent()
	b.say(&wire.Nack{Handle: n, Seq: h.Seq, Pieces: h.Pieces[1:]})
	b.sent()
	must(t, b.c.Close())
	o, err := out.Finish(t.Context())
	is(t, err, transport.ErrClosed)
	if want := (transport.Stats{Frames: 2, Bytes: 3, Pieces: 3, BadPiece: 1, Repeats: 1, RepeatBytes: 1}); o.Stats != want {
		t.Errorf("sent %+v, want %+v", o.Stats, want)
	}
}

// TestOpen covers the answers to an offer.
func TestOpen(t *testing.T) {
	b := start(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	opened := async(func() (transport.Outgoing, error) { return b.c.Open(ctx, transport.Request{}) })
	n := hear[*wire.Open](b.script).Handle
	cancel()
	_, err := wait(t, opened)
	is(t, err, context.Canceled)
	if m := hear[*wire.Cancel](b.script); m.Handle != n || !m.FromOpener {
		t.Errorf("cancel %+v", m)
	}
	b.say(&wire.Admit{Handle: n, Window: 1}) // crossed the cancel: not heard

	for code, want := range map[transport.RefuseCode]error{
		transport.RefuseOther: transport.ErrRefused, transport.RefuseBusy: transport.ErrBusy,
		transport.RefuseDuplicate: transport.ErrDuplicate,
	} {
		n, opened := b.opening(transport.Request{})
		b.ack(n, 1, 1) // means nothing yet
		b.say(&wire.Refuse{Handle: n, Code: code, Reason: "because"})
		_, err := wait(t, opened)
		is(t, err, want)
	}
	for range transport.MaxTransfers {
		b.outgoing(transport.Request{})
	}
	_, err = b.c.Open(t.Context(), transport.Request{})
	is(t, err, transport.ErrBusy)
	_, err = b.c.Open(t.Context(), transport.Request{Meta: make([]byte, testMeta+1)})
	is(t, err, transport.ErrTooLarge)
	b.silent()
}

// TestKind refuses what cannot be encoded without harm to the connection.
func TestKind(t *testing.T) {
	b := start(t, nil)
	_, err := b.c.Open(t.Context(), transport.Request{Kind: "\x00"})
	is(t, err, transport.ErrInvalid)
	out, _ := b.outgoing(transport.Request{})
	out.Cancel("\x00\xff")
	if m := hear[*wire.Cancel](b.script); m.Reason != "??" {
		t.Errorf("reason %q", m.Reason)
	}
}
