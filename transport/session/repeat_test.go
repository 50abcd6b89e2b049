package session_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// wrote checks the next frame that the session writes: its header, and that its payload is
// what put gives the blocks that it lists.
func (b *bench) wrote(seq uint64, repeat bool, blocks ...uint32) {
	b.tb.Helper()
	var f frame
	select {
	case f = <-b.written:
	case <-time.After(soon):
		b.tb.Fatalf("frame %d is not written", seq)
	}
	h, err := wire.DecodeFrame(f.header, testPayload, nil)
	must(b.tb, err)
	var got []uint32
	want := make([]byte, 0, len(blocks))
	for _, p := range h.Pieces {
		got = append(got, p.Block)
		want = append(want, byte(p.Block))
	}
	if h.Seq != seq || h.Repeat != repeat || !slices.Equal(got, blocks) || !slices.Equal(f.payload, want) {
		b.tb.Fatalf("frame %d, repeat %v, of blocks %v, payload %v; want frame %d, repeat %v, of blocks %v",
			h.Seq, h.Repeat, got, f.payload, seq, repeat, blocks)
	}
}

// bad is the pieces of blocks as put makes them.
func bad(blocks ...uint32) (list []transport.Piece) {
	for _, n := range blocks {
		list = append(list, transport.Piece{Block: n, Length: 1})
	}
	return list
}

// answer answers the session's next flush and returns how many frames it spoke
// of.
func (b *bench) answer(handle uint32, missing ...transport.Piece) uint64 {
	b.tb.Helper()
	m := hear[*wire.Flush](b.script)
	b.say(&wire.Flushed{Handle: handle, Token: m.Token, Missing: missing})
	return m.Frames
}

// missing checks what a flush lists.
func missing(tb testing.TB, err error, want ...transport.Piece) {
	tb.Helper()
	var m *transport.MissingError
	if !errors.As(err, &m) || m.More || !slices.Equal(m.Pieces, want) {
		tb.Errorf("error %v, want one that lists %v", err, want)
	}
}

// grants lets the session send so many frames in all.
func (b *bench) grants(handle uint32, total uint64) {
	b.say(&wire.Grant{Handle: handle, Epoch: testEpoch, Total: total})
}

// TestRepeatDamaged sends what arrived damaged again from the slot that is kept,
// from the first bad piece to the last and nothing else.
func TestRepeatDamaged(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{})
	b.grants(n, 100)
	must(t, put(t.Context(), out, 1, 2, 3, 4))
	b.wrote(0, false, 1, 2, 3, 4)
	for seq, blocks := range [][]uint32{{2}, {2, 3, 4}, {3}} {
		b.say(&wire.Nack{Handle: n, Seq: uint64(seq), Pieces: bad(blocks[0], blocks[len(blocks)-1])})
		b.wrote(uint64(seq)+1, true, blocks...)
	}
	b.ack(n, 1, 4)
	b.kept(0)

	// Another frame begins anew.
	must(t, put(t.Context(), out, 5))
	b.wrote(4, false, 5)
	b.say(&wire.Nack{Handle: n, Seq: 4, Pieces: bad(5)})
	b.wrote(5, true, 5)
	b.ack(n, 5, 1)
	b.kept(0)
	finishing := async(func() (transport.Outcome, error) { return out.Finish(t.Context()) })
	b.answer(n)
	hear[*wire.Finish](b.script)
	b.say(&wire.Result{Handle: n})
	o, err := wait(t, finishing)
	must(t, err)
	if want := (transport.Stats{Frames: 6, Bytes: 11, Pieces: 11, BadPiece: 7, Repeats: 4, RepeatBytes: 6}); o.Stats != want {
		t.Errorf("stats %+v, want %+v", o.Stats, want)
	}
}

// TestRepeatHopeless: a connection on which the same bytes fail a fourth time is lost,
// also for a caller that waits for a slot and does not ask, and for one that asks.
func TestRepeatHopeless(t *testing.T) {
	for _, c := range []struct {
		what string
		call func(context.Context, transport.Outgoing) error
		fail func(b *bench, n uint32, seq uint64)
	}{
		{"damaged, while the caller waits for a slot", func(ctx context.Context, out transport.Outgoing) error {
			var held []*transport.Lease
			l, err := out.Lease(ctx)
			for ; err == nil; l, err = out.Lease(ctx) {
				held = append(held, l)
			}
			for _, l := range held {
				l.Release()
			}
			return err
		}, func(b *bench, n uint32, seq uint64) { b.say(&wire.Nack{Handle: n, Seq: seq, Pieces: bad(2)}) }},
		{"missing, while the caller asks", func(ctx context.Context, out transport.Outgoing) error { return out.Flush(ctx) },
			func(b *bench, n uint32, _ uint64) { b.answer(n, bad(2)...) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			b := start(t, nil)
			out, n := b.outgoing(transport.Request{})
			b.grants(n, 100)
			must(t, put(t.Context(), out, 1, 2))
			b.wrote(0, false, 1, 2)
			calling := asyncErr(func() error { return c.call(t.Context(), out) })
			for seq := range uint64(3) {
				c.fail(b, n, seq)
				b.wrote(seq+1, true, 2)
			}
			c.fail(b, n, 3)
			_, err := wait(t, calling)
			is(t, err, transport.ErrLost)
			is(t, err, transport.ErrDamaged)
			if err == nil || !strings.Contains(err.Error(), "block 2") {
				t.Errorf("error %v does not name the block", err)
			}
		})
	}
}

