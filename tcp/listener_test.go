package tcp

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/codec"
	"pdlink/transport/session"
)

func TestConnectionCarriesTransfersBothWays(t *testing.T) {
	l, s, _ := listen(t, Options{Lanes: 3, Compress: codec.Off})
	a, b := connect(t, l, s)
	for _, c := range []transport.Conn{a, b} {
		f := c.Facts()
		if f.Link != "tcp" || f.Lanes != 3 || !f.ZeroCopy || f.Sealed {
			t.Errorf("facts %+v", f)
		}
	}
	if a.Facts().Remote != s.Addr() || b.Facts().Remote != a.Facts().Local {
		t.Errorf("addresses %+v and %+v do not match", a.Facts(), b.Facts())
	}
	mustCarry(t, a, b)
	mustCarry(t, b, a)
}

func TestLanesAreTheSmallerWish(t *testing.T) {
	for _, tt := range []struct{ client, server, want int }{{0, 0, 1}, {4, 2, 2}, {1, 8, 1}, {1000, 1000, MaxLanes}} {
		_, s, _ := listen(t, Options{Lanes: tt.server})
		a, b := connect(t, New(Options{Lanes: tt.client, Session: smallRings(t)}), s)
		if x, y := a.Facts().Lanes, b.Facts().Lanes; x != tt.want || y != tt.want {
			t.Errorf("wishes %d and %d gave %d and %d lanes, want %d", tt.client, tt.server, x, y, tt.want)
		}
	}
}

func TestUnacceptedConnectionsAreBounded(t *testing.T) {
	const limit = 300 * time.Millisecond
	l, s, r := listen(t, Options{Session: session.Options{HandshakeTimeout: limit}})
	var conns []transport.Conn
	for range maxUnaccepted + 2 {
		c, err := l.Dial(t.Context(), s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	r.wait(t, errNobody)
	if n := s.lobby.len(); n != maxUnaccepted {
		t.Errorf("%d connections wait, want %d", n, maxUnaccepted)
	}
	b, err := s.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mustCarry(t, conns[0], b)
	closing := make(chan error, 1)
	go func() { closing <- s.Close() }()
	for _, c := range conns[1:] { // dropped by the listener's close
		if _, err := c.Accept(t.Context()); !errors.Is(err, transport.ErrLost) {
			t.Errorf("a connection that nobody accepted: %v", err)
		}
		c.Close()
	}
	if err := <-closing; err != nil {
		t.Error(err)
	}
	closeBoth(conns[0], b)
}

func TestListenerCloseEndsEverythingUnfinished(t *testing.T) {
	l, s, _ := listen(t, Options{Lanes: 2})
	a, b := connect(t, l, s)
	silent := stranger(t, s)
	waiting, agreed := halfway(t, s, 2)
	lane := hello(t, s, agreed.Token, 0)
	bound(t, lane, 0)
	accepting := make(chan error, 1)
	go func() { _, err := s.Accept(context.Background()); accepting <- err }()
	time.Sleep(20 * time.Millisecond)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if err := <-accepting; !errors.Is(err, transport.ErrClosed) {
		t.Errorf("accept during close: %v", err)
	}
	if _, err := s.Accept(t.Context()); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	for _, c := range []*net.TCPConn{silent, waiting, lane} {
		dropped(t, c)
	}
	if _, err := l.Dial(t.Context(), s.Addr()); err == nil {
		t.Error("dialled a closed listener")
	}
	mustCarry(t, a, b)
}

func TestListenerRestartsAtItsAddress(t *testing.T) {
	l, s, _ := listen(t, Options{})
	a, b := connect(t, l, s)
	for range 3 {
		addr := s.Addr()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := l.Listen(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		s = again.(*listener)
		c, d := connect(t, l, s)
		mustCarry(t, c, d)
		mustCarry(t, a, b) // the first connection lives on
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestAcceptHonoursItsContext(t *testing.T) {
	_, s, _ := listen(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("accept: %v", err)
	}
}

func TestManyConnections(t *testing.T) {
	l, s, _ := listen(t, Options{Lanes: 2})
	var wg sync.WaitGroup
	for range 20 {
		a, b := connect(t, l, s)
		wg.Go(func() {
			for range 3 {
				if err := carry(t.Context(), a, b, 5); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
