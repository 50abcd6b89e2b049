package bridge_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
	"pdlink/transport/transporttest"
)

// gifts is a source that fills slots of its own and gives them away, as an engine
// does. It ignores its sink.
type gifts struct {
	c     *bridge.Courier
	ring  *transport.Ring
	list  []piece
	after func(i int)
	freed atomic.Int32
}

// lease is a lease of a slot of the source's.
func (g *gifts) lease(ctx context.Context, p ...piece) (*transport.Lease, error) {
	slot, err := g.ring.Take(ctx, nil)
	if err != nil {
		return nil, err
	}
	l := transport.NewLease(courierFrame, "", func(l *transport.Lease) {
		g.freed.Add(1)
		l.Held().Slot().Put()
	})
	l.Held().Reset(slot)
	for _, x := range p {
		l.Append(uint32(x.block), uint64(x.begin), blockData(x.block, courierSize)[x.begin:x.end])
	}
	return l, nil
}

func (g *gifts) Run(ctx context.Context, _ bridge.Sink) error {
	for i, p := range g.list {
		l, err := g.lease(ctx, p)
		if err != nil {
			return err
		}
		if err := g.c.Give(ctx, l); err != nil {
			return err
		}
		if g.after != nil {
			g.after(i)
		}
	}
	return nil
}

// TestGiveSurvivesCuts cuts connections under a source that gives slots away: all
// blocks arrive and all slots come back, each once.
func TestGiveSurvivesCuts(t *testing.T) {
	seed := transporttest.Seed(t)
	t.Logf("%s=%d", transporttest.SeedVariable, seed)
	reconnects := 0
	for i := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, i))
		s := newShelf(courierBlocks, courierSize)
		d := startDecoder(t, s, func(o *bridge.Options, so *session.Options) { so.Window, o.IdleWait = courierWindow, 5*time.Second })
		cuts := 1 + rng.IntN(4)
		ring := testRing(t, courierRing)
		so := session.Options{SendRing: ring, Boot: transport.NewID()}
		so.Intercept = func(driver session.Driver) session.Driver {
			f := transporttest.NewFaults(rng.Uint64())
			if cuts--; cuts >= 0 {
				f.CutAfter(rng.IntN(courierTotal))
			}
			return f.Intercept(driver)
		}
		c, err := bridge.OpenCourier(t.Context(), &prober{link: d.names.With(mem.Options{Session: so})}, courierRequest(true), courierShape)
		if err != nil {
			t.Fatal(err)
		}
		g := &gifts{c: c, ring: ring, list: layered(rng)}
		v, err := c.Run(t.Context(), g)
		if err != nil || v.State != bridge.Complete {
			t.Fatalf("try %d: %+v, %v", i, v, err)
		}
		s.check(t, courierBlocks)
		eventually(t, "all slots come back", func() bool { return ring.InUse() == 0 })
		if n := int(g.freed.Load()); n != len(g.list) {
			t.Errorf("try %d: %d leases came back, %d were given", i, n, len(g.list))
		}
		reconnects += c.Sent().Connects - 1
	}
	if reconnects < 30 {
		t.Errorf("only %d connections were replaced: the test shows too little", reconnects)
	}
}

// TestGiveAfterAReceiverRestart: what the receiver has is not sent again, and a
// frame of nothing else ends at once.
func TestGiveAfterAReceiverRestart(t *testing.T) {
	s := newShelf(courierBlocks, courierSize)
	d := startDecoder(t, s, nil)
	ring := testRing(t, courierRing)
	link := d.names.With(mem.Options{Session: session.Options{SendRing: ring}})
	c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, 10*time.Second), courierRequest(true), courierShape)
	if err != nil {
		t.Fatal(err)
	}
	g := &gifts{c: c, ring: ring, list: layered(rand.New(rand.NewPCG(1, 1)))}
	g.after = func(i int) {
		if i != len(g.list)*3/5 {
			return
		}
		eventually(t, "blocks become visible", func() bool { return s.visible() >= 2 })
		d.stop(true)
		d.start()
		eventually(t, "the connection is replaced", func() bool { return !c.Wants(0) })
		sent := c.Sent().Bytes
		l, err := g.lease(t.Context(), piece{0, 0, 100}, piece{1, 0, 100})
		if err != nil {
			t.Error(err)
		} else if err := c.Give(t.Context(), l); err != nil || c.Sent().Bytes != sent {
			t.Errorf("a frame of what is there: %v, %d bytes sent", err, c.Sent().Bytes-sent)
		}
	}
	v, err := c.Run(t.Context(), g)
	if err != nil || v.State != bridge.Complete || v.Present < 2 {
		t.Fatalf("%+v, %v", v, err)
	}
	s.check(t, courierBlocks)
}

// TestGiveRefuses: a lease has ended whatever Give returns.
func TestGiveRefuses(t *testing.T) {
	s := newShelf(courierBlocks, courierSize)
	d := startDecoder(t, s, nil)
	ring := testRing(t, courierRing)
	link := d.names.With(mem.Options{Session: session.Options{SendRing: ring}})
	c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, time.Second), courierRequest(true), courierShape)
	if err != nil {
		t.Fatal(err)
	}
	g := &gifts{c: c, ring: ring}
	give := func(ctx context.Context, block uint32, offset uint64) error {
		l, err := g.lease(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l.Append(block, offset, []byte("x"))
		return c.Give(ctx, l)
	}
	for _, p := range []struct {
		block  uint32
		offset uint64
	}{{courierBlocks, 0}, {1 << 31, 0}, {0, courierSize}} {
		if err := give(t.Context(), p.block, p.offset); !errors.Is(err, bridge.ErrPlan) {
			t.Errorf("block %d, offset %d: %v", p.block, p.offset, err)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // whichever is seen first, the end or the lock
		if err := give(over, 0, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("after the context's end: %v", err)
		}
	}
	c.Close()
	if err := give(t.Context(), 0, 0); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if n := ring.InUse(); n != 0 {
		t.Errorf("%d slots in use", n)
	}
}
