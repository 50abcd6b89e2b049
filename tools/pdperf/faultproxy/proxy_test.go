package faultproxy_test

import (
	"bytes"
	"errors"
	"io"
	"math/bits"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pdlink/tools/pdperf/faultproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what has to happen, on a busy machine under the race detector.
const patience = 20 * time.Second

// listen returns a listener on loopback that ends with the test.
func listen(t *testing.T) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// events keeps what a proxy told.
type events struct {
	mu   sync.Mutex
	list []faultproxy.Event
}

func (e *events) add(x faultproxy.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, x)
}

func (e *events) of(kind faultproxy.Kind) (list []faultproxy.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.list {
		if x.Kind == kind {
			list = append(list, x)
		}
	}
	return list
}

// start runs a proxy to target.
func start(t *testing.T, target string, o faultproxy.Options) (*faultproxy.Proxy, *events) {
	t.Helper()
	e := &events{}
	o.OnEvent = e.add
	p := faultproxy.New(listen(t), target, o)
	served := make(chan error, 1)
	go func() { served <- p.Serve() }()
	t.Cleanup(func() {
		for range 2 {
			if err := p.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return p, e
}

// pair is a connection through a proxy: both outer ends.
func pair(t *testing.T, o faultproxy.Options) (dialler, target *net.TCPConn, p *faultproxy.Proxy, e *events) {
	t.Helper()
	ln := listen(t)
	p, e = start(t, ln.Addr().String(), o)
	dialler = dial(t, p)
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	target = c.(*net.TCPConn)
	target.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { target.Close() })
	return dialler, target, p, e
}

func dial(t *testing.T, p *faultproxy.Proxy) *net.TCPConn {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// push writes b at one end while the other reads to the end of the stream.
func push(t *testing.T, from, to *net.TCPConn, b []byte) (got []byte, readErr error) {
	t.Helper()
	go func() {
		from.Write(b) // may be cut
		from.CloseWrite()
	}()
	return io.ReadAll(to)
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func TestForwardsUnchanged(t *testing.T) {
	for _, o := range []faultproxy.Options{{}, {Delay: 5 * time.Millisecond}, {Rate: 1 << 30}, {CutAfter: 1 << 40, CorruptEvery: 1 << 50}} {
		a, b, p, e := pair(t, o)
		there, back := random(3<<20+1), random(1<<20+7)
		if got, err := push(t, a, b, there); err != nil || !bytes.Equal(got, there) {
			t.Fatalf("%+v: %d bytes of %d, %v", o, len(got), len(there), err)
		}
		// The dialler's direction has ended, the other one goes on.
		if got, err := push(t, b, a, back); err != nil || !bytes.Equal(got, back) {
			t.Fatalf("%+v: back: %d bytes of %d, %v", o, len(got), len(back), err)
		}
		eventually(t, "the end", func() bool { return len(e.of(faultproxy.Ended)) == 1 && p.Stats().OpenNow == 0 })
		s := p.Stats()
		if s.FromDialler != int64(len(there)) || s.FromTarget != int64(len(back)) || s.Conns != 1 || s.Cuts+s.Corruptions+s.RefusedConns != 0 {
			t.Errorf("%+v: %+v", o, s)
		}
	}
}

func TestCutsAfterExactlySoManyBytes(t *testing.T) {
	for _, n := range []int{1, 65535, 65536, 65537, 1 << 20} {
		a, b, p, e := pair(t, faultproxy.Options{CutAfter: int64(n)})
		want := random(2 << 20)
		got, _ := push(t, a, b, want) // in order or by a reset: the dialler's unread bytes decide
		if !bytes.Equal(got, want[:n]) {
			t.Errorf("cut after %d: %d bytes came", n, len(got))
		}
		if _, err := a.Read(make([]byte, 1)); err == nil {
			t.Errorf("cut after %d: the dialling end lives on", n)
		}
		eventually(t, "word of the cut", func() bool { return len(e.of(faultproxy.Cut)) == 1 }) // told after it is done
		cuts := e.of(faultproxy.Cut)
		if len(cuts) != 1 || cuts[0].Offset != int64(n) || !cuts[0].FromDialler || p.Stats().Cuts != 1 {
			t.Errorf("cut after %d: events %+v", n, cuts)
		}
	}
}

func TestCutsAsOftenAsAsked(t *testing.T) {
	for _, c := range []struct{ cuts, want int }{{0, 1}, {2, 2}, {-1, 4}} {
		ln := listen(t)
		p, e := start(t, ln.Addr().String(), faultproxy.Options{CutAfter: 1000, Cuts: c.cuts})
		for range 4 {
			a := dial(t, p)
			b, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			push(t, a, b.(*net.TCPConn), random(1000))
			a.Close()
			b.Close()
		}
		eventually(t, "four ends", func() bool { return len(e.of(faultproxy.Ended)) == 4 })
		if got := len(e.of(faultproxy.Cut)); got != c.want {
			t.Errorf("cuts %d: %d happened", c.cuts, got)
		}
	}
}

func TestResets(t *testing.T) {
	a, b, _, _ := pair(t, faultproxy.Options{CutAfter: 10, Reset: true})
	a.Write(random(10))
	// The bytes may be overtaken by the reset.
	if _, err := io.ReadAll(b); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the target's end: %v, want a reset", err)
	}
	if _, err := io.ReadAll(a); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the dialling end: %v, want a reset", err)
	}
}

func TestHalfClose(t *testing.T) {
	a, b, _, e := pair(t, faultproxy.Options{CutAfter: 100_000, HalfClose: true, Reset: true})
	there, back := random(1<<20), random(2<<20)
	got, err := push(t, a, b, there)
	if err != nil || !bytes.Equal(got, there[:100_000]) {
		t.Fatalf("%d bytes before the half-close, %v", len(got), err)
	}
	if got, err := push(t, b, a, back); err != nil || !bytes.Equal(got, back) {
		t.Errorf("the other direction: %d bytes of %d, %v", len(got), len(back), err)
	}
	eventually(t, "word of the half close", func() bool { return len(e.of(faultproxy.HalfCut)) > 0 })
	if n := len(e.of(faultproxy.HalfCut)); n != 1 {
		t.Errorf("%d half-cuts", n)
	}
}

func TestCorrupts(t *testing.T) {
	const every, size = 10_000, 2 << 20
	sent := random(size)
	run := func(seed uint64) (flips []int64) {
		a, b, p, e := pair(t, faultproxy.Options{CorruptEvery: every, Seed: seed})
		got, err := push(t, a, b, sent)
		if err != nil || len(got) != size {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		for i := range got {
			if n := bits.OnesCount8(got[i] ^ sent[i]); n == 1 {
				flips = append(flips, int64(i))
			} else if n != 0 {
				t.Fatalf("byte %d has %d flipped bits", i, n)
			}
		}
		told := e.of(faultproxy.Corrupted)
		if len(told) != len(flips) || p.Stats().Corruptions != len(flips) {
			t.Fatalf("%d flips, %d told, %d counted", len(flips), len(told), p.Stats().Corruptions)
		}
		for i, x := range told {
			if x.Offset != flips[i] || !x.FromDialler {
				t.Fatalf("event %d: %+v, flipped byte %d", i, x, flips[i])
			}
		}
		return flips
	}
	one := run(1)
	// Gaps are uniform to 2·every: the count is normal, 210 with deviation 8.
	if n := len(one); n < 150 || n > 270 {
		t.Errorf("%d flips in %d bytes, one in %d was asked for", n, size, every)
	}
	if !slices.Equal(one, run(1)) {
		t.Error("the same seed gave other damage")
	}
	if slices.Equal(one, run(2)) {
		t.Error("another seed gave the same damage")
	}
}

func TestDelayIsNoRateLimit(t *testing.T) {
	const delay = 100 * time.Millisecond
	a, b, _, _ := pair(t, faultproxy.Options{Delay: delay})
	want := random(4 << 20) // 64 reads: at a delay each, 6.4 s
	begin := time.Now()
	got, err := push(t, a, b, want)
	took := time.Since(begin)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if took < delay || took > 20*delay {
		t.Errorf("took %v with a delay of %v", took, delay)
	}
}

func TestRate(t *testing.T) {
	const rate = 8 << 20
	a, b, _, _ := pair(t, faultproxy.Options{Rate: rate})
	want := random(rate / 4)
	begin := time.Now()
	got, err := push(t, a, b, want)
	took := time.Since(begin)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if took < 245*time.Millisecond {
		t.Errorf("a quarter second's bytes took %v", took)
	}
}

func TestTargetThatIsNotThere(t *testing.T) {
	ln := listen(t)
	ln.Close()
	p, e := start(t, ln.Addr().String(), faultproxy.Options{})
	if _, err := io.ReadAll(dial(t, p)); err != nil {
		t.Errorf("the dialling end: %v, want an orderly end", err)
	}
	eventually(t, "a refusal", func() bool { return p.Stats().RefusedConns == 1 })
	eventually(t, "word of the refusal", func() bool { return len(e.of(faultproxy.Refused)) > 0 })
	if r := e.of(faultproxy.Refused); len(r) != 1 || !errors.Is(r[0].Err, syscall.ECONNREFUSED) {
		t.Errorf("%+v", r)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	ln := listen(t)
	p, e := start(t, ln.Addr().String(), faultproxy.Options{})
	for range 70 {
		dial(t, p)
	}
	eventually(t, "refusals", func() bool { return p.Stats().RefusedConns == 70-64 })
	for _, r := range e.of(faultproxy.Refused) {
		if !errors.Is(r.Err, faultproxy.ErrFull) {
			t.Errorf("%+v", r)
		}
	}
}

// TestCloseUnblocks closes while bytes wait for a reader that never comes and
// for a delay that is too long.
func TestCloseUnblocks(t *testing.T) {
	for _, o := range []faultproxy.Options{{}, {Delay: time.Hour}, {Rate: 1}} {
		a, _, p, _ := pair(t, o)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				if _, err := a.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}()
		time.Sleep(20 * time.Millisecond)
		if err := p.Close(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatalf("%+v: the writer still waits", o)
		}
	}
}
