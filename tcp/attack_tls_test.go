package tcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/keys"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// Strangers that try TLS: without a key, of an older version, for another
// protocol, oversized, damaged.
func TestTLSStrangers(t *testing.T) {
	server, client := twoHosts(t)
	_, s, r := listen(t, Options{Keys: server})
	fails := map[string]struct {
		change func(*tls.Config)
		want   error
	}{
		"no key":           {func(c *tls.Config) { c.Certificates = nil }, transport.ErrProtocol},
		"TLS 1.2":          {func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }, transport.ErrProtocol},
		"another protocol": {func(c *tls.Config) { c.NextProtos = []string{"h2"} }, transport.ErrProtocol},
		"no protocol":      {func(c *tls.Config) { c.NextProtos = nil }, keys.ErrUnknownPeer},
	}
	for name, tt := range fails {
		t.Run(name, func(t *testing.T) {
			r.mu.Lock()
			r.errs = nil
			r.mu.Unlock()
			config, err := client.ClientConfig("")
			if err != nil {
				t.Fatal(err)
			}
			config.VerifyConnection = nil
			tt.change(config)
			c := stranger(t, s)
			c.SetDeadline(time.Now().Add(patience))
			conn := tls.Client(c, config)
			if err = conn.Handshake(); err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
			if err == nil {
				t.Error("got in")
			}
			c.Close()
			r.only(t, tt.want)
		})
	}
	for name, sent := range map[string][]byte{
		"a record above the limit":    append([]byte{0x16, 3, 1, 0xff, 0xff}, make([]byte, 1000)...),
		"a hello of 16 MiB":           append([]byte{0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff}, make([]byte, 1<<14)...),
		"nonsense in a hello":         append([]byte{0x16, 3, 1, 0, 100, 1, 0, 0, 96}, bytes.Repeat([]byte{7}, 96)...),
		"no handshake":                append([]byte{0x16, 3, 3, 0, 1, 0}, make([]byte, 100)...),
		"a message with such a start": resum(append([]byte{0x16, 3, 0, 0, byte(wire.TypeLaneHello), 15: 0}, make([]byte, 0x316)...), 0x316),
	} {
		t.Run(name, func(t *testing.T) {
			r.mu.Lock()
			r.errs = nil
			r.mu.Unlock()
			c := stranger(t, s)
			c.Write(sent) // which may be cut by the answer
			c.CloseWrite()
			r.each(t, 1, transport.ErrProtocol)
		})
	}
}

// Handshakes that stop anywhere are cut by the deadline.
func TestSlowTLSHandshakesAreCut(t *testing.T) {
	const limit = 300 * time.Millisecond
	server, client := twoHosts(t)
	_, s, r := listen(t, Options{Keys: server, Session: session.Options{HandshakeTimeout: limit}})
	start := time.Now()
	// A hello of TLS, a byte at a time.
	recorded := recordHello(t, client)
	drip := stranger(t, s)
	go func() {
		for _, b := range recorded {
			if _, err := drip.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(limit / 4) // some 60 times the limit for the whole
		}
	}()
	half := stranger(t, s)
	half.Write(recorded[:len(recorded)/2])
	whole := stranger(t, s) // gets the server's part and says nothing more
	whole.Write(recorded)
	go io.Copy(io.Discard, whole)
	silent := secured(t, client, s, nil) // is known and says nothing
	waiting := secureHalfway(t, client, s, session.Options{})
	for _, c := range []net.Conn{drip, half, silent.sock, waiting.ctl.sock} {
		c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Errorf("%v was not cut", c.LocalAddr())
			}
		}
	}
	if took := time.Since(start); took > 30*limit {
		t.Errorf("took %v", took)
	}
	r.each(t, 5, context.DeadlineExceeded)
}

// recordHello is the first flight of a TLS client.
func recordHello(t *testing.T, store *keys.Store) []byte {
	t.Helper()
	config, err := store.ClientConfig("")
	if err != nil {
		t.Fatal(err)
	}
	x, y := net.Pipe()
	go tls.Client(x, config).Handshake()
	defer x.Close()
	b := make([]byte, 16<<10)
	y.SetReadDeadline(time.Now().Add(patience))
	n, err := y.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

// Ten thousand strangers of all kinds, while a transfer runs: memory, goroutines
// and descriptors stay bounded, nobody gets in, every one is reported once, and
// an honest peer still connects.
func TestTenThousandStrangers(t *testing.T) {
	const strangers, workers = 10_000, 8
	server, client := twoHosts(t)
	unknown := strangerKeys(t, server)
	l, s, r := listen(t, Options{Keys: server})
	_ = l
	honest := secureLink(t, client, Options{})
	a, b := connect(t, honest, s)
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
	hello := recordHello(t, client)
	idle := runtime.NumGoroutine()
	most := 0
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range strangers / workers {
				if err := oneStranger(s.Addr(), hello, unknown, w+i*workers); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		case <-time.After(10 * time.Millisecond):
			most = max(most, runtime.NumGoroutine()-idle)
			s.strangers.mu.Lock()
			if n := len(s.strangers.inside); n > maxStrangers {
				t.Errorf("%d strangers inside, limit %d", n, maxStrangers)
			}
			s.strangers.mu.Unlock()
		}
	}
	// Each greeter has a goroutine, and one for its deadline at times.
	if limit := 2*maxGreeters + 4*workers + 50; most > limit {
		t.Errorf("%d goroutines more than before, limit %d", most, limit)
	}
	c, d := connect(t, honest, s)
	mustCarry(t, c, d)
	cancel()
	if err := <-carried; err != nil {
		t.Errorf("transfer during the flood: %v", err)
	}
	if s.lobby.len() != 0 {
		t.Error("a stranger waits for Accept")
	}
	// The last ones are still being dropped.
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		r.mu.Lock()
		n := len(r.errs)
		r.mu.Unlock()
		if n >= strangers {
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.errs) != strangers {
		t.Errorf("%d reports of %d strangers", len(r.errs), strangers)
	}
}

// oneStranger connects, does what the i-th of its kind does, and leaves.
func oneStranger(addr string, hello []byte, unknown *keys.Store, i int) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return fmt.Errorf("stranger %d: %w", i, err)
	}
	defer c.Close()
	switch kind := i % 100; {
	case kind == 0: // the right protocol with the wrong key
		config, err := unknown.ClientConfig("")
		if err != nil {
			return err
		}
		c.SetDeadline(time.Now().Add(patience))
		conn := tls.Client(c, config)
		if conn.Handshake() == nil {
			conn.Read(make([]byte, 1))
		}
	case kind < 5:
		c.Write(hello)
	case kind < 40:
		c.Write(hello[:len(hello)/2])
	case kind < 60:
		c.Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	case kind < 80:
		c.Write(message(wire.TypeHello, 100, 1))
	}
	return nil
}
