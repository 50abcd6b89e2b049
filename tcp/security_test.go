package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/codec"
	"pdlink/transport/keys"
	"pdlink/transport/seal"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// secureLink is a link with keys and rings of its own.
func secureLink(t testing.TB, store *keys.Store, o Options) *Link {
	t.Helper()
	timeout := o.Session.HandshakeTimeout
	o.Session = smallRings(t)
	o.Session.HandshakeTimeout = timeout
	o.Keys = store
	return New(o)
}

// refused dials and checks that no connection comes of it.
func refused(t *testing.T, l *Link, s *listener, want ...error) error {
	t.Helper()
	c, err := l.Dial(t.Context(), s.Addr())
	if err == nil {
		c.Close()
		t.Fatal("connected")
	}
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("dial: %v, want one that is %q", err, w)
		}
	}
	if a := s.lobby.next(); a != nil {
		a.close()
		t.Error("a peer that was refused waits for Accept")
	}
	return err
}

// saysFix checks that a message says what to do.
func saysFix(t *testing.T, err error, fixes ...string) {
	t.Helper()
	for _, fix := range fixes {
		if !strings.Contains(err.Error(), fix) {
			t.Errorf("error does not say %q: %v", fix, err)
		}
	}
}

// saysNot checks that a message does not have some texts.
func saysNot(t *testing.T, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(err.Error(), text) {
			t.Errorf("error says %q: %v", text, err)
		}
	}
}

// only waits for a report and checks that it is the only one.
func (r *rejects) only(t *testing.T, want error) error {
	t.Helper()
	r.wait(t, want)
	time.Sleep(20 * time.Millisecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.errs) != 1 {
		t.Errorf("%d reports, want 1: %v", len(r.errs), r.errs)
	}
	return r.errs[0]
}

// Each pair of wishes gives one suite at both ends; clear needs both.
func TestSuitesAreAgreedUpon(t *testing.T) {
	const none = seal.Suite(99)
	tests := []struct{ dial, listen, want seal.Suite }{
		{seal.AES128GCM, seal.AES128GCM, seal.AES128GCM},
		{seal.AES128GCM, seal.AES256GCM, seal.AES256GCM},
		{seal.AES256GCM, seal.AES128GCM, seal.AES256GCM},
		{seal.AES256GCM, seal.AES256GCM, seal.AES256GCM},
		{seal.Clear, seal.AES128GCM, seal.AES128GCM},
		{seal.AES128GCM, seal.Clear, seal.AES128GCM},
		{seal.Clear, seal.AES256GCM, seal.AES256GCM},
		{seal.AES256GCM, seal.Clear, seal.AES256GCM},
		{seal.Clear, seal.Clear, seal.Clear},
		{none, none, seal.AES128GCM}, // what is not known is the default
	}
	server, client := twoHosts(t)
	for _, tt := range tests {
		t.Run(tt.dial.String()+" to "+tt.listen.String(), func(t *testing.T) {
			_, s, _ := listen(t, Options{Keys: server, Encrypt: tt.listen, Lanes: 2})
			a, b := connect(t, secureLink(t, client, Options{Encrypt: tt.dial, Lanes: 2, Compress: codec.Off}), s)
			for _, c := range []transport.Conn{a, b} {
				f := c.Facts()
				if !f.Proven || f.Sealed != (tt.want != seal.Clear) || f.ZeroCopy == f.Sealed {
					t.Errorf("facts %+v, want suite %v", f, tt.want)
				}
			}
			if a.Facts().Peer != "server" || b.Facts().Peer != "client" {
				t.Errorf("peers are %q and %q: want the names of the pinned keys", a.Facts().Peer, b.Facts().Peer)
			}
			if c := a.(*conn).d.lanes[0].crypt; (c == nil) != (tt.want == seal.Clear) {
				t.Errorf("lane seals: %v, want suite %v", c != nil, tt.want)
			}
			mustCarry(t, a, b)
			mustCarry(t, b, a)
		})
	}
}

