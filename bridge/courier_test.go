package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
	"pdlink/transport/failover"
	"pdlink/transport/mem"
	"pdlink/transport/session"
	"pdlink/transport/transporttest"
)

const (
	courierBlocks = 6
	courierSize   = 30_000
	courierTotal  = courierBlocks * courierSize
	courierWindow = 4
	courierFrame  = transport.HeaderRoom // payload of testRing's slots
	courierRing   = 48                   // slots: a frame for each piece of two blocks, and few more, so that a lost one is missed
)

var courierShape = bridge.Shape{Blocks: courierBlocks, BlockBytes: courierSize}

// courierRequest asks for the transfer of the tests.
func courierRequest(kept bool) transport.Request {
	return transport.Request{ID: transport.ID{3}, Kind: "test", Replayable: !kept, Meta: []byte("plan")}
}

// layered is the blocks in an engine's order: each layer is a piece of every block
// of a chunk of two.
func layered(rng *rand.Rand) []piece {
	var out []piece
	for chunk := 0; chunk < courierBlocks; chunk += 2 {
		for at := int64(0); at < courierSize; {
			n := min(1_500+rng.Int64N(2_500), courierSize-at)
			out = append(out, piece{chunk, at, at + n}, piece{chunk + 1, at, at + n})
			at += n
		}
	}
	return out
}

// TestCourierSurvivesCuts cuts connections at random bytes, some of them in the
// handshake, one after the other. The transfer becomes complete, what arrived is
// not sent again, and nothing is left behind.
func TestCourierSurvivesCuts(t *testing.T) {
	seed := transporttest.Seed(t)
	t.Logf("%s=%d", transporttest.SeedVariable, seed)
	reconnects := 0
	for i := range uint64(240) {
		kept := i%2 == 1
		t.Run(fmt.Sprintf("%03d kept %v", i, kept), func(t *testing.T) {
			reconnects += cutCourier(t, rand.New(rand.NewPCG(seed, i)), kept)
		})
	}
	if reconnects < 200 {
		t.Errorf("only %d connections were replaced: the test shows too little", reconnects)
	}
}

// cutCourier is one transfer. It returns how many connections were replaced.
func cutCourier(t *testing.T, rng *rand.Rand, kept bool) int {
	s := newShelf(courierBlocks, courierSize)
	d := startDecoder(t, s, func(o *bridge.Options, so *session.Options) { so.Window, o.IdleWait = courierWindow, 5*time.Second })
	cuts := 1 + rng.IntN(4)
	so := session.Options{SendRing: testRing(t, courierRing), Lanes: 1 + rng.IntN(2), Boot: transport.NewID()}
	so.Intercept = func(driver session.Driver) session.Driver {
		f := transporttest.NewFaults(rng.Uint64())
		if cuts--; cuts >= 0 {
			f.CutAfter(rng.IntN(courierTotal))
		}
		return f.Intercept(driver)
	}
	p := &prober{link: d.names.With(mem.Options{Session: so})}
	src := pieces{size: courierSize, list: layered(rng)}
	src.after = func(int) error { return nil } // a frame for each piece
	if rng.IntN(2) == 0 {
		src.after = nil
	}
	c, err := bridge.OpenCourier(t.Context(), p, courierRequest(kept), courierShape)
	if err != nil {
		t.Fatal(err)
	}
	var v bridge.Verdict
	if kept {
		v, err = c.Run(t.Context(), &live{src, t})
	} else {
		v, err = c.Run(t.Context(), &src)
	}
	if err != nil || v.State != bridge.Complete {
		t.Fatalf("%+v, %v, lost: %v", v, err, p.lost)
	}
	s.check(t, courierBlocks)
	sent := c.Sent()
	if sent.Connects < 1 || len(sent.Links) != 1 || sent.Links[0].Link != "mem" || sent.Links[0].Bytes != sent.Bytes {
		t.Errorf("sent %+v", sent)
	}
	// What was under way at a cut may have to come again: the frames that were
	// granted and not written yet.
	if most := uint64(courierTotal + (sent.Connects-1)*(courierWindow+2)*courierFrame); sent.Bytes > most || sent.Bytes-sent.Again != courierTotal {
		t.Errorf("sent %+v, want at most %d, and %d for the first time", sent, most, courierTotal)
	}
	return sent.Connects - 1
}

