package keys_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	"pdlink/transport/keys"
	"pdlink/transport/seal"
)

// host is a directory of keys, opened.
func host(t *testing.T, peers ...keys.Peer) *keys.Store {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := keys.Init(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	for _, p := range peers {
		if err := keys.AddPeer(t.Context(), dir, p); err != nil {
			t.Fatal(err)
		}
	}
	return open(t, dir)
}

func open(t *testing.T, dir string) *keys.Store {
	t.Helper()
	s, err := keys.Open(dir, keys.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// hosts are a server and a client that know each other as "client" and "server".
func hosts(t *testing.T) (server, client *keys.Store) {
	t.Helper()
	serverDir, clientDir := filepath.Join(t.TempDir(), "keys"), filepath.Join(t.TempDir(), "keys")
	sid, err := keys.Init(t.Context(), serverDir, false)
	if err != nil {
		t.Fatal(err)
	}
	cid, err := keys.Init(t.Context(), clientDir, false)
	if err != nil {
		t.Fatal(err)
	}
	for dir, p := range map[string]keys.Peer{serverDir: {Name: "client", Key: cid.Public()}, clientDir: {Name: "server", Key: sid.Public()}} {
		if err := keys.AddPeer(t.Context(), dir, p); err != nil {
			t.Fatal(err)
		}
	}
	return open(t, serverDir), open(t, clientDir)
}

// session is one TLS connection and what each end found.
type session struct {
	client, server       tls.ConnectionState
	clientErr, serverErr error // of the handshake
	readErr              error // of the client's first read; nil when a byte came
}

// handshake connects two configurations over loopback.
func handshake(t *testing.T, server, client *tls.Config) session {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var s session
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := l.Accept()
		if err != nil {
			s.serverErr = err
			return
		}
		c := tls.Server(raw, server)
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if s.serverErr = c.HandshakeContext(ctx); s.serverErr != nil {
			// Let the client read the alert before the socket is reset.
			raw.SetDeadline(time.Now().Add(time.Second))
			raw.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, raw)
			return
		}
		s.server = c.ConnectionState()
		c.Write([]byte{1})
		io.Copy(io.Discard, c)
	}()
	raw, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	raw.SetDeadline(time.Now().Add(10 * time.Second))
	c := tls.Client(raw, client)
	if s.clientErr = c.HandshakeContext(t.Context()); s.clientErr == nil {
		s.client = c.ConnectionState()
		_, s.readErr = c.Read(make([]byte, 1))
	}
	c.Close()
	raw.Close()
	<-done
	return s
}

func clientConfig(t *testing.T, s *keys.Store, name string) *tls.Config {
	t.Helper()
	c, err := s.ClientConfig(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPinnedPeers(t *testing.T) {
	server, client := hosts(t)
	for _, name := range []string{"", "server"} {
		s := handshake(t, server.ServerConfig(), clientConfig(t, client, name))
		if err := errors.Join(s.clientErr, s.serverErr, s.readErr); err != nil {
			t.Fatal(err)
		}
		for _, end := range []struct {
			cs   tls.ConnectionState
			of   *keys.Store
			peer keys.Peer
		}{{s.server, server, keys.Peer{Name: "client", Key: client.Public()}}, {s.client, client, keys.Peer{Name: "server", Key: server.Public()}}} {
			k, err := keys.PeerKey(end.cs)
			if err != nil {
				t.Fatal(err)
			}
			if a := admit(t, end.of, k); a.Peer != end.peer {
				t.Errorf("admitted %v, want %v", a.Peer, end.peer)
			}
			if end.cs.Version != tls.VersionTLS13 || end.cs.NegotiatedProtocol != "pdlink/1" || end.cs.DidResume {
				t.Errorf("version %x, protocol %q, resumed %v", end.cs.Version, end.cs.NegotiatedProtocol, end.cs.DidResume)
			}
		}
		// Both ends export the same keys, and each session its own.
		export := func(cs tls.ConnectionState) [seal.ProofSize]byte {
			secret, err := seal.Export(cs.ExportKeyingMaterial, [16]byte{1})
			if err != nil {
				t.Fatal(err)
			}
			proof, err := secret.Proof(seal.AES128GCM, 0, seal.ToServer)
			if err != nil {
				t.Fatal(err)
			}
			return proof
		}
		other := handshake(t, server.ServerConfig(), clientConfig(t, client, name))
		if export(s.client) != export(s.server) || export(s.client) == export(other.client) {
			t.Error("exported keys differ between the ends, or not between sessions")
		}
	}
	if _, err := client.ClientConfig("nobody"); !errors.Is(err, keys.ErrUnknownPeer) {
		t.Errorf("dial a name that is not pinned: %v", err)
	}
}

// TestStrangers: a key that is not pinned gets nowhere, at either end.
func TestStrangers(t *testing.T) {
	server, client := hosts(t)
	stranger := host(t, keys.Peer{Name: "victim", Key: server.Public()})

	s := handshake(t, server.ServerConfig(), clientConfig(t, stranger, "victim"))
	if !errors.Is(s.serverErr, keys.ErrUnknownPeer) || s.readErr == nil || !keys.Refused(s.readErr) {
		t.Errorf("stranger dials: server %v, client's first read %v", s.serverErr, s.readErr)
	}
	s = handshake(t, stranger.ServerConfig(), clientConfig(t, client, ""))
	if !errors.Is(s.clientErr, keys.ErrUnknownPeer) || !keys.Refused(s.serverErr) {
		t.Errorf("stranger accepts: client %v, server %v", s.clientErr, s.serverErr)
	}
	// Pinned, but not the one that was dialled.
	third, both := host(t), filepath.Join(t.TempDir(), "keys")
	if _, err := keys.Init(t.Context(), both, false); err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]keys.PublicKey{"server": server.Public(), "third": third.Public()} {
		if err := keys.AddPeer(t.Context(), both, keys.Peer{Name: name, Key: k}); err != nil {
			t.Fatal(err)
		}
	}
	s = handshake(t, server.ServerConfig(), clientConfig(t, open(t, both), "third"))
	if !errors.Is(s.clientErr, keys.ErrUnknownPeer) {
		t.Errorf("another peer answers: %v", s.clientErr)
	}
	for _, err := range []error{nil, io.EOF, &net.OpError{Op: "read", Err: errors.New("bad certificate")}, s.clientErr} {
		if keys.Refused(err) {
			t.Errorf("%v is no verdict of a peer", err)
		}
	}
}

// selfSigned is a certificate of a key, shown by whoever has signer.
func selfSigned(t *testing.T, public, private, signer any) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: signer}
}

