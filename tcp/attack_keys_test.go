package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/keys"
	"pdlink/transport/seal"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// byHand is what a client did by hand with a listener that has keys: a
// connection that waits for its lanes.
type byHand struct {
	ctl    *control
	agreed session.Agreement
	guard  *guard
}

// secured does the TLS handshake by hand, with configurations of the store.
func secured(t testing.TB, store *keys.Store, s *listener, change func(*tls.Config)) *control {
	t.Helper()
	config, err := store.ClientConfig("")
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(config)
	}
	c := stranger(t, s)
	c.SetDeadline(time.Now().Add(patience))
	conn := tls.Client(c, config)
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	return newSecureControl(c, conn)
}

// secureHalfway is halfway with keys.
func secureHalfway(t testing.TB, store *keys.Store, s *listener, o session.Options) byHand {
	t.Helper()
	h := byHand{ctl: secured(t, store, s, nil)}
	o.Features = features(seal.AES128GCM)
	var err error
	if h.agreed, err = session.Handshake(t.Context(), h.ctl, session.Client, &o); err != nil {
		t.Fatal(err)
	}
	if h.guard, err = newGuard(h.ctl, keys.Admission{}, session.Client, &h.agreed); err != nil {
		t.Fatal(err)
	}
	return h
}

// laneHello sends a lane hello with a proof on a new socket.
func laneHello(t testing.TB, s *listener, tok token, lane int, proof [wire.ProofSize]byte) *net.TCPConn {
	t.Helper()
	c := stranger(t, s)
	msg, err := wire.AppendLaneHello(nil, &wire.LaneHello{Token: tok, Lane: uint16(lane), Proof: proof})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(msg); err != nil {
		t.Fatal(err)
	}
	return c
}

func (h byHand) proof(t testing.TB, suite seal.Suite, lane int, d seal.Direction) [wire.ProofSize]byte {
	t.Helper()
	proof, err := h.guard.secret.Proof(suite, lane, d)
	if err != nil {
		t.Fatal(err)
	}
	return proof
}

// A lane is bound by its proof, and by nothing else.
func TestLaneProofs(t *testing.T) {
	server, client := twoHosts(t)
	_, s, r := listen(t, Options{Keys: server, Lanes: 2})
	h := secureHalfway(t, client, s, session.Options{Lanes: 2})
	other := secureHalfway(t, client, s, session.Options{Lanes: 2})
	tok := h.agreed.Token
	wrong := h.proof(t, seal.AES128GCM, 0, seal.ToServer)
	wrong[31] ^= 1
	for name, proof := range map[string][wire.ProofSize]byte{
		"none":                  {},
		"one bit":               wrong,
		"of another lane":       h.proof(t, seal.AES128GCM, 1, seal.ToServer),
		"the server's own":      h.proof(t, seal.AES128GCM, 0, seal.ToClient),
		"of another suite":      h.proof(t, seal.AES256GCM, 0, seal.ToServer),
		"for frames in clear":   h.proof(t, seal.Clear, 0, seal.ToServer),
		"of another connection": other.proof(t, seal.AES128GCM, 0, seal.ToServer),
	} {
		t.Run(name, func(t *testing.T) {
			r.mu.Lock()
			r.errs = nil
			r.mu.Unlock()
			dropped(t, laneHello(t, s, tok, 0, proof))
			r.only(t, errLaneProof)
		})
	}
	right := h.proof(t, seal.AES128GCM, 0, seal.ToServer)
	for lane := range 2 {
		c := laneHello(t, s, tok, lane, h.proof(t, seal.AES128GCM, lane, seal.ToServer))
		c.SetReadDeadline(time.Now().Add(patience))
		msg, err := readMessage(c, nil, wire.MaxHello)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkLaneOK(msg, lane, h.guard); err != nil {
			t.Error(err)
		}
		if lane == 0 { // a copy of what everybody could read
			dropped(t, laneHello(t, s, tok, 0, right))
			r.wait(t, errLaneTwice)
		}
	}
	conn, err := s.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	dropped(t, laneHello(t, s, tok, 0, right)) // too late
	r.wait(t, errNoSession)
}

