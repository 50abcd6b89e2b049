//go:build unix

package session_test

import (
	"testing"
	"testing/synctest"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// TestSalvage loses a connection with frames in every place that there is: kept,
// in the hands of a lane, in the queue, in a Send that waits for a grant.
func TestSalvage(t *testing.T) {
	b := start(t, nil)
	b.written = make(chan frame) // lanes stall when nobody takes from it
	var saved transport.Salvage
	out, n := b.outgoing(transport.Request{Salvage: &saved})
	must(t, put(t.Context(), out, 1))
	<-b.written // kept
	must(t, put(t.Context(), out, 2))
	<-b.written
	b.ack(n, 2, 1) // kept no more
	b.kept(1)
	for block := range uint32(2) {
		must(t, put(t.Context(), out, 10+block)) // each lane has one
	}
	b.say(&wire.Grant{Handle: n, Epoch: testEpoch, Total: testWindow + 1})
	must(t, put(t.Context(), out, 20)) // in the queue
	waiting := asyncErr(func() error { return put(t.Context(), out, 30) })
	b.kept(5)
	close(b.laneEnd)
	_, err := wait(t, waiting)
	is(t, err, transport.ErrLost)
	is(t, put(t.Context(), out, 40), transport.ErrLost)
	must(t, b.c.Close())
	seen := map[uint32]bool{}
	for _, l := range saved.Take() {
		for i, p := range l.Pieces() {
			seen[p.Block] = true
			if d := l.Data(i); len(d) != 1 || d[0] != byte(p.Block) || p.Sum == 0 {
				t.Errorf("saved piece %+v with bytes %v", p, d)
			}
		}
		l.Release()
		mustPanic(t, "release of a saved lease twice", l.Release)
	}
	for _, block := range []uint32{1, 10, 11, 20, 30} {
		if !seen[block] {
			t.Errorf("the frame of block %d is lost", block)
		}
	}
	if len(seen) != 5 {
		t.Errorf("saved frames of blocks %v", seen)
	}
	saved.Release() // nothing is left
}

// TestSalvageOfAnOwnRing keeps a ring that the session made mapped while its
// frames are saved, and closes it after the last of them, wherever it is sent.
func TestSalvageOfAnOwnRing(t *testing.T) {
	b := start(t, nil)
	var saved transport.Salvage
	own := start(t, func(o *session.Options) { o.SendRing = nil })
	out, _ := own.outgoing(transport.Request{Salvage: &saved})
	must(t, put(t.Context(), out, 1))
	must(t, put(t.Context(), out, 2))
	own.sent()
	own.sent()
	must(t, own.c.Close())
	leases := saved.Take()
	if len(leases) != 2 {
		t.Fatalf("%d frames saved, want 2", len(leases))
	}
	first := leases[0].Data(0)
	out, n := b.outgoing(transport.Request{Salvage: &saved})
	must(t, out.Send(t.Context(), leases[0]))
	if got := b.sent(); len(got.Pieces) != 1 || got.Pieces[0].Block != 1 || !mapped(first) {
		t.Errorf("sent %+v", got)
	}
	must(t, out.Send(t.Context(), leases[1]))
	b.sent()
	if mapped(first) {
		t.Error("the ring is mapped although its last slot came back")
	}
	b.kept(2)
	b.ack(n, 1, 2)
	b.kept(0)
	out.Cancel("done")
}

// TestSalvageWithoutRoom: a frame of another ring waits for a slot, and is not lost
// when the connection ends meanwhile.
func TestSalvageWithoutRoom(t *testing.T) { synctest.Test(t, salvageWithoutRoom) }

func salvageWithoutRoom(t *testing.T) {
	other := ring(t)
	defer idle(t, other)
	lease := func() *transport.Lease {
		slot, err := other.Take(t.Context(), nil)
		must(t, err)
		l := transport.NewLease(testPayload, "xxh3-64", nil)
		l.Held().Reset(slot)
		l.Append(7, 0, []byte{7})
		return l
	}
	b := start(t, nil)
	var saved transport.Salvage
	out, _ := b.outgoing(transport.Request{Salvage: &saved})
	var held []*transport.Lease
	for b.send.InUse() < b.send.Slots() {
		l, err := out.Lease(t.Context())
		must(t, err)
		held = append(held, l)
	}
	sending := asyncErr(func() error { return out.Send(t.Context(), lease()) })
	synctest.Wait() // all that waits for nothing has come to rest: the frame waits for a slot
	must(t, b.c.Close())
	_, err := wait(t, sending)
	is(t, err, transport.ErrClosed)
	leases := saved.Take()
	if len(leases) != 1 || leases[0].Pieces()[0].Block != 7 || leases[0].Data(0)[0] != 7 {
		t.Fatalf("saved %v", leases)
	}
	for _, l := range append(held, leases...) {
		l.Release()
	}
}
