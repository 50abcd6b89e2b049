package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
	"pdlink/transport/session"
)

// hooked is a recorder with calls in between, without its lock.
type hooked struct {
	*recorder
	sync, seal func(block int) error
}

func (h hooked) Sync(block int) error {
	if h.sync != nil {
		if err := h.sync(block); err != nil {
			return err
		}
	}
	return h.recorder.Sync(block)
}

func (h hooked) Seal(block int) error {
	if h.seal != nil {
		if err := h.seal(block); err != nil {
			return err
		}
	}
	return h.recorder.Seal(block)
}

// into makes transfers of the test go into a target.
func into(b *bench, o *bridge.Options, target bridge.Target) {
	o.Open = func(string, []byte) (bridge.Opened, error) {
		return bridge.Opened{Target: target, Blocks: b.blocks, BlockBytes: b.size, Ordered: b.ordered}, nil
	}
}

// layers is blocks as an engine makes them: n open at a time, layer by layer.
func layers(blocks, open int, size int64) []piece {
	const count = 4
	var out []piece
	for first := 0; first < blocks; first += open {
		for l := range int64(count) {
			for b := first; b < min(first+open, blocks); b++ {
				out = append(out, piece{b, l * size / count, (l + 1) * size / count})
			}
		}
	}
	return out
}

func noSpaceFrom(block int) func(string, int) error {
	return func(op string, b int) error {
		if b >= block && (op == "write" || op == "seal") {
			return fmt.Errorf("%w: %w", bridge.ErrNoSpace, syscall.ENOSPC)
		}
		return nil
	}
}

// TestNoSpaceCutsTheTransfer: whatever block has no space, those in front of it
// are finished, by a sender that keeps its bytes in a small ring too.
func TestNoSpaceCutsTheTransfer(t *testing.T) {
	const blocks, size = 12, 40_000
	for at := range blocks {
		for _, replayable := range []bool{true, false} {
			b := newBench(t, blocks, size, func(_ *bench, o *bridge.Options, so *session.Options) {
				o.IdleWait = 5 * time.Second // a sender that comes to a halt fails the test
				var err error
				if so.SendRing, err = transport.NewRing(2*4*size/(8<<10)+4, transport.HeaderRoom+8<<10); err != nil {
					t.Fatal(err)
				}
			})
			b.target.fail = noSpaceFrom(at)
			req := request(0, 1)
			req.Replayable = replayable
			s, err := b.courier(b.dial(), req, b.shape())
			if err != nil {
				t.Fatal(err)
			}
			v, err := s.Run(t.Context(), &pieces{size: size, list: layers(blocks, 4, size)})
			if err != nil || v.State != bridge.Partial || v.Blocks != at || !strings.Contains(v.Reason, "no space") {
				t.Fatalf("no space from block %d, replayable %v: %+v, %v", at, replayable, v, err)
			}
			b.check(at)
		}
	}
}

// TestCutFreesTheSendersRing: a sender that keeps its bytes until their blocks are
// durable does not keep those of blocks that never will be.
func TestCutFreesTheSendersRing(t *testing.T) {
	const blocks, size = 12, 40_000
	b := newBench(t, blocks, size, func(_ *bench, o *bridge.Options, so *session.Options) {
		o.IdleWait = 5 * time.Second
		var err error
		if so.SendRing, err = transport.NewRing(16, transport.HeaderRoom+8<<10); err != nil {
			t.Fatal(err)
		}
	})
	b.target.fail = noSpaceFrom(1)
	req := request(0, 1)
	req.Replayable = false
	s, err := b.courier(b.dial(), req, b.shape())
	if err != nil {
		t.Fatal(err)
	}
	list := append([]piece{{0, 0, size / 2}}, whole(size, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)...)
	list = append(list, piece{0, size / 2, size})
	v, err := s.Run(t.Context(), &pieces{size: size, list: list})
	if err != nil || v.State != bridge.Partial || v.Blocks != 1 || !strings.Contains(v.Reason, "no space") {
		t.Fatalf("%+v, %v", v, err)
	}
	b.check(1)
}