// failDialer is a real dialler that loses patience soon.
func failDialer(t *testing.T, link transport.Link, window time.Duration) *failover.Dialer {
	t.Helper()
	d, err := failover.New(failover.Options{Routes: []failover.Route{{Name: "mem", Link: link, Addr: "decoder"}}, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestReceiverRestart ends the receiver in the middle, as a kill does or in order,
// and starts another one on the same store.
func TestReceiverRestart(t *testing.T) {
	for _, kill := range []bool{true, false} {
		for _, kept := range []bool{true, false} {
			t.Run(fmt.Sprintf("kill %v, kept %v", kill, kept), func(t *testing.T) {
				s := newShelf(courierBlocks, courierSize)
				d := startDecoder(t, s, nil)
				link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
				src := pieces{size: courierSize, list: layered(rand.New(rand.NewPCG(1, 1)))}
				src.after = func(i int) error {
					if i == len(src.list)*3/5 && src.runs == 1 {
						eventually(t, "blocks become visible", func() bool { return s.visible() >= 2 })
						d.stop(kill)
						time.AfterFunc(20*time.Millisecond, d.start)
					}
					return nil
				}
				c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, 10*time.Second), courierRequest(kept), courierShape)
				if err != nil {
					t.Fatal(err)
				}
				v, err := c.Run(t.Context(), &src)
				if err != nil || v.State != bridge.Complete || v.Present < 2 {
					t.Fatalf("%+v, %v", v, err)
				}
				if kept && src.runs != 1 {
					t.Errorf("a source that cannot be read again ran %d times", src.runs)
				}
				s.check(t, courierBlocks)
				if sent := c.Sent(); sent.Connects != 2 || sent.Bytes > courierTotal+3*courierSize {
					t.Errorf("sent %+v", sent)
				}
			})
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: did not happen", what)
		}
	}
}

// TestSenderRestart: a new process sends what the first one did not bring. One
// whose source cannot be read again ends in a verdict that says so.
func TestSenderRestart(t *testing.T) {
	for _, kept := range []bool{false, true} {
		t.Run(fmt.Sprintf("kept %v", kept), func(t *testing.T) {
			s := newShelf(courierBlocks, courierSize)
			d := startDecoder(t, s, func(o *bridge.Options, _ *session.Options) { o.PartWait = 10 * time.Second })
			list := layered(rand.New(rand.NewPCG(2, 2)))
			half := len(list) / 2
			open := func() *bridge.Courier {
				link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
				c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, 5*time.Second), courierRequest(kept), courierShape)
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
			first, dead := open(), errors.New("killed")
			_, err := first.Run(t.Context(), &pieces{size: courierSize, list: list, after: func(i int) error {
				if i == half {
					eventually(t, "all that was sent is written", func() bool { return s.holds(list[:half+1]) })
					d.cut() // the first process says nothing more
					return dead
				}
				return nil
			}})
			if !errors.Is(err, dead) && !errors.Is(err, transport.ErrLost) {
				t.Fatal(err)
			}
			second := open()
			src := &pieces{size: courierSize, list: list}
			if kept {
				src.list = list[half+3:] // the engine has gone on
			}
			v, err := second.Run(t.Context(), src)
			if err != nil {
				t.Fatal(err)
			}
			sent := second.Sent()
			if kept {
				if v.State != bridge.Partial || v.Reason == "" || v.Blocks >= courierBlocks {
					t.Errorf("%+v", v)
				}
				s.check(t, v.Blocks)
				return
			}
			if v.State != bridge.Complete || sent.Again != 0 || sent.Bytes > courierTotal*6/10 || first.Sent().Bytes+sent.Bytes < courierTotal {
				t.Errorf("%+v, the first sent %+v, the second %+v", v, first.Sent(), sent)
			}
			s.check(t, courierBlocks)
		})
	}
}

// TestRejoinOverAHalfOpenConnection: the receiver does not know that the old
// connection is dead when its sender comes again, and gives it up at once.
func TestRejoinOverAHalfOpenConnection(t *testing.T) {
	s := newShelf(courierBlocks, courierSize)
	d := startDecoder(t, s, func(_ *bridge.Options, so *session.Options) { so.PingEvery, so.IdlePingEvery = -1, -1 })
	var faults []*transporttest.Faults
	so := session.Options{SendRing: testRing(t, courierRing), PingEvery: 10 * time.Millisecond, LostAfter: 50 * time.Millisecond, Boot: transport.NewID()}
	so.Intercept = func(driver session.Driver) session.Driver {
		f := transporttest.NewFaults(1)
		faults = append(faults, f)
		return f.Intercept(driver)
	}
	list := layered(rand.New(rand.NewPCG(3, 3)))
	src := &live{pieces{size: courierSize, list: list}, t}
	src.after = func(i int) error {
		if i == len(list)/3 || i == len(list)*2/3 {
			faults[len(faults)-1].BlackHole()
		}
		return nil
	}
	begin := time.Now()
	c, err := bridge.OpenCourier(t.Context(), &prober{link: d.names.With(mem.Options{Session: so})}, courierRequest(true), courierShape)
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Run(t.Context(), src)
	if err != nil || v.State != bridge.Complete {
		t.Fatalf("%+v, %v", v, err)
	}
	if took := time.Since(begin); c.Sent().Connects != 3 || took > time.Minute {
		t.Errorf("%d connections in %v, want 3 at once", c.Sent().Connects, took)
	}
	s.check(t, courierBlocks)
}

