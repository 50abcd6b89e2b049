package tcp

import (
	"net"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
)

// Options of a Link. The zero value works.
type Options struct {
	// Session is passed to every connection of the link. Its HandshakeTimeout
	// bounds what a listener gives a peer, from accept to the last lane.
	Session session.Options

	// Lanes is how many data sockets a connection may have; the smaller wish
	// of the two ends counts. It replaces Session.Lanes. Zero means
	// Session.Lanes, whose default is 1; at most MaxLanes.
	Lanes int

	// DialTimeout bounds one attempt of Dial, with the handshake and all
	// lanes. Zero or less means Session.HandshakeTimeout.
	DialTimeout time.Duration

	// OnReject, when set, is told of every socket that a listener dropped: the
	// peer's address (empty when accepting itself failed) and why. It is
	// called from several goroutines and must not block.
	OnReject func(remote string, err error)
}

// withDefaults returns o with every field in its range.
func (o Options) withDefaults() Options {
	if o.Lanes > 0 {
		o.Session.Lanes = min(o.Lanes, MaxLanes)
	}
	o.Session = o.Session.WithDefaults()
	o.Lanes = o.Session.Lanes
	if o.DialTimeout <= 0 {
		o.DialTimeout = o.Session.HandshakeTimeout
	}
	if o.OnReject == nil {
		o.OnReject = func(string, error) {}
	}
	return o
}

// Link makes connections over TCP. It may be used concurrently.
type Link struct {
	o     Options
	names resolver
}

var _ transport.Link = (*Link)(nil)

// New returns a link. It opens nothing.
func New(o Options) *Link {
	return &Link{o: o.withDefaults(), names: net.DefaultResolver}
}

// facts are what the link knows of a connection; the session adds what was
// agreed.
func facts(c net.Conn) transport.Facts {
	return transport.Facts{
		Link:     "tcp",
		Local:    c.LocalAddr().String(),
		Remote:   c.RemoteAddr().String(),
		ZeroCopy: true,
	}
}
