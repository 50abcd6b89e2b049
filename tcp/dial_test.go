package tcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// fakeServer accepts sockets and hands each to serve with its number.
func fakeServer(t *testing.T, serve func(i int, c net.Conn)) string {
	t.Helper()
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var conns []net.Conn
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			c, err := nl.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
			serve(i, c)
		}
	}()
	t.Cleanup(func() {
		nl.Close()
		<-done
		for _, c := range conns {
			c.Close()
		}
	})
	return nl.Addr().String()
}

// agree does a server's part of the handshake.
func agree(t *testing.T, c net.Conn) session.Agreement {
	o := session.Options{Lanes: 4}
	a, err := session.Handshake(t.Context(), newControl(c.(*net.TCPConn), wire.MaxHello), session.Server, &o)
	if err != nil {
		t.Error(err)
	}
	return a
}

func TestDialFailures(t *testing.T) {
	laneOK := func(lane uint16) []byte {
		msg, err := wire.AppendLaneOK(nil, &wire.LaneOK{Lane: lane})
		if err != nil {
			t.Fatal(err)
		}
		return msg
	}
	tests := map[string]struct {
		serve func(i int, c net.Conn)
		want  error
	}{
		"hangs up":  {func(_ int, c net.Conn) { c.Close() }, transport.ErrLost},
		"no pdlink": {func(_ int, c net.Conn) { c.Write([]byte("SSH-2.0-OpenSSH_9.2p1\r\n")) }, transport.ErrProtocol},
		"silent":    {func(int, net.Conn) {}, context.DeadlineExceeded},
		"hello of a megabyte": {func(_ int, c net.Conn) {
			c.Write(message(wire.TypeHello, 1<<20, 0)[:100])
		}, transport.ErrProtocol},
		"damaged hello": {func(_ int, c net.Conn) {
			c.Write(damaged(message(wire.TypeHello, 100, 0), 1))
		}, transport.ErrProtocol},
		"damaged lane answer": {func(i int, c net.Conn) {
			if i == 0 {
				agree(t, c)
				return
			}
			c.Write(damaged(laneOK(uint16(i-1)), 5))
		}, transport.ErrProtocol},
		"lane hangs up": {func(i int, c net.Conn) {
			if i == 0 {
				agree(t, c)
				return
			}
			c.Close()
		}, transport.ErrLost},
		"lane silent": {func(i int, c net.Conn) {
			if i == 0 {
				agree(t, c)
			}
		}, context.DeadlineExceeded},
		"lane answers another index": {func(i int, c net.Conn) {
			if i == 0 {
				agree(t, c)
				return
			}
			c.Write(laneOK(uint16(i)))
		}, transport.ErrProtocol},
		"lane answers another message": {func(i int, c net.Conn) {
			if i == 0 {
				agree(t, c)
				return
			}
			c.Write(message(wire.TypeGrant, 16, 0))
		}, transport.ErrProtocol},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			addr := fakeServer(t, tt.serve)
			l := New(Options{Lanes: 2, DialTimeout: 300 * time.Millisecond, Session: smallRings(t)})
			c, err := l.Dial(t.Context(), addr)
			if err == nil {
				c.Close()
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("dial: %v, want %v", err, tt.want)
			}
		})
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	addr := fakeServer(t, func(int, net.Conn) {})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	start := time.Now()
	_, err := New(Options{Session: smallRings(t)}).Dial(ctx, addr)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("dial: %v", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestDialTriesEveryAddress(t *testing.T) {
	_, dead, _ := listen(t, Options{})
	_, live, _ := listen(t, Options{})
	dead.Close()
	var addrs []netip.AddrPort
	for _, s := range []*listener{dead, live} {
		addrs = append(addrs, netip.MustParseAddrPort(s.Addr()))
	}
	c, at, err := New(Options{}).dialFirst(t.Context(), addrs)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if at != addrs[1] || c.RemoteAddr().String() != live.Addr() {
		t.Errorf("connected to %v, want %v", at, addrs[1])
	}
	if _, _, err := New(Options{}).dialFirst(t.Context(), addrs[:1]); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial of a closed port: %v", err)
	}
}

// One address that is silent does not take the time of the others.
func TestDialSharesItsTime(t *testing.T) {
	const whole = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), whole)
	defer cancel()
	for n := 1; n <= 4; n++ {
		share, cancel := shareOf(ctx, n)
		end, ok := share.Deadline()
		cancel()
		want := whole / time.Duration(n)
		if left := time.Until(end); !ok || left > want || left < want-whole/10 {
			t.Errorf("first of %d attempts has %v, want %v", n, left, want)
		}
	}
	share, cancel := shareOf(t.Context(), 2)
	defer cancel()
	if _, ok := share.Deadline(); ok {
		t.Error("a deadline where there was none")
	}
}

func TestDialRefused(t *testing.T) {
	l, s, _ := listen(t, Options{})
	s.Close()
	_, err := l.Dial(t.Context(), s.Addr())
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v", err)
	}
}

// The connection outlives the context of Dial.
func TestDialContextBoundsTheAttemptOnly(t *testing.T) {
	l, s, _ := listen(t, Options{DialTimeout: 300 * time.Millisecond})
	accepted := make(chan transport.Conn, 1)
	go func() {
		b, err := s.Accept(t.Context())
		if err != nil {
			t.Error(err)
		}
		accepted <- b
	}()
	ctx, cancel := context.WithCancel(t.Context())
	a, err := l.Dial(ctx, s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	b := <-accepted
	time.Sleep(400 * time.Millisecond)
	mustCarry(t, a, b)
	closeBoth(a, b)
}
