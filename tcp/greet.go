package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// errNobody ends a connection that the listener's owner did not accept in time.
var errNobody = errors.New("tcp: nobody accepted the connection")

// greet finds out what a fresh socket is for, and reports when it comes to
// nothing. It owns c.
func (s *listener) greet(c *net.TCPConn) {
	ctx, cancel := context.WithTimeout(s.ctx, s.link.o.Session.HandshakeTimeout)
	defer cancel()
	err := s.receive(ctx, c)
	if err == nil {
		return
	}
	closeSocket(c) //nolint:errcheck // the error that counts is reported
	if s.ctx.Err() == nil {
		s.link.o.OnReject(c.RemoteAddr().String(), err)
	}
}

// receive reads the first message of a socket and acts on it. The caller closes
// c when it fails.
func (s *listener) receive(ctx context.Context, c *net.TCPConn) error {
	if err := s.link.check(c); err != nil {
		return err
	}
	if !s.strangers.enter(c) {
		return net.ErrClosed
	}
	var msg []byte
	err := bounded(ctx, c, func() (err error) {
		msg, err = readMessage(c, nil, wire.MaxHello)
		return err
	})
	switch inside := s.strangers.leave(c); {
	case !inside:
		return errCrowded
	case errors.Is(err, io.EOF):
		return fmt.Errorf("tcp: first message: %w", io.ErrUnexpectedEOF)
	case err != nil:
		return fmt.Errorf("tcp: first message: %w", err)
	}
	_, kind, err := wire.ControlLength(msg)
	switch {
	case err != nil:
		return fmt.Errorf("tcp: first message: %w", err)
	case kind == wire.TypeHello:
		return s.receiveControl(ctx, c, msg)
	case kind == wire.TypeLaneHello:
		return s.receiveLane(ctx, c, msg)
	}
	return fmt.Errorf("tcp: first message: %w: %v", transport.ErrProtocol, kind)
}

// receiveControl does the handshake of a control socket whose hello has come,
// waits for the lanes and queues the connection for Accept.
func (s *listener) receiveControl(ctx context.Context, c *net.TCPConn, hello []byte) error {
	ctl := newControl(c, wire.MaxHello)
	ctl.first = hello
	// The answer carries the token; it goes out when the token is known here.
	ctl.hold = true
	o := s.link.session()
	agreed, err := shake(ctx, ctl, session.Server, &o)
	if err != nil {
		if errors.Is(err, transport.ErrIncompatible) {
			s.sayWhy(ctx, ctl)
		}
		return fmt.Errorf("tcp: %w", err)
	}
	p, err := s.waiting.add(agreed.Token, agreed.Lanes)
	if err != nil {
		return err
	}
	if err := bounded(ctx, c, ctl.release); err != nil {
		s.waiting.fail(p, err)
		return fmt.Errorf("tcp: handshake: %w", err)
	}
	lanes, err := s.await(ctx, p)
	if err != nil {
		return err
	}
	a := &arrival{ctl: ctl, lanes: lanes, agreed: agreed, opts: o}
	select {
	case s.queue <- a:
		return nil
	case <-ctx.Done():
		a.close()
		return errNobody
	}
}

// sayWhy sends the hello with which a peer can see for itself that the two ends
// are incompatible.
func (s *listener) sayWhy(ctx context.Context, ctl *control) {
	if bounded(ctx, ctl.conn, ctl.release) != nil {
		return
	}
	bounded(ctx, ctl.conn, func() error { //nolint:errcheck // best effort
		lingerClose(ctl.conn, lingerTime)
		return nil
	})
}

// await returns the lanes of p when all are there.
func (s *listener) await(ctx context.Context, p *pending) ([]*net.TCPConn, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		s.waiting.fail(p, fmt.Errorf("tcp: wait for %d lanes: %w", len(p.lanes), ctx.Err()))
	}
	return s.waiting.take(p)
}

// receiveLane binds a socket to the session that its first message names.
func (s *listener) receiveLane(ctx context.Context, c *net.TCPConn, msg []byte) error {
	m, err := wire.Decode(msg)
	if err != nil {
		return fmt.Errorf("tcp: lane hello: %w", err)
	}
	hello, ok := m.(*wire.LaneHello)
	if !ok {
		return fmt.Errorf("tcp: lane hello: %w: %v", transport.ErrProtocol, m.Type())
	}
	answer, err := wire.AppendLaneOK(nil, &wire.LaneOK{Lane: hello.Lane})
	if err != nil {
		return fmt.Errorf("tcp: lane hello: %w", err)
	}
	p, err := s.waiting.bind(hello.Token, int(hello.Lane), c)
	if err != nil {
		return err
	}
	err = bounded(ctx, c, func() error {
		_, err := c.Write(answer)
		return err
	})
	if err != nil {
		err = fmt.Errorf("tcp: answer lane %d: %w", hello.Lane, err)
		s.waiting.fail(p, err)
		return err
	}
	s.waiting.arrived(p)
	return nil
}
