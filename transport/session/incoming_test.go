package session_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// delivery is the next delivery.
func (b *bench) delivery(in transport.Incoming) *transport.Delivery {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.tb.Context(), soon)
	defer cancel()
	d, err := in.Recv(ctx)
	if err != nil {
		b.tb.Fatal(err)
	}
	return d
}

// quiet checks that nothing is delivered.
func (b *bench) quiet(in transport.Incoming) {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.tb.Context(), 20*time.Millisecond)
	defer cancel()
	if d, err := in.Recv(ctx); !errors.Is(err, context.DeadlineExceeded) {
		b.tb.Fatalf("delivered %+v, error %v", d, err)
	}
}

// TestDropped throws away what belongs to no transfer of this connection, and
// goes on.
func TestDropped(t *testing.T) {
	b := start(t, nil)
	in := b.incoming(1)
	b.frame(wire.FrameHeader{Handle: 99, Epoch: testEpoch}, []uint32{0}) // unknown
	b.frame(wire.FrameHeader{Handle: 1, Epoch: testEpoch - 1}, []uint32{0})
	b.say(&wire.Flush{Handle: 99})
	b.say(&wire.Finish{Handle: 99, Frames: 1 << 60})
	b.say(&wire.Cancel{Handle: 99, FromOpener: true})
	b.raw(200, wire.FlagOptional, 42) // of a newer version
	b.quiet(in)
	b.frame(h(0), []uint32{5})
	d := b.delivery(in)
	if string(d.Data(0)) != "\x05" || d.Pieces()[0].Block != 5 {
		t.Errorf("delivered %v", d.Pieces())
	}
	d.Release()
	// A transfer that has ended is not known either.
	must(t, in.Finish(nil))
	b.frame(h(1), []uint32{0})
	b.frame(h(1), []uint32{0})
	b.say(&wire.Flush{Handle: 1})
	b.say(&wire.Cancel{Handle: 1, FromOpener: true})
	hear[*wire.Result](b.script)
	in = b.incoming(2)
	in.Cancel("done")
}

// TestDamage delivers the pieces that are whole, and has told the peer of the
// others before a flush can be answered.
func TestDamage(t *testing.T) {
	b := start(t, nil)
	in := b.incoming(1)
	b.frame(h(0), []uint32{1, 2, 3}, 1)
	b.frame(h(1), []uint32{4}, 0)
	b.say(&wire.Flush{Handle: 1, Token: 77, Frames: 2})
	d := b.delivery(in)
	if p := d.Pieces(); len(p) != 2 || p[0].Block != 1 || p[1].Block != 3 ||
		string(d.Data(0)) != "\x01" || string(d.Data(1)) != "\x03" {
		t.Errorf("delivered %v", p)
	}
	d.Release()
	d = b.delivery(in)
	if !d.Mark() {
		t.Fatal("no mark")
	}
	must(t, in.Ack(1, 2, 3, 9))
	must(t, d.Flushed([]transport.Piece{{Block: 8, Length: 3}, {Block: 9}}))
	// Acknowledgements may overtake, the answer to the flush comes last.
	bad, acked, flushed := map[uint64]uint32{}, []wire.BlockRange{}, (*wire.Flushed)(nil)
	for flushed == nil {
		switch m := b.next().(type) {
		case *wire.Nack:
			bad[m.Seq] = m.Pieces[0].Block
		case *wire.Ack:
			acked = append(acked, m.Ranges...)
		case *wire.Flushed:
			flushed = m
		}
	}
	if len(bad) != 2 || bad[0] != 2 || bad[1] != 4 {
		t.Errorf("damaged %v", bad)
	}
	if len(acked) != 2 || acked[0] != (wire.BlockRange{First: 1, Count: 3}) || acked[1].First != 9 {
		t.Errorf("acknowledged %v", acked)
	}
	if f := flushed; f.Token != 77 || f.More || len(f.Missing) != 1 || f.Missing[0].Block != 8 {
		t.Errorf("flushed %+v", f)
	}
	if s := in.Stats(); s != (transport.Stats{Frames: 2, Bytes: 4, Pieces: 4, BadPiece: 2}) {
		t.Errorf("stats %+v", s)
	}
	in.Cancel("done")
}

