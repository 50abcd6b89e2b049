package session

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// Role says which end of a connection this is. It matters only to Handshake.
type Role uint8

// Roles of a handshake.
const (
	Client Role = iota // this end dialled; it speaks first
	Server             // this end accepted; it draws the epoch and the token
)

// Control is the part of a [Driver] that exists before lanes do. Its rules are
// those of the Driver's methods of the same names.
type Control interface {
	WriteControl(msg []byte) error
	ReadControl() ([]byte, error)
}

// Agreement is what the two ends of a connection settled. Both hold the same
// terms.
type Agreement struct {
	wire.Terms

	Peer     string       // the peer's name for itself, printable
	PeerBoot transport.ID // changes when the peer's process restarts

	// PeerFeatures is all that the peer named; Features has what both did.
	PeerFeatures []string
}

// Handshake exchanges hellos on a control channel and returns what both ends
// can do. o gets its defaults. The context and o.HandshakeTimeout bound it; when
// either ends it early, a goroutine stays in ctl until the caller closes the
// channel beneath, which the caller does after every error. Errors:
// ErrIncompatible, ErrProtocol, ErrLost (the channel failed), the context's.
func Handshake(ctx context.Context, ctl Control, role Role, o *Options) (Agreement, error) {
	*o = o.WithDefaults()
	ctx, cancel := context.WithTimeout(ctx, o.HandshakeTimeout)
	defer cancel()
	type result struct {
		a   Agreement
		err error
	}
	done := make(chan result, 1)
	h := o.hello()
	go func() {
		a, err := exchange(ctl, role, h)
		done <- result{a, err}
	}()
	select {
	case r := <-done:
		return r.a, r.err
	case <-ctx.Done():
		return Agreement{}, fmt.Errorf("handshake: %w", ctx.Err())
	}
}

// hello is what this end says about itself, as either role.
func (o *Options) hello() *wire.Hello {
	return &wire.Hello{
		Major: wire.Major, Minor: wire.Minor,
		Boot: o.Boot, Name: o.Name,
		MaxPayload: uint32(o.maxPayload()), MaxMeta: uint32(o.MaxMeta),
		Lanes: uint16(o.Lanes), Sums: o.Sums, Features: o.features(),
	}
}

// features are the session's own and the link's.
func (o *Options) features() []string {
	names := append([]string{wire.FeaturePing}, o.Features...)
	return names[:min(len(names), wire.MaxNames)]
}

func exchange(ctl Control, role Role, mine *wire.Hello) (Agreement, error) {
	if role == Client {
		if err := sendHello(ctl, mine); err != nil {
			return Agreement{}, err
		}
	}
	peer, err := receiveHello(ctl)
	if err != nil {
		return Agreement{}, err
	}
	client, server := mine, peer
	if role == Server {
		// The server's hello goes out even when the two cannot agree: the
		// client draws the same conclusion from it and can tell its user.
		client, server = peer, mine
		drawSession(mine)
		if err := sendHello(ctl, mine); err != nil {
			return Agreement{}, err
		}
	}
	terms, err := wire.Negotiate(client, server)
	if err != nil {
		return Agreement{}, fmt.Errorf("handshake: %w", err)
	}
	return Agreement{Terms: terms, Peer: peer.Name, PeerBoot: peer.Boot, PeerFeatures: peer.Features}, nil
}

// drawSession draws what names one connection: an epoch, not zero, and the
// token that its lanes show.
func drawSession(h *wire.Hello) {
	var b [20]byte
	rand.Read(b[:]) // never fails since Go 1.24
	h.Epoch = binary.LittleEndian.Uint32(b[:]) | 1
	copy(h.Token[:], b[4:])
	h.Token[0] |= 1 // a zero token means none
}

func sendHello(ctl Control, h *wire.Hello) error {
	msg, err := wire.AppendHello(nil, h)
	if err != nil {
		return fmt.Errorf("handshake: encode hello: %w", err)
	}
	if err := ctl.WriteControl(msg); err != nil {
		return fmt.Errorf("handshake: %w: %w", transport.ErrLost, err)
	}
	return nil
}

func receiveHello(ctl Control) (*wire.Hello, error) {
	msg, err := ctl.ReadControl()
	switch {
	case errors.Is(err, transport.ErrProtocol):
		return nil, fmt.Errorf("handshake: %w", err)
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("handshake: %w: the peer hung up", transport.ErrLost)
	case err != nil:
		return nil, fmt.Errorf("handshake: %w: %w", transport.ErrLost, err)
	}
	m, err := wire.Decode(msg)
	if err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	switch m := m.(type) {
	case *wire.Hello:
		return m, nil
	case *wire.Bye:
		return nil, fmt.Errorf("handshake: %w: the peer said %q", transport.ErrLost, m.Reason)
	default:
		return nil, fmt.Errorf("handshake: %w: %v message instead of a hello", transport.ErrProtocol, m.Type())
	}
}
