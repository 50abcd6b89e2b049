package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"pdlink/transport"
	"pdlink/transport/keys"
	"pdlink/transport/seal"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// guard is what the two ends of a connection with keys have: who the peer is and
// what protects the frames (PROTOCOL.md of package wire, section 10).
type guard struct {
	peer    keys.Admission
	suite   seal.Suite
	secret  *seal.Secret // until the lanes have their keys
	out, in seal.Direction
}

// newGuard agrees on a suite and makes the connection's secret. ctl is a control
// channel whose peer is known and whose hellos were exchanged.
func newGuard(ctl *control, peer keys.Admission, role session.Role, agreed *session.Agreement) (*guard, error) {
	suite, err := seal.Agree(agreed.Features)
	if err != nil {
		return nil, fmt.Errorf("%w (the peer names %.200q)", err, agreed.PeerFeatures)
	}
	cs := ctl.tls.ConnectionState()
	secret, err := seal.Export(cs.ExportKeyingMaterial, agreed.Token)
	if err != nil {
		return nil, err
	}
	g := &guard{peer: peer, suite: suite, secret: secret, out: seal.ToServer, in: seal.ToClient}
	if role == session.Server {
		g.out, g.in = g.in, g.out
	}
	// What the peer calls itself is its own affair; this is who it is.
	agreed.Peer = peer.Peer.Name
	return g, nil
}

// prove returns this end's proof for a lane; zero without keys.
func (g *guard) prove(lane int) ([wire.ProofSize]byte, error) {
	if g == nil {
		return [wire.ProofSize]byte{}, nil
	}
	return g.secret.Proof(g.suite, lane, g.out)
}

// check compares the peer's proof for a lane. The error Is ErrProtocol.
func (g *guard) check(proof [wire.ProofSize]byte, lane int) error {
	if g == nil {
		return nil
	}
	return g.secret.CheckProof(proof[:], g.suite, lane, g.in)
}

// sealed says whether frames are encrypted.
func (g *guard) sealed() bool { return g != nil && g.suite != seal.Clear }

// seals returns what seals and opens the frames of a lane that a carrier makes.
func (g *guard) seals(lane int, o seal.Options) (*seal.Sealer, *seal.Opener, error) {
	sealer, err := g.secret.Sealer(lane, g.out, o)
	if err != nil {
		return nil, nil, fmt.Errorf("lane %d: %w", lane, err)
	}
	opener, err := g.secret.Opener(lane, g.in, o)
	if err != nil {
		return nil, nil, fmt.Errorf("lane %d: %w", lane, err)
	}
	return sealer, opener, nil
}

// gone says whether the peer was taken out of the peers file.
func (g *guard) gone() bool {
	if g == nil {
		return false
	}
	select {
	case <-g.peer.Revoked:
		return true
	default:
		return false
	}
}

// errGone is the end of a connection whose peer is no longer one.
func (g *guard) errGone() error {
	return fmt.Errorf("tcp: %w: %w: %s (key %s) was taken out of the peers file of this host",
		keys.ErrRevoked, keys.ErrUnknownPeer, g.peer.Peer.Name, g.peer.Peer.Key.Short())
}

// forget drops the secret.
func (g *guard) forget() {
	if g != nil {
		g.secret.Erase()
	}
}

// suites are what a link with this choice takes.
func suites(choice seal.Suite) []seal.Suite {
	switch choice {
	case seal.AES256GCM:
		return []seal.Suite{seal.AES256GCM}
	case seal.Clear:
		return []seal.Suite{seal.Clear, seal.AES128GCM, seal.AES256GCM}
	}
	return []seal.Suite{seal.AES128GCM, seal.AES256GCM}
}

// features are the names of those suites.
func features(choice seal.Suite) []string {
	takes := suites(choice)
	names := make([]string, len(takes))
	for i, s := range takes {
		names[i] = s.Feature()
	}
	return names
}

// byeRevoked is what a revoked peer is told.
const byeRevoked = "revoked: this host's key was taken out of the peers file there"

// keysError is an error about keys. It is transport.ErrInsecure besides what it
// is, without its words: the address is not what is wrong.
type keysError struct{ err error }

// Error is what the keys' error says.
func (e keysError) Error() string { return e.err.Error() }

// Unwrap makes it both.
func (e keysError) Unwrap() []error { return []error{transport.ErrInsecure, e.err} }

// refusal is the verdict of a peer that does not know this host, without the words
// of TLS for it.
type refusal struct{ verdict error }

// Error is what the keys' error says.
func (refusal) Error() string { return keys.ErrRefused.Error() }

// Unwrap makes it both.
func (e refusal) Unwrap() []error { return []error{keys.ErrRefused, e.verdict} }

// errRefused ends a connection with a peer that does not know this host. Of err it
// keeps the peer's verdict only: whatever else was in the way of it, the connection
// was not lost.
func errRefused(err error) error {
	if verdict := (*net.OpError)(nil); errors.As(err, &verdict) {
		err = verdict
	}
	return keysError{refusal{err}}
}

// explain says what an error of a TLS session means. Other errors stay as they are.
func explain(err error) error {
	var notTLS tls.RecordHeaderError
	var alert *net.OpError // one of TLS, in either direction
	var network net.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, keys.ErrUnknownPeer):
		return keysError{err}
	case keys.Refused(err):
		return errRefused(err)
	case errors.As(err, &notTLS):
		if notTLS.RecordHeader[4] == byte(wire.TypeBye) {
			return keysError{keys.ErrNoKeys}
		}
		return fmt.Errorf("%w: no TLS: %w", transport.ErrProtocol, err)
	case errors.As(err, &alert) && (alert.Op == "local error" || alert.Op == "remote error"):
		return fmt.Errorf("%w: TLS handshake: %w", transport.ErrProtocol, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &network):
		return fmt.Errorf("%w: TLS handshake: %w", transport.ErrLost, err)
	}
	return fmt.Errorf("%w: %w", transport.ErrProtocol, err)
}
