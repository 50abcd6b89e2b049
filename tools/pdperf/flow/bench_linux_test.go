//go:build cables

package flow_test

import (
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdlink/tools/pdperf/flow"
	"pdlink/tools/pdperf/flow/cable"
)

// BenchmarkMeasuring is what watching costs: processor seconds a GB with and without
// it, in turns, of one thread that writes to a connection over loopback and reads from
// it, so that others on this machine hardly count. "ratio" is the median of the ratios
// of neighbours. Loopback is the worst case: a byte costs least there, and both ends'
// events are this machine's.
func BenchmarkMeasuring(b *testing.B) {
	b.Run("all", func(b *testing.B) { measuring(b, flow.WatchOptions{}) })
	b.Run("no-softirq", func(b *testing.B) { measuring(b, flow.WatchOptions{NoSoftirq: true}) })
}

func measuring(b *testing.B, o flow.WatchOptions) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	here := l.Addr().(*net.TCPAddr).AddrPort()
	o.Ports = []uint16{here.Port()}
	var off, on []float64
	for b.Loop() {
		first := len(off)%2 == 0
		for _, watched := range []bool{first, !first} {
			if !watched {
				off = append(off, measure(b, l))
				continue
			}
			w, err := flow.Watch(o)
			if err != nil {
				b.Fatal(err)
			}
			s := flow.Sample(0, func(local, _ netip.AddrPort) bool { return local == here })
			on = append(on, measure(b, l))
			s.Stop()
			w.Close()
		}
	}
	report(b, off, on, "s/GB")
}

// BenchmarkMeasuringShaped is what watching costs where the wire is what limits: the
// rates over a cable of 1 Gbit/s with and without it, in turns.
func BenchmarkMeasuringShaped(b *testing.B) {
	c, err := cable.New(cable.Options{Rate: 1e9})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var l net.Listener
	if err := c.In(cable.B, func() (err error) {
		l, err = new(net.ListenConfig).Listen(b.Context(), "tcp4", cable.B.Addr().String()+":0")
		return err
	}); err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	here := l.Addr().(*net.TCPAddr).AddrPort()
	var off, on []float64
	for b.Loop() {
		first := len(off)%2 == 0
		for _, watched := range []bool{first, !first} {
			if !watched {
				off = append(off, send(b, c, l))
				continue
			}
			w, err := flow.Watch(flow.WatchOptions{Ports: []uint16{here.Port()}})
			if err != nil {
				b.Fatal(err)
			}
			s := flow.Sample(0, func(local, _ netip.AddrPort) bool { return local == here })
			on = append(on, send(b, c, l))
			s.Stop()
			w.Close()
		}
	}
	report(b, off, on, "MB/s")
}

// send moves bytes over a cable and returns how many MB a second.
func send(b *testing.B, c *cable.Cable, l net.Listener) float64 {
	const total = 32 << 20
	var out net.Conn
	if err := c.In(cable.A, func() (err error) {
		out, err = new(net.Dialer).DialContext(b.Context(), "tcp4", l.Addr().String())
		return err
	}); err != nil {
		b.Fatal(err)
	}
	in, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	begin := time.Now()
	go func() {
		defer out.Close()
		out.Write(make([]byte, total)) // the reader counts
	}()
	if _, err := io.CopyN(io.Discard, in, total); err != nil {
		b.Fatal(err)
	}
	return total / 1e6 / time.Since(begin).Seconds()
}

// measure moves bytes over one connection, in pieces that fit its buffers, and returns
// the processor seconds of this thread a GB.
func measure(b *testing.B, l net.Listener) float64 {
	const total, piece = 256 << 20, 256 << 10
	out, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	in, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	p, spent := make([]byte, piece), time.Duration(0)
	for done := -16 * piece; done < total; done += piece { // the first ones make the buffers grow
		if done == 0 {
			spent = used(b)
		}
		if _, err := out.Write(p); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(in, p); err != nil {
			b.Fatal(err)
		}
	}
	return (used(b) - spent).Seconds() / (total / 1e9)
}

// used is the processor time of this thread.
func used(b *testing.B) time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// report reports the median of what is without watching, and the quartiles of the
// ratios of neighbours.
func report(b *testing.B, off, on []float64, unit string) {
	plain, ratio := slices.Sorted(slices.Values(off)), make([]float64, len(off))
	for i := range off {
		ratio[i] = on[i] / off[i]
	}
	slices.Sort(ratio)
	n := len(ratio)
	b.ReportMetric(plain[n/2], unit+"-without")
	b.ReportMetric(ratio[n/2], "ratio")
	b.ReportMetric(ratio[n/4], "ratio-p25")
	b.ReportMetric(ratio[n*3/4], "ratio-p75")
	b.ReportMetric(0, "ns/op")
}