// TestStrangerWaitsForAHalfOpenConnection: another process is not let in at once.
func TestStrangerWaitsForAHalfOpenConnection(t *testing.T) {
	s := newShelf(courierBlocks, courierSize)
	d := startDecoder(t, s, nil)
	open := func() error {
		conn, err := d.names.With(mem.Options{}).Dial(t.Context(), "decoder")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_, err = conn.Open(t.Context(), courierRequest(false))
		return err
	}
	if err := open(); err != nil {
		t.Fatal(err)
	}
	if err := open(); !errors.Is(err, transport.ErrDuplicate) {
		t.Errorf("another process's open of the same part: %v", err)
	}
}

// TestIdleSourceIsReconnected: nobody puts anything when the connection is lost,
// and the receiver would not wait long.
func TestIdleSourceIsReconnected(t *testing.T) {
	for _, kept := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) { reconnectIdle(t, kept) })
	}
}

func reconnectIdle(t *testing.T, kept bool) {
	s := newShelf(courierBlocks, courierSize)
	d := startDecoder(t, s, func(o *bridge.Options, _ *session.Options) { o.PartWait = 400 * time.Millisecond })
	link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
	src := &pieces{size: courierSize, list: layered(rand.New(rand.NewPCG(4, 4)))}
	src.after = func(i int) error {
		if i == len(src.list)/2 && src.runs == 1 {
			before := d.connections()
			time.Sleep(500 * time.Millisecond) // longer than the receiver waits for a lost sender
			d.cut()
			eventually(t, "the connection is replaced", func() bool { return d.connections() > before })
			synctest.Wait()
		}
		return nil
	}
	c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, 5*time.Second), courierRequest(kept), courierShape)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Millisecond) // on this clock frames would come in the moment in which the transfer began
	v, err := c.Run(t.Context(), src)
	if err != nil || v.State != bridge.Complete || d.last().State != bridge.Complete {
		t.Errorf("kept %v: %+v, %v", kept, v, err)
	}
	if s.opened != 1 {
		t.Errorf("kept %v: the receiver gave the transfer up: it was opened %d times", kept, s.opened)
	}
	s.check(t, courierBlocks)
}

// TestRejoinWhileTheOldConnectionWrites: a slow disk still has frames of the old
// connection when the sender is back.
func TestRejoinWhileTheOldConnectionWrites(t *testing.T) {
	for _, stuck := range []time.Duration{50 * time.Millisecond, 1500 * time.Millisecond} {
		s := newShelf(courierBlocks, courierSize)
		d := startDecoder(t, s, nil)
		release := make(chan struct{})
		entered := make(chan struct{}, 1)
		s.before = func(_ string, block int) {
			if block == 1 {
				select {
				case entered <- struct{}{}:
					<-release
				default:
				}
			}
		}
		link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
		list := layered(rand.New(rand.NewPCG(5, 5)))
		src := &live{pieces{size: courierSize, list: list}, t}
		src.after = func(i int) error {
			if i == 3 {
				eventually(t, "a write hangs", func() bool { return len(entered) == 1 })
				d.cut()
				time.AfterFunc(stuck, func() { close(release) })
			}
			return nil
		}
		c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, 5*time.Second), courierRequest(true), courierShape)
		if err != nil {
			t.Fatal(err)
		}
		v, err := c.Run(t.Context(), src)
		if err != nil || v.State != bridge.Complete {
			t.Errorf("stuck for %v: %+v, %v", stuck, v, err)
		}
		s.check(t, courierBlocks)
	}
}

// TestCourierGivesUp: with nobody to reach it ends when the dialler says so, and at
// once when its caller does. Slots are free in every case.
func TestCourierGivesUp(t *testing.T) {
	for _, kept := range []bool{true, false} {
		for _, cancelled := range []bool{true, false} {
			s := newShelf(courierBlocks, courierSize)
			d := startDecoder(t, s, nil)
			ring := testRing(t, courierRing)
			link := d.names.With(mem.Options{Session: session.Options{SendRing: ring}})
			window := 300 * time.Millisecond
			if cancelled {
				window = time.Minute
			}
			ctx, cancel := context.WithCancel(t.Context())
			src := &pieces{size: courierSize, list: layered(rand.New(rand.NewPCG(6, 6)))}
			src.after = func(i int) error {
				if i == 10 {
					d.stop(true)
					if cancelled {
						time.AfterFunc(20*time.Millisecond, cancel)
					}
				}
				return nil
			}
			c, err := bridge.OpenCourier(ctx, failDialer(t, link, window), courierRequest(kept), courierShape)
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			_, err = c.Run(ctx, src)
			want := failover.ErrGaveUp
			if cancelled {
				want = context.Canceled
			}
			if took := time.Since(begin); !errors.Is(err, want) || took > 30*time.Second {
				t.Errorf("kept %v: error %v after %v, want %v", kept, err, took, want)
			}
			if n := ring.InUse(); n != 0 {
				t.Errorf("kept %v: %d slots in use after the end", kept, n)
			}
			if err := c.Put(t.Context(), 0, 0, []byte("x")); !errors.Is(err, transport.ErrClosed) && !errors.Is(err, want) {
				t.Errorf("put after the end: %v", err)
			}
			cancel()
		}
	}
}
