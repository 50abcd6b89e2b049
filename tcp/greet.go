package tcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"pdlink/transport"
	"pdlink/transport/keys"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// greet finds out what a fresh socket is for, and reports when it comes to
// nothing. It owns c and one of the rooms, which it gives back when nothing of the
// peer is left here, or a connection has come of it.
func (s *listener) greet(c socket) {
	defer func() { <-s.rooms }()
	ctx, cancel := context.WithTimeout(s.ctx, s.link.o.Session.HandshakeTimeout)
	defer cancel()
	err := s.receive(ctx, c)
	if err == nil {
		return
	}
	closeSocket(c) //nolint:errcheck // the error that counts is reported
	if s.ctx.Err() == nil {
		s.link.o.OnReject(remoteOf(c), err)
	}
}

// visitor is a socket whose first message was read.
type visitor struct {
	ctl  *control
	peer keys.Admission // of a TLS session
	msg  []byte         // the message
	kind wire.Type
}

// receive reads the first message of a socket and acts on it. The caller closes
// c when it fails.
func (s *listener) receive(ctx context.Context, c socket) error {
	v := visitor{ctl: newControl(c, wire.MaxHello)}
	switch err := s.visit(ctx, &v); {
	case err != nil:
		return err
	case v.kind == wire.TypeHello:
		return s.receiveControl(ctx, &v)
	}
	return s.receiveLane(ctx, c, v.msg)
}

// visit reads the first message of a socket while it is one of the strangers.
func (s *listener) visit(ctx context.Context, v *visitor) error {
	c := v.ctl.sock
	if err := s.link.check(c); err != nil {
		return err
	}
	if !s.strangers.enter(c) {
		return net.ErrClosed
	}
	err := bounded(ctx, c, func() error { return s.meet(ctx, v) })
	switch inside := s.strangers.leave(c); {
	case !inside:
		return errCrowded
	case errors.Is(err, io.EOF):
		return fmt.Errorf("tcp: handshake: %w", io.ErrUnexpectedEOF)
	case err != nil:
		return fmt.Errorf("tcp: handshake: %w", err)
	}
	return nil
}

// meet reads what a socket begins with, the handshake of TLS included. It runs
// while the peer is a stranger, whose memory and time are bounded.
func (s *listener) meet(ctx context.Context, v *visitor) error {
	c := v.ctl.sock
	begin := make([]byte, wire.ControlPrefix)
	if _, err := io.ReadFull(c, begin); err != nil {
		return err
	}
	s.strangers.reached(c, spoke)
	withKeys := s.link.o.Keys != nil
	secure := isTLS(begin)
	var err error
	switch {
	case secure && withKeys:
		if err := s.secure(ctx, v, begin); err != nil {
			return err
		}
		v.msg, err = v.ctl.ReadControl()
	case secure:
		s.say(v.ctl, &wire.Bye{Reason: "this listener has no keys"})
		return keysError{keys.ErrKeysWanted}
	default:
		v.msg, err = readMessage(io.MultiReader(bytes.NewReader(begin), c), nil, wire.MaxHello)
	}
	if err != nil {
		return err
	}
	if _, v.kind, err = wire.ControlLength(v.msg); err != nil {
		return err
	}
	switch {
	case v.kind == wire.TypeHello && withKeys && !secure:
		return s.refuseClear(v)
	case v.kind == wire.TypeHello, v.kind == wire.TypeLaneHello && !secure:
		return nil
	}
	return fmt.Errorf("%w: %v", transport.ErrProtocol, v.kind)
}

// isTLS tells a TLS session from a message in clear: a record of a handshake has
// type 22 and a version 3.1 or above. A message has its length there, which has
// its low byte first and is below 2^16 of a first message, so that the third byte
// is 0.
func isTLS(begin []byte) bool { return begin[0] == 0x16 && begin[1] == 3 && begin[2] != 0 }

// secure does the server's handshake of TLS on a socket of which begin was read.
// A peer that fails it gets a moment to read why.
func (s *listener) secure(ctx context.Context, v *visitor, begin []byte) (err error) {
	c := v.ctl.sock
	t := tls.Server(&replayed{socket: c, first: begin}, tuneTLS(s.link.o.Keys.ServerConfig()))
	if err := t.HandshakeContext(ctx); err != nil {
		if errors.Is(err, keys.ErrUnknownPeer) {
			lingerClose(v.ctl, lingerTime, strangerBytes)
		}
		return explain(err)
	}
	v.ctl = newSecureControl(c, t)
	if v.peer, err = s.link.admit(v.ctl); err == nil {
		s.strangers.reached(c, proven)
	}
	return err
}

// refuseClear answers the hello of a peer without keys with one that names the
// suites, so that the peer can tell its user what is wrong, and nothing else.
func (s *listener) refuseClear(v *visitor) error {
	v.ctl.first = v.msg
	o := session.Options{Features: features(s.link.o.Encrypt)}
	if _, err := session.Handshake(s.ctx, v.ctl, session.Server, &o); err != nil {
		return err
	}
	return keysError{keys.ErrNoKeys}
}

// say writes a last message to a socket that is going to be closed, and gives
// the peer a moment to read it.
func (s *listener) say(ctl *control, m wire.Message) {
	if msg, err := wire.Append(nil, m); err == nil && ctl.WriteControl(msg) == nil {
		lingerClose(ctl, lingerTime, strangerBytes)
	}
}

