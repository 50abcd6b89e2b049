package bridge_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// sharedRoom bounds the open blocks of all its targets together, as a store does.
type sharedRoom struct {
	mu          sync.Mutex
	open, limit int
}

// sharedTarget is a target with a part of that room.
type sharedTarget struct {
	*recorder
	room *sharedRoom
	mine map[int]bool // guarded by room.mu
}

func (s *sharedTarget) Write(b int, off int64, p []byte) error {
	s.room.mu.Lock()
	if !s.mine[b] {
		if open := s.room.open; open >= s.room.limit {
			s.room.mu.Unlock()
			return fmt.Errorf("%w: %d", bridge.ErrFull, open)
		}
		s.room.open++
		s.mine[b] = true
	}
	s.room.mu.Unlock()
	return s.recorder.Write(b, off, p)
}

func (s *sharedTarget) Publish(b int) error {
	s.give(b)
	return s.recorder.Publish(b)
}

func (s *sharedTarget) Close() error {
	for b := range s.blocks {
		s.give(b)
	}
	return s.recorder.Close()
}

func (s *sharedTarget) give(b int) {
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	if s.mine[b] {
		delete(s.mine, b)
		s.room.open--
	}
}

// TestTransfersThatShareOpenBlocks: each fits, together they do not. The oldest
// goes first, and all become complete.
func TestTransfersThatShareOpenBlocks(t *testing.T) {
	const blocks, size = 4, 3000
	for _, kept := range []bool{false, true} {
		for _, transfers := range []int{2, 3} {
			t.Run(fmt.Sprintf("%d, kept %v", transfers, kept), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { shareOpenBlocks(t, transfers, kept, blocks, size) })
			})
		}
	}
}

func shareOpenBlocks(t *testing.T, transfers int, kept bool, blocks int, size int64) {
	room := &sharedRoom{limit: blocks + 2}
	d := &decoder{tb: t, names: mem.New(mem.Options{}), verdicts: make(chan bridge.Verdict, 64)}
	d.o = bridge.Options{
		OnVerdict: func(v bridge.Verdict) { d.verdicts <- v },
		Open: func(string, []byte) (bridge.Opened, error) {
			return bridge.Opened{Target: &sharedTarget{newRecorder(blocks, size), room, map[int]bool{}}, Blocks: blocks, BlockBytes: size}, nil
		},
	}
	d.so.RecvRing = testRing(t, 32)
	d.start()
	t.Cleanup(func() { d.stop(true) })
	var list []piece // no block is whole before the last layer
	for at := int64(0); at < size; at += 1000 {
		for b := range blocks {
			list = append(list, piece{b, at, at + 1000})
		}
	}
	var all, opened sync.WaitGroup
	opened.Add(transfers)
	for i := range transfers {
		all.Go(func() {
			link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, courierRing)}})
			req := courierRequest(kept)
			req.ID = transport.ID{byte(20 + i)}
			c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, 30*time.Second), req, bridge.Shape{Blocks: blocks, BlockBytes: size})
			opened.Done()
			if err != nil {
				t.Error(err)
				return
			}
			opened.Wait()
			src := &pieces{size: size, list: list, after: func(int) error { time.Sleep(time.Millisecond); return nil }}
			if v, err := c.Run(t.Context(), src); err != nil || v.State != bridge.Complete {
				t.Errorf("transfer %d: %+v, %v", i, v, err)
			}
		})
	}
	all.Wait()
	complete, yields := 0, 0
	for len(d.verdicts) > 0 {
		switch v := <-d.verdicts; {
		case v.State == bridge.Complete:
			complete++
		case v.Stopped && strings.Contains(v.Reason, "another transfer"):
			yields++
		default:
			t.Errorf("%+v", v)
		}
	}
	if complete != transfers || yields < 1 || yields > 2*transfers {
		t.Errorf("%d of %d are complete, room was made %d times", complete, transfers, yields)
	}
}