// A listener with keys takes nobody without, on loopback too, and says why; the
// same the other way round.
func TestKeysOnOneSideOnly(t *testing.T) {
	server, client := twoHosts(t)
	t.Run("dialler has none", func(t *testing.T) {
		_, s, r := listen(t, Options{Keys: server})
		err := refused(t, New(Options{Session: smallRings(t)}), s, transport.ErrInsecure, keys.ErrKeysWanted)
		saysNot(t, err, "needs peer keys")
		saysNot(t, r.only(t, keys.ErrNoKeys), "needs peer keys")
	})
	t.Run("listener has none", func(t *testing.T) {
		_, s, r := listen(t, Options{})
		err := refused(t, secureLink(t, client, Options{}), s, transport.ErrInsecure, keys.ErrNoKeys)
		saysNot(t, err, "needs peer keys")
		saysNot(t, r.only(t, keys.ErrKeysWanted), "needs peer keys")
	})
	t.Run("peer wanted without keys", func(t *testing.T) {
		if _, err := New(Options{Peer: "x"}).Dial(t.Context(), "127.0.0.1:1"); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("dial: %v", err)
		}
	})
}

// With keys any address goes.
func TestKeysOpenOtherAddresses(t *testing.T) {
	server, client := twoHosts(t)
	l := secureLink(t, server, Options{})
	for _, addr := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		s, err := l.Listen(t.Context(), addr)
		if err != nil {
			t.Fatalf("listen at %s: %v", addr, err)
		}
		_, port, _ := strings.Cut(strings.TrimPrefix(s.Addr(), "[::]"), ":")
		c := secureLink(t, client, Options{Peer: "server"})
		accepted := make(chan transport.Conn, 1)
		go func() {
			b, err := s.Accept(t.Context())
			if err != nil {
				t.Error(err)
			}
			accepted <- b
		}()
		a, err := c.Dial(t.Context(), "localhost:"+port)
		if err != nil {
			t.Fatalf("listening at %s: %v", s.Addr(), err)
		}
		b := <-accepted
		mustCarry(t, a, b)
		closeBoth(a, b)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, addr := range []string{":80", "127.0.0.1:0", ""} {
		if _, err := l.Dial(t.Context(), addr); err == nil || errors.Is(err, transport.ErrInsecure) {
			t.Errorf("dial %q: %v", addr, err)
		}
	}
}

// Keys that are not pinned, at either end, and pinned ones that are not wanted.
func TestUnknownKeys(t *testing.T) {
	server, client := twoHosts(t)
	t.Run("client", func(t *testing.T) {
		// The stranger knows the server, and the server does not know it.
		stranger := strangerKeys(t, server)
		l, s, r := listen(t, Options{Keys: server})
		_ = l
		err := refused(t, secureLink(t, stranger, Options{Peer: "server"}), s, transport.ErrInsecure, keys.ErrRefused)
		saysNot(t, err, "certificate", "needs peer keys")
		if errors.Is(err, transport.ErrLost) {
			t.Errorf("a refusal is no loss: %v", err)
		}
		if !keys.Refused(err) {
			t.Errorf("keys.Refused does not see %v", err)
		}
		saysFix(t, r.only(t, keys.ErrUnknownPeer), "is not in", stranger.Public().Short())
		saysNot(t, r.only(t, keys.ErrUnknownPeer), stranger.Public().String(), "needs peer keys")
		a, b := connect(t, secureLink(t, client, Options{}), s)
		mustCarry(t, a, b)
	})
	t.Run("server", func(t *testing.T) {
		stranger := openKeys(t, keyDirs(t, "stranger")[0])
		_, s, r := listen(t, Options{Keys: stranger})
		err := refused(t, secureLink(t, client, Options{}), s, transport.ErrInsecure, keys.ErrUnknownPeer)
		saysFix(t, err, "is not in", stranger.Public().Short())
		saysNot(t, err, stranger.Public().String(), "needs peer keys")
		saysNot(t, r.only(t, keys.ErrRefused), "certificate", "needs peer keys")
	})
	t.Run("another peer than the one that is wanted", func(t *testing.T) {
		dirs := keyDirs(t, "server", "client", "third")
		_, s, _ := listen(t, Options{Keys: openKeys(t, dirs[2])})
		err := refused(t, secureLink(t, openKeys(t, dirs[1]), Options{Peer: "server"}), s, transport.ErrInsecure, keys.ErrUnknownPeer)
		saysFix(t, err, "want server, this is third")
	})
	t.Run("a peer nobody knows is wanted", func(t *testing.T) {
		_, s, _ := listen(t, Options{Keys: server})
		err := refused(t, secureLink(t, client, Options{Peer: "nobody"}), s, transport.ErrInsecure, keys.ErrUnknownPeer)
		saysFix(t, err, `"nobody" is not in`)
	})
}

