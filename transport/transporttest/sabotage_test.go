package transporttest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// sabotage wraps what a link makes; nil fields leave it alone.
type sabotage struct {
	interceptA, interceptB func(*Faults)
	options                func(a, b *session.Options)
	conn                   func(transport.Conn) transport.Conn
	out                    func(transport.Outgoing) transport.Outgoing
	in                     func(transport.Incoming) transport.Incoming
	open                   func(*transport.Request)
}

// harness is h with the sabotage.
func (s sabotage) harness(h Harness) Harness {
	inner := h.Links
	h.Links = func(tb testing.TB, a, b session.Options) (transport.Link, transport.Link, string) {
		a.Intercept = chain(a.Intercept, s.interceptA)
		b.Intercept = chain(b.Intercept, s.interceptB)
		if s.options != nil {
			s.options(&a, &b)
		}
		dial, listen, addr := inner(tb, a, b)
		return badLink{dial, s}, badLink{listen, s}, addr
	}
	return h
}

func chain(first session.Interceptor, arm func(*Faults)) session.Interceptor {
	if arm == nil {
		return first
	}
	return func(d session.Driver) session.Driver {
		f := NewFaults(1)
		arm(f)
		d = f.Intercept(d)
		if first != nil {
			d = first(d)
		}
		return d
	}
}

// dropSent drops messages of a type that this end sends.
func dropSent(t wire.Type) func(*Faults) {
	return func(f *Faults) {
		f.Hook(Hooks{SendControl: func(msg []byte) []byte {
			if wire.Type(msg[4]) == t {
				return nil
			}
			return msg
		}})
	}
}

type badLink struct {
	transport.Link
	s sabotage
}

func (l badLink) wrap(c transport.Conn, err error) (transport.Conn, error) {
	if err != nil {
		return nil, err
	}
	c = badConn{c, l.s}
	if l.s.conn != nil {
		c = l.s.conn(c)
	}
	return c, nil
}

func (l badLink) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	return l.wrap(l.Link.Dial(ctx, addr))
}

func (l badLink) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	inner, err := l.Link.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return badListener{inner, l}, nil
}

type badListener struct {
	transport.Listener
	link badLink
}

func (l badListener) Accept(ctx context.Context) (transport.Conn, error) {
	return l.link.wrap(l.Listener.Accept(ctx))
}

type badConn struct {
	transport.Conn
	s sabotage
}

func (c badConn) Open(ctx context.Context, r transport.Request) (transport.Outgoing, error) {
	if c.s.open != nil {
		c.s.open(&r)
	}
	out, err := c.Conn.Open(ctx, r)
	if err == nil && c.s.out != nil {
		out = c.s.out(out)
	}
	return out, err
}

func (c badConn) Accept(ctx context.Context) (transport.Offer, error) {
	offer, err := c.Conn.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return badOffer{offer, c.s}, nil
}

type badOffer struct {
	transport.Offer
	s sabotage
}

func (o badOffer) Admit(answer []byte) (transport.Incoming, error) {
	in, err := o.Offer.Admit(answer)
	if err == nil && o.s.in != nil {
		in = o.s.in(in)
	}
	return in, err
}

// corrupter delivers a wrong byte.
type corrupter struct{ transport.Incoming }

func (c corrupter) Recv(ctx context.Context) (*transport.Delivery, error) {
	d, err := c.Incoming.Recv(ctx)
	if err == nil && !d.Mark() {
		d.Data(0)[0] ^= 1
	}
	return d, err
}

// dropper loses one frame.
type dropper struct {
	transport.Incoming
	once *sync.Once
}

func (c dropper) Recv(ctx context.Context) (*transport.Delivery, error) {
	d, err := c.Incoming.Recv(ctx)
	if err == nil && !d.Mark() {
		lost := false
		c.once.Do(func() { lost = true })
		if lost {
			d.Release()
			return c.Incoming.Recv(ctx)
		}
	}
	return d, err
}

// swapper delivers a frame after the mark that came behind it.
type swapper struct {
	transport.Incoming
	held *transport.Delivery
	done bool
}

func (c *swapper) Recv(ctx context.Context) (*transport.Delivery, error) {
	if c.done && c.held != nil {
		d := c.held
		c.held = nil
		return d, nil
	}
	d, err := c.Incoming.Recv(ctx)
	if err != nil || c.done {
		return d, err
	}
	if d.Mark() {
		c.done = c.held != nil
		return d, nil
	}
	if c.held == nil {
		c.held = d
		return c.Recv(ctx)
	}
	return d, nil
}

// liar flushes nothing.
type liar struct{ transport.Outgoing }

func (liar) Flush(context.Context) error { return nil }

// changeling has facts that change.
type changeling struct {
	transport.Conn
	calls int
}

func (c *changeling) Facts() transport.Facts {
	c.calls++
	f := c.Conn.Facts()
	f.Remote += string(rune('a' + c.calls))
	return f
}

// closer does something else at Close.
type closer struct {
	transport.Conn
	once  *sync.Once
	extra func()
}

func (c closer) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.extra)
	return err
}

// misnamer calls every end a loss.
type misnamer struct{ transport.Conn }

func (c misnamer) Accept(ctx context.Context) (transport.Offer, error) {
	o, err := c.Conn.Accept(ctx)
	if err != nil && ctx.Err() == nil {
		err = transport.ErrLost
	}
	return o, err
}

// braggart promises larger frames than pass.
type braggart struct{ transport.Conn }

func (c braggart) Facts() transport.Facts {
	f := c.Conn.Facts()
	f.MaxPayload += transport.HeaderRoom
	return f
}

// truncater cuts results.
type truncater struct{ transport.Outgoing }

func (c truncater) Finish(ctx context.Context) (transport.Outcome, error) {
	o, err := c.Outgoing.Finish(ctx)
	o.Result = o.Result[:len(o.Result)/2]
	return o, err
}

// repeater lists missing pieces at every flush.
type repeater struct {
	transport.Outgoing
	last error
}

func (c *repeater) Flush(ctx context.Context) error {
	if err := c.Outgoing.Flush(ctx); err != nil {
		c.last = err
	}
	return c.last
}

// denier calls a loss a close.
type denier struct{ transport.Outgoing }

func (c denier) Flush(ctx context.Context) error {
	err := c.Outgoing.Flush(ctx)
	if errors.Is(err, transport.ErrLost) {
		err = transport.ErrClosed
	}
	return err
}

// widener sends what the peer has too.
type widener struct{ transport.Outgoing }

func (c widener) Send(ctx context.Context, l *transport.Lease) error {
	l.Narrow(0, len(l.Pieces()))
	return c.Outgoing.Send(ctx, l)
}

// forgetter keeps no frame that it need not send.
type forgetter struct{ transport.Outgoing }

func (c forgetter) Send(ctx context.Context, l *transport.Lease) error {
	if lo, hi := l.Wanted(); lo == hi {
		l.Release()
		return nil
	}
	return c.Outgoing.Send(ctx, l)
}
