//go:build cables

package flow_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"pdlink/tools/pdperf/flow"
	"pdlink/tools/pdperf/flow/cable"
)

// asNobody makes the test's process ask without rights, and print what it is told.
const asNobody = "PDPERF_FLOW_NOBODY"

func TestMain(m *testing.M) {
	if os.Getenv(asNobody) != "" {
		runtime.LockOSThread()
		const nobody = 65534
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			fmt.Println(errno)
			os.Exit(1)
		}
		_, err := flow.Watch(flow.WatchOptions{Ports: []uint16{1}})
		fmt.Println(errors.Is(err, flow.ErrPrivilege), err)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// wire is a connection over a cable: out is at A, in at B.
type wire struct {
	out, in *net.TCPConn
	port    uint16
	w       *flow.Watcher
}

// connect lays a cable, watches a port and makes a connection to it.
func connect(t *testing.T, o cable.Options) *wire {
	t.Helper()
	c, err := cable.New(o)
	if err != nil {
		t.Fatal(err)
	}
	closed := func(c io.Closer) {
		t.Cleanup(func() {
			if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
	}
	closed(c)
	var l net.Listener
	if err := c.In(cable.B, func() (err error) {
		l, err = new(net.ListenConfig).Listen(context.Background(), "tcp4", cable.B.Addr().String()+":0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	closed(l)
	x := &wire{port: uint16(l.Addr().(*net.TCPAddr).Port)}
	if x.w, err = flow.Watch(flow.WatchOptions{Ports: []uint16{x.port}}); err != nil {
		t.Fatal(err)
	}
	closed(x.w)
	if notes := x.w.Report().Notes; len(notes) > 0 {
		t.Errorf("this kernel has all of it, but: %s", strings.Join(notes, "; "))
	}
	if err := c.In(cable.A, func() error {
		out, err := new(net.Dialer).DialContext(context.Background(), "tcp4", l.Addr().String())
		if err == nil {
			x.out = out.(*net.TCPConn)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	closed(x.out)
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	closed(in)
	x.in = in.(*net.TCPConn)
	return x
}

// move sends n bytes and returns when they were read.
func (x *wire) move(t *testing.T, n int) {
	t.Helper()
	got := make(chan error, 1)
	go func() {
		_, err := io.CopyN(io.Discard, x.in, int64(n))
		got <- err
	}()
	if _, err := x.out.Write(make([]byte, n)); err != nil {
		t.Error(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// ends are what was seen at A and at B.
func (x *wire) ends(t *testing.T) (a, b flow.Seen) {
	t.Helper()
	for _, f := range x.w.Report().Flows {
		switch x.port {
		case f.RemotePort:
			a = f
		case f.LocalPort:
			b = f
		default:
			t.Errorf("nobody asked for %+v", f)
		}
	}
	return a, b
}

func counters(t *testing.T, c *net.TCPConn) flow.Counters {
	t.Helper()
	n, err := flow.ReadConn(c)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// clockTick is how coarse the kernel's clock of what held a flow is, both ends of a
// stretch of time together.
const clockTick = 20 * time.Millisecond

// TestCounters holds the counters against what was moved, and the watch against the
// counters.
func TestCounters(t *testing.T) {
	const n = 8 << 20
	x := connect(t, cable.Options{})
	out, in := counters(t, x.out), counters(t, x.in)
	begin := time.Now()
	x.move(t, n)
	a, b := x.ends(t)
	sent, received := counters(t, x.out).Since(out), counters(t, x.in).Since(in)
	took := time.Since(begin)
	if received.Received != n || sent.Sent > n || sent.Sent < n/2 { // the last bytes may be read before their acknowledgement is
		t.Errorf("%d bytes: %d sent, %d received", n, sent.Sent, received.Received)
	}
	if sent.MSS != 1448 || sent.SegmentsOut < n/1448 || received.SegmentsIn < n/1448 || sent.Busy > took+clockTick {
		t.Errorf("in %v: %+v, %+v", took, sent, received)
	}
	if sent.RTT == 0 || sent.MinRTT == 0 || sent.MinRTT > took || sent.DeliveryRate == 0 || sent.SendWindow == 0 || sent.SendBuffer == 0 || received.ReceiveBuffer == 0 {
		t.Errorf("unknown things in %+v, %+v", sent, received)
	}
	// A busy machine reorders bunches of segments, and lets timers run out: then something is sent twice.
	if lost := sent.Retransmits - min(sent.Retransmits, sent.Spurious); lost > 45 || received.Retransmits != 0 || received.Sent != 0 {
		t.Errorf("what did not happen: %+v, %+v", sent, received)
	}
	if a.Retransmits > sent.Retransmits || a.RTT.Count() == 0 || b.Wait.Count() == 0 || b.WriteToRead.Count() == 0 || a.Softirq+b.Softirq == 0 {
		t.Errorf("seen: %+v, %+v", a, b)
	}
	if q := a.RTT.Quantile(0.01); q < sent.MinRTT {
		t.Errorf("round trips from %v on, the kernel says %v", q, sent.MinRTT)
	}
	if q := b.WriteToRead.Quantile(1); q > 2*took {
		t.Errorf("a byte was on its way for %v of %v", q, took)
	}
}

// TestLoss counts retransmits in both ways, on a cable that loses packets.
func TestLoss(t *testing.T) {
	x := connect(t, cable.Options{Loss: 0.02})
	x.move(t, 4<<20)
	a, _ := x.ends(t) // first: what is lost may still be sent again
	sent := counters(t, x.out)
	// About 58 of 2900 segments.
	if sent.Retransmits < 10 || sent.Resent < 10*1000 || a.Retransmits == 0 || a.Retransmits > sent.Retransmits {
		t.Errorf("%d segments were sent again, %d times was seen", sent.Retransmits, a.Retransmits)
	}
	last := time.Duration(0)
	for _, e := range a.Events {
		if e.At < last || e.At <= 0 {
			t.Errorf("%v after %v", e.At, last)
		}
		last = e.At
	}
	if i := slices.IndexFunc(a.Events, func(e flow.Event) bool { return e.What == flow.Retransmit }); i < 0 {
		t.Errorf("no retransmit in %v", a.Events)
	}
}

// TestClosedWindow has a reader that does not read until its window is shut.
func TestClosedWindow(t *testing.T) {
	const n = 1 << 20
	x := connect(t, cable.Options{Buffer: 64 << 10})
	before := counters(t, x.out)
	wrote := make(chan error, 1)
	go func() {
		_, err := x.out.Write(make([]byte, n))
		wrote <- err
	}()
	seen := func(done func(a flow.Seen) bool) flow.Seen {
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if a, _ := x.ends(t); done(a) {
				return a
			} else if time.Now().After(end) {
				t.Fatalf("%+v", a)
			}
		}
	}
	a := seen(func(a flow.Seen) bool { return a.ZeroWindows > 0 && a.WindowClosed > 0 })
	if !slices.ContainsFunc(a.Events, func(e flow.Event) bool { return e.What == flow.WindowShut }) {
		t.Errorf("%v", a.Events)
	}
	if _, err := io.CopyN(io.Discard, x.in, n); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	a = seen(func(a flow.Seen) bool {
		return slices.ContainsFunc(a.Events, func(e flow.Event) bool { return e.What == flow.WindowOpens })
	})
	if c := counters(t, x.out).Since(before); c.WindowLimited == 0 || a.WindowClosed > 2*c.Busy+time.Second {
		t.Errorf("%v closed by the watch, limited for %v of %v by the kernel", a.WindowClosed, c.WindowLimited, c.Busy)
	}
	x.w.Close()
	if b, _ := x.ends(t); b.ZeroWindows < a.ZeroWindows {
		t.Error("a watcher that was closed has forgotten")
	}
}

// TestNobody says that who may not watch is told so in one line.
func TestNobody(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self)
	c.Env = append(os.Environ(), asNobody+"=1")
	said, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	text, ok := strings.CutPrefix(string(said), "true ")
	if !ok || strings.Count(text, "\n") != 1 || !strings.Contains(text, "root") {
		t.Errorf("%q", said)
	}
	t.Log(strings.TrimSpace(text))
}

// TestWatchOptions refuses what cannot be watched.
func TestWatchOptions(t *testing.T) {
	for _, ports := range [][]uint16{nil, {0}, make([]uint16, flow.MaxPorts+1)} {
		if w, err := flow.Watch(flow.WatchOptions{Ports: ports}); err == nil {
			w.Close()
			t.Errorf("%v is watched", ports)
		}
	}
	w, err := flow.Watch(flow.WatchOptions{Ports: []uint16{1}, Cgroup: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if notes := w.Report().Notes; len(notes) != 1 || !strings.Contains(notes[0], "round trips") {
		t.Errorf("of a directory that is no cgroup: %q", notes)
	}
}

// TestNoSoftirq leaves out what it is told to, and nothing else.
func TestNoSoftirq(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w, err := flow.Watch(flow.WatchOptions{Ports: []uint16{uint16(l.Addr().(*net.TCPAddr).Port)}, NoSoftirq: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	const n = 16 << 20
	go func() {
		out, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			return // Accept says so
		}
		defer out.Close()
		out.Write(make([]byte, n)) // the reader counts
	}()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if m, err := io.Copy(io.Discard, in); err != nil || m != n {
		t.Fatal(m, err)
	}
	var rtt, wait uint64
	for _, f := range w.Report().Flows {
		rtt, wait = rtt+f.RTT.Count(), wait+f.Wait.Count()
		if f.Softirq != 0 {
			t.Errorf("%+v", f)
		}
	}
	if rtt == 0 || wait == 0 {
		t.Errorf("%d round trips, %d waits", rtt, wait)
	}
}
