package bridge_test

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
	"pdlink/transport/session"
)

func TestOneSenderAnyOrder(t *testing.T) {
	for seed := range uint64(20) {
		b := newBench(t, 7, 5000, func(b *bench, _ *bridge.Options, _ *session.Options) { b.ordered = seed%2 == 0 })
		v, err := b.open(b.dial(), 0, 1).Run(t.Context(), &pieces{size: 5000, list: shuffled(7, 5000, seed)})
		if err != nil || v.State != bridge.Complete || v.Blocks != 7 || v.Bytes != 7*5000 {
			t.Fatalf("seed %d: %+v, %v", seed, v, err)
		}
		if got := b.verdict(); got.String() != "complete" || len(got.Links) != 1 || got.Links[0].Link != "mem" {
			t.Errorf("seed %d: receiver says %+v", seed, got)
		}
		b.check(7)
	}
}

func TestUnionOfOverlappingSenders(t *testing.T) {
	b := newBench(t, 4, 9000, nil)
	var senders []*bridge.Courier // all members before the first can finish
	for part := range 3 {
		senders = append(senders, b.open(b.dial(), part, 3))
	}
	var wg sync.WaitGroup
	for part, s := range senders {
		var list []piece
		for i, p := range shuffled(4, 9000, uint64(part)) {
			if part == 0 || i%3 != part { // part 0 has everything, the others most of it
				list = append(list, p)
			}
		}
		wg.Go(func() {
			v, err := s.Run(t.Context(), &pieces{size: 9000, list: list})
			if err != nil || v.State != bridge.Complete {
				t.Errorf("part %d: %+v, %v", part, v, err)
			}
		})
	}
	wg.Wait()
	b.check(4)
}

func TestVisibleOnlyInChainOrder(t *testing.T) {
	b := newBench(t, 3, 1000, nil)
	src := &pieces{size: 1000, list: whole(1000, 2, 1)}
	v, err := b.open(b.dial(), 0, 1).Run(t.Context(), src)
	if err != nil || v.State != bridge.Partial || v.Blocks != 0 || v.Reason == "" {
		t.Fatalf("%+v, %v", v, err)
	}
	b.check(0)
	if !b.target.closed || b.target.sealed[0] {
		t.Error("the target was not closed, or a missing block was sealed")
	}
}

func TestPresentBlocksAreNotSent(t *testing.T) {
	b := newBench(t, 4, 1000, func(b *bench, _ *bridge.Options, _ *session.Options) {
		b.present = []bool{true, false, true, false}
	})
	s := b.open(b.dial(), 0, 1)
	if s.Wants(0) || !s.Wants(1) || s.Wants(2) || !s.Wants(3) || s.Wants(4) || s.Wants(-1) {
		t.Error("wants the wrong blocks")
	}
	v, err := s.Run(t.Context(), &pieces{size: 1000, list: whole(1000, 0, 1, 2, 3)})
	if err != nil || v.State != bridge.Complete || v.Present != 2 || v.Bytes != 2000 {
		t.Fatalf("%+v, %v", v, err)
	}
	b.check(4)
}

func TestEverythingPresent(t *testing.T) {
	b := newBench(t, 2, 1000, func(b *bench, _ *bridge.Options, _ *session.Options) { b.present = []bool{true, true} })
	v, err := b.open(b.dial(), 0, 1).Run(t.Context(), &pieces{size: 1000})
	if err != nil || v.State != bridge.Complete || v.Bytes != 0 || v.Blocks != 2 {
		t.Fatalf("%+v, %v", v, err)
	}
}

