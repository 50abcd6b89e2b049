package rdma

import (
	"context"
	"testing"

	"pdlink/rdma/internal/fakeverbs"
	"pdlink/transport"
	"pdlink/transport/wire"
)

// nullLane is a lane whose requests cost nothing and complete at once, and a payload
// of its registered ring.
func nullLane(tb testing.TB) (c *conn, payload []byte, end func()) {
	tb.Helper()
	c = &conn{link: NewOver(fakeverbs.Null{}, Options{}), dead: make(chan struct{})}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.seat.info.Class = "mlx5"
	c.t = terms{mode: push, lanes: 1, slots: defaultSlots, maxPayload: wire.MaxPayload, epoch: 1}
	check := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	var err error
	c.dev, err = fakeverbs.Null{}.Open("null")
	check(err)
	c.pd, err = c.dev.NewPD()
	check(err)
	ring, err := transport.NewRing(2, transport.MaxSlot)
	check(err)
	l := &lane{c: c, nudge: make(chan struct{}, 1)}
	l.pair, err = newPair(c.pd, wish{sends: defaultSlots * frameWRs, recvs: defaultSlots, inline: noticeSize}, 1)
	check(err)
	check(l.room(wire.MaxPayload, 0))
	c.parts, err = register(c.pd, ring.Memory(), ring.SlotSize(), 0, 0)
	check(err)
	c.ring = ring.Memory()
	l.peer = lanePlace{slots: defaultSlots, heads: span{1 << 40, 1, defaultSlots}, bodies: []span{{2 << 40, 2, defaultSlots}}}
	c.peerBody = wire.MaxPayload
	c.lanes = []*lane{l}
	c.workers.Go(l.pump)
	return c, ring.Memory()[transport.HeaderRoom:transport.MaxSlot], func() {
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
		check(ring.Close())
	}
}

// write queues n frames of 4 MiB, granted as a peer would that is never slow, and
// waits for the last.
func write(tb testing.TB, c *conn, payload []byte, n int) {
	tb.Helper()
	l := c.lanes[0]
	header := make([]byte, wire.FixedHeader+wire.PieceSize)
	ended := make(chan struct{}, n)
	done := func() { ended <- struct{}{} }
	for i := range n {
		if i%4 == 0 {
			if err := l.out.granting(l, l.out.next+defaultSlots); err != nil {
				tb.Fatal(err)
			}
		}
		if err := c.QueueFrame(0, header, payload, done); err != nil {
			tb.Fatal(err)
		}
	}
	for range n {
		<-ended
	}
}

// TestOwnAllocations: a frame of 4 MiB allocates nothing. What it costs of time
// BenchmarkOwnTime says.
func TestOwnAllocations(t *testing.T) {
	c, payload, end := nullLane(t)
	defer end()
	const frames = 256
	allocs := testing.AllocsPerRun(20, func() { write(t, c, payload, frames) })
	if perFrame := allocs / frames; perFrame > 0.1 { // the header and the channel are the test's
		t.Errorf("%.2f allocations a frame", perFrame)
	}
}

// BenchmarkOwnTime measures what a frame of 4 MiB costs beside the device's work, of
// which 5 µs are allowed.
func BenchmarkOwnTime(b *testing.B) {
	c, payload, end := nullLane(b)
	defer end()
	b.ReportAllocs()
	b.ResetTimer()
	for n := b.N; n > 0; n -= 256 {
		write(b, c, payload, min(n, 256))
	}
}
