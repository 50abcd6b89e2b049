package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"pdlink/transport"
	"pdlink/transport/seal"
	"pdlink/transport/session"
)

// The benchmarks move frames of benchPayload bytes through rings of benchSlots
// slots, so that the floor and the product touch equally cold memory, with the
// same congestion control. Compare them within one run.
const (
	benchPayload = 1 << 20
	benchSlots   = 64
	benchHeader  = 96 // a frame header with one piece
)

// BenchmarkFloor is a bare sender and receiver: one vectored write and two
// reads a frame, no protocol, no checksum.
func BenchmarkFloor(b *testing.B) {
	cs, cr := socketPair(b)
	for _, c := range []*net.TCPConn{cs, cr} {
		if err := tune(c, benchCongestion(b)); err != nil {
			b.Fatal(err)
		}
	}
	send, recv := benchRing(b).Memory(), benchRing(b).Memory()
	const slot = benchPayload + transport.HeaderRoom
	b.SetBytes(benchPayload)
	b.ReportAllocs()
	done := make(chan error, 1)
	b.ResetTimer()
	go func() {
		for i := range b.N {
			at := recv[i%benchSlots*slot:][:slot]
			if _, err := io.ReadFull(cr, at[:benchHeader]); err != nil {
				done <- err
				return
			}
			if _, err := io.ReadFull(cr, at[transport.HeaderRoom:]); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	var parts [2][]byte
	var vec net.Buffers
	for i := range b.N {
		at := send[i%benchSlots*slot:][:slot]
		parts = [2][]byte{at[:benchHeader], at[transport.HeaderRoom:]}
		vec = parts[:]
		if _, err := vec.WriteTo(cs); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// BenchmarkDriver is the link without the session: real frame headers.
func BenchmarkDriver(b *testing.B) { benchDriver(b, nil) }

// BenchmarkSealed is BenchmarkDriver with keys.
func BenchmarkSealed(b *testing.B) {
	for _, suite := range []seal.Suite{seal.AES128GCM, seal.AES256GCM, seal.Clear} {
		b.Run(suite.String(), func(b *testing.B) {
			benchDriver(b, func(x, y *driver) error {
				client, server := guards(suite)
				return errors.Join(x.protect(client), y.protect(server))
			})
		})
	}
}

// benchDriver moves frames between two drivers, which protect has prepared, and
// reports the processor time of both ends together.
func benchDriver(b *testing.B, protect func(x, y *driver) error) {
	x, y := driverPair(b, 1)
	if protect != nil {
		if err := protect(x, y); err != nil {
			b.Fatal(err)
		}
	}
	if err := tune(x.lanes[0].conn, benchCongestion(b)); err != nil {
		b.Fatal(err)
	}
	send, recv := benchRing(b).Memory(), benchRing(b).Memory()
	const slot = benchPayload + transport.HeaderRoom
	h, _ := frame(b, 1, benchPayload, 1)
	b.SetBytes(benchPayload)
	b.ReportAllocs()
	done := make(chan error, 1)
	b.ResetTimer()
	begin := cpuTime()
	go func() {
		var at []byte
		place := func([]byte) ([]byte, error) { return at[transport.HeaderRoom:], nil }
		for i := range b.N {
			at = recv[i%benchSlots*slot:][:slot]
			if _, err := y.ReadFrame(0, at[:transport.HeaderRoom], place); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for i := range b.N {
		at := send[i%benchSlots*slot:][:slot]
		if err := x.WriteFrame(0, h, at[transport.HeaderRoom:]); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric((cpuTime()-begin).Seconds()/(float64(b.N)*benchPayload/1e9), "cpu-s/GB")
}

// BenchmarkLoopback is the whole link: one transfer of frames that the receiver
// releases at once.
func BenchmarkLoopback(b *testing.B) {
	tests := []struct {
		name     string
		sums     []string
		presum   bool
		lowWater int
	}{
		{"verified", nil, false, 0},
		{"presummed", nil, true, 0},
		{"presummed/every-segment", nil, true, 1},
		{"unverified", []string{"none"}, false, 0},
	}
	for _, tt := range tests {
		b.Run(tt.name, func(b *testing.B) {
			l := New(Options{
				LowWater: tt.lowWater, Congestion: benchCongestion(b),
				Session: session.Options{Sums: tt.sums, SendRing: benchRing(b), RecvRing: benchRing(b)},
			})
			s, err := l.Listen(b.Context(), "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			from, to := connect(b, l, s)
			benchTransfer(b, from, to, tt.presum)
		})
	}
}

// benchTransfer sends b.N frames.
func benchTransfer(b *testing.B, from, to transport.Conn, presum bool) {
	ctx := b.Context()
	received := make(chan error, 1)
	go func() { received <- drain(ctx, to) }()
	out, err := from.Open(ctx, transport.Request{Kind: "bench", Replayable: true})
	if err != nil {
		b.Fatal(err)
	}
	sum, err := transport.SumByName(from.Facts().Sum)
	if err != nil {
		b.Fatal(err)
	}
	zeros := sum(make([]byte, benchPayload))
	b.SetBytes(benchPayload)
	b.ReportAllocs()
	for b.Loop() {
		l, err := out.Lease(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := l.Reserve(0, 0, benchPayload); err != nil {
			b.Fatal(err)
		}
		if presum {
			l.SetSum(zeros)
		}
		if err := out.Send(ctx, l); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := out.Finish(ctx); err != nil {
		b.Fatal(err)
	}
	if err := <-received; err != nil {
		b.Fatal(err)
	}
}

// drain receives a transfer and looks at nothing.
func drain(ctx context.Context, c transport.Conn) error {
	offer, err := c.Accept(ctx)
	if err != nil {
		return err
	}
	in, err := offer.Admit(nil)
	if err != nil {
		return err
	}
	for {
		d, err := in.Recv(ctx)
		switch {
		case errors.Is(err, io.EOF):
			if n := in.Stats().BadPiece; n != 0 {
				return errors.New("pieces arrived damaged")
			}
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
}

// benchCongestion is cubic where there is such a thing: bbr, the default of some
// systems, paces loopback to less than half.
func benchCongestion(b *testing.B) string {
	b.Helper()
	c, _ := socketPair(b)
	if tune(c, "cubic") != nil {
		return ""
	}
	return "cubic"
}

// benchRing is a ring whose slots hold benchPayload bytes.
func benchRing(b *testing.B) *transport.Ring {
	b.Helper()
	r, err := transport.NewRing(benchSlots, benchPayload+transport.HeaderRoom)
	if err != nil {
		b.Fatal(err)
	}
	r.Touch()
	b.Cleanup(func() { r.Close() })
	return r
}
