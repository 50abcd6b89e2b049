package tcp

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/keys"
	"pdlink/transport/seal"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// fromAddr is a socket of which only the peer's address is known.
type fromAddr struct {
	net.Conn
	addr string
	shut bool
}

func (f *fromAddr) Close() error { f.shut = true; return nil }
func (f *fromAddr) RemoteAddr() net.Addr {
	if f.addr == "" {
		return &net.UnixAddr{}
	}
	a, _ := net.ResolveTCPAddr("tcp", f.addr)
	return a
}

// Who has to go when too many strangers are inside.
func TestGateSparesHonestPeers(t *testing.T) {
	type in struct {
		addr string
		at   stage
	}
	for name, tt := range map[string]struct {
		inside []in
		next   string
		goes   int
	}{
		"the oldest of one host":           {[]in{{"10.0.0.1:1", silent}, {"10.0.0.1:2", silent}, {"10.0.0.1:3", silent}}, "10.0.0.1:4", 0},
		"of the host with most":            {[]in{{"10.0.0.2:1", silent}, {"10.0.0.1:1", silent}, {"10.0.0.1:2", silent}}, "10.0.0.3:1", 1},
		"of the newcomer's own":            {[]in{{"10.0.0.2:1", silent}, {"10.0.0.3:1", silent}, {"10.0.0.1:1", silent}}, "10.0.0.1:2", 2},
		"the silent one":                   {[]in{{"10.0.0.1:1", spoke}, {"10.0.0.1:2", silent}, {"10.0.0.1:3", spoke}}, "10.0.0.1:4", 1},
		"not the proven one":               {[]in{{"10.0.0.1:1", proven}, {"10.0.0.1:2", proven}, {"10.0.0.2:1", spoke}}, "10.0.0.1:3", 2},
		"the oldest of the proven":         {[]in{{"10.0.0.1:1", proven}, {"10.0.0.1:2", proven}, {"10.0.0.1:3", proven}}, "10.0.0.2:1", 0},
		"one host's network of IPv6":       {[]in{{"[2001:db8::1]:1", spoke}, {"[2001:db8:1::1]:1", silent}, {"[2001:db8:1::2]:1", spoke}}, "[2001:db8:1::3]:1", 1},
		"IPv4 in IPv6":                     {[]in{{"[::ffff:10.0.0.1]:1", silent}, {"10.0.0.2:1", silent}, {"[::ffff:10.0.0.2]:2", silent}}, "10.0.0.3:1", 1},
		"the oldest silent one, by socket": {[]in{{"", spoke}, {"", silent}, {"", silent}}, "", 1},
	} {
		g := gate{limit: len(tt.inside)}
		var all []*fromAddr
		for _, v := range tt.inside {
			c := &fromAddr{addr: v.addr}
			all = append(all, c)
			if !g.enter(c) {
				t.Fatalf("%s: no room", name)
			}
			g.reached(c, v.at)
		}
		g.enter(&fromAddr{addr: tt.next})
		for i, c := range all {
			if c.shut != (i == tt.goes) || g.leave(c) == c.shut {
				t.Errorf("%s: of %d closed %v", name, i, c.shut)
			}
		}
	}
}

// A peer that has begun to speak is not put out by any number that say nothing,
// even from its own host.
func TestSilentFloodSparesWhoSpeaks(t *testing.T) {
	server, client := twoHosts(t)
	_, s, r := listen(t, Options{Keys: server})
	config, err := client.ClientConfig("server")
	if err != nil {
		t.Fatal(err)
	}
	c := stranger(t, s)
	slow := &slowWriter{TCPConn: c, first: make(chan struct{}), rest: make(chan struct{})}
	shaken := make(chan error, 1)
	conn := tls.Client(slow, config)
	go func() { shaken <- conn.Handshake() }()
	<-slow.first
	eventually(t, "it has spoken", func() bool {
		s.strangers.mu.Lock()
		defer s.strangers.mu.Unlock()
		return len(s.strangers.inside) == 1 && s.strangers.inside[0].at == spoke
	})
	for range 3 * maxStrangers {
		stranger(t, s)
	}
	eventually(t, "others were dropped for others", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.errs) >= 2*maxStrangers
	})
	close(slow.rest)
	if err := <-shaken; err != nil {
		t.Fatal(err)
	}
	o := session.Options{Features: features(seal.AES128GCM)}
	if _, err := session.Handshake(t.Context(), newSecureControl(c, conn), session.Client, &o); err != nil {
		t.Error(err)
	}
}