// A peer that is taken out of either end's file loses its connections within
// seconds, in the middle of a transfer; other peers do not notice.
func TestRevocationEndsConnections(t *testing.T) {
	for _, at := range []struct {
		name     string
		dir      int // whose file changes
		revoked  string
		here     int // which end sees the cause: 0 dialled, 1 accepted
		newError error
	}{
		{"at the listener", 0, "client", 1, keys.ErrRefused},
		{"at the dialler", 1, "server", 0, keys.ErrUnknownPeer},
	} {
		t.Run(at.name, func(t *testing.T) {
			dirs := keyDirs(t, "server", "client", "other")
			_, s, _ := listen(t, Options{Keys: openKeys(t, dirs[0]), Lanes: 2})
			l := secureLink(t, openKeys(t, dirs[1]), Options{Lanes: 2})
			a, b := connect(t, l, s)
			other, its := connect(t, secureLink(t, openKeys(t, dirs[2]), Options{}), s)
			running := make(chan error, 1)
			go func() {
				for {
					if err := carry(t.Context(), a, b, 20); err != nil {
						running <- err
						return
					}
				}
			}()
			time.Sleep(20 * time.Millisecond)
			if _, err := keys.RemovePeer(t.Context(), dirs[at.dir], at.revoked); err != nil {
				t.Fatal(err)
			}
			select {
			case <-running:
			case <-time.After(patience):
				t.Fatal("the connection lives on")
			}
			for i, c := range []transport.Conn{a, b} {
				_, err := c.Accept(t.Context())
				if !errors.Is(err, transport.ErrLost) || errors.Is(err, keys.ErrUnknownPeer) != (i == at.here) {
					t.Errorf("end %d: %v", i, err)
				}
				if i == at.here {
					saysFix(t, err, at.revoked, "was taken out of the peers file of this host")
				} else {
					saysFix(t, err, "revoked: this host's key was taken out of the peers file there")
				}
			}
			mustCarry(t, other, its)
			refused(t, l, s, at.newError)
		})
	}
}

// A connection that waits for Accept is not accepted when its peer was revoked.
func TestRevokedBeforeAccept(t *testing.T) {
	dirs := keyDirs(t, "server", "client")
	store := openKeys(t, dirs[0])
	_, s, r := listen(t, Options{Keys: store})
	a, err := secureLink(t, openKeys(t, dirs[1]), Options{}).Dial(t.Context(), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := keys.RemovePeer(t.Context(), dirs[0], "client"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); len(store.Peers()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the store does not follow its file")
		}
	}
	accepted := make(chan error, 1)
	go func() { _, err := s.Accept(t.Context()); accepted <- err }()
	r.only(t, keys.ErrUnknownPeer)
	s.Close()
	if err := <-accepted; !errors.Is(err, transport.ErrClosed) {
		t.Errorf("accept: %v", err)
	}
	if _, err := a.Accept(t.Context()); !errors.Is(err, transport.ErrLost) || !strings.Contains(err.Error(), "revoked: ") {
		t.Errorf("the revoked end: %v", err)
	}
}

