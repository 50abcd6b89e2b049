package transporttest

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

func proxyChecks() []check {
	return []check{
		{name: "proxy/cut at a random byte", run: proxyCut, sockets: true},
		{name: "proxy/damage at random bytes", run: proxyCorrupt, sockets: true},
		{name: "proxy/half-closed", run: proxyHalf, sockets: true},
		{name: "proxy/delay", run: proxyDelay, sockets: true, frames: true},
		{name: "proxy/black hole", run: proxyHole, sockets: true, frames: true},
		{name: "proxy/sealed as the facts say", run: proxySealed, sockets: true, frames: true},
		{name: "socket/peer that never answers", run: socketSilent, sockets: true},
		{name: "socket/strangers at the listener", run: socketStrangers, sockets: true},
	}
}

// proxied connects through a proxy. A connection may fail while it is made;
// then there is no pair.
func (e *env) proxied(o ProxyOptions, a, b session.Options) (Pair, *Proxy, error) {
	e.Helper()
	var proxy *Proxy
	o.Seed = e.rng.Uint64()
	p, err := e.h.connect(e, a, b, func(addr string) string {
		proxy = NewProxy(e, addr, o)
		return proxy.Addr()
	})
	return p, proxy, err
}

// tries runs f with fresh connections that share rings, which have to be free
// after each.
func (e *env) tries(n int, f func(a, b session.Options)) {
	e.Helper()
	a, b := e.fill(session.Options{}), e.fill(session.Options{})
	for i := range n {
		f(a, b)
		for _, r := range []*transport.Ring{a.SendRing, a.RecvRing, b.SendRing, b.RecvRing} {
			idle(e, r)
		}
		if e.Failed() {
			e.Fatalf("connection %d of %d", i, n)
		}
	}
}

// proxyCut: a cable cut at any byte, the handshake's included, in order or by a
// reset, is an error for both ends, and no wrong byte is delivered.
func proxyCut(e *env) {
	i := 0
	e.tries(e.h.tries()/2, func(a, b session.Options) {
		i++
		limit := 130_000
		if i%4 == 0 {
			limit = 600 // during the handshake, mostly
		}
		o := ProxyOptions{CutAfter: 1 + int64(e.rng.IntN(limit)), Reset: i%2 == 0}
		p, proxy, err := e.proxied(o, a, b)
		if err == nil {
			e.cutOnce(p)
			p.Close()
		}
		proxy.Close()
	})
}

// proxyCorrupt: random damage of bytes on the wire, headers and handshake
// included, never leads to a wrong byte or a hang.
func proxyCorrupt(e *env) {
	e.tries(e.h.tries()/4, func(a, b session.Options) {
		p, proxy, err := e.proxied(ProxyOptions{CorruptEvery: 20_000 + int64(e.rng.IntN(200_000))}, a, b)
		if err == nil {
			e.survive(p)
			p.Close()
		}
		proxy.Close()
	})
}

// proxyHalf: when one direction of a socket ends, the connection is lost for
// both ends.
func proxyHalf(e *env) {
	e.tries(max(e.h.tries()/20, 1), func(a, b session.Options) {
		p, proxy, err := e.proxied(ProxyOptions{CutAfter: 5000 + int64(e.rng.IntN(90_000)), HalfClose: true}, a, b)
		if err == nil {
			e.cutOnce(p)
			p.Close()
		}
		proxy.Close()
	})
}

// proxyDelay: bytes that come in pieces and late change nothing.
func proxyDelay(e *env) {
	p, proxy, err := e.proxied(ProxyOptions{Delay: 2 * time.Millisecond},
		e.fill(session.Options{Lanes: e.h.lanes()}), e.fill(session.Options{Lanes: e.h.lanes()}))
	e.must(err, "connect through a slow proxy")
	e.Cleanup(p.Close)
	e.transfer(p.A, p.B, 2, 200_000)
	e.transfer(p.B, p.A, 1, 100_000)
	if proxy.Passed() < 400_000 {
		e.Errorf("%d bytes passed the proxy, 500,000 were sent, of which no codec saves a fifth", proxy.Passed())
	}
}

