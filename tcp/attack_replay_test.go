package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/seal"
)

// What a client of keys said once is of no use a second time: its whole control
// stream, and its lanes', are replayed.
func TestReplayedConnection(t *testing.T) {
	server, client := twoHosts(t)
	l, s, r := listen(t, Options{Keys: server})
	_ = l
	var mu sync.Mutex
	var said [][]byte // of each socket, in the order in which they were made
	addr := tap(t, s.Addr(), func(i int, b []byte) {
		mu.Lock()
		defer mu.Unlock()
		for len(said) <= i {
			said = append(said, nil)
		}
		said[i] = append(said[i], b...)
	})
	accepted := make(chan transport.Conn, 1)
	go func() {
		b, err := s.Accept(t.Context())
		if err != nil {
			t.Error(err)
		}
		accepted <- b
	}()
	a, err := secureLink(t, client, Options{}).Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	b := <-accepted
	mustCarry(t, a, b)
	mu.Lock()
	recorded := append([][]byte(nil), said...)
	mu.Unlock()
	if len(recorded) != 2 {
		t.Fatalf("%d sockets, want a control channel and a lane", len(recorded))
	}
	for _, stream := range recorded {
		c := stranger(t, s)
		c.Write(stream)
		c.CloseWrite()
		c.SetReadDeadline(time.Now().Add(patience))
		io.Copy(io.Discard, c)
	}
	r.wait(t, errNoSession) // the lane
	r.wait(t, transport.ErrProtocol)
	if s.lobby.len() != 0 {
		t.Error("a replayed connection waits for Accept")
	}
	mustCarry(t, a, b)
	closeBoth(a, b)
}

// tap forwards connections to target and shows what each client says.
func tap(t *testing.T, target string, show func(i int, b []byte)) string {
	t.Helper()
	var wait sync.WaitGroup
	t.Cleanup(wait.Wait)
	return fakeServer(t, func(i int, c net.Conn) {
		out, err := net.Dial("tcp", target)
		if err != nil {
			t.Error(err)
			return
		}
		wait.Go(func() {
			io.Copy(c, out)
			c.Close()
		})
		wait.Go(func() {
			defer out.Close()
			buf := make([]byte, 32<<10)
			for {
				n, err := c.Read(buf)
				show(i, buf[:n])
				if _, failed := out.Write(buf[:n]); err != nil || failed != nil {
					return
				}
			}
		})
	})
}

// Lanes that change places on the way carry nothing.
func TestSplicedLanes(t *testing.T) {
	server, client := twoHosts(t)
	_, s, _ := listen(t, Options{Keys: server, Lanes: 2})
	// The second and third sockets are the lanes. When both have greeted, what
	// each client's lane says goes to the other's.
	var mu sync.Mutex
	var outs [3]net.Conn
	addr := fakeServer(t, func(i int, c net.Conn) {
		out, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { out.Close() })
		mu.Lock()
		outs[i] = out
		mu.Unlock()
		go io.Copy(c, out)
		go func() {
			first := make([]byte, 70) // a lane hello with its proof
			if i == 0 {
				io.Copy(out, c)
				return
			}
			if _, err := io.ReadFull(c, first); err != nil {
				return
			}
			out.Write(first)
			buf := make([]byte, 32<<10)
			for {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				mu.Lock()
				outs[3-i].Write(buf[:n])
				mu.Unlock()
			}
		}()
	})
	accepted := make(chan transport.Conn, 1)
	go func() {
		b, err := s.Accept(t.Context())
		if err != nil {
			t.Error(err)
		}
		accepted <- b
	}()
	a, err := secureLink(t, client, Options{Lanes: 2}).Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	b := <-accepted
	defer closeBoth(a, b)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := carry(ctx, a, b, 4); !errors.Is(err, transport.ErrLost) {
		t.Errorf("carried: %v", err)
	}
	if _, err := b.Accept(ctx); !errors.Is(err, seal.ErrForged) || !errors.Is(err, transport.ErrProtocol) {
		t.Errorf("the receiver's end: %v", err)
	}
}
