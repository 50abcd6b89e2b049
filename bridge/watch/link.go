package watch

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"pdlink/transport"
)

// Link is a link whose connections and transfers are seen. What it returns behaves as
// the link's own.
func (w *Watch) Link(l transport.Link) transport.Link { return &link{l, w} }

type link struct {
	transport.Link
	w *Watch
}

// Dial implements transport.Link.
func (l *link) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := l.Link.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return l.w.connected(c), nil
}

// Listen implements transport.Link.
func (l *link) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	ln, err := l.Link.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &listener{ln, l.w}, nil
}

type listener struct {
	transport.Listener
	w *Watch
}

// Accept implements transport.Listener.
func (l *listener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return l.w.connected(c), nil
}

// conn is a connection that is seen.
type conn struct {
	transport.Conn
	w     *Watch
	facts transport.Facts
	since time.Time
}

func (w *Watch) connected(c transport.Conn) transport.Conn {
	x := &conn{Conn: c, w: w, facts: c.Facts(), since: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[x] = struct{}{}
	w.total(x.key()).Opened++
	return x
}

func (c *conn) key() linkKey { return linkKey{linkName(c.facts.Link), c.facts.Sealed} }

// total is the figures of a kind of link. The caller holds mu.
func (w *Watch) total(k linkKey) *Link {
	l := w.links[k]
	if l == nil {
		l = &Link{Link: k.link, Sealed: k.sealed}
		w.links[k] = l
	}
	return l
}

// Open implements transport.Conn.
func (c *conn) Open(ctx context.Context, r transport.Request) (transport.Outgoing, error) {
	o, err := c.Conn.Open(ctx, r)
	if err != nil || c.w.ignores(r.Kind) {
		return o, err
	}
	s := &stream{id: r.ID, conn: c}
	c.w.begin(s, r)
	return &outgoing{o, s}, nil
}

// Accept implements transport.Conn.
func (c *conn) Accept(ctx context.Context) (transport.Offer, error) {
	o, err := c.Conn.Accept(ctx)
	switch {
	case err != nil:
		if errors.Is(err, transport.ErrLost) || errors.Is(err, transport.ErrClosed) {
			c.gone()
		}
		return nil, err
	case c.w.ignores(o.Request().Kind):
		return o, nil
	}
	return &offer{o, c}, nil
}

// Close implements transport.Conn.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.gone()
	return err
}

// gone notes that the connection ended, and its transfers with it.
func (c *conn) gone() {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	delete(c.w.conns, c)
	for s := range c.w.streams {
		if s.conn == c {
			c.w.settle(s)
		}
	}
}

func (w *Watch) ignores(kind string) bool { return w.o.Ignore != nil && w.o.Ignore(kind) }

// offer is one that is seen when it is admitted.
type offer struct {
	transport.Offer
	conn *conn
}

// Admit implements transport.Offer.
func (o *offer) Admit(answer []byte) (transport.Incoming, error) {
	in, err := o.Offer.Admit(answer)
	if err != nil {
		return nil, err
	}
	r := o.Request()
	s := &stream{id: r.ID, conn: o.conn, in: in}
	o.conn.w.begin(s, r)
	return &incoming{in, s}, nil
}

// stream is one transfer on one connection.
type stream struct {
	id   transport.ID
	conn *conn
	in   transport.Incoming // nil: it is outgoing, and counted in sent
	sent atomic.Uint64

	// Guarded by Watch.mu.
	entry *entry          // nil: it is not followed
	last  transport.Stats // what an outgoing one counted itself, at its end
	ended bool
}

// stats is what it counted so far. The caller holds Watch.mu.
func (s *stream) stats() transport.Stats {
	if s.in != nil {
		return s.in.Stats()
	}
	x := s.last
	x.Bytes = max(x.Bytes, s.sent.Load())
	return x
}

