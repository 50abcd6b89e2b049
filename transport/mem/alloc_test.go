package mem_test

import (
	"testing"

	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// TestAlloc moves frames in a steady flow and counts what both ends allocate
// for each: nothing, for sources of either kind, with grants and acknowledgements
// on their way all the time.
func TestAlloc(t *testing.T) {
	for name, replayable := range map[string]bool{"replayable": true, "kept": false} {
		t.Run(name, func(t *testing.T) {
			o := mem.Options{Session: session.Options{Lanes: 2}}
			a, b := pair(t, o, o)
			out, in := open(t, a, b, transport.Request{Replayable: replayable})
			blocks := []uint32{0, 1} // a list made for the call would be the caller's allocation
			frame := func() {
				l, err := out.Lease(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for i := range uint32(10) {
					if _, err := l.Reserve(blocks[i/5], uint64(i)*100, 100); err != nil {
						t.Fatal(err)
					}
				}
				if err := out.Send(t.Context(), l); err != nil {
					t.Fatal(err)
				}
				d, err := in.Recv(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				d.Release()
				if err := in.Ack(blocks...); err != nil {
					t.Fatal(err)
				}
				blocks[0], blocks[1] = blocks[0]+2, blocks[1]+2
			}
			for range 200 { // fills the pools
				frame()
			}
			if n := testing.AllocsPerRun(1000, frame); n != 0 {
				t.Errorf("%v allocations for each frame", n)
			}
			out.Cancel("done")
		})
	}
}

// BenchmarkFrame is the cost of a small frame: what the engine adds to the bytes.
func BenchmarkFrame(b *testing.B) {
	o := mem.Options{}
	from, to := pair(b, o, o)
	out, in := open(b, from, to, transport.Request{Replayable: true})
	received := make(chan error, 1)
	go func() {
		for range b.N {
			d, err := in.Recv(b.Context())
			if err != nil {
				received <- err
				return
			}
			d.Release()
		}
		received <- nil
	}()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		l, err := out.Lease(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if _, err := l.Reserve(0, 0, 64); err != nil {
			b.Fatal(err)
		}
		if err := out.Send(b.Context(), l); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-received; err != nil {
		b.Fatal(err)
	}
	out.Cancel("done")
}
