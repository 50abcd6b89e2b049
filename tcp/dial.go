package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// Dial connects to a listener at addr ("host:port"). When the host has several
// addresses they are tried in turn. Errors: ErrInsecure for an address that is
// not loopback, ErrIncompatible, ErrLost (the peer hung up during the
// handshake), ErrProtocol (it is no pdlink), the context's, and what the network
// said. An attempt that takes longer than DialTimeout ends with
// context.DeadlineExceeded.
func (l *Link) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, l.o.DialTimeout)
	defer cancel()
	addrs, err := resolve(ctx, l.names, addr)
	if err != nil {
		return nil, err
	}
	if addrs[0].Port() == 0 {
		return nil, fmt.Errorf("tcp: dial %s: port 0 is for listening only", addr)
	}
	c, at, err := l.dialFirst(ctx, addrs)
	if err != nil {
		return nil, fmt.Errorf("tcp: dial %s: %w", addr, err)
	}
	conn, err := l.connect(ctx, c, at)
	if err != nil {
		return nil, fmt.Errorf("tcp: dial %s: %w", addr, err)
	}
	return conn, nil
}

// dialFirst returns a socket to the first address that answers, and which it is.
func (l *Link) dialFirst(ctx context.Context, addrs []netip.AddrPort) (*net.TCPConn, netip.AddrPort, error) {
	var errs []error
	for _, a := range addrs {
		c, err := l.dialSocket(ctx, a)
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

// dialSocket returns a socket with the link's options. TCP_NODELAY is on, as Go
// sets it: a grant must not wait for the ack of the grant before.
func (l *Link) dialSocket(ctx context.Context, a netip.AddrPort) (*net.TCPConn, error) {
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
func (l *Link) check(c *net.TCPConn) error {
	if err := checkSocket(c); err != nil {
		return err
	}
	return tune(c, l.o.Congestion)
}

// connect does the handshake on c, a fresh control socket to at, dials the lanes
// and starts the session. It owns c.
func (l *Link) connect(ctx context.Context, c *net.TCPConn, at netip.AddrPort) (conn transport.Conn, err error) {
	sockets := []*net.TCPConn{c}
	defer func() {
		if err == nil {
			return
		}
		for _, s := range sockets {
			closeSocket(s) //nolint:errcheck // the error that counts is returned
		}
	}()
	ctl := newControl(c, wire.MaxHello)
	o := l.session()
	agreed, err := shake(ctx, ctl, session.Client, &o)
	if err != nil {
		return nil, err
	}
	for i := range agreed.Lanes {
		s, err := l.dialSocket(ctx, at)
		if err != nil {
			return nil, fmt.Errorf("lane %d: %w", i, err)
		}
		sockets = append(sockets, s)
		if err := bindLane(ctx, s, agreed.Token, i); err != nil {
			return nil, fmt.Errorf("lane %d: %w", i, err)
		}
	}
	return l.start(ctl, sockets[1:], agreed, o)
}

// start makes the session of a connection that is complete. It owns the sockets
// when it succeeds.
func (l *Link) start(ctl *control, lanes []*net.TCPConn, agreed session.Agreement, o session.Options) (transport.Conn, error) {
	ctl.agreed(agreed.MaxMeta)
	d, err := newDriver(ctl, lanes, agreed.MaxPayload, l.o.LowWater)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: session.New(d, agreed, o, facts(ctl.conn)), d: d}, nil
}

// shake runs the session's handshake on a control socket, bounded by ctx. When
// it fails the caller closes the socket.
func shake(ctx context.Context, ctl *control, role session.Role, o *session.Options) (a session.Agreement, err error) {
	err = bounded(ctx, ctl.conn, func() error {
		a, err = session.Handshake(ctx, ctl, role, o)
		return err
	})
	return a, err
}

// bindLane tells the server which session and lane a socket is for, and waits
// for its answer.
func bindLane(ctx context.Context, c *net.TCPConn, tok token, index int) error {
	hello, err := wire.AppendLaneHello(nil, &wire.LaneHello{Token: tok, Lane: uint16(index)})
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
		return checkLaneOK(msg, index)
	})
}

// checkLaneOK looks at the server's answer to a lane hello.
func checkLaneOK(msg []byte, index int) error {
	m, err := wire.Decode(msg)
	if err != nil {
		return fmt.Errorf("answer to lane hello: %w", err)
	}
	if ok, is := m.(*wire.LaneOK); !is || int(ok.Lane) != index {
		return fmt.Errorf("answer to lane hello: %w: %v", transport.ErrProtocol, m.Type())
	}
	return nil
}

// bounded runs f, which uses c, and interrupts it when ctx ends; the error is
// then the context's. c has no deadline afterwards.
func bounded(ctx context.Context, c net.Conn, f func() error) error {
	stop := context.AfterFunc(ctx, func() {
		c.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // a dead socket unblocks by itself
	})
	err := f()
	if !stop() {
		return ctx.Err()
	}
	return err
}