// TestOrder delivers marks and the end after the frames that they speak of, in
// whichever order all that comes.
func TestOrder(t *testing.T) {
	b := start(t, nil)
	in := b.incoming(1)
	b.say(&wire.Flush{Handle: 1, Token: 1, Frames: 2})
	b.say(&wire.Flush{Handle: 1, Token: 2, Frames: 1})
	b.say(&wire.Flush{Handle: 1, Token: 3, Frames: 2})
	b.say(&wire.Finish{Handle: 1, Frames: 2})
	b.quiet(in)
	b.frame(h(1), []uint32{1})
	if d := b.delivery(in); d.Mark() {
		t.Fatal("mark before frame 0")
	} else {
		d.Release()
	}
	b.quiet(in)
	b.frame(h(0), []uint32{0})
	if d := b.delivery(in); d.Mark() {
		t.Fatal("mark before frame 0")
	} else {
		d.Release()
	}
	for _, token := range []uint64{1, 2, 3} {
		d := b.delivery(in)
		if !d.Mark() {
			t.Fatal("no mark")
		}
		must(t, d.Flushed(nil))
		if m := hear[*wire.Flushed](b.script); m.Token != token {
			t.Errorf("flush %d answered, want %d", m.Token, token)
		}
	}
	for range 3 { // the end stays
		if _, err := in.Recv(t.Context()); !errors.Is(err, io.EOF) {
			t.Fatalf("error %v at the end", err)
		}
	}
	must(t, in.Finish([]byte("result")))
	if m := hear[*wire.Result](b.script); string(m.Meta) != "result" {
		t.Errorf("result %q", m.Meta)
	}
	is(t, in.Finish(nil), transport.ErrClosed)
	is(t, in.Ack(1), transport.ErrClosed)
	_, err := in.Recv(t.Context())
	is(t, err, transport.ErrClosed)
	in.Cancel("late")
	b.silent()
}

// grant checks that the session announces a total.
func (b *bench) grant(total uint64) {
	b.tb.Helper()
	if m, ok := b.next().(*wire.Grant); !ok || m.Total != total || m.Epoch != testEpoch {
		b.tb.Errorf("grant %+v, want a total of %d", m, total)
	}
}

// TestGranting announces grants when there are enough of them, or when the
// sender can have none left. A transfer that uses what it has gets more.
func TestGranting(t *testing.T) {
	b := start(t, nil)
	in := b.incoming(1)
	b.frame(h(0), []uint32{0})
	held := []*transport.Delivery{b.delivery(in)}
	b.silent() // the window is 3 now, and the sender has one left
	b.frame(h(1), []uint32{0})
	b.grant(4)
	b.frame(h(2), []uint32{0})
	b.frame(h(3), []uint32{0})
	for range 3 {
		held = append(held, b.delivery(in))
	}
	b.silent()        // nothing was released, and the window is as large as may be
	held[0].Release() // one is less than half a window, but the sender has none
	b.grant(5)
	held[1].Release() // or one
	b.grant(6)
	held[2].Release()
	b.silent()
	held[3].Release()
	b.grant(8)
	in.Cancel("done")
}

