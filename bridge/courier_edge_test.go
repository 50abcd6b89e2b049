package bridge_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
	"pdlink/transport/transporttest"
	"pdlink/transport/wire"
)

// TestStoppedReceiverHasTheLastWord: a receiver that stops and does not come back
// has said how far it got.
func TestStoppedReceiverHasTheLastWord(t *testing.T) {
	for _, kept := range []bool{true, false} {
		s := newShelf(courierBlocks, courierSize)
		d := startDecoder(t, s, nil)
		link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
		src := &pieces{size: courierSize, list: layered(rand.New(rand.NewPCG(1, 1)))}
		src.after = func(i int) error {
			if i == len(src.list)/2 {
				eventually(t, "blocks become visible", func() bool { return s.visible() >= 2 })
				d.stop(false)
			}
			return nil
		}
		c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, 200*time.Millisecond), courierRequest(kept), courierShape)
		if err != nil {
			t.Fatal(err)
		}
		v, err := c.Run(t.Context(), src)
		if err != nil || v.State != bridge.Partial || !v.Stopped || v.Blocks != 2 || v.String() != "partial 2/6: the receiver was stopped" {
			t.Errorf("kept %v: %+v, %v", kept, v, err)
		}
		s.check(t, 2)
	}
}

// TestHopelessFramesTakeAnotherConnection: what one connection damages time and
// again goes over the next; if those do too, that is the end.
func TestHopelessFramesTakeAnotherConnection(t *testing.T) {
	for _, c := range []struct {
		name         string
		kept         bool
		bad          int // connections that damage the first frame whenever it comes
		want         bridge.State
		err          error
		least, limit int // connections
	}{
		{"kept, mended", true, 1, bridge.Complete, nil, 2, 2},
		// Whatever arrives over one is progress, and what is no progress is borne so often.
		{"kept, hopeless", true, 1000, "", bridge.ErrIncomplete, bridge.MaxPasses + 1, (courierTotal/courierFrame + 1) * (bridge.MaxPasses + 1)},
		{"replayable, hopeless", false, 100, "", bridge.ErrIncomplete, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newShelf(courierBlocks, courierSize)
			d := startDecoder(t, s, nil)
			so := session.Options{SendRing: testRing(t, courierRing)}
			so.Intercept = func(driver session.Driver) session.Driver {
				if c.bad--; c.bad < 0 {
					return driver
				}
				return spoiler{driver}
			}
			src := &pieces{size: courierSize, list: whole(courierSize, 0, 1, 2, 3, 4, 5)}
			dialler := &witness{prober: prober{link: d.names.With(mem.Options{Session: so})}}
			courier, err := bridge.OpenCourier(t.Context(), dialler, courierRequest(c.kept), courierShape)
			if err != nil {
				t.Fatal(err)
			}
			v, err := courier.Run(t.Context(), src)
			if !errors.Is(err, c.err) || v.State != c.want || c.kept && src.runs != 1 {
				t.Errorf("%+v, %v, %d runs", v, err, src.runs)
			}
			sent := courier.Sent()
			if n := sent.Connects; n < c.least || n > c.limit {
				t.Errorf("%d connections, want %d to %d", n, c.least, c.limit)
			}
			// The end may come before the source has given all.
			if once := sent.Bytes - sent.Again; once > courierTotal || once < courierTotal && c.least < 3 || v.Bytes > sent.Bytes || sent.Again < 2*courierFrame {
				t.Errorf("sent %+v, the receiver counts %d bytes", sent, v.Bytes)
			}
			if n := int(dialler.losses.Load()); n != sent.Connects-1 {
				t.Errorf("%d of %d connections were called lost, want all but the last", n, sent.Connects)
			}
		})
	}
}

// spoiler damages every frame that begins with the first byte of block 0.
type spoiler struct{ session.Driver }

func (s spoiler) WriteFrame(lane int, header, payload []byte) error {
	if first := blockData(0, courierSize)[:16]; strings.HasPrefix(string(payload), string(first)) {
		payload = append([]byte{^payload[0]}, payload[1:]...)
	}
	return s.Driver.WriteFrame(lane, header, payload)
}

// TestCourierWaitsForRoom: a receiver that has the transfer still, or no room, is
// asked again as long as the dialler waits; other refusals are final.
func TestCourierWaitsForRoom(t *testing.T) {
	s := newShelf(courierBlocks, courierSize)
	var d *decoder
	d = startDecoder(t, s, func(o *bridge.Options, _ *session.Options) {
		o.OnDecline = func(r transport.Request, _ string) {
			if r.ID == (transport.ID{3}) {
				d.cut() // of the process that has it; of this one's too
			}
		}
	})
	other, err := d.names.With(mem.Options{}).Dial(t.Context(), "decoder")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Open(t.Context(), courierRequest(false)); err != nil {
		t.Fatal(err)
	}
	c, err := bridge.OpenCourier(t.Context(), failDialer(t, d.names.With(mem.Options{}), 5*time.Second), courierRequest(false), courierShape)
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Run(t.Context(), &pieces{size: courierSize, list: whole(courierSize, 0, 1, 2, 3, 4, 5)})
	if err != nil || v.State != bridge.Complete {
		t.Errorf("%+v, %v", v, err)
	}
	req := courierRequest(false)
	for what, change := range map[string]func(){
		"another kind":  func() { req.Kind = "\x00" },
		"another shape": func() { req.Kind, req.ID = "test", transport.ID{4} },
	} {
		change()
		begin := time.Now()
		_, err := bridge.OpenCourier(t.Context(), failDialer(t, d.names.With(mem.Options{}), time.Hour), req, bridge.Shape{Blocks: 1, BlockBytes: 1})
		if err == nil || time.Since(begin) > time.Minute {
			t.Errorf("%s: %v after %v", what, err, time.Since(begin))
		}
	}
}

