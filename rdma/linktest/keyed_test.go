package linktest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"pdlink/rdma/internal/fakeverbs"
	"pdlink/tcp"
	"pdlink/transport"
	"pdlink/transport/keys"
	"pdlink/transport/seal"
	"pdlink/transport/session"
	"pdlink/transport/transporttest"
)

// twoHosts are the keys of a server and a client that know each other.
func twoHosts(tb testing.TB) (server, client *keys.Store) {
	tb.Helper()
	server, client, _ = keyHosts(tb)
	return server, client
}

// keyHosts is twoHosts with the directory of the server's keys.
func keyHosts(tb testing.TB) (server, client *keys.Store, serverDir string) {
	tb.Helper()
	names := []string{"server", "client"}
	var dirs []string
	var peers []keys.Peer
	for _, name := range names {
		dir := filepath.Join(tb.TempDir(), "keys")
		id, err := keys.Init(tb.Context(), dir, false)
		if err != nil {
			tb.Fatal(err)
		}
		dirs, peers = append(dirs, dir), append(peers, keys.Peer{Name: name, Key: id.Public()})
	}
	var stores [2]*keys.Store
	for i, dir := range dirs {
		if err := keys.AddPeer(tb.Context(), dir, peers[1-i]); err != nil {
			tb.Fatal(err)
		}
		s, err := keys.Open(dir, keys.Options{Poll: 10 * time.Millisecond})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { s.Close() })
		stores[i] = s
	}
	return stores[0], stores[1], dirs[0]
}

func secureHarness(tb testing.TB, p personality, suite seal.Suite) transporttest.Harness {
	tb.Helper()
	h := harness(p)
	h.Tries = 20
	server, client := twoHosts(tb)
	h.Links = func(tb testing.TB, a, b session.Options) (dial, listen transport.Link, addr string) {
		v := newHosts(p)
		tb.Cleanup(func() { v.none(tb) })
		d, l := options(a, v.a, p.o), options(b, v.b, p.o)
		d.Keys, d.Peer, d.Encrypt = client, "server", suite
		l.Keys, l.Encrypt = server, suite
		return tcp.New(d), tcp.New(l), "127.0.0.1:0"
	}
	return h
}

// TestSuiteSealed runs the suite with keys: frames are sealed on every mode's way.
func TestSuiteSealed(t *testing.T) {
	for _, p := range personalities() {
		switch p.name {
		case "mlx5", "mcdma by reading", "apple":
			t.Run(p.name, func(t *testing.T) { transporttest.Run(t, secureHarness(t, p, seal.AES128GCM)) })
		}
	}
}

// TestClearWithKeys has frames go in clear where both operators say so, and nowhere
// else.
func TestClearWithKeys(t *testing.T) {
	for name, c := range map[string]struct {
		dial, listen seal.Suite
		sealed       bool
	}{
		"both": {seal.Clear, seal.Clear, false}, "one": {seal.Clear, seal.AES128GCM, true}, "none": {seal.AES128GCM, seal.AES128GCM, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := personalities()[0]
			v := newHosts(p)
			d, l := options(session.Options{}, v.a, p.o), options(session.Options{}, v.b, p.o)
			l.Keys, d.Keys = twoHosts(t)
			d.Encrypt, l.Encrypt = c.dial, c.listen
			ln, err := tcp.New(l).Listen(t.Context(), "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			r := &receiver{bytes: map[string]int{}}
			served := make(chan error, 1)
			go func() { served <- r.serve(t.Context(), ln) }()
			conn, err := tcp.New(d).Dial(t.Context(), ln.Addr())
			if err != nil {
				t.Fatal(err)
			}
			if f := conn.Facts(); f.Sealed != c.sealed || !f.Proven {
				t.Errorf("sealed %v, proven %v, want sealed %v", f.Sealed, f.Proven, c.sealed)
			}
			if err := errors.Join(send(ctxOf(t), conn, func(int) {}), <-served); err != nil {
				t.Error(err)
			}
			conn.Close()
			v.none(t)
		})
	}
}

// tap collects what passes on the control channel's socket and on the network.
type tap struct {
	mu            sync.Mutex
	socket, wires bytes.Buffer
}

