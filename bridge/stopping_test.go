package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// hang makes the first write that counts wait. It returns when that waits and lets
// it go on.
func hang(s *shelf, counts func(block int) bool) (waits func(t *testing.T), goOn func()) {
	entered, release := make(chan struct{}), make(chan struct{})
	var once, off sync.Once
	s.before = func(_ string, block int) {
		if counts(block) {
			once.Do(func() { close(entered); <-release })
		}
	}
	return func(t *testing.T) {
		t.Helper()
		select {
		case <-entered:
		case <-time.After(time.Minute):
			t.Error("no write began")
		}
	}, func() { off.Do(func() { close(release) }) }
}

// stopSlowly stops a decoder in order, which something holds up, and returns when
// that has begun: with a function that waits for its end.
func (d *decoder) stopSlowly(t *testing.T) (wait func()) {
	t.Helper()
	probe := d.served(t)
	done := make(chan struct{})
	go func() { d.stop(false); close(done) }()
	eventually(t, "the receiver begins to stop", func() bool {
		_, err := probe.Open(t.Context(), transport.Request{Kind: "nothing"})
		return errors.Is(err, transport.ErrBusy)
	})
	return func() { <-done; probe.Close() }
}

// served is a connection of another process that the receiver serves already.
func (d *decoder) served(t *testing.T) transport.Conn {
	t.Helper()
	conn, err := d.names.With(mem.Options{}).Dial(t.Context(), "decoder")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Open(t.Context(), transport.Request{Kind: "nothing"}); !errors.Is(err, transport.ErrRefused) {
		t.Errorf("an open of no known kind: %v", err)
	}
	return conn
}

// probed is an opener that knows stopSlowly's question.
func probed(open bridge.Opener) bridge.Opener {
	return func(kind string, meta []byte) (bridge.Opened, error) {
		if kind != "test" {
			return bridge.Opened{}, fmt.Errorf("kind %q", kind)
		}
		return open(kind, meta)
	}
}

// TestVerdictWhileFramesAreResent: the receiver ends the transfer while its sender
// sends again what it kept.
func TestVerdictWhileFramesAreResent(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stopped %v", stopped), func(t *testing.T) {
			s := newShelf(courierBlocks, courierSize)
			var life atomic.Int32
			waits, goOn := hang(s, func(int) bool { return stopped && life.Load() == 1 })
			d := startDecoder(t, s, func(o *bridge.Options, so *session.Options) {
				so.Window = courierWindow
				o.Open = probed(func(k string, m []byte) (bridge.Opened, error) {
					op, err := s.open(k, m)
					if life.Load() == 1 && !stopped {
						op.Target.(*shelfTarget).fail = func(op string, _ int) error {
							if op == "write" {
								return fmt.Errorf("%w: disk full", bridge.ErrNoSpace)
							}
							return nil
						}
					}
					return op, err
				})
			})
			link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
			src := &live{pieces{size: courierSize, list: layered(rand.New(rand.NewPCG(1, 1)))}, t}
			src.after = func(i int) error {
				if i != 14 {
					return nil
				}
				d.stop(true)
				life.Store(1)
				d.start()
				if stopped {
					go func() {
						waits(t)
						wait := d.stopSlowly(t)
						life.Store(2)
						goOn()
						wait()
						d.start()
					}()
				}
				return nil
			}
			c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, 10*time.Second), courierRequest(true), courierShape)
			if err != nil {
				t.Fatal(err)
			}
			v, err := c.Run(t.Context(), src)
			if err != nil {
				t.Fatal(err)
			}
			if stopped && v.State != bridge.Complete || !stopped && (v.State != bridge.Partial || !strings.Contains(v.Reason, "disk full")) {
				t.Errorf("%+v", v)
			}
		})
	}
}