// TestFlushAfterACut: what is durable of one sender does not depend on what
// another still has to send.
func TestFlushAfterACut(t *testing.T) {
	b := newBench(t, 4, 1000, func(_ *bench, o *bridge.Options, _ *session.Options) { o.PartWait = time.Minute })
	b.target.fail = noSpaceFrom(2)
	first, err := b.dial().Open(t.Context(), request(0, 2))
	if err != nil {
		t.Fatal(err)
	}
	second := b.open(b.dial(), 1, 2)
	for block := range uint32(4) {
		raw(t, first, block, 0, blockData(int(block), 1000)[:500])
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := first.Flush(ctx); err != nil {
		t.Fatalf("flush of a sender whose blocks wait for another's bytes: %v", err)
	}
	if b.target.synced == 0 {
		t.Error("nothing was made durable")
	}
	list := []piece{{0, 500, 1000}, {1, 500, 1000}, {2, 500, 1000}}
	v, err := second.Run(t.Context(), &pieces{size: 1000, list: list})
	if err != nil || v.State != bridge.Partial || v.Blocks != 2 || !strings.Contains(v.Reason, "no space") {
		t.Fatalf("%+v, %v", v, err)
	}
	if res, err := first.Finish(t.Context()); err != nil || len(res.Result) == 0 {
		t.Errorf("%s, %v", res.Result, err)
	}
	b.check(2)
}

// TestCutAndNothingMore: the blocks in front of a cut never come.
func TestCutAndNothingMore(t *testing.T) {
	b := newBench(t, 4, 1000, nil)
	b.target.fail = noSpaceFrom(3)
	v, err := b.open(b.dial(), 0, 1).Run(t.Context(), &pieces{size: 1000, list: append(whole(1000, 0, 3), piece{1, 0, 500})})
	if err != nil || v.State != bridge.Partial || v.Blocks != 1 || !strings.Contains(v.Reason, "no space") {
		t.Fatalf("%+v, %v", v, err)
	}
	b.check(1)
}

// TestBlocksInFrontOfAFailureBecomeVisible: a block that cannot be sealed takes
// those in front, which are being sealed still, not with it.
func TestBlocksInFrontOfAFailureBecomeVisible(t *testing.T) {
	for _, c := range []struct {
		op   string
		at   int
		want int
	}{{"seal", 3, 3}, {"seal", 1, 1}, {"publish", 2, 2}, {"settle", 2, 2}, {"settle", 0, 0}} {
		failed := make(chan struct{})
		b := newBench(t, 4, 1000, func(b *bench, o *bridge.Options, _ *session.Options) {
			into(b, o, hooked{recorder: b.target, seal: func(block int) error {
				if c.op == "seal" && block < c.at {
					<-failed
				} else if c.op == "seal" && block == c.at {
					close(failed)
					return syscall.EIO
				}
				return nil
			}})
			b.target.fail = func(op string, block int) error {
				if op == c.op && block == c.at && op != "seal" {
					return syscall.EIO
				}
				return nil
			}
		})
		v, err := b.open(b.dial(), 0, 1).Run(t.Context(), &pieces{size: 1000, list: layers(4, 4, 1000)})
		if err != nil || v.State != bridge.Partial || v.Blocks != c.want || !strings.Contains(v.Reason, syscall.EIO.Error()) {
			t.Fatalf("%s of block %d: %+v, %v", c.op, c.at, v, err)
		}
		if n := len(b.target.published); c.op != "settle" && n != c.want || !b.target.closed {
			t.Errorf("%s of block %d: %d published, closed %v", c.op, c.at, n, b.target.closed)
		}
	}
}

// TestEveryCallFails lets every call of the target fail once, whoever makes it.
// The verdict counts what is visible and durable and no more, and says why.
func TestEveryCallFails(t *testing.T) {
	const blocks, size = 5, 4000
	for at := 1; ; at++ {
		calls := 0
		b := newBench(t, blocks, size, nil)
		b.target.fail = func(string, int) error { // with the target's lock
			if calls++; calls == at {
				return syscall.EIO
			}
			return nil
		}
		src := &pieces{size: size, list: layers(blocks, 2, size)}
		v, err := b.open(b.dial(), 0, 1).Run(t.Context(), src)
		if err != nil || !b.target.closed {
			t.Fatalf("call %d: %v, closed %v", at, err, b.target.closed)
		}
		if calls < at { // there is no such call any more
			if v.State != bridge.Complete || at < 20 {
				t.Fatalf("%+v after %d calls", v, at)
			}
			b.check(blocks)
			return
		}
		if v.State != bridge.Partial || !strings.Contains(v.Reason, syscall.EIO.Error()) {
			t.Fatalf("call %d: %+v", at, v)
		}
		for i, block := range b.target.published {
			if i != block || string(b.target.blocks[block]) != string(blockData(block, size)) {
				t.Fatalf("call %d: published %v", at, b.target.published)
			}
		}
		if n := len(b.target.published); v.Blocks > n {
			t.Fatalf("call %d: %d blocks in the verdict, %d published", at, v.Blocks, n)
		}
	}
}

// TestSlowDiskSlowsItsSenderOnly: a transfer whose target hangs keeps its own part
// of the ring, and another one on the same connection goes on.
func TestSlowDiskSlowsItsSenderOnly(t *testing.T) {
	const blocks, size = 6, 200_000
	slow := newRecorder(blocks, size)
	release := make(chan struct{})
	slow.before = func(string) { <-release }
	ring, err := transport.NewRing(16, transport.HeaderRoom+16<<10)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, blocks, size, func(b *bench, o *bridge.Options, so *session.Options) {
		so.RecvRing = ring
		o.Open = func(_ string, meta []byte) (bridge.Opened, error) {
			target := b.target
			if string(meta) == "slow" {
				target = slow
			}
			return bridge.Opened{Target: target, Blocks: blocks, BlockBytes: size}, nil
		}
	})
	conn := b.dial()
	req := request(0, 1)
	req.ID, req.Meta = transport.ID{2}, []byte("slow")
	s, err := b.courier(conn, req, b.shape())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		v, err := s.Run(t.Context(), &pieces{size: size, list: layers(blocks, 3, size)})
		if err != nil || v.State != bridge.Complete {
			t.Errorf("slow: %+v, %v", v, err)
		}
	})
	for end := time.Now().Add(time.Minute); ring.InUse() < 4 && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // until the slow one has filled what it is given
	}
	v, err := b.open(conn, 0, 1).Run(t.Context(), &pieces{size: size, list: layers(blocks, 3, size)})
	if err != nil || v.State != bridge.Complete {
		t.Errorf("fast: %+v, %v", v, err)
	}
	b.check(blocks)
	if n := ring.InUse(); n == 0 || n == ring.Slots() {
		t.Errorf("the slow one holds %d of %d slots", n, ring.Slots())
	}
	close(release)
	wg.Wait()
}

