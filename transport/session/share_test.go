package session_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// unpromised checks how many slots of the receive ring are left.
func (b *bench) unpromised(want int) {
	b.tb.Helper()
	if n := b.recv.Unpromised(); n != want {
		b.tb.Errorf("%d slots are not promised, want %d", n, want)
	}
}

// peer is a sender of several transfers that sends what it was granted.
type peer struct {
	*bench
	in            map[uint32]transport.Incoming
	sent, granted map[uint32]uint64
}

func newPeer(b *bench) *peer {
	return &peer{b, map[uint32]transport.Incoming{}, map[uint32]uint64{}, map[uint32]uint64{}}
}

// open opens a transfer.
func (p *peer) open(handle uint32) {
	p.tb.Helper()
	in, err := p.offer(handle).Admit(nil)
	must(p.tb, err)
	p.in[handle] = in
	for p.granted[handle] == 0 {
		p.listen(p.next())
	}
}

// listen takes note of a grant.
func (p *peer) listen(m wire.Message) {
	switch m := m.(type) {
	case *wire.Admit:
		p.granted[m.Handle] = uint64(m.Window)
	case *wire.Grant:
		p.granted[m.Handle] = m.Total
	}
}

// pass sends a frame when it is granted and returns its delivery.
func (p *peer) pass(handle uint32) *transport.Delivery {
	p.tb.Helper()
	for p.sent[handle] == p.granted[handle] {
		p.listen(p.next())
	}
	p.frame(wire.FrameHeader{Handle: handle, Epoch: testEpoch, Seq: p.sent[handle]}, []uint32{0})
	p.sent[handle]++
	return p.delivery(p.in[handle])
}

// TestShare follows a window that grows while there is more of the ring left,
// and shrinks when somebody else comes.
func TestShare(t *testing.T) {
	p := newPeer(start(t, func(o *session.Options) { o.Window = 8 }))
	for _, step := range []struct {
		open, pass uint32
		frames     int
		left       int
	}{
		{open: 1, left: 6},
		{pass: 1, frames: 10, left: 4}, // half of the ring: as much as is left
		{open: 2, left: 2},
		{pass: 1, frames: 10, left: 3}, // one slot was given back
		{pass: 2, frames: 10, left: 2}, // and went to the other
		{open: 3, left: 1},
		{pass: 1, frames: 10, left: 2},
		{pass: 2, frames: 10, left: 2},
		{pass: 3, frames: 10, left: 1},
	} {
		if step.open != 0 {
			p.open(step.open)
		}
		for range step.frames {
			p.pass(step.pass).Release()
		}
		p.unpromised(step.left)
		if t.Failed() {
			t.Fatalf("after %+v", step)
		}
	}
	for _, in := range p.in {
		in.Cancel("done")
	}
	p.unpromised(8)
}

// TestManyShareARing has twenty transfers on a ring of 63 slots that send and
// hold deliveries at random: never is more granted than there are slots, and
// each gets through.
func TestManyShareARing(t *testing.T) {
	const transfers, slots, frames = 20, 63, 40
	big, err := transport.NewRing(slots, testPayload+transport.HeaderRoom)
	must(t, err)
	p := newPeer(start(t, func(o *session.Options) { o.RecvRing, o.Window = big, transport.DefaultWindow }))
	defer idle(t, big)
	rng := rand.New(rand.NewPCG(1, 2))
	held, released := map[uint32][]*transport.Delivery{}, map[uint32]uint64{}
	let := func(handle uint32, n int) {
		for range n {
			d := held[handle]
			i := rng.IntN(len(d))
			d[i].Release()
			held[handle] = slices.Delete(d, i, i+1)
			released[handle]++
		}
	}
	var live []uint32
	for n := range uint32(transfers) {
		p.open(n + 1)
		live = append(live, n+1)
	}
	for len(live) > 0 {
		i := rng.IntN(len(live))
		n := live[i]
		for len(p.heard) > 0 {
			p.listen(p.next())
		}
		// Everything that was granted and whose slot did not come back.
		out := uint64(0)
		for _, n := range live {
			out += p.granted[n] - released[n]
		}
		if out > slots {
			t.Fatalf("%d frames are granted at a time, the ring has %d slots", out, slots)
		}
		if p.sent[n] == p.granted[n] {
			let(n, len(held[n])) // all, so that there will be a grant
		}
		held[n] = append(held[n], p.pass(n))
		let(n, rng.IntN(len(held[n])+1))
		if p.sent[n] == frames {
			let(n, len(held[n]))
			must(t, p.in[n].Finish(nil))
			live = slices.Delete(live, i, i+1)
		}
	}
	must(t, p.c.Close())
}