// fakeSecureServer is a listener that does its part as one with keys and answers
// lanes as it is told.
func fakeSecureServer(t *testing.T, store *keys.Store, names []string, major uint16, answer func(g *guard, lane int) [wire.ProofSize]byte) string {
	t.Helper()
	var g *guard
	return fakeServer(t, func(i int, c net.Conn) {
		sock := c.(*net.TCPConn)
		if i > 0 {
			proof := answer(g, i-1)
			msg, err := wire.AppendLaneOK(nil, &wire.LaneOK{Lane: uint16(i - 1), Proof: proof})
			if err != nil {
				t.Error(err)
			}
			c.Write(msg)
			return
		}
		conn := tls.Server(sock, store.ServerConfig())
		if err := conn.Handshake(); err != nil {
			t.Error(err)
			return
		}
		ctl := newSecureControl(sock, conn)
		if major != wire.Major {
			msg, err := wire.AppendHello(nil, &wire.Hello{
				Major: major, Boot: transport.NewID(), MaxPayload: wire.MinPayload, Lanes: 1, Token: [16]byte{1}, Sums: transport.Sums(),
			})
			if err != nil {
				t.Error(err)
			}
			ctl.WriteControl(msg)
			return
		}
		o := session.Options{Lanes: 2, Features: names}
		a, err := session.Handshake(context.Background(), ctl, session.Server, &o)
		if err != nil {
			t.Error(err)
			return
		}
		g, _ = newGuard(ctl, keys.Admission{}, session.Server, &a) // no suite in common: the client finds out
	})
}

// A server that is authentic and does not hold to the rest is left.
func TestDialRefusesBadServers(t *testing.T) {
	both := features(seal.AES128GCM)
	right := func(g *guard, lane int) [wire.ProofSize]byte { p, _ := g.prove(lane); return p }
	tests := map[string]struct {
		features []string
		encrypt  seal.Suite
		major    uint16
		answer   func(g *guard, lane int) [wire.ProofSize]byte
		want     error
	}{
		"names no suite":             {nil, seal.AES128GCM, 1, right, transport.ErrIncompatible},
		"names clear only":           {[]string{"seal/clear"}, seal.AES128GCM, 1, right, transport.ErrIncompatible},
		"names a suite of its own":   {[]string{"seal/rot13"}, seal.Clear, 1, right, transport.ErrIncompatible},
		"names the shorter key only": {[]string{"seal/aes-128-gcm"}, seal.AES256GCM, 1, right, transport.ErrIncompatible},
		"speaks another version":     {both, seal.AES128GCM, 2, right, transport.ErrIncompatible},
		"no proof":                   {both, seal.AES128GCM, 1, func(*guard, int) [32]byte { return [32]byte{} }, transport.ErrProtocol},
		"proof of another lane":      {both, seal.AES128GCM, 1, func(g *guard, lane int) [32]byte { return right(g, lane+1) }, transport.ErrProtocol},
		"the client's own proof": {both, seal.AES128GCM, 1, func(g *guard, lane int) [32]byte {
			p, _ := g.secret.Proof(g.suite, lane, g.in)
			return p
		}, transport.ErrProtocol},
	}
	server, client := twoHosts(t)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			addr := fakeSecureServer(t, server, tt.features, tt.major, tt.answer)
			l := secureLink(t, client, Options{Lanes: 2, DialTimeout: 5 * time.Second, Encrypt: tt.encrypt})
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

// A client that is authentic and does not hold to the rest is dropped, once, and
// told where it can be.
func TestListenerRefusesBadClients(t *testing.T) {
	server, client := twoHosts(t)
	l, s, r := listen(t, Options{Keys: server})
	_ = l
	hello := func(major uint16, names ...string) []byte {
		msg, err := wire.AppendHello(nil, &wire.Hello{
			Major: major, Boot: transport.NewID(), MaxPayload: wire.MinPayload, Lanes: 1, Sums: transport.Sums(), Features: names,
		})
		if err != nil {
			t.Fatal(err)
		}
		return msg
	}
	tests := map[string]struct {
		sent []byte
		want error
		told bool // the listener answers with a hello
	}{
		"names no suite":     {hello(1), transport.ErrIncompatible, true},
		"names clear only":   {hello(1, "seal/clear"), transport.ErrIncompatible, true},
		"another version":    {hello(2, "seal/aes-128-gcm"), transport.ErrIncompatible, true},
		"damaged hello":      {damaged(hello(1, "seal/aes-128-gcm"), 30), transport.ErrProtocol, false},
		"oversized hello":    {message(wire.TypeHello, 5000, 0), transport.ErrProtocol, false},
		"another message":    {message(wire.TypeOpen, 100, 0), transport.ErrProtocol, false},
		"lane hello in TLS":  {message(wire.TypeLaneHello, 54, 1), transport.ErrProtocol, false},
		"garbage inside TLS": {[]byte(strings.Repeat("GET / HTTP/1.1\r\n", 10)), transport.ErrProtocol, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r.mu.Lock()
			r.errs = nil
			r.mu.Unlock()
			ctl := secured(t, client, s, nil)
			ctl.WriteControl(tt.sent) // which may be cut by the answer
			_, err := ctl.ReadControl()
			if tt.told {
				if err != nil {
					t.Errorf("no hello came: %v", err)
				}
				_, err = ctl.ReadControl()
				ctl.sock.Close()
			}
			if err == nil {
				t.Error("the socket was not dropped")
			}
			r.only(t, tt.want)
		})
	}
	a, b := connect(t, secureLink(t, client, Options{}), s)
	mustCarry(t, a, b)
}