// TestDowngrades changes one thing of an honest client at a time.
func TestDowngrades(t *testing.T) {
	server, client := hosts(t)
	_, wrong, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(c *tls.Config){
		"TLS 1.2":           func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 },
		"no protocol":       func(c *tls.Config) { c.NextProtos = nil },
		"other protocol":    func(c *tls.Config) { c.NextProtos = []string{"h2"} },
		"older pdlink":      func(c *tls.Config) { c.NextProtos = []string{"pdlink/0"} },
		"no key":            func(c *tls.Config) { c.Certificates = nil },
		"key of other type": func(c *tls.Config) { c.Certificates = []tls.Certificate{selfSigned(t, ec.Public(), ec, ec)} },
		"stolen certificate": func(c *tls.Config) {
			c.Certificates[0].PrivateKey = wrong
		},
		"pinned key signed by another": func(c *tls.Config) {
			k := client.Public()
			c.Certificates = []tls.Certificate{selfSigned(t, ed25519.PublicKey(k[:]), wrong, wrong)}
		},
		"pinned key second": func(c *tls.Config) {
			own := selfSigned(t, wrong.Public(), wrong, wrong)
			own.Certificate = append(own.Certificate, c.Certificates[0].Certificate[0])
			c.Certificates = []tls.Certificate{own}
		},
	} {
		c := clientConfig(t, client, "")
		change(c)
		if s := handshake(t, server.ServerConfig(), c); s.serverErr == nil {
			t.Errorf("%s: accepted %v", name, s.server.PeerCertificates)
		}
	}
	for name, change := range map[string]func(c *tls.Config){
		"TLS 1.2":           func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 },
		"no protocol":       func(c *tls.Config) { c.NextProtos = nil },
		"key of other type": func(c *tls.Config) { c.Certificates = []tls.Certificate{selfSigned(t, ec.Public(), ec, ec)} },
		"stolen certificate": func(c *tls.Config) {
			c.Certificates[0].PrivateKey = wrong
		},
	} {
		c := server.ServerConfig()
		change(c)
		if s := handshake(t, c, clientConfig(t, client, "")); s.clientErr == nil {
			t.Errorf("server with %s: accepted", name)
		}
	}
	if _, err := keys.PeerKey(tls.ConnectionState{}); !errors.Is(err, keys.ErrUnknownPeer) {
		t.Errorf("no session: %v", err)
	}
}

// TestNoResumption: a client that keeps sessions gets none.
func TestNoResumption(t *testing.T) {
	server, client := hosts(t)
	c := clientConfig(t, client, "")
	c.SessionTicketsDisabled = false
	c.ServerName = "any"
	c.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	sc := server.ServerConfig()
	for range 2 {
		s := handshake(t, sc, c)
		if err := errors.Join(s.clientErr, s.serverErr, s.readErr); err != nil {
			t.Fatal(err)
		}
		if s.client.DidResume || s.server.DidResume {
			t.Error("a session was resumed")
		}
	}
}

// TestConfigsAreTheCallers: what a caller does to one does not show in the next.
func TestConfigsAreTheCallers(t *testing.T) {
	server, _ := hosts(t)
	a := server.ServerConfig()
	before := bytes.Clone(a.Certificates[0].Certificate[0])
	a.Certificates[0] = tls.Certificate{}
	a.NextProtos[0] = "x"
	if b := server.ServerConfig(); b.NextProtos[0] != keys.ALPN || !bytes.Equal(b.Certificates[0].Certificate[0], before) {
		t.Error("configurations share memory")
	}
}
