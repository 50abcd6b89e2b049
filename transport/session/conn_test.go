package session_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// TestClose ends every call here with ErrClosed, tells the peer, and lets what
// is out be given back afterwards.
func TestClose(t *testing.T) {
	b := start(t, nil)
	out, _ := b.outgoing(transport.Request{})
	in := b.incoming(1)
	b.frame(h(0), []uint32{1})
	b.frame(h(1), []uint32{1})
	d := b.delivery(in)
	b.arrived(2)
	must(t, put(t.Context(), out, 1))
	send, err := out.Lease(t.Context())
	must(t, err)
	release, err := out.Lease(t.Context())
	must(t, err)
	waiting := map[string]<-chan result[struct{}]{
		"flush":  asyncErr(func() error { return out.Flush(t.Context()) }),
		"finish": asyncErr(func() error { _, err := out.Finish(t.Context()); return err }),
		"accept": asyncErr(func() error { _, err := b.c.Accept(t.Context()); return err }),
		"open":   asyncErr(func() error { _, err := b.c.Open(t.Context(), transport.Request{}); return err }),
	}
	time.Sleep(5 * time.Millisecond)
	must(t, b.c.Close())
	for what, w := range waiting {
		if _, err := wait(t, w); !errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for b.next().Type() != wire.TypeBye {
	}
	if len(b.heard) > 0 {
		t.Error("something was said after the farewell")
	}
	send.Append(1, 0, []byte{1})
	is(t, out.Send(t.Context(), send), transport.ErrClosed)
	release.Release()
	is(t, in.Ack(1), transport.ErrClosed)
	if string(d.Data(0)) != "\x01" {
		t.Error("a delivery changed by Close")
	}
	d.Release()
	out.Cancel("late")
	in.Cancel("late")
}

// TestLost ends every call with ErrLost, whatever the way the connection went,
// until this end closes it.
func TestLost(t *testing.T) {
	for name, lose := range map[string]func(b *bench){
		"said: going away":      func(b *bench) { b.say(&wire.Bye{Reason: "said: going away"}) },
		"closed the connection": func(b *bench) { b.say(&wire.Bye{}) },
		"without a farewell":    func(b *bench) { close(b.said) },
		"control channel: ":     func(b *bench) { b.Close() },
		"read on lane ":         func(b *bench) { close(b.laneEnd) },
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, nil)
			out, _ := b.outgoing(transport.Request{})
			in := b.incoming(1)
			must(t, put(t.Context(), out, 1))
			b.sent()
			lose(b)
			_, err := b.c.Accept(t.Context())
			is(t, err, transport.ErrLost)
			if errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrProtocol) || !strings.Contains(err.Error(), name) {
				t.Errorf("error %v", err)
			}
			is(t, out.Flush(t.Context()), transport.ErrLost)
			_, err = in.Recv(t.Context())
			is(t, err, transport.ErrLost)
			b.kept(0)
			must(t, b.c.Close())
			is(t, out.Flush(t.Context()), transport.ErrClosed)
			is(t, in.Finish(nil), transport.ErrClosed)
			_, err = b.c.Open(t.Context(), transport.Request{})
			is(t, err, transport.ErrClosed)
		})
	}
}

// TestLastWords hears a result that is still on the control channel when the
// lanes have gone.
func TestLastWords(t *testing.T) {
	b := start(t, nil)
	out, n := b.outgoing(transport.Request{})
	finishing := async(func() (transport.Outcome, error) { return out.Finish(t.Context()) })
	b.say(&wire.Flushed{Handle: n, Token: hear[*wire.Flush](b.script).Token})
	hear[*wire.Finish](b.script)
	close(b.laneEnd)
	time.Sleep(20 * time.Millisecond)
	b.say(&wire.Result{Handle: n, Meta: []byte("last")})
	b.say(&wire.Bye{})
	o, err := wait(t, finishing)
	must(t, err)
	if string(o.Result) != "last" {
		t.Errorf("result %q", o.Result)
	}
}

// TestLinger says what was to be said before it closes, and closes all the same
// when the peer does not listen.
func TestLinger(t *testing.T) {
	b := start(t, func(o *session.Options) { o.Linger = 50 * time.Millisecond })
	in := b.incoming(1)
	must(t, in.Finish([]byte("result")))
	must(t, b.c.Close())
	hear[*wire.Result](b.script)
	hear[*wire.Bye](b.script)

	b = start(t, func(o *session.Options) { o.Linger = 50 * time.Millisecond })
	b.heard = make(chan wire.Message) // nobody listens
	begin := time.Now()
	must(t, b.c.Close())
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("close took %v", took)
	}

	// Who wants no wait says it all the same.
	b = start(t, func(o *session.Options) { o.Linger = -1 })
	in = b.incoming(1)
	must(t, in.Finish([]byte("result")))
	must(t, b.c.Close())
	hear[*wire.Result](b.script)
	hear[*wire.Bye](b.script)
}