// slowWriter sends as much as a listener reads first of the first write, and the
// rest later.
type slowWriter struct {
	*net.TCPConn
	once        sync.Once
	first, rest chan struct{}
}

func (w *slowWriter) Write(p []byte) (n int, err error) {
	w.once.Do(func() {
		if n, err = w.TCPConn.Write(p[:wire.ControlPrefix]); err == nil {
			close(w.first)
			<-w.rest
			p = p[wire.ControlPrefix:]
		}
	})
	if err != nil {
		return n, err
	}
	m, err := w.TCPConn.Write(p)
	return n + m, err
}

// A log that nobody reads does not let strangers cost more and more.
func TestStuckRejectIsBounded(t *testing.T) {
	server, _ := twoHosts(t)
	stuck := make(chan struct{})
	l := New(Options{Keys: server, OnReject: func(string, error) { <-stuck }, Session: smallRings(t)})
	nl, err := l.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := nl.(*listener)
	before := runtime.NumGoroutine()
	for range maxGreeters + 100 {
		c := stranger(t, s)
		c.Write(make([]byte, 64))
		c.Close()
	}
	eventually(t, "all rooms are taken", func() bool { return len(s.rooms) == maxGreeters })
	time.Sleep(20 * time.Millisecond)
	if n := runtime.NumGoroutine() - before; n > maxGreeters+10 {
		t.Errorf("%d goroutines", n)
	}
	close(stuck)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// otherVersion is a hello that no end of this version gets on with.
func otherVersion(t *testing.T) []byte {
	t.Helper()
	msg, err := wire.AppendHello(nil, &wire.Hello{
		Major: wire.Major + 1, Boot: transport.NewID(), MaxPayload: wire.MinPayload, Lanes: 1, Sums: transport.Sums(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// Peers that are incompatible and wait to hear why are bounded like the others,
// and an honest one gets in meanwhile.
func TestFloodOfIncompatiblePeers(t *testing.T) {
	l, s, _ := listen(t, Options{})
	msg, before := otherVersion(t), runtime.NumGoroutine()
	for range 3 * maxTalks {
		stranger(t, s).Write(msg)
	}
	if n := runtime.NumGoroutine() - before; n > maxGreeters+10 {
		t.Errorf("%d goroutines", n)
	}
	a, b := connect(t, l, s)
	mustCarry(t, a, b)
	eventually(t, "those that nobody has time for are dropped", func() bool { return len(s.rooms) <= maxTalks })
}

// front accepts sockets in front of a listener: the first few are closed at once,
// the others are passed on.
func front(t *testing.T, s *listener, hangUp int) (addr string, sockets *atomic.Int32) {
	t.Helper()
	sockets = &atomic.Int32{}
	var pipes sync.WaitGroup
	addr = fakeServer(t, func(i int, c net.Conn) {
		sockets.Add(1)
		if i < hangUp {
			c.Close()
			return
		}
		d, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Error(err)
			return
		}
		for _, way := range [][2]net.Conn{{c, d}, {d, c}} {
			pipes.Go(func() {
				io.Copy(way[0], way[1])
				way[0].(*net.TCPConn).CloseWrite()
			})
		}
	})
	t.Cleanup(pipes.Wait)
	return addr, sockets
}

// An end that hangs up at once is tried once more, and no more often.
func TestDialTriesOnceMore(t *testing.T) {
	server, client := twoHosts(t)
	for _, withKeys := range []bool{false, true} {
		o := Options{}
		l := New(Options{Session: smallRings(t)})
		if withKeys {
			o.Keys, l = server, secureLink(t, client, Options{})
		}
		_, s, _ := listen(t, o)
		addr, _ := front(t, s, 1)
		accepted := make(chan transport.Conn, 1)
		go func() {
			b, err := s.Accept(t.Context())
			if err != nil {
				t.Error(err)
			}
			accepted <- b
		}()
		a, err := l.Dial(t.Context(), addr)
		if err != nil {
			t.Fatalf("keys %v: %v", withKeys, err)
		}
		b := <-accepted
		mustCarry(t, a, b)
		closeBoth(a, b)

		addr, sockets := front(t, s, 10)
		if _, err := l.Dial(t.Context(), addr); !errors.Is(err, transport.ErrLost) || errors.Is(err, ErrTurnedAway) || sockets.Load() != 2 {
			t.Errorf("keys %v: %d sockets, %v", withKeys, sockets.Load(), err)
		}
	}
}

// One peer has so many connections and no more; it is told, others are not
// disturbed, and one that it closes makes room.
func TestConnectionsOfOnePeerAreBounded(t *testing.T) {
	dirs := keyDirs(t, "server", "client", "other")
	_, s, r := listen(t, Options{Keys: openKeys(t, dirs[0]), MaxPerPeer: 2})
	l := secureLink(t, openKeys(t, dirs[1]), Options{})
	a, b := connect(t, l, s)
	c, d := connect(t, l, s)
	for range 2 {
		err := refused(t, l, s, transport.ErrLost, ErrTurnedAway)
		saysFix(t, err, "too many connections of this host")
	}
	r.each(t, 2, transport.ErrTooLarge)
	connect(t, secureLink(t, openKeys(t, dirs[2]), Options{}), s)
	closeBoth(a, b)
	a, b = connect(t, l, s)
	mustCarry(t, a, b)
	mustCarry(t, c, d)
	refused(t, l, s, ErrTurnedAway)
	// Connections that never come about do not count.
	closeBoth(a, b)
	for range 5 {
		h := secureHalfway(t, l.o.Keys, s, session.Options{})
		h.ctl.sock.Close()
		var p *pending
		eventually(t, "it waits", func() bool {
			s.waiting.mu.Lock()
			defer s.waiting.mu.Unlock()
			if len(s.waiting.waits) > 0 {
				p = s.waiting.waits[0]
			}
			return p != nil
		})
		s.waiting.fail(p, errCrowded)
		eventually(t, "its place is free", func() bool {
			s.peers.mu.Lock()
			defer s.peers.mu.Unlock()
			return s.peers.held[l.o.Keys.Public()] == 1
		})
	}
}

// What protects a connection is forgotten when nothing comes of it.
func TestSecretOfAFailedHandshakeIsErased(t *testing.T) {
	server, client := twoHosts(t)
	_, s, r := listen(t, Options{Keys: server, Lanes: 2})
	h := secureHalfway(t, client, s, session.Options{Lanes: 2})
	eventually(t, "it waits", func() bool {
		s.waiting.mu.Lock()
		defer s.waiting.mu.Unlock()
		return len(s.waiting.waits) == 1
	})
	s.waiting.mu.Lock()
	p := s.waiting.waits[0]
	s.waiting.mu.Unlock()
	want := h.proof(t, seal.AES128GCM, 0, seal.ToServer)
	if err := p.guard.check(want, 0); err != nil {
		t.Fatalf("while it waits: %v", err)
	}
	s.waiting.fail(p, errCrowded)
	r.wait(t, errCrowded)
	if err := p.guard.check(want, 0); err == nil {
		t.Error("the secret is still there")
	}
}

// Nobody sees by the words that an address would be wrong.
func TestKeyErrorsSpeakOfKeys(t *testing.T) {
	for _, err := range []error{keysError{keys.ErrKeysWanted}, keysError{refusal{keys.ErrBadKey}}, keysError{keys.ErrUnknownPeer}} {
		if !errors.Is(err, transport.ErrInsecure) || strings.Contains(err.Error(), transport.ErrInsecure.Error()) {
			t.Errorf("%v", err)
		}
	}
}
