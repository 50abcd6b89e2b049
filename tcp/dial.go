package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"pdlink/transport"
	"pdlink/transport/keys"
	"pdlink/transport/seal"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// ErrTurnedAway is wrapped, with ErrLost, by the error of a Dial that the other end
// ended with a reason: it is there, and trying again at once is of no use.
var ErrTurnedAway = errors.New("tcp: turned away")

// Dial connects to a listener at addr ("host:port"). When the host has several
// addresses they are tried in turn. Errors: ErrInsecure for an address that is
// not loopback where the link has no keys, and where the two ends' keys do not
// fit (keys.ErrUnknownPeer, keys.ErrRefused and keys.ErrNoKeys say how);
// ErrIncompatible, ErrLost (the peer hung up during the handshake: with
// ErrTurnedAway it said why, and where it had said nothing at all this is the
// second time), ErrProtocol (it is no pdlink), the context's, and what the network
// said. An attempt that takes longer than DialTimeout ends with
// context.DeadlineExceeded.
func (l *Link) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if err := l.available(); err != nil {
		return nil, err
	}
	if err := l.wants(); err != nil {
		return nil, fmt.Errorf("tcp: dial %s: %w", addr, err)
	}
	ctx, cancel := context.WithTimeout(ctx, l.o.DialTimeout)
	defer cancel()
	addrs, err := resolve(ctx, l.names, addr, l.o.Keys != nil)
	if err != nil {
		return nil, err
	}
	switch {
	case addrs[0].Port() == 0:
		return nil, fmt.Errorf("tcp: dial %s: port 0 is for listening only", addr)
	case !addrs[0].Addr().IsValid():
		return nil, fmt.Errorf("tcp: dial %s: want host:port, a host is missing", addr)
	}
	c, at, err := l.dialFirst(ctx, addrs)
	if err != nil {
		return nil, fmt.Errorf("tcp: dial %s: %w", addr, err)
	}
	conn, err := l.connect(ctx, c, func(ctx context.Context) (socket, error) { return l.dialSocket(ctx, at) })
	if err != nil {
		return nil, fmt.Errorf("tcp: dial %s: %w", addr, err)
	}
	return conn, nil
}

// available looks whether the link can be had on this host.
func (l *Link) available() error {
	if l.o.Carrier == nil {
		return nil
	}
	return l.o.Carrier.Available()
}

// wants looks whether the peer that is wanted can be had at all.
func (l *Link) wants() error {
	if l.o.Peer == "" {
		return nil
	}
	if l.o.Keys == nil {
		return fmt.Errorf("%w: peer %q is wanted and the link has no keys", transport.ErrInvalid, l.o.Peer)
	}
	if _, err := l.o.Keys.ClientConfig(l.o.Peer); err != nil {
		return keysError{err}
	}
	return nil
}

// dialFirst returns a socket to the first address that answers, and which it is.
// Each gets its share of the time, so that one that is silent does not take the
// others'.
func (l *Link) dialFirst(ctx context.Context, addrs []netip.AddrPort) (socket, netip.AddrPort, error) {
	var errs []error
	for i, a := range addrs {
		share, cancel := shareOf(ctx, len(addrs)-i)
		c, err := l.dialSocket(share, a)
		cancel()
		if err == nil {
			return c, a, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, netip.AddrPort{}, errors.Join(errs...)
}

// shareOf is ctx with a fair part of its time for the first of n attempts.
func shareOf(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(n))
}

// dialSocket returns a socket with the link's options. TCP_NODELAY is on, as Go
// sets it: a grant must not wait for the ack of the grant before.
func (l *Link) dialSocket(ctx context.Context, a netip.AddrPort) (socket, error) {
	d := net.Dialer{KeepAliveConfig: keepAlive()}
	c, err := d.DialContext(ctx, "tcp", a.String())
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("connect to %v: %w", a, ctx.Err())
		}
		return nil, err
	}
	t, ok := c.(*net.TCPConn)
	if !ok {
		closeSocket(c) //nolint:errcheck // the error that counts is returned
		return nil, fmt.Errorf("connect to %v: got %T", a, c)
	}
	if err := l.check(t); err != nil {
		closeSocket(t) //nolint:errcheck // the error that counts is returned
		return nil, err
	}
	return t, nil
}

// check looks at a socket's addresses and sets the link's options on it.
func (l *Link) check(c socket) error {
	return l.kind.check(c, &l.o)
}

