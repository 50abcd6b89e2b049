package tcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

func TestLaneAttacksHarmNobody(t *testing.T) {
	l, s, r := listen(t, Options{Lanes: 2})
	c, agreed := halfway(t, s, 2)
	_ = c
	wrong := agreed.Token
	wrong[15] ^= 1
	dropped(t, hello(t, s, wrong, 0))
	r.wait(t, errNoSession)
	dropped(t, hello(t, s, agreed.Token, 2))
	r.wait(t, errLaneRange)
	first := hello(t, s, agreed.Token, 0)
	bound(t, first, 0)
	dropped(t, hello(t, s, agreed.Token, 0))
	r.wait(t, errLaneTwice)
	bound(t, hello(t, s, agreed.Token, 1), 1)
	conn, err := s.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dropped(t, hello(t, s, agreed.Token, 1)) // too late: the session is complete
	conn.Close()
	a, b := connect(t, l, s)
	mustCarry(t, a, b)
}

func TestFirstMessageAttacks(t *testing.T) {
	open := message(wire.TypeOpen, 100, 0)
	long := message(wire.TypeHello, 5000, 0)
	tests := map[string][]byte{
		"garbage":           []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"zeros":             make([]byte, 100),
		"oversized hello":   long,
		"another message":   open,
		"empty hello":       message(wire.TypeHello, 0, 0),
		"empty lane hello":  message(wire.TypeLaneHello, 0, 0),
		"hello of nonsense": message(wire.TypeHello, 200, 7),
		"unknown optional":  resum([]byte{4: 250, 5: wire.FlagOptional, 15: 0}, 0),
	}
	l, s, r := listen(t, Options{})
	for name, sent := range tests {
		t.Run(name, func(t *testing.T) {
			c := stranger(t, s)
			if _, err := c.Write(sent); err != nil {
				t.Fatal(err)
			}
			dropped(t, c)
			r.wait(t, transport.ErrProtocol)
		})
	}
	c := stranger(t, s)
	c.CloseWrite()
	dropped(t, c)
	r.wait(t, io.ErrUnexpectedEOF)
	a, b := connect(t, l, s)
	mustCarry(t, a, b)
}

// TestDamagedFirstMessage damages each byte of a right hello and of a right lane
// hello: the socket is dropped for that, at once, and neither a connection nor a
// lane comes of it.
func TestDamagedFirstMessage(t *testing.T) {
	_, s, r := listen(t, Options{})
	_, agreed := halfway(t, s, 1)
	control, err := wire.AppendHello(nil, &wire.Hello{
		Major: wire.Major, Boot: transport.NewID(), MaxPayload: wire.MinPayload, Lanes: 1, Sums: transport.Sums(),
	})
	if err != nil {
		t.Fatal(err)
	}
	lane, err := wire.AppendLaneHello(nil, &wire.LaneHello{Token: agreed.Token})
	if err != nil {
		t.Fatal(err)
	}
	for _, msg := range [][]byte{control, lane} {
		for at := range msg {
			c := stranger(t, s)
			if _, err := c.Write(damaged(bytes.Clone(msg), at)); err != nil {
				t.Fatal(err)
			}
			dropped(t, c)
		}
	}
	r.each(t, len(control)+len(lane), transport.ErrProtocol)
	bound(t, hello(t, s, agreed.Token, 0), 0)
}

func TestIncompatiblePeerIsTold(t *testing.T) {
	_, s, r := listen(t, Options{})
	o := smallRings(t)
	o.Sums = []string{"none"}
	_, err := New(Options{Session: o}).Dial(t.Context(), s.Addr())
	if !errors.Is(err, transport.ErrIncompatible) {
		t.Errorf("dial: %v", err)
	}
	r.wait(t, transport.ErrIncompatible)
}

// Peers that say nothing, half a hello, or do not bring their lanes are cut by
// the deadline.
func TestSlowHandshakesAreCut(t *testing.T) {
	const limit = 200 * time.Millisecond
	o := Options{Lanes: 2, Session: session.Options{HandshakeTimeout: limit}}
	_, s, r := listen(t, o)
	silent := stranger(t, s)
	waiting, agreed := halfway(t, s, 2)
	lane := hello(t, s, agreed.Token, 1)
	bound(t, lane, 1)
	drip := stranger(t, s)
	start := time.Now()
	go func() { // a byte now and then keeps no deadline away
		for _, b := range message(wire.TypeHello, 100, 0) {
			if _, err := drip.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(limit / 2) // 50 times the limit for the whole
		}
	}()
	for _, c := range []*net.TCPConn{silent, waiting, lane, drip} {
		dropped(t, c)
	}
	if took := time.Since(start); took > 30*limit {
		t.Errorf("took %v", took)
	}
	r.wait(t, context.DeadlineExceeded)
	dropped(t, hello(t, s, agreed.Token, 0))
	r.wait(t, errNoSession)
}

// Strangers that connect and say nothing, and sessions that never get lanes,
// neither disturb a transfer nor keep an honest peer out.
func TestFloodOfStrangers(t *testing.T) {
	l, s, r := listen(t, Options{})
	a, b := connect(t, l, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	carried := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := carry(t.Context(), a, b, 20); err != nil {
				carried <- err
				return
			}
		}
		carried <- nil
	}()
	var socks []net.Conn
	for range 3 * maxStrangers {
		socks = append(socks, stranger(t, s))
	}
	r.wait(t, errCrowded)
	s.strangers.mu.Lock()
	if n := len(s.strangers.inside); n > maxStrangers {
		t.Errorf("%d strangers inside, limit %d", n, maxStrangers)
	}
	s.strangers.mu.Unlock()
	dropped(t, socks[0])
	for range maxPending + 5 {
		halfway(t, s, 1)
	}
	s.waiting.mu.Lock()
	if n := len(s.waiting.waits); n > maxPending {
		t.Errorf("%d sessions waiting, limit %d", n, maxPending)
	}
	s.waiting.mu.Unlock()
	c, d := connect(t, l, s)
	mustCarry(t, c, d)
	cancel()
	if err := <-carried; err != nil {
		t.Errorf("transfer during the flood: %v", err)
	}
}