// begin follows a stream. A transfer's first one makes its entry.
func (w *Watch) begin(s *stream, r transport.Request) {
	tokens := 0
	w.mu.Lock()
	e := w.open[s.id]
	w.mu.Unlock()
	if e == nil && w.o.Tokens != nil {
		tokens = w.o.Tokens(r.Kind, r.Meta)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.streams[s] = struct{}{}
	if e = w.open[s.id]; e == nil {
		if w.forget(time.Now()); len(w.open) >= maxOpen {
			return
		}
		e = &entry{since: time.Now(), tokens: tokens}
		w.open[s.id] = e
	}
	s.entry = e
	e.streams++
	if f := s.conn.facts; f.Proven && len(e.peers) < maxPeers {
		if name := printable(f.Peer); !slices.Contains(e.peers, name) {
			e.peers = append(e.peers, name)
		}
	}
}

// settle adds what a stream counted to what is kept, once. The caller holds mu.
func (w *Watch) settle(s *stream) {
	if s.ended {
		return
	}
	s.ended = true
	delete(w.streams, s)
	n := s.stats()
	w.total(s.conn.key()).add(s, n)
	if e := s.entry; e != nil {
		e.settled = addBytes(e.settled, s.bytes(n))
		e.streams--
		e.idle = time.Now()
	}
}

// forget drops transfers that nobody will tell the end of: their last sender was let in
// when the verdict was made already. The caller holds mu.
func (w *Watch) forget(now time.Time) {
	for id, e := range w.open {
		if e.streams == 0 && now.Sub(e.idle) > forgetAfter {
			delete(w.open, id)
		}
	}
}

func (w *Watch) settled(s *stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settle(s)
}

func (s *stream) bytes(n transport.Stats) LinkBytes {
	k := s.conn.key()
	return LinkBytes{Link: k.link, Sealed: k.sealed, Bytes: n.Bytes, Saved: n.Saved, Codec: n.Codec}
}

// add adds what a stream counted.
func (l *Link) add(s *stream, n transport.Stats) {
	if s.in != nil {
		l.Received += n.Bytes
	} else {
		l.Sent += n.Bytes
		l.Resent += n.RepeatBytes
	}
	l.Saved += n.Saved
	l.Damaged += n.BadPiece
}

// incoming is a transfer that arrives.
type incoming struct {
	transport.Incoming
	s *stream
}

// Recv implements transport.Incoming.
func (i *incoming) Recv(ctx context.Context) (*transport.Delivery, error) {
	d, err := i.Incoming.Recv(ctx)
	if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
		i.s.conn.w.settled(i.s)
	}
	return d, err
}

// Finish implements transport.Incoming.
func (i *incoming) Finish(result []byte) error {
	err := i.Incoming.Finish(result)
	if !errors.Is(err, transport.ErrTooLarge) {
		i.s.conn.w.settled(i.s)
	}
	return err
}

// Cancel implements transport.Incoming.
func (i *incoming) Cancel(reason string) {
	i.Incoming.Cancel(reason)
	i.s.conn.w.settled(i.s)
}

// outgoing is a transfer that is sent.
type outgoing struct {
	transport.Outgoing
	s *stream
}

// Send implements transport.Outgoing.
func (o *outgoing) Send(ctx context.Context, l *transport.Lease) error {
	n := wanted(l) // before: afterwards the lease has ended
	err := o.Outgoing.Send(ctx, l)
	if err == nil {
		o.s.sent.Add(n)
	}
	return err
}

// wanted is how many bytes of a lease go on the wire.
func wanted(l *transport.Lease) (n uint64) {
	pieces := l.Pieces()
	lo, hi := l.Wanted()
	if hi-lo == len(pieces) {
		return uint64(l.Size())
	}
	for _, p := range pieces[lo:hi] {
		n += uint64(p.Length)
	}
	return n
}

// Finish implements transport.Outgoing.
func (o *outgoing) Finish(ctx context.Context) (transport.Outcome, error) {
	r, err := o.Outgoing.Finish(ctx)
	w := o.s.conn.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !o.s.ended {
		o.s.last = r.Stats
	}
	if err == nil || !errors.Is(err, transport.ErrMissing) && ctx.Err() == nil {
		w.settle(o.s)
	}
	return r, err
}

// Cancel implements transport.Outgoing.
func (o *outgoing) Cancel(reason string) {
	o.Outgoing.Cancel(reason)
	o.s.conn.w.settled(o.s)
}