// A peer that is paired while the listener runs gets in.
func TestPairedWhileListening(t *testing.T) {
	dirs := keyDirs(t, "server")
	_, s, _ := listen(t, Options{Keys: openKeys(t, dirs[0])})
	dir := filepath.Join(t.TempDir(), "keys")
	id, err := keys.Init(t.Context(), dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.AddPeer(t.Context(), dir, keys.Peer{Name: "server", Key: s.link.o.Keys.Public()}); err != nil {
		t.Fatal(err)
	}
	l := secureLink(t, openKeys(t, dir), Options{})
	refused(t, l, s, keys.ErrRefused)
	if err := keys.AddPeer(t.Context(), dirs[0], keys.Peer{Name: "late", Key: id.Public()}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); len(s.link.o.Keys.Peers()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the store does not follow its file")
		}
	}
	a, b := connect(t, l, s)
	mustCarry(t, a, b)
}

// Every field of the options that came with keys is handled.
func TestKeyOptions(t *testing.T) {
	server, _ := twoHosts(t)
	own := session.Options{Features: []string{"x/y"}}
	for _, tt := range []struct {
		o    Options
		want string
	}{
		{Options{Session: own}, "x/y"},
		{Options{Session: own, Encrypt: seal.Clear}, "x/y"}, // without keys nothing is named
		{Options{Session: own, Keys: server}, "x/y seal/aes-128-gcm seal/aes-256-gcm"},
		{Options{Keys: server, Encrypt: seal.AES256GCM}, "seal/aes-256-gcm"},
		{Options{Keys: server, Encrypt: seal.Clear}, "seal/clear seal/aes-128-gcm seal/aes-256-gcm"},
	} {
		tt.o.Compress = codec.Off
		if got := strings.Join(tt.o.withDefaults().Session.Features, " "); got != tt.want {
			t.Errorf("%v: features %q, want %q", tt.o.Encrypt, got, tt.want)
		}
	}
	if len(own.Features) != 1 {
		t.Errorf("the caller's features became %q", own.Features)
	}
}

// A message whose length looks like the start of TLS is none.
func TestMessagesAreNotTakenForTLS(t *testing.T) {
	for length := range wire.MaxHello {
		if isTLS(message(wire.TypeHello, length, 0)) {
			t.Errorf("a hello with a body of %d bytes", length)
		}
	}
	_, client := twoHosts(t)
	if !isTLS(recordHello(t, client)) {
		t.Error("TLS is not known")
	}
	// One such hello connects.
	o := smallRings(t)
	o.Features = []string{}
	for len(o.Features) < wire.MaxNames-1 {
		o.Features = append(o.Features, fmt.Sprintf("x/%018d", len(o.Features)))
	}
	o.Name = strings.Repeat("n", 0x316-helloLength(t, o))
	if n := helloLength(t, o); n != 0x316 {
		t.Fatalf("hello of %d bytes, want %d", n, 0x316)
	}
	_, s, _ := listen(t, Options{})
	a, b := connect(t, New(Options{Session: o}), s)
	mustCarry(t, a, b)
}

// helloLength is the length of the body of the hello that o makes.
func helloLength(t *testing.T, o session.Options) int {
	t.Helper()
	ctl := &recorded{}
	session.Handshake(t.Context(), ctl, session.Client, &o) // ends at once: nobody answers
	return len(ctl.said) - wire.ControlPrefix
}

// recorded is a control channel that keeps what is said and hears nothing.
type recorded struct{ said []byte }

func (r *recorded) WriteControl(msg []byte) error { r.said = bytes.Clone(msg); return nil }
func (r *recorded) ReadControl() ([]byte, error)  { return nil, io.EOF }