// connect does the handshake on c, a fresh control socket, gets the lanes from
// dial and starts the session. It owns c. When the other end hangs up before it has
// said anything, as a listener does that strangers flood, it tries once more with a
// socket from dial.
func (l *Link) connect(ctx context.Context, c socket, dial func(context.Context) (socket, error)) (transport.Conn, error) {
	conn, early, err := l.handshakes(ctx, c, dial)
	if !early {
		return conn, err
	}
	select {
	case <-time.After(retryPause + rand.N(retryPause)):
	case <-ctx.Done():
		return nil, err
	}
	c, e := dial(ctx)
	if e != nil {
		return nil, errors.Join(err, e)
	}
	conn, _, err = l.handshakes(ctx, c, dial)
	return conn, err
}

// handshakes is one attempt of connect. early reports that the other end hung up
// before its hello, without a word.
func (l *Link) handshakes(ctx context.Context, c socket, dial func(context.Context) (socket, error)) (conn transport.Conn, early bool, err error) {
	a := &arrival{ctl: newControl(c, wire.MaxHello), opts: l.session()}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if err := l.meet(ctx, a); err != nil {
		return nil, errors.Is(err, transport.ErrLost) && !errors.Is(err, ErrTurnedAway), err
	}
	if l.o.Carrier != nil {
		err = l.carry(ctx, a, session.Client)
	} else {
		err = dialLanes(ctx, a, dial)
	}
	if err != nil {
		return nil, false, err
	}
	conn, err = l.start(a)
	return conn, false, err
}

// dialLanes gets the sockets of a's lanes from dial.
func dialLanes(ctx context.Context, a *arrival, dial func(context.Context) (socket, error)) error {
	for i := range a.agreed.Lanes {
		s, err := dial(ctx)
		if err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
		}
		a.lanes = append(a.lanes, s)
		if err := bindLane(ctx, s, a.agreed.Token, i, a.guard); err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
		}
	}
	return nil
}

// hearing is a control channel that remembers whether the peer said farewell.
type hearing struct {
	*control
	bye bool
}

// ReadControl implements session.Control.
func (h *hearing) ReadControl() ([]byte, error) {
	msg, err := h.control.ReadControl()
	if err == nil {
		_, kind, e := wire.ControlLength(msg)
		h.bye = e == nil && kind == wire.TypeBye
	}
	return msg, err
}

// hello exchanges hellos as the client.
func (l *Link) hello(ctx context.Context, a *arrival) (err error) {
	h := &hearing{control: a.ctl}
	a.agreed, err = shake(ctx, a.ctl.sock, h, session.Client, &a.opts)
	// After another error a goroutine may still be reading.
	if errors.Is(err, transport.ErrLost) && h.bye {
		return fmt.Errorf("%w: %w", ErrTurnedAway, err)
	}
	return err
}

// meet does the client's handshakes on the control socket: with keys the one of
// TLS, then the hellos.
func (l *Link) meet(ctx context.Context, a *arrival) (err error) {
	if l.o.Keys == nil {
		if err := l.hello(ctx, a); err != nil {
			return err
		}
		if seal.Named(a.agreed.PeerFeatures) {
			return keysError{keys.ErrKeysWanted}
		}
		return nil
	}
	peer, err := l.secure(ctx, a)
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	err = l.hello(ctx, a)
	if keys.Refused(err) { // the server's word on this end's key comes now
		err = explain(err)
	}
	if err != nil {
		return err
	}
	a.guard, err = newGuard(a.ctl, peer, session.Client, &a.agreed)
	return err
}

// secure makes the control socket a TLS session with the peer that is wanted.
func (l *Link) secure(ctx context.Context, a *arrival) (keys.Admission, error) {
	sock := a.ctl.sock
	config, err := l.o.Keys.ClientConfig(l.o.Peer)
	if err != nil {
		return keys.Admission{}, explain(err)
	}
	t := tls.Client(sock, tuneTLS(config))
	if err := t.HandshakeContext(ctx); err != nil {
		if ctx.Err() != nil {
			return keys.Admission{}, ctx.Err()
		}
		return keys.Admission{}, explain(err)
	}
	a.ctl = newSecureControl(sock, t)
	return l.admit(a.ctl)
}

