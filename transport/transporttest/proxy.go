package transporttest

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// ProxyOptions are the faults of a Proxy. The zero value forwards everything
// unchanged.
type ProxyOptions struct {
	// Seed decides the random choices.
	Seed uint64

	// CutAfter ends all connections once so many bytes have passed, both
	// directions and all connections together. 0: never.
	CutAfter int64

	// Once makes it one cut: later connections are forwarded.
	Once bool

	// Reset makes the cut a reset instead of an orderly end of the stream.
	Reset bool

	// HalfClose makes the cut end only the direction whose byte it was, in
	// order; the other one goes on.
	HalfClose bool

	// CorruptEvery flips one random bit in about every so many bytes. 0: none.
	CorruptEvery int64

	// Delay pauses before each forwarded read, by a random time up to this.
	Delay time.Duration

	// Watch is shown all bytes before they are changed, from several
	// goroutines, and may keep none of them. fromDialler tells the direction.
	Watch func(fromDialler bool, p []byte)
}

// Proxy forwards TCP connections on loopback to a target and damages their
// bytes: below all framing, where a cable or a middle box would. It may be used
// concurrently.
type Proxy struct {
	o       ProxyOptions
	target  string
	l       net.Listener
	ctx     context.Context // of dials; ends by Close
	stop    context.CancelFunc
	passed  atomic.Int64
	swallow atomic.Bool
	wasCut  atomic.Bool
	wait    sync.WaitGroup

	mu     sync.Mutex // guards what follows
	rng    *rand.Rand
	flipAt int64 // of passed
	conns  map[*net.TCPConn]bool
	closed bool
}

// NewProxy starts a proxy to target (host:port) that ends with tb.
func NewProxy(tb testing.TB, target string, o ProxyOptions) *Proxy {
	tb.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("proxy: %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Proxy{o: o, target: target, l: l, ctx: ctx, stop: stop, rng: newRand(o.Seed), conns: map[*net.TCPConn]bool{}}
	p.flipAt = p.nextFlip(0)
	tb.Cleanup(p.Close)
	p.wait.Go(p.accept)
	return p
}

// Addr is the address to dial instead of the target.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// Passed is how many bytes have been forwarded, both directions together.
func (p *Proxy) Passed() int64 { return p.passed.Load() }

// Cut ends all connections now: by a reset or in order.
func (p *Proxy) Cut(reset bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if reset {
			c.SetLinger(0) //nolint:errcheck // the connection is being destroyed
		}
		c.Close() //nolint:errcheck // likewise
	}
}

// Swallow drops all bytes from now on, in both directions, and keeps the
// connections open.
func (p *Proxy) Swallow() { p.swallow.Store(true) }

// Close ends the proxy and its connections and waits for its goroutines. It is
// idempotent.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.l.Close() //nolint:errcheck // closed already or not, it accepts no more
	p.Cut(false)
	p.wait.Wait()
}

func (p *Proxy) accept() {
	var dialer net.Dialer
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		out, err := dialer.DialContext(p.ctx, "tcp", p.target)
		if err != nil {
			in.Close() //nolint:errcheck // the target is gone, and the dialler learns it so
			continue
		}
		dialler, ok := in.(*net.TCPConn)
		target, too := out.(*net.TCPConn)
		if !ok || !too || !p.add(dialler, target) {
			in.Close()  //nolint:errcheck // the proxy was closed meanwhile
			out.Close() //nolint:errcheck // likewise
			return
		}
		p.wait.Go(func() {
			var both sync.WaitGroup
			both.Go(func() { p.forward(target, dialler, true) })
			both.Go(func() { p.forward(dialler, target, false) })
			both.Wait()
			p.remove(dialler, target)
		})
	}
}

func (p *Proxy) add(conns ...*net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	for _, c := range conns {
		p.conns[c] = true
	}
	return true
}

func (p *Proxy) remove(conns ...*net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		c.Close() //nolint:errcheck // both directions have ended
		delete(p.conns, c)
	}
}

// forward copies one direction until it ends, and passes the end on.
func (p *Proxy) forward(to, from *net.TCPConn, fromDialler bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if !p.pass(to, buf[:n], fromDialler) {
			// This direction is dead; what still comes is thrown away.
			io.Copy(io.Discard, from) //nolint:errcheck // ends with the connection
			return
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				to.CloseWrite() //nolint:errcheck // the other end may be gone
			} else {
				to.Close() //nolint:errcheck // likewise
			}
			return
		}
	}
}

// pass forwards p, damaged as the options say, and reports whether the
// direction lives on.
func (p *Proxy) pass(to *net.TCPConn, b []byte, fromDialler bool) bool {
	if len(b) == 0 {
		return true
	}
	if p.o.Watch != nil {
		p.o.Watch(fromDialler, b)
	}
	if p.swallow.Load() {
		return true
	}
	p.pause()
	end := p.passed.Add(int64(len(b)))
	begin := end - int64(len(b))
	p.flip(b, begin)
	if p.o.CutAfter == 0 || end <= p.o.CutAfter || p.o.Once && begin > p.o.CutAfter && p.wasCut.Load() {
		_, err := to.Write(b)
		return err == nil
	}
	p.wasCut.Store(true)
	if keep := p.o.CutAfter - begin; keep > 0 {
		to.Write(b[:keep]) //nolint:errcheck // the connection ends here
	}
	if p.o.HalfClose {
		to.CloseWrite() //nolint:errcheck // likewise
	} else {
		p.Cut(p.o.Reset)
	}
	return false
}

func (p *Proxy) pause() {
	if p.o.Delay <= 0 {
		return
	}
	p.mu.Lock()
	d := time.Duration(p.rng.Int64N(int64(p.o.Delay)))
	p.mu.Unlock()
	time.Sleep(d)
}

// flip damages b, which starts at byte begin of all that passed.
func (p *Proxy) flip(b []byte, begin int64) {
	if p.o.CorruptEvery <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	end := begin + int64(len(b))
	for ; p.flipAt < end; p.flipAt = p.nextFlip(p.flipAt + 1) {
		if p.flipAt >= begin {
			b[p.flipAt-begin] ^= 1 << p.rng.IntN(8)
		}
	}
}

// nextFlip is where the next damage after at goes: CorruptEvery bytes on
// average.
func (p *Proxy) nextFlip(at int64) int64 {
	if p.o.CorruptEvery <= 0 {
		return 0
	}
	return at + p.rng.Int64N(2*p.o.CorruptEvery)
}
