// Package carrier is the seam between a link that makes control connections and one
// that moves frames by other means than sockets. The first one (package tcp) finds the
// peer, proves who it is and lets the two ends agree; a [Carrier] (package rdma) then
// makes the lanes, talking to its like at the other end through the control channel.
// So whatever carries the frames, who may connect is decided in one place, and neither
// link knows the other.
package carrier

import (
	"context"
	"net"

	"pdlink/transport/seal"
	"pdlink/transport/session"
)

// Carrier makes the lanes of connections. It may be used concurrently.
type Carrier interface {
	// Link is the name of the link that it makes (Facts.Link), which is the scheme of
	// its URLs.
	Link() string

	// Available returns nil where this host can have such lanes, as far as can be seen
	// without a peer. The error Is transport.ErrUnavailable and says why not.
	Available() error

	// Features are the names that the hellos of its connections carry, as
	// session.Options.Features has them.
	Features() []string

	// Carry makes the lanes of one connection. Both ends call it when the hellos were
	// exchanged, and it owns the control channel until it returns. The context bounds
	// it; the caller makes reads and writes of the channel fail when that ends. What
	// it says to its like are link messages (wire.Link). Errors:
	// transport.ErrIncompatible, ErrUnavailable, ErrLost, ErrProtocol.
	Carry(ctx context.Context, b Base) (Lanes, error)
}

// Base is a connection that has no lanes yet.
type Base struct {
	// Control is the control channel: whole messages, in order.
	Control session.Control

	// Role says which end this is.
	Role session.Role

	// Agreed is what the hellos gave.
	Agreed session.Agreement

	// Options are those of the session to come, with defaults.
	Options *session.Options

	// Local and Remote are the addresses of the control channel's socket.
	Local, Remote net.Addr

	// Seals returns what seals and opens the frames of a lane. It may be called once
	// for each lane, before Carry returns. Nil: frames go in clear.
	Seals func(lane int) (*seal.Sealer, *seal.Opener, error)
}

// Lanes are the lanes of one connection. Lanes, WriteFrame and ReadFrame are those of
// [session.Driver]; where the lanes are a [session.Queuer] too, a session uses that.
// After Close they fail with net.ErrClosed.
type Lanes interface {
	Lanes() int
	WriteFrame(lane int, header, payload []byte) error
	ReadFrame(lane int, header []byte, place session.Placer) (int, error)

	// Start is called once, when the session begins. say sends a link message; it may
	// be called from any goroutine and keeps nothing of it.
	Start(say func(msg []byte) error)

	// Take takes a link message of the peer, valid during the call. It never waits for
	// the peer. An error ends the connection.
	Take(msg []byte) error

	// Close ends the lanes and frees what they have: no frame passes any more, and no
	// memory is open to the peer. It is called after Start, or without it; say fails
	// from then on, and what waits in it returns. It is idempotent, and the second call waits for the
	// first.
	Close() error
}
