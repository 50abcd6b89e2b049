package transporttest

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"pdlink/transport"
	"pdlink/transport/session"
)

// Bench measures a link with rings of default size: goodput and allocations for
// each frame of the largest size, of one piece and of many, and the round trip
// of a flush. An operation is one frame, or one flush.
func Bench(b *testing.B, h Harness) {
	for _, lanes := range []int{1, h.lanes()} {
		for _, pieces := range []int{1, 20} {
			b.Run(fmt.Sprintf("frame/lanes=%d/pieces=%d", lanes, pieces), func(b *testing.B) { benchFrames(b, h, lanes, pieces) })
		}
	}
	b.Run("flush", func(b *testing.B) { benchFlush(b, h) })
}

// benchPair opens a transfer whose receiver takes everything.
func benchPair(b *testing.B, h Harness, lanes int) (transport.Outgoing, <-chan outcome[struct{}]) {
	b.Helper()
	p := h.Pair(b, session.Options{Lanes: lanes}, session.Options{Lanes: lanes})
	b.Cleanup(p.Close)
	e := newEnv(b, h, 1)
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	done := call(func() error {
		for {
			d, err := in.Recv(b.Context())
			switch {
			case errors.Is(err, io.EOF):
				return in.Finish(nil)
			case err != nil:
				return err
			case d.Mark():
				if err := d.Flushed(nil); err != nil {
					return err
				}
			default:
				d.Release()
			}
		}
	})
	return out, done
}

func benchFrames(b *testing.B, h Harness, lanes, pieces int) {
	out, done := benchPair(b, h, lanes)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		l, err := out.Lease(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		size := l.Room() / pieces
		for i := range pieces {
			// The slot's bytes are sent as they are: filling them is not the
			// link's work.
			if _, err := l.Reserve(0, uint64(n+i)*uint64(size), size); err != nil {
				b.Fatal(err)
			}
		}
		if n == 0 {
			b.SetBytes(int64(size * pieces))
		}
		n += pieces
		if err := out.Send(b.Context(), l); err != nil {
			b.Fatal(err)
		}
	}
	finishBench(b, out, done)
}

func benchFlush(b *testing.B, h Harness) {
	out, done := benchPair(b, h, 1)
	b.ReportAllocs()
	for b.Loop() {
		if err := out.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	finishBench(b, out, done)
}

func finishBench(b *testing.B, out transport.Outgoing, done <-chan outcome[struct{}]) {
	b.Helper()
	if _, err := out.Finish(b.Context()); err != nil {
		b.Fatal(err)
	}
	if r := <-done; r.err != nil {
		b.Fatal(r.err)
	}
}