// admit returns the right of the peer of a TLS session to be connected.
func (l *Link) admit(ctl *control) (keys.Admission, error) {
	key, err := keys.PeerKey(ctl.tls.ConnectionState())
	if err != nil {
		return keys.Admission{}, explain(err)
	}
	peer, err := l.o.Keys.Admit(key)
	return peer, explain(err)
}

// tuneTLS sets what the link wants of a session: whole records, since a plan of
// megabytes is not read as it comes.
func tuneTLS(c *tls.Config) *tls.Config {
	c.DynamicRecordSizingDisabled = true
	return c
}

// start makes the session of a connection that is complete. It owns what a has
// when it succeeds.
func (l *Link) start(a *arrival) (transport.Conn, error) {
	a.ctl.agreed(a.agreed.MaxMeta)
	d, err := newDriver(a.ctl, a.lanes, a.agreed.MaxPayload, l.o.LowWater)
	if err != nil {
		return nil, err
	}
	var top session.Driver = d
	f := l.facts(a.ctl.sock)
	if a.carried != nil {
		f.Link = l.o.Carrier.Link()
		top = newCarried(d, a.carried)
	} else {
		d.compress(l.newPacking(a.agreed.Features, a.agreed.Sum, d, a.ctl.sock))
		f.Codecs = codecNames(a.agreed.Features)
		f.ZeroCopy = f.Codecs == "" // else either end may pack frames whenever it likes
	}
	if a.guard != nil {
		if err := d.protect(a.guard); err != nil {
			return nil, err
		}
		f.Proven, f.Sealed = true, a.guard.sealed()
		f.ZeroCopy = f.ZeroCopy && !f.Sealed
	}
	f.ZeroCopy = f.ZeroCopy && a.carried == nil
	d.done = a.done
	if a.carried != nil {
		a.carried.Start(d.WriteControl)
	}
	if a.guard != nil {
		d.watch(a.guard)
	}
	return &conn{Conn: session.New(top, a.agreed, a.opts, f), d: d}, nil
}

// shake runs the session's handshake on a control channel over c, bounded by ctx.
// When it fails the caller closes the socket.
func shake(ctx context.Context, c net.Conn, ctl session.Control, role session.Role, o *session.Options) (a session.Agreement, err error) {
	err = bounded(ctx, c, func() error {
		a, err = session.Handshake(ctx, ctl, role, o)
		return err
	})
	return a, err
}

// bindLane tells the server which session and lane a socket is for, and waits
// for its answer. With keys both ends prove that the lane is theirs.
func bindLane(ctx context.Context, c socket, tok token, index int, g *guard) error {
	proof, err := g.prove(index)
	if err != nil {
		return err
	}
	hello, err := wire.AppendLaneHello(nil, &wire.LaneHello{Token: tok, Lane: uint16(index), Proof: proof})
	if err != nil {
		return err
	}
	return bounded(ctx, c, func() error {
		if _, err := c.Write(hello); err != nil {
			return fmt.Errorf("%w: write lane hello: %w", transport.ErrLost, err)
		}
		msg, err := readMessage(c, nil, wire.MaxHello)
		if errors.Is(err, transport.ErrProtocol) {
			return fmt.Errorf("answer to lane hello: %w", err)
		}
		if err != nil {
			return fmt.Errorf("%w: read answer to lane hello: %w", transport.ErrLost, noEOF(err))
		}
		return checkLaneOK(msg, index, g)
	})
}

// checkLaneOK looks at the server's answer to a lane hello.
func checkLaneOK(msg []byte, index int, g *guard) error {
	m, err := wire.Decode(msg)
	if err != nil {
		return fmt.Errorf("answer to lane hello: %w", err)
	}
	ok, is := m.(*wire.LaneOK)
	if !is || int(ok.Lane) != index {
		return fmt.Errorf("answer to lane hello: %w: %v", transport.ErrProtocol, m.Type())
	}
	if err := g.check(ok.Proof, index); err != nil {
		return fmt.Errorf("answer to lane hello: %w", err)
	}
	return nil
}

// bounded runs f, which uses c, and interrupts it when ctx ends; the error is
// then the context's. c has no deadline afterwards.
func bounded(ctx context.Context, c net.Conn, f func() error) error {
	stop := context.AfterFunc(ctx, func() {
		c.SetDeadline(past()) //nolint:errcheck // a dead socket unblocks by itself
	})
	err := f()
	if !stop() {
		return ctx.Err()
	}
	return err
}