// TestSilentSenderKeepsItsPart: a sender whose connection lives is not displaced by
// another process, however long it says nothing: its source may be readable once.
func TestSilentSenderKeepsItsPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(1, 1000)
		d := startDecoder(t, s, nil)
		link := d.names.With(mem.Options{Session: session.Options{SendRing: testRing(t, 4)}})
		c, err := bridge.OpenCourier(t.Context(), failDialer(t, link, time.Second), courierRequest(true), bridge.Shape{Blocks: 1, BlockBytes: 1000})
		if err != nil {
			t.Fatal(err)
		}
		src := &live{pieces{size: 1000, list: []piece{{0, 0, 500}, {0, 500, 1000}}}, t}
		src.after = func(i int) error {
			if i > 0 {
				return nil
			}
			time.Sleep(time.Minute) // an engine that queues
			conn, err := d.names.With(mem.Options{}).Dial(t.Context(), "decoder")
			if err != nil {
				return err
			}
			defer conn.Close()
			if _, err := conn.Open(t.Context(), courierRequest(true)); !errors.Is(err, transport.ErrDuplicate) {
				t.Errorf("another process's open of the same part: %v", err)
			}
			return nil
		}
		if v, err := c.Run(t.Context(), src); err != nil || v.State != bridge.Complete || c.Sent().Connects != 1 {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

// TestPlanOfTheFirst: of senders that come with two plans for one transfer the
// first one's is opened, and the others are told so at once.
func TestPlanOfTheFirst(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	var plans []string
	b := newBench(t, 1, 100, func(b *bench, o *bridge.Options, _ *session.Options) {
		o.Open = func(_ string, meta []byte) (bridge.Opened, error) {
			plans = append(plans, string(meta))
			close(entered)
			<-release
			return bridge.Opened{Target: b.target, Blocks: 1, BlockBytes: 100}, nil
		}
	})
	open := func(part int, plan string) <-chan error {
		conn, out := b.stranger(), make(chan error, 1)
		req := request(part, 2)
		req.Meta = []byte(plan)
		go func() { _, err := conn.Open(t.Context(), req); out <- err }()
		return out
	}
	first := open(0, "plan X")
	<-entered
	select {
	case err := <-open(1, "plan Y"):
		if !errors.Is(err, transport.ErrRefused) || !strings.Contains(err.Error(), "different plan") {
			t.Errorf("another plan: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("another plan waits for the first to be opened")
	}
	second := open(1, "plan X")
	close(release)
	if err := errors.Join(<-first, <-second); err != nil || !slices.Equal(plans, []string{"plan X"}) {
		t.Errorf("%v, opened %q", err, plans)
	}
}

// TestCloseWhileOpening: the receiver is closed while a plan is being opened.
func TestCloseWhileOpening(t *testing.T) {
	for range 20 {
		closed := make(chan error, 1)
		b := newBench(t, 4, 1000, func(b *bench, o *bridge.Options, _ *session.Options) {
			b.present = []bool{true, false, false, false}
			open := o.Open
			o.Open = func(k string, m []byte) (bridge.Opened, error) {
				go func() { closed <- b.receiver.Close() }()
				time.Sleep(time.Millisecond)
				return open(k, m)
			}
		})
		_, err := b.dial().Open(t.Context(), request(0, 1))
		if err != nil && !errors.Is(err, transport.ErrBusy) {
			t.Error(err)
		}
		select {
		case <-closed:
		case <-time.After(time.Minute):
			t.Fatal("the receiver does not close")
		}
		if !b.target.closed {
			t.Error("the target was left open")
		}
	}
}

// TestVerdictListenerHoldsNobodyUp: senders hear the verdict although whoever is
// told of it here does not come back.
func TestVerdictListenerHoldsNobodyUp(t *testing.T) {
	release := make(chan struct{})
	b := newBench(t, 1, 1000, func(_ *bench, o *bridge.Options, _ *session.Options) {
		o.OnVerdict = func(bridge.Verdict) { <-release }
	})
	c, err := bridge.OpenCourier(t.Context(), failDialer(t, b.link, time.Second), request(0, 1), b.shape())
	if err != nil {
		t.Fatal(err)
	}
	if v, err := c.Run(t.Context(), &pieces{size: 1000, list: whole(1000, 0)}); err != nil || v.State != bridge.Complete {
		t.Errorf("%+v, %v", v, err)
	}
	close(release)
}

// TestSealAfterARemoval: a block cannot be sealed because the decoder removed the
// one before it: that is the reason, not the store.
func TestSealAfterARemoval(t *testing.T) {
	var gone sync.Map
	b := newBench(t, 3, 1000, func(b *bench, _ *bridge.Options, _ *session.Options) {
		b.ordered = true
		b.visible = func(k int) bool { _, ok := gone.Load(k); return !ok }
		b.target.fail = func(op string, block int) error {
			if op == "seal" && block == 2 {
				gone.Store(1, true)
				return errors.New("open block 1: no such file")
			}
			return nil
		}
	})
	c, err := bridge.OpenCourier(t.Context(), failDialer(t, b.link, time.Second), request(0, 1), b.shape())
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Run(t.Context(), &pieces{size: 1000, list: whole(1000, 0, 1, 2), after: func(int) error { return nil }})
	if err != nil || v.State != bridge.Partial || v.Blocks != 1 || v.Reason != "block 1 was removed from the store meanwhile" {
		t.Errorf("%+v, %v", v, err)
	}
}