// TestNoAgreement starts nothing on a checksum that nobody can have agreed.
func TestNoAgreement(t *testing.T) {
	mustPanic(t, "an unknown checksum", func() {
		session.New(newScript(t), session.Agreement{Terms: wire.Terms{Sum: "md5"}}, session.Options{}, transport.Facts{})
	})
}

// TestRingClosed leases nothing of a ring that its owner closed.
func TestRingClosed(t *testing.T) {
	b := start(t, nil)
	out, _ := b.outgoing(transport.Request{})
	must(t, b.send.Close())
	l, err := out.Lease(t.Context())
	if is(t, err, transport.ErrClosed); l != nil {
		t.Error("a lease of a closed ring")
	}
	out.Cancel("done")
}

// TestOwnRings makes rings when they are needed, and unmaps them when the last
// slot is back.
func TestOwnRings(t *testing.T) {
	b := start(t, func(o *session.Options) { o.SendRing, o.RecvRing = nil, nil })
	in := b.incomingOf(1)
	out, _ := b.outgoing(transport.Request{})
	b.frame(h(0), []uint32{1})
	d := b.delivery(in)
	l, err := out.Lease(t.Context())
	must(t, err)
	mem, err := l.Reserve(0, 0, 1)
	must(t, err)
	must(t, b.c.Close())
	mem[0] = d.Data(0)[0] // both still mapped
	d.Release()
	is(t, out.Send(t.Context(), l), transport.ErrClosed)
}

// incomingOf is incoming with any window.
func (b *bench) incomingOf(handle uint32) transport.Incoming {
	b.tb.Helper()
	in, err := b.offer(handle).Admit(nil)
	must(b.tb, err)
	hear[*wire.Admit](b.script)
	return in
}

// TestFacts fills in what was agreed.
func TestFacts(t *testing.T) {
	b := start(t, nil)
	want := transport.Facts{
		Link: "script", Remote: "nowhere", Peer: "script",
		MaxPayload: testPayload, MaxMeta: testMeta, Lanes: 2, Sum: "xxh3-64",
	}
	if got := b.c.Facts(); got != want {
		t.Errorf("facts %+v", got)
	}
}

// TestIntercept puts a driver between.
func TestIntercept(t *testing.T) {
	var cut *cutter
	b := start(t, func(o *session.Options) {
		o.Intercept = func(d session.Driver) session.Driver {
			cut = &cutter{Driver: d}
			return cut
		}
	})
	out, _ := b.outgoing(transport.Request{})
	must(t, put(t.Context(), out, 1))
	_, err := b.c.Accept(t.Context())
	is(t, err, transport.ErrLost)
	if !strings.Contains(err.Error(), io.ErrClosedPipe.Error()) {
		t.Errorf("error %v", err)
	}
}

// cutter fails every write of a frame.
type cutter struct{ session.Driver }

func (*cutter) WriteFrame(int, []byte, []byte) error { return io.ErrClosedPipe }

// TestContext ends calls that wait by their contexts.
func TestContext(t *testing.T) {
	b := start(t, nil)
	out, _ := b.outgoing(transport.Request{})
	in := b.incoming(1)
	for range testWindow {
		must(t, put(t.Context(), out, 1))
	}
	var leases []*transport.Lease
	for range b.send.Slots() - testWindow {
		l, err := out.Lease(t.Context())
		must(t, err)
		l.Append(0, 0, []byte{0})
		leases = append(leases, l)
	}
	for what, f := range map[string]func(ctx context.Context) error{
		"accept": func(ctx context.Context) error { _, err := b.c.Accept(ctx); return err },
		"open":   func(ctx context.Context) error { _, err := b.c.Open(ctx, transport.Request{}); return err },
		"lease":  func(ctx context.Context) error { _, err := out.Lease(ctx); return err },
		"flush":  out.Flush,
		"finish": func(ctx context.Context) error { _, err := out.Finish(ctx); return err },
		"recv":   func(ctx context.Context) error { _, err := in.Recv(ctx); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		if _, err := wait(t, asyncErr(func() error { return f(ctx) })); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
		cancel()
	}
	for _, l := range leases {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		is(t, out.Send(ctx, l), context.DeadlineExceeded)
		cancel()
	}
	if n := b.send.InUse(); n != testWindow {
		t.Errorf("%d slots in use", n)
	}
}