// TestRepeatMissing sends again what the receiver says it lacks, as far as kept
// slots have it, and asks again before the flush ends.
func TestRepeatMissing(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{})
	b.grants(n, 100)
	must(t, put(t.Context(), out, 1, 2))
	b.wrote(0, false, 1, 2)
	must(t, put(t.Context(), out, 3))
	b.wrote(1, false, 3)
	must(t, put(t.Context(), out, 4))
	b.wrote(2, false, 4)
	b.ack(n, 4, 1)
	b.kept(2)
	finishing := async(func() (transport.Outcome, error) { return out.Finish(t.Context()) })
	long := transport.Piece{Block: 3, Length: 10} // ours is its first byte
	if frames := b.answer(n, append(bad(2, 9), long)...); frames != 3 {
		t.Errorf("flush of %d frames, want 3", frames)
	}
	again := []uint64{0, 0}
	for range 2 { // in whatever order
		f := <-b.written
		h, err := wire.DecodeFrame(f.header, testPayload, nil)
		must(t, err)
		if !h.Repeat || len(h.Pieces) != 1 || f.payload[0] != byte(h.Pieces[0].Block) {
			t.Fatalf("frame %+v with %v", h, f.payload)
		}
		again[h.Pieces[0].Block-2]++
	}
	if again[0] != 1 || again[1] != 1 {
		t.Errorf("blocks 2 and 3 were sent again %v times, want once each", again)
	}
	if frames := b.answer(n); frames != 5 {
		t.Errorf("second flush of %d frames, want 5", frames)
	}
	_, err := wait(t, finishing)
	missing(t, err, transport.Piece{Block: 3, Offset: 1, Length: 9}, bad(9)[0])

	finishing = async(func() (transport.Outcome, error) { return out.Finish(t.Context()) })
	b.answer(n, bad(1)...)
	b.wrote(5, true, 1)
	b.answer(n)
	if m := hear[*wire.Finish](b.script); m.Frames != 6 {
		t.Errorf("finish of %d frames, want 6", m.Frames)
	}
	b.say(&wire.Result{Handle: n})
	_, err = wait(t, finishing)
	must(t, err)
}

// TestRepeatNotYet leaves alone what was sent after the flush: it is on its way.
func TestRepeatNotYet(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{})
	must(t, put(t.Context(), out, 1))
	b.wrote(0, false, 1)
	flushing := asyncErr(func() error { return out.Flush(t.Context()) })
	m := hear[*wire.Flush](b.script)
	must(t, put(t.Context(), out, 2))
	b.wrote(1, false, 2)
	b.say(&wire.Flushed{Handle: n, Token: m.Token, Missing: bad(2)})
	_, err := wait(t, flushing)
	must(t, err)
	b.silent()
	if len(b.written) > 0 {
		t.Error("a frame was sent again that had not had the time to arrive")
	}
	out.Cancel("done")
}

// TestRepeatCutList asks again after a list that was cut, and forgets that it was.
func TestRepeatCutList(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{})
	must(t, put(t.Context(), out, 1))
	b.wrote(0, false, 1)
	must(t, put(t.Context(), out, 2))
	b.wrote(1, false, 2)
	flushing := asyncErr(func() error { return out.Flush(t.Context()) })
	m := hear[*wire.Flush](b.script)
	b.say(&wire.Flushed{Handle: n, Token: m.Token, Missing: bad(1), More: true})
	b.wrote(2, true, 1)
	b.answer(n, bad(2)...)
	b.wrote(3, true, 2)
	b.answer(n)
	_, err := wait(t, flushing)
	must(t, err)
	out.Cancel("done")
}

