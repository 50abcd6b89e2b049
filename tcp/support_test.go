package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// rejects collects what a listener reports.
type rejects struct {
	mu   sync.Mutex
	errs []error
}

func (r *rejects) add(_ string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

// wait waits until an error that Is want was reported.
func (r *rejects) wait(t *testing.T, want error) {
	t.Helper()
	var errs []error
	for range 6000 {
		r.mu.Lock()
		errs = append(errs[:0], r.errs...)
		r.mu.Unlock()
		for _, err := range errs {
			if errors.Is(err, want) {
				return
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("listener never reported %v, only %v", want, errs)
}

// each waits for n reports, which all have to be errors that Is want.
func (r *rejects) each(t *testing.T, n int, want error) {
	t.Helper()
	var errs []error
	for range 6000 {
		r.mu.Lock()
		errs = append(errs[:0], r.errs...)
		r.mu.Unlock()
		if len(errs) >= n {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if len(errs) != n {
		t.Errorf("%d reports, want %d", len(errs), n)
	}
	for _, err := range errs {
		if !errors.Is(err, want) {
			t.Errorf("listener reported %v, want %v", err, want)
		}
	}
}

// smallRings keeps connections of tests from mapping the default rings; 24
// transfers fit at a time.
func smallRings(t testing.TB) session.Options {
	t.Helper()
	o := session.Options{Window: 4}
	for _, r := range []**transport.Ring{&o.SendRing, &o.RecvRing} {
		ring, err := transport.NewRing(96, 64<<10)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := ring.Close(); err != nil {
				t.Error(err)
			}
		})
		*r = ring
	}
	return o
}

// listen starts a listener that ends with the test.
func listen(t testing.TB, o Options) (*Link, *listener, *rejects) {
	t.Helper()
	var r rejects
	o.OnReject = r.add
	if o.Session.SendRing == nil {
		timeout := o.Session.HandshakeTimeout
		o.Session = smallRings(t)
		o.Session.HandshakeTimeout = timeout
	}
	l := New(o)
	s, err := l.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, s.(*listener), &r
}

// connect dials s and accepts.
func connect(t testing.TB, l transport.Link, s transport.Listener) (a, b transport.Conn) {
	t.Helper()
	accepted := make(chan error, 1)
	go func() {
		var err error
		b, err = s.Accept(t.Context())
		accepted <- err
	}()
	a, err := l.Dial(t.Context(), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeBoth(a, b) })
	return a, b
}

func closeBoth(a, b transport.Conn) {
	done := make(chan struct{})
	go func() { a.Close(); close(done) }()
	b.Close()
	<-done
}

// carry sends a transfer of n frames from a to b and compares the bytes.
func carry(ctx context.Context, a, b transport.Conn, n int) error {
	received := make(chan error, 1)
	go func() { received <- receiveAll(ctx, b, n) }()
	out, err := a.Open(ctx, transport.Request{Kind: "test", Replayable: true})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	for i := range n {
		l, err := out.Lease(ctx)
		if err != nil {
			return fmt.Errorf("lease: %w", err)
		}
		l.Append(uint32(i), 0, bytes.Repeat([]byte{byte(i)}, 1000+i))
		if err := out.Send(ctx, l); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	if _, err := out.Finish(ctx); err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	return <-received
}

func receiveAll(ctx context.Context, b transport.Conn, n int) error {
	offer, err := b.Accept(ctx)
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	in, err := offer.Admit(nil)
	if err != nil {
		return fmt.Errorf("admit: %w", err)
	}
	seen := make([]bool, n)
	for {
		d, err := in.Recv(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("recv: %w", err)
		}
		if d.Mark() {
			if err := d.Flushed(nil); err != nil {
				return fmt.Errorf("flushed: %w", err)
			}
			continue
		}
		for i, p := range d.Pieces() {
			if !bytes.Equal(d.Data(i), bytes.Repeat([]byte{byte(p.Block)}, 1000+int(p.Block))) {
				err = fmt.Errorf("block %d differs", p.Block)
			}
			seen[p.Block] = true
		}
		d.Release()
		if err != nil {
			return err
		}
	}
	for i, ok := range seen {
		if !ok {
			return fmt.Errorf("block %d never came", i)
		}
	}
	return in.Finish(nil)
}

func mustCarry(t testing.TB, a, b transport.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := carry(ctx, a, b, 20); err != nil {
		t.Fatal(err)
	}
}

// stranger is a raw socket to a listener.
func stranger(t testing.TB, s *listener) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// dropped checks that the listener closes c without saying anything.
func dropped(t testing.TB, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, err := c.Read(make([]byte, 1))
	var timeout net.Error
	if n != 0 || err == nil || (errors.As(err, &timeout) && timeout.Timeout()) {
		t.Fatalf("socket was not dropped: %d bytes, error %v", n, err)
	}
}

// halfway does a control handshake by hand and returns its socket and what was
// agreed: a session that waits for its lanes.
func halfway(t testing.TB, s *listener, lanes int) (*net.TCPConn, session.Agreement) {
	t.Helper()
	c := stranger(t, s)
	o := session.Options{Lanes: lanes}
	a, err := session.Handshake(t.Context(), newControl(c, wire.MaxHello), session.Client, &o)
	if err != nil {
		t.Fatal(err)
	}
	return c, a
}

// hello sends a lane hello on a new socket.
func hello(t testing.TB, s *listener, tok token, lane int) *net.TCPConn {
	t.Helper()
	c := stranger(t, s)
	msg, err := wire.AppendLaneHello(nil, &wire.LaneHello{Token: tok, Lane: uint16(lane)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(msg); err != nil {
		t.Fatal(err)
	}
	return c
}

// bound checks that the listener took a lane.
func bound(t testing.TB, c *net.TCPConn, lane int) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	msg, err := readMessage(c, nil, wire.MaxHello)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkLaneOK(msg, lane, nil); err != nil {
		t.Fatal(err)
	}
}

// closesQuickly fails when no driver of several closes before it has lingered: on a busy
// host one may.
func closesQuickly(t *testing.T, open func() *driver) {
	t.Helper()
	var all []time.Duration
	for range 5 {
		d := open()
		start := time.Now()
		d.Close()
		all = append(all, time.Since(start))
		if all[len(all)-1] < lingerTime/2 {
			return
		}
	}
	t.Errorf("close took %v", all)
}