// TestStalledLane bounds how far the others run ahead of a frame that does not
// come.
func TestStalledLane(t *testing.T) {
	b := start(t, nil)
	in := b.incoming(1)
	granted, seq := uint64(testFirst), uint64(1) // frame 0 is stuck
	for {
		for ; seq < granted; seq++ {
			b.frame(h(seq), []uint32{0})
			b.delivery(in).Release()
		}
		select {
		case m := <-b.heard:
			granted = m.(*wire.Grant).Total
			continue
		case <-time.After(50 * time.Millisecond):
		}
		break
	}
	if granted != 4096 {
		t.Errorf("%d frames granted", granted)
	}
	b.frame(h(0), []uint32{0})
	b.delivery(in).Release()
	if m, ok := b.next().(*wire.Grant); !ok || m.Total < 4096+testWindow/2 {
		t.Errorf("grant %+v", m)
	}
	in.Cancel("done")
}

// TestAdmit covers the promises of the receive ring, which has 8 slots: two each,
// and one each where little is left.
func TestAdmit(t *testing.T) {
	b := start(t, nil)
	one, err := b.offer(1).Admit([]byte("answer"))
	must(t, err)
	if m := hear[*wire.Admit](b.script); m.Window != 2 || string(m.Meta) != "answer" {
		t.Errorf("admit %+v", m)
	}
	for n, want := range []uint32{2, 2, 1, 1} {
		_, err = b.offer(uint32(n) + 2).Admit(nil)
		must(t, err)
		if m := hear[*wire.Admit](b.script); m.Window != want {
			t.Errorf("admit %+v, want a window of %d", m, want)
		}
	}
	o := b.offer(6)
	_, err = o.Admit(nil)
	is(t, err, transport.ErrBusy)
	if m := hear[*wire.Refuse](b.script); m.Code != transport.RefuseBusy {
		t.Errorf("refuse %+v", m)
	}
	is(t, o.Refuse(0, ""), transport.ErrDecided)

	// A slot that is out stays promised after its transfer's end.
	b.frame(h(0), []uint32{0})
	d := b.delivery(one)
	one.Cancel("done")
	if m := hear[*wire.Cancel](b.script); m.FromOpener || m.Reason != "done" {
		t.Errorf("cancel %+v", m)
	}
	b.unpromised(1)
	d.Release()
	b.unpromised(2)

	o = b.offer(7)
	if _, err := o.Admit(make([]byte, testMeta+1)); !errors.Is(err, transport.ErrTooLarge) {
		t.Errorf("answer too large: %v", err)
	}
	must(t, o.Refuse(transport.RefuseOther, "no"))
	if m := hear[*wire.Refuse](b.script); m.Code != transport.RefuseOther || m.Reason != "no" {
		t.Errorf("refuse %+v", m)
	}
	_, err = o.Admit(nil)
	is(t, err, transport.ErrDecided)
	b.silent()
}

// TestOffers refuses by itself what the connection has no room for.
func TestOffers(t *testing.T) {
	b := start(t, func(o *session.Options) { o.MaxOffers = 2 })
	id := transport.NewID()
	open := func(handle uint32, id transport.ID, part uint16) {
		b.say(&wire.Open{Handle: handle, ID: id, Part: part, Parts: 2})
	}
	open(1, id, 0)
	open(2, id, 0)
	if m := hear[*wire.Refuse](b.script); m.Handle != 2 || m.Code != transport.RefuseDuplicate {
		t.Errorf("refuse %+v", m)
	}
	open(3, id, 1)
	open(4, transport.NewID(), 0)
	if m := hear[*wire.Refuse](b.script); m.Handle != 4 || m.Code != transport.RefuseBusy {
		t.Errorf("refuse %+v", m)
	}
	b.say(&wire.Cancel{Handle: 1, FromOpener: true}) // makes room, frees the id
	open(5, id, 0)
	open(6, id, 1) // its answer says that the cancel was heard
	if m := hear[*wire.Refuse](b.script); m.Handle != 6 {
		t.Errorf("refuse %+v", m)
	}
	var got []transport.Request
	for range 2 {
		o, err := b.c.Accept(t.Context())
		must(t, err)
		got = append(got, o.Request())
	}
	if got[0].Part != 1 || got[1].Part != 0 || got[0].Parts != 2 || got[1].ID != id {
		t.Errorf("accepted %+v", got)
	}
	b.silent()
}

