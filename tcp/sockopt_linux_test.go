package tcp

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdlink/transport"
	"pdlink/transport/session"
)

// option reads a socket option back from the kernel.
func option(t testing.TB, c socket, level, name int) int {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var v int
	var got error
	if err := raw.Control(func(fd uintptr) { v, got = syscall.GetsockoptInt(int(fd), level, name) }); err != nil {
		t.Fatal(err)
	}
	if got != nil {
		t.Fatal(got)
	}
	return v
}

func lowWaterOf(t testing.TB, c socket) int {
	t.Helper()
	return option(t, c, syscall.SOL_SOCKET, syscall.SO_RCVLOWAT)
}

func TestSocketOptionsAreWhatTheKernelHas(t *testing.T) {
	drivers := make(chan *driver, 2)
	o := smallRings(t)
	o.Intercept = func(d session.Driver) session.Driver {
		drivers <- d.(*driver)
		return d
	}
	l, s, _ := listen(t, Options{Lanes: 2, Session: o})
	connect(t, l, s)
	for range 2 {
		d := <-drivers
		socks := []socket{d.ctl.sock}
		for i := range d.lanes {
			socks = append(socks, d.lanes[i].conn)
		}
		for i, c := range socks {
			for _, want := range []struct {
				name               string
				level, option, val int
			}{
				{"no delay", syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1},
				{"keep-alive", syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
				{"keep-alive idle", syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 15},
				{"keep-alive interval", syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, 5},
				{"keep-alive count", syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 3},
				{"user timeout", syscall.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 30_000},
				{"low-water mark", syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, 1},
			} {
				if got := option(t, c, want.level, want.option); got != want.val {
					t.Errorf("socket %d: %s is %d, want %d", i, want.name, got, want.val)
				}
			}
		}
	}
}

func TestSocketsReportsWhatTheKernelHas(t *testing.T) {
	l, s, _ := listen(t, Options{Lanes: 2, Congestion: "reno"})
	a, b := connect(t, l, s)
	mustCarry(t, a, b)
	for name, c := range map[string]transport.Conn{"dialled": a, "accepted": b} {
		facts := c.(SocketReporter).Sockets()
		if len(facts) != 3 {
			t.Fatalf("%s: %d sockets", name, len(facts))
		}
		for i, f := range facts {
			want := SocketFacts{
				Lane: i - 1, Local: f.Local, Remote: f.Remote, NoDelay: true,
				KeepAliveIdle: 15 * time.Second, KeepAliveInterval: 5 * time.Second, KeepAliveCount: 3,
				UserTimeout: userTimeout, Congestion: "reno", LowWater: 1,
				SendBuffer: f.SendBuffer, RecvBuffer: f.RecvBuffer, MSS: f.MSS, RTT: f.RTT, Retransmits: f.Retransmits,
				Reads: f.Reads, Marks: f.Marks,
			}
			if f != want {
				t.Errorf("%s: socket %d: %+v, want %+v", name, i, f, want)
			}
			if f.SendBuffer < 4096 || f.RecvBuffer < 4096 || f.MSS < 500 || f.Local == "" || f.Remote == "" || f.Local == f.Remote {
				t.Errorf("%s: socket %d: %+v", name, i, f)
			}
		}
		if name == "accepted" && facts[1].Reads+facts[2].Reads == 0 {
			t.Error("20 frames came without a read")
		}
	}
	if got := a.Facts().Remote; got != a.(SocketReporter).Sockets()[0].Remote {
		t.Errorf("the control socket is not that of the facts, %s", got)
	}
	closeBoth(a, b)
	if got := a.(SocketReporter).Sockets(); got != nil {
		t.Errorf("after Close: %+v", got)
	}
}

func TestUnknownCongestionControlIsRefused(t *testing.T) {
	l := New(Options{Congestion: "no-such-thing", Session: smallRings(t)})
	if _, err := l.Listen(t.Context(), "127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), "tcp_allowed_congestion_control") {
		t.Errorf("listen: %v", err)
	}
	_, s, _ := listen(t, Options{})
	if _, err := l.Dial(t.Context(), s.Addr()); err == nil || !strings.Contains(err.Error(), `"no-such-thing"`) {
		t.Errorf("dial: %v", err)
	}
}

// The mark is what is missing of the payload, at most the option, and 1 before a
// header.
func TestLowWaterMarkFollowsTheFrame(t *testing.T) {
	const limit = 300_000
	raw, d := lanePair(t, limit)
	c := d.lanes[0].conn
	settle := func(what string, want int) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if got := lowWaterOf(t, c); got == want {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("%s: mark %d, want %d", what, got, want)
			}
		}
	}
	h, p := frame(t, 1, 500_000, 1)
	done := readOne(d, make([]byte, transport.HeaderRoom), make([]byte, testPayload))
	settle("before the header", 1)
	raw.Write(h)
	settle("before the payload", limit)
	raw.Write(p[:limit])
	settle("before the rest", 200_000)
	raw.Write(p[limit : 500_000-1])
	select {
	case err := <-done:
		t.Fatalf("woke early: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	raw.Write(p[500_000-1:])
	await(t, done)
	done = readOne(d, make([]byte, transport.HeaderRoom), make([]byte, testPayload))
	settle("before the next header", 1)
	raw.Write(append(h, p...))
	await(t, done)
}

// Reading costs few calls with the mark, and one for every segment without: the
// option is alive, and the mark is set only where it changes.
func TestLowWaterSavesCalls(t *testing.T) {
	const frames, parts = 5, 20
	reads := map[int]uint64{}
	for _, mark := range []int{1, lowWater} {
		raw, d := lanePair(t, mark)
		h, p := frame(t, 1, testPayload, 1)
		all := append(h, p...)
		room, got := make([]byte, transport.HeaderRoom), make([]byte, testPayload)
		for range frames {
			done := readOne(d, room, got)
			for i := range parts {
				raw.Write(all[i*len(all)/parts : (i+1)*len(all)/parts])
				time.Sleep(time.Millisecond)
			}
			await(t, done)
		}
		w := d.lanes[0].in.sock.done()
		reads[mark] = w.reads
		if limit := uint64(2 * frames); mark > 1 && w.marks > limit || mark == 1 && w.marks != 0 {
			t.Errorf("mark %d: set %d times for %d frames", mark, w.marks, frames)
		}
	}
	if few, many := reads[lowWater], reads[1]; few > 4*frames || many < frames*parts/2 {
		t.Errorf("%d reads with the mark and %d without, for %d frames of %d segments", few, many, frames, parts)
	}
}

// Frames that are there already cost one read each and no change of the mark.
func TestBacklogCostsOneReadForEachFrame(t *testing.T) {
	const frames = 20
	raw, d := lanePair(t, lowWater)
	h, p := frame(t, 1, 2000, 20)
	all := append(h, p...)
	for range frames {
		raw.Write(all)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		n := 0
		rc, err := d.lanes[0].conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		rc.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
		if err != nil {
			t.Fatal(err)
		}
		if n == frames*len(all) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes have come", n)
		}
	}
	room, got := make([]byte, transport.HeaderRoom), make([]byte, testPayload)
	for range frames {
		await(t, readOne(d, room, got))
	}
	if w := d.lanes[0].in.sock.done(); w.reads > frames+1 || w.marks != 0 {
		t.Errorf("%d reads and %d marks for %d frames", w.reads, w.marks, frames)
	}
}