func TestLostSenderComesBack(t *testing.T) {
	b := newBench(t, 3, 6000, func(_ *bench, o *bridge.Options, _ *session.Options) { o.PartWait = time.Minute })
	first := b.dial()
	cut := errors.New("cut")
	_, err := b.open(first, 0, 1).Run(t.Context(), &pieces{
		size: 6000, list: []piece{{0, 0, 6000}, {1, 0, 3000}},
		after: func(i int) error {
			if i == 1 {
				b.await(1, 3000)
				return errors.Join(cut, first.Close())
			}
			return nil
		},
	})
	if !errors.Is(err, cut) {
		t.Fatalf("first run: %v", err)
	}
	var s *bridge.Courier
	for deadline := time.Now().Add(time.Minute); ; { // until the loss is noticed the part is a duplicate
		if s, err = b.courier(b.dial(), request(0, 1), b.shape()); err == nil {
			break
		}
		if !errors.Is(err, transport.ErrDuplicate) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	v, err := s.Run(t.Context(), &pieces{size: 6000, list: whole(6000, 0, 1, 2)})
	if err != nil || v.State != bridge.Complete {
		t.Fatalf("%+v, %v", v, err)
	}
	b.check(3)
}

func TestMissingPartEndsInAPrefix(t *testing.T) {
	b := newBench(t, 3, 1000, func(_ *bench, o *bridge.Options, _ *session.Options) { o.PartWait = 50 * time.Millisecond })
	v, err := b.open(b.dial(), 0, 2).Run(t.Context(), &pieces{size: 1000, list: append(whole(1000, 0), piece{1, 0, 400})})
	if err != nil || v.String() != "partial 1/3: of 2 parts these did not finish: 2" {
		t.Fatalf("%q, %v", v, err)
	}
	b.check(1)
}

func TestRefusals(t *testing.T) {
	b := newBench(t, 3, 1000, nil)
	b.open(b.dial(), 0, 2)
	for name, c := range map[string]struct {
		change func(*transport.Request)
		want   error
	}{
		"the same part":  {func(*transport.Request) {}, transport.ErrDuplicate},
		"another plan":   {func(r *transport.Request) { r.Part, r.Meta = 1, []byte("other") }, transport.ErrRefused},
		"another kind":   {func(r *transport.Request) { r.Part, r.Kind = 1, "x" }, transport.ErrRefused},
		"other parts":    {func(r *transport.Request) { r.Part, r.Parts = 1, 3 }, transport.ErrRefused},
		"a bad transfer": {func(r *transport.Request) { r.ID, r.Kind = transport.ID{9}, "x" }, transport.ErrRefused},
	} {
		req := request(0, 2)
		c.change(&req)
		if _, err := b.courier(b.stranger(), req, b.shape()); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	b.open(b.dial(), 1, 2) // the right one is still welcome
}

func TestPieceOutsideThePlanEndsOnlyItsSender(t *testing.T) {
	b := newBench(t, 2, 1000, nil)
	good := b.open(b.dial(), 0, 2)
	conn := b.dial()
	out, err := conn.Open(t.Context(), request(1, 2))
	if err != nil {
		t.Fatal(err)
	}
	l, err := out.Lease(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.Append(1, 990, make([]byte, 20))
	if err := out.Send(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if err := out.Flush(t.Context()); !errors.Is(err, transport.ErrCancelled) {
		t.Errorf("flush of a piece outside the plan: %v", err)
	}
	v, err := good.Run(t.Context(), &pieces{size: 1000, list: whole(1000, 0, 1)})
	if err != nil || v.State != bridge.Complete {
		t.Fatalf("%+v, %v", v, err)
	}
	b.check(2)
}

func TestSenderRefusesBytesOutsideThePlan(t *testing.T) {
	b := newBench(t, 2, 1000, nil)
	s := b.open(b.dial(), 0, 1)
	for _, off := range []int64{-1, 996} {
		if err := s.Put(t.Context(), 0, off, make([]byte, 5)); !errors.Is(err, bridge.ErrPlan) {
			t.Errorf("offset %d: %v", off, err)
		}
	}
	s.Close()
}

func TestStoreFaults(t *testing.T) {
	full := errors.New("disk full")
	for _, c := range []struct {
		op      string
		block   int
		visible int
	}{{"write", 2, 2}, {"seal", 1, 1}, {"publish", 1, 1}, {"sync", 3, 3}} {
		t.Run(c.op, func(t *testing.T) {
			b := newBench(t, 4, 1000, nil)
			b.target.fail = func(op string, block int) error {
				if op == c.op && block == c.block {
					return full
				}
				return nil
			}
			// One block after the other, so that those before the fault are done.
			list := whole(1000, 0, 1, 2)
			list = append(list, piece{3, 0, 500})
			seen := func(i int) error {
				for end := time.Now().Add(time.Minute); i < c.visible && i < 3 && time.Now().Before(end); time.Sleep(time.Millisecond) {
					b.target.mu.Lock()
					n := len(b.target.published)
					b.target.mu.Unlock()
					if n > i {
						break
					}
				}
				return nil
			}
			v, err := b.open(b.dial(), 0, 1).Run(t.Context(), &pieces{size: 1000, list: list, after: seen})
			if err != nil || v.State != bridge.Partial || v.Blocks != c.visible {
				t.Fatalf("%+v, %v", v, err)
			}
			if want := full.Error(); !bytes.Contains([]byte(v.Reason), []byte(want)) {
				t.Errorf("reason %q does not say %q", v.Reason, want)
			}
			b.check(c.visible)
		})
	}
}

func TestCloseEndsTransfers(t *testing.T) {
	b := newBench(t, 3, 1000, nil)
	src := &pieces{size: 1000, list: append(whole(1000, 0), piece{1, 0, 10}), after: func(i int) error {
		if i < 1 {
			return nil
		}
		b.await(1, 10)
		return b.receiver.Close()
	}}
	v, err := b.open(b.dial(), 0, 1).Run(t.Context(), src)
	if err != nil || v.State != bridge.Partial || v.Reason != "the receiver was stopped" {
		t.Fatalf("%+v, %v", v, err)
	}
	if v.Bytes != 1010 || len(v.Links) != 1 || v.Seconds <= 0 {
		t.Errorf("what arrived before the stop is not counted: %+v", v)
	}
	if _, err := b.courier(b.dial(), request(0, 1), b.shape()); !errors.Is(err, transport.ErrRefused) {
		t.Errorf("open after close: %v", err)
	}
}

func TestBlocksAreToldInOrder(t *testing.T) {
	var told []int
	b := newBench(t, 5, 1000, func(_ *bench, o *bridge.Options, _ *session.Options) {
		o.OnBlock = func(_ transport.ID, visible, total int) { told = append(told, visible*10+total) }
	})
	if _, err := b.open(b.dial(), 0, 1).Run(t.Context(), &pieces{size: 1000, list: shuffled(5, 1000, 3)}); err != nil {
		t.Fatal(err)
	}
	b.verdict()
	if !slices.Equal(told, []int{15, 25, 35, 45, 55}) {
		t.Errorf("told %v", told)
	}
}

// corrupter flips a bit in the payload of some frames.
type corrupter struct {
	session.Driver
	mu    sync.Mutex
	every int
	n     int
}

func (c *corrupter) WriteFrame(lane int, header, payload []byte) error {
	c.mu.Lock()
	c.n++
	bad := c.n%c.every == 0
	c.mu.Unlock()
	if bad && len(payload) > 0 {
		payload = bytes.Clone(payload)
		payload[len(payload)/2] ^= 4
	}
	return c.Driver.WriteFrame(lane, header, payload)
}

func TestBadPiecesAloneAreSentAgain(t *testing.T) {
	b := newBench(t, 6, 3000, func(_ *bench, _ *bridge.Options, so *session.Options) {
		so.Intercept = func(d session.Driver) session.Driver { return &corrupter{Driver: d, every: 5} }
	})
	src := &pieces{size: 3000, list: shuffled(6, 3000, 1), after: func(int) error { return nil }}
	v, err := b.open(b.dial(), 0, 1).Run(t.Context(), src)
	if err != nil || v.State != bridge.Complete || v.Bad == 0 {
		t.Fatalf("%+v, %v", v, err)
	}
	if src.runs < 2 || v.Bytes >= 2*6*3000 {
		t.Errorf("%d runs, %d bytes for %d: not only bad pieces were sent again", src.runs, v.Bytes, 6*3000)
	}
	b.check(6)
}

func TestPiecesThatNeverArriveAreGivenUp(t *testing.T) {
	b := newBench(t, 1, 3000, func(_ *bench, _ *bridge.Options, so *session.Options) {
		so.Intercept = func(d session.Driver) session.Driver { return &corrupter{Driver: d, every: 1} }
	})
	_, err := b.open(b.dial(), 0, 1).Run(t.Context(), &pieces{size: 3000, list: whole(3000, 0)})
	if !errors.Is(err, bridge.ErrIncomplete) || !errors.Is(err, transport.ErrMissing) {
		t.Fatal(err)
	}
	if v := b.verdict(); v.State != bridge.Partial || v.Blocks != 0 {
		t.Errorf("%+v", v)
	}
	b.check(0)
}

func TestCheckRing(t *testing.T) {
	if err := bridge.CheckRing(200, 101); !errors.Is(err, bridge.ErrRing) {
		t.Error(err)
	}
	if err := bridge.CheckRing(202, 101); err != nil {
		t.Error(err)
	}
}

// raw sends one frame on an open transfer.
func raw(t *testing.T, out transport.Outgoing, block uint32, off uint64, p []byte) {
	t.Helper()
	l, err := out.Lease(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.Append(block, off, p)
	if err := out.Send(t.Context(), l); err != nil {
		t.Fatal(err)
	}
}

func TestNothingIsCalledDurableAfterAFault(t *testing.T) {
	for _, op := range []string{"sync", "write"} {
		b := newBench(t, 2, 1000, nil)
		b.target.fail = func(o string, _ int) error {
			if o == op {
				return errors.New("i/o error")
			}
			return nil
		}
		out, err := b.dial().Open(t.Context(), request(0, 1))
		if err != nil {
			t.Fatal(err)
		}
		raw(t, out, 0, 0, make([]byte, 100))
		for range 2 {
			if err := out.Flush(t.Context()); err == nil {
				t.Errorf("a flush after a failed %s says that all is durable", op)
			}
		}
		res, err := out.Finish(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if v, err := bridge.ParseVerdict(res.Result); err != nil || v.State != bridge.Partial || v.Reason == "" {
			t.Errorf("%+v, %v", v, err)
		}
	}
}

func TestBytesOfAnotherSenderAreDurableOnlyWhenWritten(t *testing.T) {
	b := newBench(t, 1, 1000, nil)
	entered, release := make(chan struct{}), make(chan struct{})
	b.target.before = func(op string) {
		if op == "write" {
			close(entered)
			<-release
		}
	}
	first, err := b.dial().Open(t.Context(), request(0, 2))
	if err != nil {
		t.Fatal(err)
	}
	second, err := b.dial().Open(t.Context(), request(1, 2))
	if err != nil {
		t.Fatal(err)
	}
	raw(t, first, 0, 0, make([]byte, 500))
	<-entered
	raw(t, second, 0, 0, make([]byte, 500)) // taken already, and not written yet
	flushed := make(chan error, 1)
	go func() { flushed <- second.Flush(t.Context()) }()
	select {
	case err := <-flushed:
		t.Errorf("flushed before the bytes were written: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	if err := <-flushed; err != nil {
		t.Error(err)
	}
	first.Cancel("test")
	second.Cancel("test")
}

func TestPartWaitCountsFromTheLastFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pause, wait = 8 * time.Second, 10 * time.Second
		b := newBench(t, 2, 1000, func(_ *bench, o *bridge.Options, _ *session.Options) { o.PartWait = wait })
		begin := time.Now()
		v, err := b.open(b.dial(), 0, 2).Run(t.Context(), &pieces{size: 1000, list: []piece{{0, 0, 300}, {0, 300, 500}}, after: func(i int) error {
			if i == 0 {
				time.Sleep(pause)
			}
			return nil
		}})
		if err != nil || v.State != bridge.Partial || v.Seconds <= 0 {
			t.Fatalf("%+v, %v", v, err)
		}
		if took := time.Since(begin); took < pause+wait || took > pause+wait+time.Second {
			t.Errorf("waited %v for the other part, want %v", took-pause, wait)
		}
	})
}

func TestDeclinesAreTold(t *testing.T) {
	told := make(chan string, 4)
	b := newBench(t, 2, 1000, func(_ *bench, o *bridge.Options, _ *session.Options) {
		o.OnDecline = func(r transport.Request, reason string) { told <- r.Kind + ": " + reason }
	})
	req := request(0, 1)
	req.Kind = "x"
	if _, err := b.courier(b.dial(), req, b.shape()); !errors.Is(err, transport.ErrRefused) {
		t.Fatal(err)
	}
	if got := <-told; got != `x: kind "x"` {
		t.Errorf("told %q", got)
	}
}

func TestAnotherShapeIsNotAnswered(t *testing.T) {
	b := newBench(t, 2, 1000, nil)
	for i, shape := range []bridge.Shape{{3, 1000}, {2, 999}, {}} {
		req := request(0, 1)
		req.ID = transport.ID{byte(10 + i)}
		if _, err := b.courier(b.dial(), req, shape); !errors.Is(err, bridge.ErrAnswer) {
			t.Errorf("%+v: %v", shape, err)
		}
	}
}