// TestAccept wakes every waiter.
func TestAccept(t *testing.T) {
	b := start(t, nil)
	var accepting []<-chan result[transport.Offer]
	for range 3 {
		accepting = append(accepting, async(func() (transport.Offer, error) { return b.c.Accept(t.Context()) }))
	}
	for n := range uint32(3) {
		b.say(&wire.Open{Handle: n + 1, ID: transport.NewID(), Parts: 1})
	}
	for _, a := range accepting {
		_, err := wait(t, a)
		must(t, err)
	}
}

// TestPeerCancels ends a transfer at each point of an incoming one.
func TestPeerCancels(t *testing.T) {
	b := start(t, nil)
	o := b.offer(1)
	b.say(&wire.Cancel{Handle: 1, FromOpener: true, Reason: "changed my mind"})
	eventually(t, "the offer is gone", func() bool {
		in, err := o.Admit(nil)
		if err == nil {
			_, err = in.Recv(t.Context())
		}
		return errors.Is(err, transport.ErrCancelled)
	})
	in := b.offer(2)
	got, err := in.Admit(nil)
	must(t, err)
	b.frame(wire.FrameHeader{Handle: 2, Epoch: testEpoch}, []uint32{1})
	b.frame(wire.FrameHeader{Handle: 2, Epoch: testEpoch, Seq: 1}, []uint32{1})
	d := b.delivery(got)
	b.arrived(2)
	b.say(&wire.Cancel{Handle: 2, FromOpener: true, Reason: "enough"})
	b.arrived(1) // what nobody received is free at once
	_, err = got.Recv(t.Context())
	var c *transport.CancelledError
	if !errors.As(err, &c) || !c.Remote || c.Reason != "enough" || c.Transfer != got.Request().ID {
		t.Errorf("error %v", err)
	}
	d.Release()
	b.arrived(0)
	is(t, got.Finish(nil), transport.ErrCancelled)
}

// TestMarkAfterEnd answers a mark of a transfer that is gone.
func TestMarkAfterEnd(t *testing.T) {
	b := start(t, nil)
	in := b.incoming(1)
	b.say(&wire.Flush{Handle: 1, Token: 1})
	d := b.delivery(in)
	in.Cancel("done")
	is(t, d.Flushed(nil), transport.ErrCancelled)

	in = b.incomingAfter(2)
	b.say(&wire.Flush{Handle: 2, Token: 1})
	err := b.delivery(in).Flushed([]transport.Piece{{Length: 2, Offset: ^uint64(0)}})
	is(t, err, transport.ErrInvalid) // ends the transfer: its sender must not wait for ever
	_, err = in.Recv(t.Context())
	is(t, err, transport.ErrCancelled)
}

// incomingAfter is incoming where other messages come first.
func (b *bench) incomingAfter(handle uint32) transport.Incoming {
	b.tb.Helper()
	in, err := b.offer(handle).Admit(nil)
	must(b.tb, err)
	for b.next().Type() != wire.TypeAdmit {
	}
	return in
}

// TestTakenSlots waits for slots that somebody took past the promises, and ends
// all the same.
func TestTakenSlots(t *testing.T) {
	for name, release := range map[string]bool{"released": true, "closed": false} {
		t.Run(name, func(t *testing.T) {
			b := start(t, nil)
			in := b.incoming(1)
			var taken []transport.Slot
			for range b.recv.Slots() {
				s, err := b.recv.Take(t.Context(), nil)
				must(t, err)
				taken = append(taken, s)
			}
			b.frame(h(0), []uint32{1})
			b.quiet(in)
			if !release {
				must(t, b.c.Close())
			}
			for _, s := range taken {
				s.Put()
			}
			if release {
				b.delivery(in).Release()
			}
		})
	}
}
