//go:build faults

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// relayChunk is how much a relay reads at a time.
	relayChunk = 64 << 10

	// relayHold bounds the chunks that wait for their delay in one direction.
	relayHold = 64

	// relayBulk is a read that is part of a frame: nothing that is said before the
	// first frame comes in one of that size.
	relayBulk = 16 << 10
)

// relay forwards TCP connections to a target that may change, and once, at a
// byte that is chosen beforehand, has something done. It may be used
// concurrently.
type relay struct {
	ln    net.Listener
	ctx   context.Context
	stop  context.CancelFunc
	wait  sync.WaitGroup
	delay time.Duration // added to the way of every byte

	passed  atomic.Int64  // bytes, both directions and all connections together
	dialler atomic.Int64  // of them, from the dialling end
	first   atomic.Int64  // of passed, when the first frame came
	opened  atomic.Int64  // connections
	struck  chan struct{} // closed when something was done the first time
	once    sync.Once     // closes struck

	mu     sync.Mutex // guards what follows
	target string
	at     int64 // of passed: where strike is called; negative: never
	strike strike
	hole   time.Time // until when nothing passes
	drop   int       // percent of packets that relay's sockets do not hear of
	legs   map[*leg]bool
	closed bool
}

// strike is called with the bytes of one direction from the chosen one on, before
// they are forwarded. It returns what is forwarded in their place, and whether the
// direction lives on. It must not call the relay back but for its cut and pause.
type strike func(l *leg, b []byte) (out []byte, alive bool)

// leg is one direction of one connection.
type leg struct {
	r           *relay
	from, to    *net.TCPConn
	fromDialler bool
}

// newRelay starts one that ends with tb.
func newRelay(tb testing.TB, target string, delay time.Duration) *relay {
	tb.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("relay: %v", err)
	}
	r := &relay{ln: ln, target: target, at: -1, delay: delay, legs: map[*leg]bool{}, struck: make(chan struct{})}
	r.ctx, r.stop = context.WithCancel(context.Background())
	tb.Cleanup(r.close)
	r.wait.Go(r.accept)
	return r
}

func (r *relay) addr() string { return r.ln.Addr().String() }

// retarget sends connections that are made from now on elsewhere.
func (r *relay) retarget(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

// arm has s called at a byte, counted from the relay's start. At one that has
// passed already it is called with the next.
func (r *relay) arm(at int64, s strike) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at, r.strike = max(at, 0), s
}

// hit reports whether what arm was given is being called, or was.
func (r *relay) hit() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at < 0
}

// strikes says that something was done.
func (r *relay) strikes() { r.once.Do(func() { close(r.struck) }) }

// pause has nothing pass for a time, in no direction; nothing is lost.
func (r *relay) pause(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hole = time.Now().Add(d)
}

// lose has the relay's sockets drop a percentage of the packets that come.
func (r *relay) lose(tb testing.TB, percent int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop = percent
	for l := range r.legs {
		if err := dropPackets(l.from, percent); err != nil {
			tb.Errorf("drop packets: %v", err)
		}
	}
}

// cut ends all connections now, in order or by a reset.
func (r *relay) cut(reset bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.legs {
		if reset {
			l.from.SetLinger(0) // it is the other direction's to
		}
		l.from.Close()
	}
}

func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
	r.ln.Close()
	r.cut(false)
	r.wait.Wait()
}

func (r *relay) accept() {
	for {
		in, err := r.ln.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		target := r.target
		r.mu.Unlock()
		r.wait.Go(func() {
			var d net.Dialer
			out, err := d.DialContext(r.ctx, "tcp", target)
			if err != nil {
				in.(*net.TCPConn).SetLinger(0) // the nearest to a refused connection
				in.Close()
				return
			}
			r.forward(in.(*net.TCPConn), out.(*net.TCPConn))
		})
	}
}

// forward runs a connection until both directions have ended.
func (r *relay) forward(dialler, target *net.TCPConn) {
	legs := []*leg{{r, dialler, target, true}, {r, target, dialler, false}}
	r.mu.Lock()
	for _, l := range legs {
		r.legs[l] = true
		if r.closed {
			l.from.Close()
		}
		if r.drop > 0 {
			dropPackets(l.from, r.drop) // it worked for others
		}
	}
	r.mu.Unlock()
	r.opened.Add(1)
	var both sync.WaitGroup
	for _, l := range legs {
		both.Go(l.run)
	}
	both.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range legs {
		l.from.Close()
		delete(r.legs, l)
	}
}

// delayed is bytes and when they may go on, or the end of a direction.
type delayed struct {
	b   []byte
	due time.Time
	err error
}

// run forwards a direction. Without a delay at most one chunk is in the relay.
func (l *leg) run() {
	hold := 0
	if l.r.delay > 0 {
		hold = relayHold
	}
	queue := make(chan delayed, hold)
	go func() {
		defer close(queue)
		for {
			buf := make([]byte, relayChunk)
			n, err := l.from.Read(buf)
			queue <- delayed{buf[:n], time.Now().Add(l.r.delay), err}
			if err != nil {
				return
			}
		}
	}()
	alive := true
	for d := range queue {
		if alive {
			l.r.sleep(d.due)
			alive = l.pass(d.b)
		}
		switch {
		case d.err == nil:
		case errors.Is(d.err, io.EOF) && alive:
			l.to.CloseWrite() // the other end may be gone
		case !errors.Is(d.err, io.EOF):
			l.to.SetLinger(0) // what a reset becomes behind a router
			l.to.Close()
		}
	}
}

// pass forwards b and reports whether the direction lives on.
func (l *leg) pass(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	r := l.r
	r.mu.Lock()
	hole := r.hole
	r.mu.Unlock()
	r.sleep(hole)
	r.mu.Lock()
	begin := r.passed.Load()
	hit, s, at := r.at >= 0 && begin+int64(len(b)) > r.at, r.strike, max(0, r.at-begin)
	if hit {
		r.at = -1
	}
	// Counted before it is forwarded: an answer to it must not come first.
	r.passed.Add(int64(len(b)))
	r.mu.Unlock()
	if l.fromDialler {
		r.dialler.Add(int64(len(b)))
		if len(b) >= relayBulk {
			r.first.CompareAndSwap(0, begin)
		}
	}
	if !hit {
		return l.write(b)
	}
	defer r.strikes()
	if !l.write(b[:at]) {
		return false
	}
	rest, alive := s(l, b[at:])
	return l.write(rest) && alive
}

func (l *leg) write(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	_, err := l.to.Write(b)
	return err == nil
}

// sleep waits until a time or the relay's end.
func (r *relay) sleep(until time.Time) {
	d := time.Until(until)
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-r.ctx.Done():
	}
}
