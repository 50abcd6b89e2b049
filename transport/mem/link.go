// Package mem is the link within one process, and the reference for what a link
// does: it has no sockets, no buffers of its own and no failures but the ones
// that its users make. Frames are copied from the sender's slot into the
// receiver's, control messages from one goroutine to the other.
//
// A [Link] is its own namespace: what it listens to is found by its own Dial and
// by those of links made from it with [Link.With], and by nobody else.
package mem

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"pdlink/transport"
	"pdlink/transport/session"
)

// Options are the options of a link. The zero value works.
type Options struct {
	// Session is what the link's connections wish. Session.Boot is drawn once
	// for the link where it is zero; Session.Name is "mem" where it is empty.
	Session session.Options
}

// Link implements transport.Link. It may be used concurrently.
type Link struct {
	o     session.Options
	names *names
}

// names are the listeners of a namespace.
type names struct {
	mu    sync.Mutex // guards the fields below
	byKey map[string]*listener
	drawn int // names drawn so far
}

// New makes a link with a namespace of its own.
func New(o Options) *Link {
	return &Link{o: o.session(), names: &names{byKey: make(map[string]*listener)}}
}

// With makes a link in the same namespace whose connections follow o: the two
// ends of a connection may differ.
func (l *Link) With(o Options) *Link { return &Link{o: o.session(), names: l.names} }

// session is the options that connections get.
func (o Options) session() session.Options {
	if o.Session.Name == "" {
		o.Session.Name = "mem"
	}
	return o.Session.WithDefaults()
}

// Dial implements transport.Link. The address is a name that somebody listens
// to in the link's namespace.
func (l *Link) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("mem: dial %q: %w", addr, err)
	}
	ln, err := l.names.find(addr)
	if err != nil {
		return nil, err
	}
	here, there := newPipe()
	if err := ln.offer(ctx, there); err != nil {
		here.Close() //nolint:errcheck // closing a pipe cannot fail
		return nil, fmt.Errorf("mem: dial %q: %w", addr, err)
	}
	c, err := connect(ctx, here, session.Client, l.o, l.o.Name, addr)
	if err != nil {
		return nil, fmt.Errorf("mem: dial %q: %w", addr, err)
	}
	return c, nil
}

// connect agrees with the other end of a pipe and starts the session. The pipe
// is closed when it fails.
func connect(ctx context.Context, p *pipe, role session.Role, o session.Options, local, remote string) (transport.Conn, error) {
	a, err := session.Handshake(ctx, p, role, &o)
	if err != nil {
		p.Close() //nolint:errcheck // closing a pipe cannot fail
		return nil, err
	}
	p.agreed(a.Lanes, a.MaxPayload)
	return session.New(p, a, o, transport.Facts{Link: "mem", Local: local, Remote: remote}), nil
}

// Listen implements transport.Link. An empty address draws a name, which Addr
// tells. The context is not used: nothing takes time.
func (l *Link) Listen(_ context.Context, addr string) (transport.Listener, error) {
	return l.names.add(addr, l.o)
}

// find returns the listener of a name.
func (n *names) find(addr string) (*listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ln := n.byKey[addr]; ln != nil {
		return ln, nil
	}
	return nil, fmt.Errorf("mem: dial %q: nobody listens to that name, only to %q",
		addr, slices.Sorted(maps.Keys(n.byKey)))
}

// add makes the listener of a name.
func (n *names) add(addr string, o session.Options) (*listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for addr == "" {
		n.drawn++
		if name := "mem-" + strconv.Itoa(n.drawn); n.byKey[name] == nil {
			addr = name
		}
	}
	if n.byKey[addr] != nil {
		return nil, fmt.Errorf("mem: listen to %q: the name is taken", addr)
	}
	ln := newListener(n, addr, o)
	n.byKey[addr] = ln
	return ln, nil
}

// remove frees the name of a listener.
func (n *names) remove(ln *listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.byKey, ln.addr)
}
