package mem_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair connects two ends with options of their own.
func pair(tb testing.TB, a, b mem.Options) (transport.Conn, transport.Conn) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	l := mem.New(b)
	ln, err := l.Listen(ctx, "")
	if err != nil {
		tb.Fatal(err)
	}
	defer ln.Close()
	ca, err := l.With(a).Dial(ctx, ln.Addr())
	if err != nil {
		tb.Fatal(err)
	}
	cb, err := ln.Accept(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(ca.Close(), cb.Close()); err != nil {
			tb.Error(err)
		}
	})
	return ca, cb
}

// open opens a transfer from a to b and admits it there.
func open(tb testing.TB, a, b transport.Conn, r transport.Request) (transport.Outgoing, transport.Incoming) {
	tb.Helper()
	admitted := make(chan transport.Incoming, 1)
	go func() {
		defer close(admitted)
		o, err := b.Accept(tb.Context())
		if err != nil {
			tb.Error(err)
			return
		}
		in, err := o.Admit([]byte("answer"))
		if err != nil {
			tb.Error(err)
			return
		}
		admitted <- in
	}()
	out, err := a.Open(tb.Context(), r)
	if err != nil {
		tb.Fatal(err)
	}
	in := <-admitted
	if in == nil {
		tb.FailNow()
	}
	return out, in
}

// TestTransfer moves one block with the defaults of everything, the session's
// own rings included.
func TestTransfer(t *testing.T) {
	a, b := pair(t, mem.Options{Session: session.Options{Name: "sender"}}, mem.Options{})
	if got := b.Facts().Peer; got != "sender" {
		t.Errorf("peer calls itself %q", got)
	}
	if f := a.Facts(); f.Link != "mem" || f.MaxPayload != transport.DefaultSlot-transport.HeaderRoom || f.Sum != "xxh3-64" {
		t.Errorf("facts %+v", f)
	}
	out, in := open(t, a, b, transport.Request{Kind: "k", Meta: []byte("plan")})
	if string(out.Answer()) != "answer" || string(in.Request().Meta) != "plan" {
		t.Errorf("answer %q, plan %q", out.Answer(), in.Request().Meta)
	}
	finished := make(chan error, 1)
	go func() {
		l, err := out.Lease(t.Context())
		if err == nil {
			l.Append(3, 100, []byte("hello"))
			err = out.Send(t.Context(), l)
		}
		if err != nil {
			finished <- err
			return
		}
		o, err := out.Finish(t.Context())
		if err == nil && string(o.Result) != "done" {
			err = errors.New("result " + string(o.Result))
		}
		finished <- err
	}()
	for {
		d, err := in.Recv(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if d.Mark() {
			if err := errors.Join(in.Ack(3), d.Flushed(nil)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if p := d.Pieces(); len(p) != 1 || p[0].Block != 3 || p[0].Offset != 100 || string(d.Data(0)) != "hello" {
			t.Errorf("pieces %v, data %q", p, d.Data(0))
		}
		d.Release()
	}
	if err := in.Finish([]byte("done")); err != nil {
		t.Fatal(err)
	}
	if err := <-finished; err != nil {
		t.Fatal(err)
	}
}

func TestNames(t *testing.T) {
	l := mem.New(mem.Options{})
	ctx := t.Context()
	if _, err := l.Dial(ctx, "nobody"); err == nil {
		t.Error("dialled a name that nobody listens to")
	}
	ln, err := l.Listen(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	if ln.Addr() != "x" {
		t.Errorf("addr %q", ln.Addr())
	}
	if _, err := l.With(mem.Options{}).Listen(ctx, "x"); err == nil {
		t.Error("two listeners of one name")
	}
	if _, err := mem.New(mem.Options{}).Dial(ctx, "x"); err == nil {
		t.Error("found a listener of another namespace")
	}
	if err := errors.Join(ln.Close(), ln.Close()); err != nil {
		t.Error(err)
	}
	if _, err := ln.Accept(ctx); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	if _, err := l.Dial(ctx, "x"); err == nil {
		t.Error("dialled a listener that is closed")
	}
	again, err := l.Listen(ctx, "x")
	if err != nil {
		t.Fatalf("the name is not free: %v", err)
	}
	again.Close()
}

// TestDropped closes a listener with a connection that nobody accepted.
func TestDropped(t *testing.T) {
	l := mem.New(mem.Options{})
	ln, err := l.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.Dial(t.Context(), ln.Addr())
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if _, err := c.Accept(t.Context()); !errors.Is(err, transport.ErrLost) {
		t.Errorf("accept on a dropped connection: %v", err)
	}
	c.Close()
}

func TestIncompatible(t *testing.T) {
	l := mem.New(mem.Options{Session: session.Options{Sums: []string{"xxh3-64"}}})
	ln, err := l.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, err = l.With(mem.Options{Session: session.Options{Sums: []string{"crc32c"}}}).Dial(t.Context(), ln.Addr())
	if !errors.Is(err, transport.ErrIncompatible) {
		t.Errorf("dial without a common checksum: %v", err)
	}
}

// TestPlans refuses offers whose plans together take more memory than a
// connection may hold, and takes them again when there is room.
func TestPlans(t *testing.T) {
	a, b := pair(t, mem.Options{}, mem.Options{})
	plan := make([]byte, transport.MaxMeta)
	var outs []transport.Outgoing
	for range 4 {
		out, _ := open(t, a, b, transport.Request{Meta: plan})
		outs = append(outs, out)
	}
	if _, err := a.Open(t.Context(), transport.Request{Meta: plan[:1]}); !errors.Is(err, transport.ErrBusy) {
		t.Fatalf("a fifth plan: %v", err)
	}
	outs[0].Cancel("done")
	out, in := open(t, a, b, transport.Request{Meta: plan})
	if len(in.Request().Meta) != len(plan) {
		t.Errorf("a plan of %d bytes", len(in.Request().Meta))
	}
	for _, o := range append(outs, out) {
		o.Cancel("done")
	}
}