// proxyHole: on a cable that swallows everything calls end by their deadline,
// and Close does not wait for the peer.
func proxyHole(e *env) {
	p, proxy, err := e.proxied(ProxyOptions{}, e.fill(session.Options{}), e.fill(session.Options{}))
	e.must(err, "connect through a proxy")
	e.Cleanup(p.Close)
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	proxy.Swallow()
	e.must(e.send(out, piece{0, 0, 1000}), "send")
	e.inTime("flush", out.Flush)
	e.inTime("receive", func(ctx context.Context) error { _, err := in.Recv(ctx); return err })
	begin := time.Now()
	e.ends(call(p.A.Close), nil, "close")
	e.ends(call(p.B.Close), nil, "close of the peer")
	if took := time.Since(begin); took > e.h.soon()/2 {
		e.Errorf("close took %v", took)
	}
}

// proxySealed: a link that says its frames are sealed shows none of their
// bytes; one that says they are not does.
func proxySealed(e *env) {
	secret := e.bytes(64, 3)
	var mu sync.Mutex
	var seen bytes.Buffer
	p, _, err := e.proxied(ProxyOptions{Watch: func(_ bool, b []byte) {
		mu.Lock()
		defer mu.Unlock()
		seen.Write(b)
	}}, e.fill(session.Options{}), e.fill(session.Options{}))
	e.must(err, "connect through a proxy")
	e.Cleanup(p.Close)
	out, in := e.open(p.A, p.B, transport.Request{Replayable: true})
	l, err := out.Lease(e.ctx)
	e.must(err, "lease")
	if n := l.Append(0, 0, secret); n != len(secret) {
		e.Fatalf("%d of %d bytes appended", n, len(secret))
	}
	e.must(out.Send(e.ctx, l), "send")
	d := e.recv(in)
	if !bytes.Equal(d.Data(0), secret) {
		e.Errorf("bytes differ")
	}
	d.Release()
	mu.Lock()
	defer mu.Unlock()
	if plain := bytes.Contains(seen.Bytes(), secret); plain == p.A.Facts().Sealed {
		e.Errorf("payload is readable on the wire: %v, facts say sealed: %v", plain, p.A.Facts().Sealed)
	}
}

// socketSilent: dialling a port that accepts and says nothing ends with the
// context.
func socketSilent(e *env) {
	var lc net.ListenConfig
	l, err := lc.Listen(e.ctx, "tcp", "127.0.0.1:0")
	e.must(err, "listen")
	e.Cleanup(func() { l.Close() }) //nolint:errcheck // nobody is served there
	dial, _, _ := e.h.Links(e, e.fill(session.Options{}), e.fill(session.Options{}))
	e.inTime("dial", func(ctx context.Context) error {
		conn, err := dial.Dial(ctx, l.Addr().String())
		if err == nil {
			conn.Close() //nolint:errcheck // must not exist
		}
		return err
	})
}

// socketStrangers: peers that say nothing, garbage or half a greeting never
// surface at Accept and hinder nobody, and closing the listener drops them.
func socketStrangers(e *env) {
	dial, l := e.listen()
	var dialer net.Dialer
	for _, words := range [][]byte{nil, []byte("GET / HTTP/1.1\r\n\r\n"), e.bytes(5000, 1), e.message(hello())[:wire.ControlPrefix+1]} {
		c, err := dialer.DialContext(e.ctx, "tcp", l.Addr())
		e.must(err, "dial as a stranger")
		e.Cleanup(func() { c.Close() }) //nolint:errcheck // the listener has dropped it
		c.Write(words)                  //nolint:errcheck // likewise
	}
	accepting := start(func() (transport.Conn, error) { return l.Accept(e.ctx) })
	select {
	case r := <-accepting:
		e.Fatalf("a stranger surfaced at Accept (error %v)", r.err)
	case <-time.After(quiet):
	}
	conn, err := dial.Dial(e.ctx, l.Addr())
	e.must(err, "dial")
	r := <-accepting
	e.must(r.err, "accept")
	p := newPair(conn, r.v)
	e.Cleanup(p.Close)
	e.usable(p.A, p.B)
	e.must(l.Close(), "close listener")
	e.usable(p.B, p.A)
}