// TestRepeatWaitsForGrant sends again within what is granted, before anything
// that is new.
func TestRepeatWaitsForGrant(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{})
	for i := range uint32(testWindow) {
		must(t, put(t.Context(), out, i))
		b.wrote(uint64(i), false, i)
	}
	sending := asyncErr(func() error { return put(t.Context(), out, 9) })
	b.kept(testWindow + 1)
	b.say(&wire.Nack{Handle: n, Seq: 2, Pieces: bad(2)})
	flushing := asyncErr(func() error { return out.Flush(t.Context()) })
	b.answer(n)
	b.silent() // it asks again when the piece is on its way
	if len(b.written) > 0 {
		t.Error("a frame that was not granted")
	}
	b.grants(n, testWindow+1)
	b.wrote(testWindow, true, 2)
	if frames := b.answer(n); frames != testWindow+1 {
		t.Errorf("flush of %d frames", frames)
	}
	_, err := wait(t, flushing)
	must(t, err)
	b.grants(n, testWindow+2)
	_, err = wait(t, sending)
	must(t, err)
	b.wrote(testWindow+1, false, 9)
	out.Cancel("done")
}

// TestRepeatForgiven drops what waits to be sent again when its blocks become
// durable, by whoever sent them.
func TestRepeatForgiven(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{})
	for i := range uint32(testWindow) {
		must(t, put(t.Context(), out, i))
		b.wrote(uint64(i), false, i)
	}
	b.say(&wire.Nack{Handle: n, Seq: 2, Pieces: bad(2)})
	b.say(&wire.Nack{Handle: n, Seq: 3, Pieces: bad(3)})
	flushing := asyncErr(func() error { return out.Flush(t.Context()) })
	b.answer(n)
	b.ack(n, 0, 4)
	b.kept(0)
	b.say(&wire.Nack{Handle: n, Seq: 1, Pieces: bad(1)}) // late
	_, err := wait(t, flushing)
	must(t, err)
	b.grants(n, 100)
	must(t, put(t.Context(), out, 7))
	b.wrote(testWindow, false, 7)
	out.Cancel("done")
	b.kept(0)
}

// TestRepeatWhileWritten hears of damage before the lane is done with the frame.
func TestRepeatWhileWritten(t *testing.T) {
	b := start(t, nil)
	b.written = make(chan frame) // lanes stall
	out, n := b.outgoing(transport.Request{})
	must(t, put(t.Context(), out, 1, 2))
	b.say(&wire.Nack{Handle: n, Seq: 0, Pieces: bad(2)})
	flushing := asyncErr(func() error { return out.Flush(t.Context()) })
	b.answer(n)
	b.silent()
	b.wrote(0, false, 1, 2)
	b.wrote(1, true, 2)
	b.answer(n)
	_, err := wait(t, flushing)
	must(t, err)
	out.Cancel("done")
	b.kept(0)
}

// TestRepeatEnds ends a transfer, and a flush, while pieces wait to be sent
// again.
func TestRepeatEnds(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{})
	for i := range uint32(testWindow) {
		must(t, put(t.Context(), out, i))
		b.wrote(uint64(i), false, i)
	}
	b.say(&wire.Nack{Handle: n, Seq: 0, Pieces: bad(0)})
	ctx, cancel := context.WithCancel(t.Context())
	flushing := asyncErr(func() error { return out.Flush(ctx) })
	b.answer(n)
	b.silent()
	cancel()
	_, err := wait(t, flushing)
	is(t, err, context.Canceled)
	flushing = asyncErr(func() error { return out.Flush(t.Context()) })
	b.answer(n)
	b.silent()
	b.kept(testWindow)
	out.Cancel("done")
	_, err = wait(t, flushing)
	is(t, err, transport.ErrCancelled)
	b.kept(0)
	b.grants(n, 100)
	b.say(&wire.Nack{Handle: n, Seq: 1, Pieces: bad(1)})
	hear[*wire.Cancel](b.script)
	b.silent()
	if len(b.written) > 0 {
		t.Error("a frame of a cancelled transfer was written")
	}
}

// TestNackOfOthers passes on what a peer says of pieces that the frame has not.
func TestNackOfOthers(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{})
	must(t, put(t.Context(), out, 1))
	b.wrote(0, false, 1)
	b.say(&wire.Nack{Handle: n, Seq: 0, Pieces: bad(5)})
	flushing := asyncErr(func() error { return out.Flush(t.Context()) })
	b.answer(n)
	_, err := wait(t, flushing)
	missing(t, err, bad(5)...)
	out.Cancel("done")
}

// TestRepeatCounted has a receiver count what the sender says was sent before.
func TestRepeatCounted(t *testing.T) {
	b := start(t, nil)
	in := b.incoming(1)
	b.frame(h(0), []uint32{1, 2}, 1)
	again := h(1)
	again.Repeat = true
	b.frame(again, []uint32{2})
	for range 2 {
		b.delivery(in).Release()
	}
	if s := in.Stats(); s != (transport.Stats{Frames: 2, Bytes: 3, Pieces: 3, BadPiece: 1, Repeats: 1, RepeatBytes: 1}) {
		t.Errorf("stats %+v", s)
	}
	in.Cancel("done")
}
