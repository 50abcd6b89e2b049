package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// witness is a dialler that counts what it is told.
type witness struct {
	prober
	dials, losses, ends atomic.Int32
}

func (w *witness) Dial(ctx context.Context) (transport.Conn, error) {
	w.dials.Add(1)
	return w.prober.Dial(ctx)
}

func (w *witness) Lost(transport.Conn, error) { w.losses.Add(1) }
func (w *witness) Done(transport.Conn)        { w.ends.Add(1) }

// TestCloseIsNoLoss closes couriers whose connections live, and some that are being
// cut in the same moment: nobody dials on their behalf afterwards, and every
// connection ends once.
func TestCloseIsNoLoss(t *testing.T) {
	s := newShelf(1, 1000)
	d := startDecoder(t, s, func(o *bridge.Options, _ *session.Options) { o.OnVerdict = nil })
	link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
	for i := range 1500 {
		w := &witness{prober: prober{link: link}}
		req := courierRequest(i%2 == 0)
		req.ID = transport.NewID()
		c, err := bridge.OpenCourier(t.Context(), w, req, bridge.Shape{Blocks: 1, BlockBytes: 1000})
		if err != nil {
			t.Fatal(err)
		}
		cut := i%3 == 0
		var others sync.WaitGroup
		if cut {
			others.Go(d.cut)
		}
		others.Go(func() { // who is in the way when Close comes
			for c.Push(t.Context()) == nil {
				runtime.Gosched()
			}
		})
		runtime.Gosched()
		c.Close()
		c.Close()
		others.Wait()
		dials, losses, ends := w.dials.Load(), w.losses.Load(), w.ends.Load()
		if !cut && (dials != 1 || losses != 0 || ends != 1) || losses+ends > dials || losses+ends < dials-1 {
			t.Fatalf("try %d, cut %v: %d dials, %d losses, %d ends in order", i, cut, dials, losses, ends)
		}
		if n := w.dials.Load(); n != dials {
			t.Fatalf("try %d: dialled after Close", i)
		}
	}
}

// TestEndedContextIsSeenFirst: a call whose context is over does nothing, also when
// nobody is in its way.
func TestEndedContextIsSeenFirst(t *testing.T) {
	s := newShelf(1, 1000)
	d := startDecoder(t, s, nil)
	c, err := bridge.OpenCourier(t.Context(), &prober{link: d.names.With(mem.Options{})}, courierRequest(false), bridge.Shape{Blocks: 1, BlockBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if err := c.Put(over, 0, 0, make([]byte, 10)); !errors.Is(err, context.Canceled) {
			t.Fatalf("put: %v", err)
		}
		if err := c.Push(over); !errors.Is(err, context.Canceled) {
			t.Fatalf("push: %v", err)
		}
	}
	if sent := c.Sent(); sent.Bytes != 0 {
		t.Errorf("sent %+v", sent)
	}
}

// TestFramesGoOnOverSmallerOnes: a receiver comes back whose frames are smaller than
// those that are kept for it, and another one whose frames are larger again.
func TestFramesGoOnOverSmallerOnes(t *testing.T) {
	for _, own := range []bool{false, true} { // connections make rings of their own, or share one
		t.Run(fmt.Sprintf("own %v", own), func(t *testing.T) {
			large := func(slots int) *transport.Ring {
				r, err := transport.NewRing(slots, 9*transport.HeaderRoom)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := r.Close(); err != nil {
						t.Error(err)
					}
				})
				return r
			}
			s := newShelf(courierBlocks, courierSize)
			d := startDecoder(t, s, func(_ *bridge.Options, so *session.Options) { so.RecvRing = large(8) })
			so := session.Options{}
			if !own {
				so.SendRing = large(courierRing)
			}
			rng := rand.New(rand.NewPCG(8, 8))
			var list []piece // some frames are one piece, some have several
			for chunk := 0; chunk < courierBlocks; chunk += 2 {
				for at := int64(0); at < courierSize; {
					n := min(500+rng.Int64N(12_000), courierSize-at)
					list = append(list, piece{chunk, at, at + n}, piece{chunk + 1, at, at + n})
					at += n
				}
			}
			src := &live{pieces{size: courierSize, list: list}, t}
			src.after = func(i int) error {
				if i == len(list)/3 || i == len(list)*2/3 {
					d.stop(true)
					if i == len(list)/3 {
						d.so.RecvRing = testRing(t, 16)
					} else {
						d.so.RecvRing = large(8)
					}
					d.start()
				}
				return nil
			}
			c, err := bridge.OpenCourier(t.Context(), failDialer(t, d.names.With(mem.Options{Session: so}), 10*time.Second), courierRequest(true), courierShape)
			if err != nil {
				t.Fatal(err)
			}
			v, err := c.Run(t.Context(), src)
			if err != nil || v.State != bridge.Complete || c.Sent().Connects != 3 {
				t.Fatalf("%+v, %v, sent %+v", v, err, c.Sent())
			}
			s.check(t, courierBlocks)
		})
	}
}