// TestFramesGoOnWhileAFlushSynchronises: a flush in the middle does not stop the
// frames behind it, and is answered only when what came before it is durable.
func TestFramesGoOnWhileAFlushSynchronises(t *testing.T) {
	entered, release := make(chan struct{}, 1), make(chan struct{})
	b := newBench(t, 2, 1000, func(b *bench, o *bridge.Options, _ *session.Options) {
		into(b, o, hooked{recorder: b.target, sync: func(int) error {
			entered <- struct{}{}
			<-release
			return nil
		}})
	})
	out, err := b.dial().Open(t.Context(), request(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	raw(t, out, 0, 0, blockData(0, 1000)[:500])
	flushed := make(chan error, 1)
	go func() { flushed <- out.Flush(t.Context()) }()
	<-entered
	raw(t, out, 1, 0, blockData(1, 1000))
	b.await(1, 1000)
	select {
	case err := <-flushed:
		t.Errorf("flushed before the bytes were durable: %v", err)
	default:
	}
	close(release)
	if err := <-flushed; err != nil {
		t.Error(err)
	}
	raw(t, out, 0, 500, blockData(0, 1000)[500:])
	res, err := out.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v, err := bridge.ParseVerdict(res.Result); err != nil || v.State != bridge.Complete {
		t.Errorf("%+v, %v", v, err)
	}
	b.check(2)
}

// TestFlushOfWholeBlocksIsOneSynchronisation: blocks that become visible anyway
// are not synchronised once more for a flush.
func TestFlushOfWholeBlocksIsOneSynchronisation(t *testing.T) {
	b := newBench(t, 3, 1000, nil)
	out, err := b.dial().Open(t.Context(), request(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	for block := range uint32(2) {
		raw(t, out, block, 0, blockData(int(block), 1000))
	}
	if err := out.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.target.mu.Lock()
	if n, m := b.target.synced, len(b.target.published); n != 0 || m != 2 {
		t.Errorf("%d synchronised, %d published", n, m)
	}
	b.target.mu.Unlock()
	out.Cancel("test")
	if v := b.verdict(); v.Blocks != 2 {
		t.Errorf("%+v", v)
	}
}

// TestDiskFailureDuringFlush: the flush is left to the verdict.
func TestDiskFailureDuringFlush(t *testing.T) {
	b := newBench(t, 2, 1000, func(b *bench, o *bridge.Options, _ *session.Options) {
		into(b, o, hooked{recorder: b.target, sync: func(int) error { return syscall.EIO }})
	})
	out, err := b.dial().Open(t.Context(), request(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	raw(t, out, 0, 0, blockData(0, 1000)[:500])
	if err := out.Flush(t.Context()); !errors.Is(err, transport.ErrCancelled) {
		t.Errorf("flush: %v", err)
	}
	res, err := out.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v, err := bridge.ParseVerdict(res.Result); err != nil || v.State != bridge.Partial || !strings.Contains(v.Reason, syscall.EIO.Error()) {
		t.Errorf("%+v, %v", v, err)
	}
}