func (c *tap) onSocket(_ bool, p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.socket.Write(p)
}

func (c *tap) onWire(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wires.Write(p)
}

// capture makes a connection through a tap, moves a frame, and returns what passed and
// what memory was open to the peers meanwhile.
func capture(t *testing.T, withKeys bool) (c *tap, open []uint64, keysOfMemory []uint32, v *hosts, pair transporttest.Pair) {
	t.Helper()
	c = &tap{}
	p := personalities()[1]
	v = newHosts(p)
	v.net.Watch = c.onWire
	d, l := options(session.Options{}, v.a, p.o), options(session.Options{}, v.b, p.o)
	if withKeys {
		l.Keys, d.Keys = twoHosts(t)
	}
	ln, err := tcp.New(l).Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	proxy := transporttest.NewProxy(t, ln.Addr(), transporttest.ProxyOptions{Watch: c.onSocket})
	dialled := make(chan error, 1)
	go func() {
		var err error
		pair.A, err = tcp.New(d).Dial(t.Context(), proxy.Addr())
		dialled <- err
	}()
	if pair.B, err = ln.Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
	for _, h := range []*fakeverbs.Host{v.a, v.b} {
		for _, r := range h.Remote() {
			open, keysOfMemory = append(open, r.Addr), append(keysOfMemory, r.Remote)
		}
	}
	return c, open, keysOfMemory, v, pair
}

func (c *tap) shows(addrs []uint64, memory []uint32) (socket, wires int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range addrs {
		for _, b := range [][]byte{binary.LittleEndian.AppendUint64(nil, addrs[i]), binary.LittleEndian.AppendUint32(nil, memory[i])} {
			if bytes.Contains(c.socket.Bytes(), b) {
				socket++
			}
			if bytes.Contains(c.wires.Bytes(), b) {
				wires++
			}
		}
	}
	return socket, wires
}

// TestMemoryKeysAreSealed captures everything that the two ends exchange: addresses and
// keys of memory are on the control channel only, which is sealed where there are keys;
// and what they open is closed with the connection.
func TestMemoryKeysAreSealed(t *testing.T) {
	for name, withKeys := range map[string]bool{"with keys": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			c, addrs, memory, v, p := capture(t, withKeys)
			if len(addrs) < 4 {
				t.Fatalf("%d regions are open to peers, want heads and bodies at both ends", len(addrs))
			}
			if sealed := p.A.Facts().Sealed; sealed != withKeys {
				t.Errorf("sealed %v with keys %v", sealed, withKeys)
			}
			socket, wires := c.shows(addrs, memory)
			if wires != 0 {
				t.Errorf("%d addresses and keys of memory travel on the network", wires)
			}
			if withKeys && socket != 0 {
				t.Errorf("%d addresses and keys of memory can be read on the socket", socket)
			}
			if !withKeys && socket != 2*len(addrs) {
				t.Errorf("%d of %d addresses and keys found: the test sees nothing", socket, 2*len(addrs))
			}
			p.A.Close()
			p.B.Close()
			if left := append(v.a.Remote(), v.b.Remote()...); len(left) != 0 {
				t.Errorf("memory is open after the connection: %+v", left)
			}
			v.none(t)
		})
	}
}

// TestRevoked takes the peer's key away: the lanes end with the connection.
func TestRevoked(t *testing.T) {
	p := personalities()[0]
	v := newHosts(p)
	server, client, dir := keyHosts(t)
	d, l := options(session.Options{}, v.a, p.o), options(session.Options{}, v.b, p.o)
	d.Keys, l.Keys = client, server
	ln, err := tcp.New(l).Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dialled := make(chan transport.Conn, 1)
	go func() {
		a, err := tcp.New(d).Dial(t.Context(), ln.Addr())
		if err != nil {
			t.Error(err)
		}
		dialled <- a
	}()
	b, err := ln.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := <-dialled
	if _, err := keys.RemovePeer(t.Context(), dir, "client"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []transport.Conn{b, a} {
		if _, err := c.Accept(t.Context()); !errors.Is(err, transport.ErrLost) {
			t.Errorf("the connection of a peer that was revoked goes on: %v", err)
		}
		c.Close()
	}
	v.none(t)
}