// TestOpenAtAStoppingReceiver: a sender that comes while the receiver stops is let
// in by the next one.
func TestOpenAtAStoppingReceiver(t *testing.T) {
	for _, same := range []bool{true, false} { // of a transfer that is live, or of none
		s := newShelf(courierBlocks, courierSize)
		waits, goOn := hang(s, func(int) bool { return true })
		told := make(chan string, 256)
		d := startDecoder(t, s, func(o *bridge.Options, _ *session.Options) {
			o.Open = probed(s.open)
			o.OnDecline = func(r transport.Request, reason string) {
				if r.Kind == "test" {
					told <- reason
				}
			}
		})
		run := func(req transport.Request) error {
			link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
			c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, 20*time.Second), req, courierShape)
			if err == nil {
				_, err = c.Run(t.Context(), &pieces{size: courierSize, list: layered(rand.New(rand.NewPCG(1, 1)))})
			}
			return err
		}
		ends := make(chan error, 2)
		go func() { ends <- run(courierRequest(false)) }()
		waits(t)
		other := courierRequest(false)
		if !same {
			other.ID = transport.ID{4}
			s.before = nil // nobody else writes
		}
		late := d.served(t)
		wait := d.stopSlowly(t)
		if _, err := late.Open(t.Context(), other); !errors.Is(err, transport.ErrBusy) {
			t.Errorf("same %v: an open at a receiver that is stopping: %v", same, err)
		}
		late.Close()
		go func() { ends <- run(other) }()
		goOn()
		wait()
		d.start()
		for range 2 {
			if err := <-ends; err != nil {
				t.Errorf("same %v: %v", same, err)
			}
		}
		stopping := false
		for len(told) > 0 {
			stopping = strings.Contains(<-told, "stopping") || stopping
		}
		if !stopping {
			t.Errorf("same %v: nobody was told that the receiver is stopping", same)
		}
	}
}

// TestKeptBytesOutliveAStoppingReceiver: a sender that comes again just before the
// receiver stops keeps what it has.
func TestKeptBytesOutliveAStoppingReceiver(t *testing.T) {
	s := newShelf(courierBlocks, courierSize)
	waits, goOn := hang(s, func(block int) bool { return block == 1 })
	d := startDecoder(t, s, func(o *bridge.Options, _ *session.Options) { o.Open = probed(s.open) })
	link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
	src := &live{pieces{size: courierSize, list: layered(rand.New(rand.NewPCG(5, 5)))}, t}
	src.after = func(i int) error {
		if i != 3 {
			return nil
		}
		waits(t)
		before := d.connections()
		d.cut()
		eventually(t, "the sender is back", func() bool { return d.connections() > before })
		wait := d.stopSlowly(t) // while it waits for its earlier connection's frames
		go func() {
			time.Sleep(600 * time.Millisecond) // and longer than it does
			goOn()
			wait()
			d.start()
		}()
		return nil
	}
	c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, 10*time.Second), courierRequest(true), courierShape)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := c.Run(t.Context(), src); err != nil || v.State != bridge.Complete {
		t.Errorf("%+v, %v", v, err)
	}
	s.check(t, courierBlocks)
}

// TestHeldBytesAreKept: bytes that the receiver had from somebody else before are
// not durable. A source that cannot be read again keeps its own until they are.
func TestHeldBytesAreKept(t *testing.T) {
	s := newShelf(courierBlocks, courierSize)
	d := startDecoder(t, s, func(o *bridge.Options, _ *session.Options) { o.PartWait = 10 * time.Second })
	list := layered(rand.New(rand.NewPCG(2, 2)))
	open := func() *bridge.Courier {
		link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
		c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, 10*time.Second), courierRequest(true), courierShape)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	dead := errors.New("killed")
	_, err := open().Run(t.Context(), &pieces{size: courierSize, list: list, after: func(i int) error {
		if i == 9 {
			time.Sleep(20 * time.Millisecond)
			d.cut()
			return dead
		}
		return nil
	}})
	if !errors.Is(err, dead) && !errors.Is(err, transport.ErrLost) {
		t.Fatal(err)
	}
	c := open()
	src := &live{pieces{size: courierSize, list: list}, t}
	src.after = func(i int) error {
		if i == 9 {
			if sent := c.Sent(); sent.Bytes > courierSize {
				t.Errorf("sent %+v of what was there", sent)
			}
			d.stop(true)
			d.start()
		}
		return nil
	}
	if v, err := c.Run(t.Context(), src); err != nil || v.State != bridge.Complete {
		t.Errorf("%+v, %v", v, err)
	}
	s.check(t, courierBlocks)
}

