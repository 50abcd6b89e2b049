package main

import (
	"context"
	"errors"
	"slices"
	"sync"

	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
	"pdlink/transport/keys"
)

// peerNames are the names of the authenticated peers of each transfer. It may be
// used concurrently. The zero value is ready.
type peerNames struct {
	mu sync.Mutex // guards by
	by map[transport.ID][]string
}

// add notes that a peer takes part.
func (p *peerNames) add(id transport.ID, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by == nil {
		p.by = map[transport.ID][]string{}
	}
	if !slices.Contains(p.by[id], name) {
		p.by[id] = append(p.by[id], name)
	}
}

// take returns the names for a transfer that ended, in order, and forgets them.
func (p *peerNames) take(id transport.ID) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := p.by[id]
	delete(p.by, id)
	slices.Sort(names)
	return names
}

// internal reports a kind of transfer without a verdict: nobody asks for its peers.
func internal(kind string) bool {
	return kind == calls.KindHost || kind == calls.KindWait || kind == calls.KindProbe || kind == calls.KindCall
}

// namedConn is a connection of an authenticated peer whose transfers are noted.
type namedConn struct {
	transport.Conn
	link *keyedLink
}

// Open implements transport.Conn.
func (c namedConn) Open(ctx context.Context, r transport.Request) (transport.Outgoing, error) {
	out, err := c.Conn.Open(ctx, r)
	if err == nil && !internal(r.Kind) {
		c.link.peers.add(r.ID, c.Facts().Peer)
	}
	return out, err
}

// Accept implements transport.Conn. The end of a connection whose peer was revoked
// is told of: nothing else says why its transfers end.
func (c namedConn) Accept(ctx context.Context) (transport.Offer, error) {
	o, err := c.Conn.Accept(ctx)
	if err == nil {
		return namedOffer{o, c}, nil
	}
	if errors.Is(err, keys.ErrRevoked) && c.link.reject != nil {
		c.link.reject(c.Facts().Remote, err)
	}
	return nil, err
}

// namedOffer is an offer that is noted when it is admitted: what is refused takes
// no memory.
type namedOffer struct {
	transport.Offer
	conn namedConn
}

// Admit implements transport.Offer.
func (o namedOffer) Admit(answer []byte) (transport.Incoming, error) {
	in, err := o.Offer.Admit(answer)
	if err == nil && !internal(o.Request().Kind) {
		o.conn.link.peers.add(o.Request().ID, o.conn.Facts().Peer)
	}
	return in, err
}

// keyedLink is a link that may have keys. Its errors say what to do about them,
// and with keys the peers of its transfers are noted.
type keyedLink struct {
	transport.Link
	linkOptions
}

// Dial implements transport.Link.
func (l *keyedLink) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := l.Link.Dial(ctx, addr)
	switch {
	case err != nil && l.keys.Store != nil:
		return nil, keyedError{l.keys.Explain(err)}
	case err != nil:
		return nil, l.keys.Explain(err)
	case l.keys.Store == nil:
		return c, nil
	}
	return namedConn{c, l}, nil
}

// keyedError is an error of Dial where keys are used: so no ssh tunnel is.
type keyedError struct{ error }

// Unwrap returns the error itself.
func (e keyedError) Unwrap() error { return e.error }

// Listen implements transport.Link.
func (l *keyedLink) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	ln, err := l.Link.Listen(ctx, addr)
	if err != nil {
		return nil, l.keys.Explain(err)
	}
	if l.keys.Store == nil {
		return ln, nil
	}
	return namedListener{ln, l}, nil
}

// namedListener accepts connections whose transfers' peers are noted.
type namedListener struct {
	transport.Listener
	link *keyedLink
}

// Accept implements transport.Listener.
func (l namedListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return namedConn{c, l.link}, nil
}
