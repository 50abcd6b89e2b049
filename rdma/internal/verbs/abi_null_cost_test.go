//go:build verbsabi

package verbs

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestNullChannel(t *testing.T) {
	n := newNull(t)
	l := n.lane()
	if err := l.recv.Arm(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- l.ch.Wait(context.Background()) }()
	if _, err := l.qp.PostRecv([]RecvWR{{ID: 3}}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := drain(t, l.recv); len(got) != 1 || got[0].ID != 3 {
		t.Errorf("completions %+v", got)
	}
	// A wake that comes with the end of a context is not lost, and neither is the end.
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		go l.ch.Wake()
		for {
			err := l.ch.Wait(ctx)
			if errors.Is(err, context.Canceled) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	l.ch.Wake()
	if err := l.ch.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNullCost: what this package itself needs for a block of 4 MiB, one WRITE and its
// notice, from the list to the completion. The least of many runs is not disturbed by
// what else the host does.
func TestNullCost(t *testing.T) {
	const limit = 5 * time.Microsecond
	n := newNull(t)
	l := n.lane()
	n.set(keepNone, 1)
	for _, blocks := range []int{1, 4, 16} {
		list := make([]SendWR, 2*blocks)
		for i := range list {
			list[i] = SendWR{ID: uint64(i), Op: OpWrite, Local: [MaxSegments]Segment{{Addr: 4096, Length: 4 << 20, Key: 1}}}
			if i%2 == 1 {
				list[i] = SendWR{ID: uint64(i), Op: OpSend, Flags: FlagSignalled | FlagInline, Local: [MaxSegments]Segment{{Addr: 4096, Length: 32, Key: 1}}}
			}
		}
		out := make([]Completion, 32)
		least := time.Hour
		for range 200 {
			const runs = 100
			begun := time.Now()
			for range runs {
				if _, err := l.qp.PostSend(list); err != nil {
					t.Fatal(err)
				}
				if got, err := l.send.Poll(out); got != blocks || err != nil {
					t.Fatal(got, err)
				}
			}
			least = min(least, time.Since(begun)/time.Duration(runs*blocks))
		}
		t.Logf("%d blocks a batch: %v a block", blocks, least)
		if least > limit {
			t.Errorf("%d blocks a batch: %v a block, want at most %v", blocks, least, limit)
		}
	}
}

func BenchmarkNullBlock(b *testing.B) {
	n := newNull(b)
	l := n.lane()
	n.set(keepNone, 1)
	list := []SendWR{{Op: OpWrite, Local: [MaxSegments]Segment{{Addr: 4096, Length: 4 << 20, Key: 1}}}, {Op: OpSend, Flags: FlagSignalled}}
	out := make([]Completion, 4)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.qp.PostSend(list); err != nil {
			b.Fatal(err)
		}
		if _, err := l.send.Poll(out); err != nil {
			b.Fatal(err)
		}
	}
}