// TestCutOutweighsAStop: senders were told to keep nothing of blocks without space,
// so another receiver would not get them: the verdict says why, and is final.
func TestCutOutweighsAStop(t *testing.T) {
	for _, kept := range []bool{true, false} {
		s := newShelf(courierBlocks, courierSize)
		var full atomic.Bool
		d := startDecoder(t, s, func(o *bridge.Options, _ *session.Options) {
			o.Open = func(k string, m []byte) (bridge.Opened, error) {
				op, err := s.open(k, m)
				op.Target.(*shelfTarget).fail = func(op string, block int) error {
					if op == "write" && block > 0 {
						full.Store(true)
						return fmt.Errorf("%w: disk full", bridge.ErrNoSpace)
					}
					return nil
				}
				return op, err
			}
		})
		link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
		src := &pieces{size: courierSize, list: layered(rand.New(rand.NewPCG(5, 5)))}
		src.after = func(i int) error {
			if i == 6 {
				eventually(t, "the disk is full", full.Load)
				d.stop(false)
			}
			return nil
		}
		c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, time.Minute), courierRequest(kept), courierShape)
		if err != nil {
			t.Fatal(err)
		}
		v, err := c.Run(t.Context(), src)
		if err != nil || v.Stopped || v.State != bridge.Partial || !strings.Contains(v.Reason, "disk full") || c.Sent().Connects != 1 {
			t.Errorf("kept %v: %+v, %v", kept, v, err)
		}
	}
}

// TestOnlyAnAbsentReceiverHasTheLastWord: an error of another kind is not hidden by
// what a receiver said that stopped before.
func TestOnlyAnAbsentReceiverHasTheLastWord(t *testing.T) {
	s := newShelf(courierBlocks, courierSize)
	d := startDecoder(t, s, nil)
	link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
	src := &pieces{size: courierSize, list: layered(rand.New(rand.NewPCG(1, 1)))}
	src.after = func(i int) error {
		if i == len(src.list)/2 {
			d.stop(false)
			d.o.Open = newShelf(1, 1).open // somebody else's store
			d.start()
		}
		return nil
	}
	c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, 10*time.Second), courierRequest(false), courierShape)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := c.Run(t.Context(), src); !errors.Is(err, bridge.ErrAnswer) {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestNothingDurableEndsTheTrying: a receiver that dies again and again before a
// block of it is durable is no progress, however much it took.
func TestNothingDurableEndsTheTrying(t *testing.T) {
	for _, kept := range []bool{false, true} {
		s := newShelf(courierBlocks, courierSize)
		var n atomic.Int32
		d := startDecoder(t, s, func(_ *bridge.Options, so *session.Options) { so.Window = courierWindow })
		var deaths sync.WaitGroup
		s.before = func(string, int) {
			if n.Add(1)%8 == 0 {
				died := make(chan struct{})
				deaths.Go(func() { d.cut(); close(died); d.stop(true); d.start() })
				<-died
			}
		}
		link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		c, err := bridge.OpenCourier(ctx, failDialer(t, link, 300*time.Millisecond), courierRequest(kept), courierShape)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Run(ctx, &pieces{size: courierSize, list: layered(rand.New(rand.NewPCG(1, 1))), after: func(int) error { return nil }})
		if !errors.Is(err, transport.ErrUnreachable) || c.Sent().Connects > 12 {
			t.Errorf("kept %v: %v after %d connections, %d blocks are visible", kept, err, c.Sent().Connects, s.visible())
		}
		cancel()
		deaths.Wait()
	}
}

// TestPeerThatMissesWhatThereIsNot: a receiver that asks for bytes that nobody has,
// again and again, is not asked for ever.
func TestPeerThatMissesWhatThereIsNot(t *testing.T) {
	names := mem.New(mem.Options{})
	l, err := names.Listen(t.Context(), "decoder")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	serve := func(conn transport.Conn) {
		defer conn.Close()
		offer, err := conn.Accept(t.Context())
		if err != nil {
			return
		}
		in, err := offer.Admit([]byte(`{"blocks":1,"block_bytes":1000}`))
		for err == nil {
			var d *transport.Delivery
			if d, err = in.Recv(t.Context()); err != nil {
				break
			}
			if d.Mark() {
				err = d.Flushed([]transport.Piece{{Block: 0, Offset: 999, Length: 1}})
			} else {
				d.Release()
			}
		}
	}
	wg.Go(func() {
		for {
			conn, err := l.Accept(t.Context())
			if err != nil {
				return
			}
			wg.Go(func() { serve(conn) })
		}
	})
	c, err := bridge.OpenCourier(t.Context(), &prober{link: names.With(mem.Options{})}, courierRequest(true), bridge.Shape{Blocks: 1, BlockBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Run(t.Context(), &pieces{size: 1000, list: []piece{{0, 0, 500}}})
	if !errors.Is(err, bridge.ErrIncomplete) {
		t.Errorf("%+v, %v", v, err)
	}
	l.Close()
	wg.Wait()
}