// talk runs f, which tells a peer on a control channel that is no stranger why it
// cannot connect, and waits for it to have heard. Where too many are told f is not
// run: who comes in numbers cannot hold the listener's goroutines with that.
func (s *listener) talk(ctx context.Context, ctl *control, f func()) {
	select {
	case s.talks <- struct{}{}:
	default:
		return
	}
	defer func() { <-s.talks }()
	bounded(ctx, ctl.sock, func() error { f(); return nil }) //nolint:errcheck // best effort
}

// receiveControl does the handshake of a control channel whose hello has come,
// waits for the lanes and queues the connection for Accept.
func (s *listener) receiveControl(ctx context.Context, v *visitor) error {
	ctl := v.ctl
	ctl.first = v.msg
	a := &arrival{ctl: ctl, opts: s.link.session()}
	if ctl.tls != nil {
		give, err := s.peers.take(v.peer.Peer)
		if err != nil {
			s.talk(ctx, ctl, func() { s.say(ctl, &wire.Bye{Reason: "too many connections of this host: close some of them"}) })
			return err
		}
		a.done = give
	}
	// The answer carries the token; it goes out when the token is known here.
	ctl.hold = true
	err := s.complete(ctx, v, a)
	if errors.Is(err, transport.ErrIncompatible) {
		s.talk(ctx, ctl, func() {
			// With this hello the peer can see for itself why.
			if ctl.release() == nil {
				lingerClose(ctl, lingerTime, strangerBytes)
			}
		})
	}
	if err != nil {
		a.close()
	}
	return err
}

// complete makes a whole connection of an arrival and queues it. The caller closes
// it when it fails.
func (s *listener) complete(ctx context.Context, v *visitor, a *arrival) error {
	if err := s.agree(ctx, v, a); err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	if s.link.carries(a) {
		return s.completeCarried(ctx, a)
	}
	p, err := s.waiting.add(a.agreed.Token, a.agreed.Lanes, a.guard)
	if err != nil {
		return err
	}
	if err := bounded(ctx, a.ctl.sock, a.ctl.release); err != nil {
		s.waiting.fail(p, err)
		return fmt.Errorf("tcp: handshake: %w", err)
	}
	if a.lanes, err = s.await(ctx, p); err != nil {
		return err
	}
	return s.lobby.enter(a)
}

// completeCarried is the rest of complete for a link whose lanes are a carrier's.
func (s *listener) completeCarried(ctx context.Context, a *arrival) error {
	if err := bounded(ctx, a.ctl.sock, a.ctl.release); err != nil {
		return fmt.Errorf("tcp: handshake: %w", err)
	}
	select {
	case s.carries <- struct{}{}:
		a.settled = func() { <-s.carries }
	case <-ctx.Done():
		return fmt.Errorf("tcp: wait for the lanes of other connections: %w", ctx.Err())
	}
	if err := s.link.carry(ctx, a, session.Server); err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	return s.lobby.enter(a)
}

// dismiss ends a connection that was complete when its peer was revoked.
func (s *listener) dismiss(a *arrival) {
	s.talk(s.ctx, a.ctl, func() { s.say(a.ctl, &wire.Bye{Reason: byeRevoked}) })
	a.close()
	s.link.o.OnReject(remoteOf(a.ctl.sock), a.guard.errGone())
}

// agree settles the terms of a connection and, with keys, what protects it.
func (s *listener) agree(ctx context.Context, v *visitor, a *arrival) (err error) {
	if a.agreed, err = shake(ctx, a.ctl.sock, a.ctl, session.Server, &a.opts); err != nil || a.ctl.tls == nil {
		return err
	}
	a.guard, err = newGuard(a.ctl, v.peer, session.Server, &a.agreed)
	return err
}

// await returns the lanes of p when all are there.
func (s *listener) await(ctx context.Context, p *pending) ([]socket, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		s.waiting.fail(p, fmt.Errorf("tcp: wait for %d lanes: %w", len(p.lanes), ctx.Err()))
	}
	return s.waiting.take(p)
}

// receiveLane binds a socket to the session that its first message names.
func (s *listener) receiveLane(ctx context.Context, c socket, msg []byte) error {
	m, err := wire.Decode(msg)
	if err != nil {
		return fmt.Errorf("tcp: lane hello: %w", err)
	}
	hello, ok := m.(*wire.LaneHello)
	if !ok {
		return fmt.Errorf("tcp: lane hello: %w: %v", transport.ErrProtocol, m.Type())
	}
	p, proof, err := s.waiting.bind(hello, c)
	if err != nil {
		return err
	}
	if err := answerLane(ctx, c, int(hello.Lane), proof); err != nil {
		err = fmt.Errorf("tcp: answer lane %d: %w", hello.Lane, err)
		s.waiting.fail(p, err)
		return err
	}
	s.waiting.arrived(p)
	return nil
}

// answerLane tells the client that a lane is bound.
func answerLane(ctx context.Context, c socket, lane int, proof [wire.ProofSize]byte) error {
	answer, err := wire.AppendLaneOK(nil, &wire.LaneOK{Lane: uint16(lane), Proof: proof})
	if err != nil {
		return err
	}
	return bounded(ctx, c, func() error {
		_, err := c.Write(answer)
		return err
	})
}