// TestPeerThatOffers: a receiver that offers transfers of its own to a courier is
// refused, and nothing else happens.
func TestPeerThatOffers(t *testing.T) {
	s := newShelf(courierBlocks, courierSize)
	d := startDecoder(t, s, nil)
	c, err := bridge.OpenCourier(t.Context(), failDialer(t, d.names.With(mem.Options{}), 5*time.Second), courierRequest(false), courierShape)
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	for conn := range d.conns {
		if _, err := conn.Open(t.Context(), transport.Request{}); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("offer to a sender: %v", err)
		}
	}
	d.mu.Unlock()
	v, err := c.Run(t.Context(), &pieces{size: courierSize, list: whole(courierSize, 0, 1, 2, 3, 4, 5)})
	if err != nil || v.State != bridge.Complete || c.Sent().Connects != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	c.Close()
	c.Close()
}

// TestSeveralCouriers: parts of one transfer lose their connections at different
// times.
func TestSeveralCouriers(t *testing.T) {
	seed := transporttest.Seed(t)
	t.Logf("%s=%d", transporttest.SeedVariable, seed)
	for i := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, i))
		s := newShelf(courierBlocks, courierSize)
		d := startDecoder(t, s, nil)
		ends := make(chan error, 3)
		for part := range 3 {
			cuts, own := 2, rand.New(rand.NewPCG(rng.Uint64(), 0))
			so := session.Options{SendRing: testRing(t, courierRing), Boot: transport.NewID()}
			so.Intercept = func(driver session.Driver) session.Driver {
				f := transporttest.NewFaults(own.Uint64())
				if cuts--; cuts >= 0 {
					f.CutAfter(own.IntN(courierTotal / 2))
				}
				return f.Intercept(driver)
			}
			var list []piece
			for k, x := range layered(rand.New(rand.NewPCG(7, 7))) {
				if k/2%3 == part {
					list = append(list, x)
				}
			}
			req := courierRequest(part == 1)
			req.Part, req.Parts = part, 3
			go func() {
				c, err := bridge.OpenCourier(t.Context(), &prober{link: d.names.With(mem.Options{Session: so})}, req, courierShape)
				if err == nil {
					var v bridge.Verdict
					if v, err = c.Run(t.Context(), &pieces{size: courierSize, list: list}); err == nil && v.State != bridge.Complete {
						err = errors.New(v.String())
					}
				}
				ends <- err
			}()
		}
		for range 3 {
			if err := <-ends; err != nil {
				t.Errorf("round %d: %v", i, err)
			}
		}
		s.check(t, courierBlocks)
	}
}

// TestFramesOfDurableBlocksAreFree: a frame that was taken along touches a block
// that became visible before, of which nothing comes any more.
func TestFramesOfDurableBlocksAreFree(t *testing.T) {
	s := newShelf(3, 1000)
	deaf := true
	d := startDecoder(t, s, func(_ *bridge.Options, so *session.Options) {
		so.Intercept = func(driver session.Driver) session.Driver {
			f := transporttest.NewFaults(1)
			if deaf { // the first connection's acknowledgements are lost
				deaf = false
				f.Hook(transporttest.Hooks{SendControl: func(msg []byte) []byte {
					if wire.Type(msg[4]) == wire.TypeAck {
						return nil
					}
					return msg
				}})
			}
			return f.Intercept(driver)
		}
	})
	ring := testRing(t, 8)
	link := d.names.With(mem.Options{Session: session.Options{SendRing: ring}})
	src := &live{pieces{size: 1000, list: []piece{{0, 0, 1000}, {1, 0, 500}, {1, 500, 1000}, {2, 0, 1000}}}, t}
	c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, 5*time.Second), courierRequest(true), bridge.Shape{Blocks: 3, BlockBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Run(t.Context(), sourceFunc(func(ctx context.Context, to bridge.Sink) error {
		put := func(x piece) {
			if err := to.Put(ctx, x.block, x.begin, blockData(x.block, 1000)[x.begin:x.end]); err != nil {
				t.Error(err)
			}
		}
		put(src.list[0])
		put(src.list[1])
		if err := to.Push(ctx); err != nil { // one frame
			return err
		}
		eventually(t, "the first block becomes visible", func() bool { return s.visible() == 1 })
		if n := ring.InUse(); n != 1 {
			t.Errorf("%d slots in use, want 1", n)
		}
		before := d.connections()
		d.cut()
		eventually(t, "the connection is replaced", func() bool { return d.connections() > before })
		put(src.list[2])
		if err := to.Push(ctx); err != nil {
			return err
		}
		eventually(t, "both frames' slots are free", func() bool { return ring.InUse() == 0 })
		put(src.list[3])
		return nil
	}))
	if sent := c.Sent(); err != nil || v.State != bridge.Complete || sent.Again != 0 || sent.Bytes != 3000 {
		t.Errorf("%+v, %v, sent %+v", v, err, sent)
	}
	s.check(t, 3)
}

type sourceFunc func(context.Context, bridge.Sink) error

func (f sourceFunc) Run(ctx context.Context, to bridge.Sink) error { return f(ctx, to) }
