package tcp

import (
	"net"
	"slices"
	"sync"
	"time"

	"pdlink/transport"
	"pdlink/transport/carrier"
	"pdlink/transport/codec"
	"pdlink/transport/keys"
	"pdlink/transport/seal"
	"pdlink/transport/session"
)

// Options of a Link. The zero value works.
type Options struct {
	// Session is passed to every connection of the link. Its HandshakeTimeout
	// bounds what a listener gives a peer, from accept to the last lane. No
	// Sums means those of this build in the order of transport.MeasureSums,
	// measured by the first Dial or Listen; the dialling end's order counts.
	Session session.Options

	// Lanes is how many data sockets a connection may have; the smaller wish
	// of the two ends counts. It replaces Session.Lanes. Zero means
	// Session.Lanes, whose default is 1; at most MaxLanes.
	Lanes int

	// DialTimeout bounds one attempt of Dial, with the handshake and all
	// lanes. Zero or less means Session.HandshakeTimeout.
	DialTimeout time.Duration

	// LowWater is how many bytes of a payload, or what is left of it, wake the
	// goroutine that reads a lane. Zero means 1 MiB; 1 or less wakes it for every
	// segment; at most transport.MaxSlot. The kernel may hold less
	// (SocketFacts.LowWater); systems without SO_RCVLOWAT ignore it.
	LowWater int

	// Congestion is the congestion control of the link's sockets, for measuring
	// ("cubic"). Empty means the system's. Where it cannot be had, Dial and
	// Listen fail.
	Congestion string

	// Keys says who this host is and whom it talks to. With it every connection
	// is authenticated and, by Encrypt, sealed, and every address may be dialled
	// and listened on; peers without a pinned key are refused, on loopback too.
	// It stays the caller's and must live as long as the link's connections.
	// Nil: no keys, loopback only.
	Keys *keys.Store

	// Peer is the pinned peer, by its name in Keys, that Dial wants; whoever
	// else answers is refused. Empty: any pinned peer. Without Keys it must be
	// empty.
	Peer string

	// Encrypt is what protects the frames where Keys is set. The default,
	// seal.AES128GCM, takes seal.AES256GCM too when that is all that the peer
	// takes; with seal.AES256GCM nothing else will do. seal.Clear sends frames
	// in clear, for a cable, where the peer's operator said so too; otherwise
	// it is as the default.
	Encrypt seal.Suite

	// Compress says whether payloads are coded on their way. With the default,
	// codec.Auto, they are where the link is so slow that it pays, as
	// codec.Governor measures it, and never within a host. A
	// mode that names a codec codes all of them, and codec.Off none, in either
	// direction. Lanes of a Carrier and Unix sockets are never coded. A lane that
	// sends coded frames has memory for it beside the ring, at the most a frame's
	// payload and 1 MiB, and one that gets them as much; where nothing is coded there
	// is none.
	Compress codec.Mode

	// Carrier makes the lanes of the link's connections in place of sockets; the
	// control channel, and who may connect, stay as they are. Where it is not
	// Available, Dial and Listen fail with its error. Dial needs a peer whose link has
	// a carrier of the same kind, and fails with transport.ErrIncompatible at any
	// other; it never falls back. A listener gives a peer that does not name all of
	// the carrier's Features lanes that are sockets: Facts.Link tells which. The
	// carrier may serve several links. Nil: lanes are sockets. A Unix link has none.
	Carrier carrier.Carrier

	// CarrierOnly makes a listener refuse a peer that has no carrier of the same
	// kind, and tell it so. Dial is so without it. Without Carrier it does not count.
	CarrierOnly bool

	// MaxPerPeer is how many connections a listener has with one peer, by its key,
	// at a time; one more is refused and told why. Zero or less means 64. Without
	// Keys it does not count.
	MaxPerPeer int

	// OnReject, when set, is told of every socket that a listener dropped: the
	// peer's address (empty when accepting itself failed) and why. It is
	// called from several goroutines and must not block: a stranger counts as one
	// until it has returned, and when too many do nobody is accepted.
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
	if o.LowWater == 0 {
		o.LowWater = lowWater
	}
	if o.Encrypt > seal.Clear {
		o.Encrypt = seal.AES128GCM
	}
	if o.Keys != nil {
		o.Session.Features = append(slices.Clone(o.Session.Features), features(o.Encrypt)...)
	}
	if o.Carrier != nil {
		o.Session.Features = append(slices.Clone(o.Session.Features), o.Carrier.Features()...)
	}
	if !o.CarrierOnly || o.Carrier == nil {
		o.Session.Features = append(slices.Clone(o.Session.Features), codecFeatures(o.Compress)...)
	}
	o.LowWater = max(1, min(o.LowWater, maxLowWater))
	if o.MaxPerPeer <= 0 {
		o.MaxPerPeer = maxPerPeer
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
	kind  kind

	acceptTime time.Duration // how long a complete connection waits for Accept
	meter      codec.Meter   // of what its connections send

	sums func() []string // measures when it is first called; nil: Options.Session.Sums
}

var _ transport.Link = (*Link)(nil)

// New returns a link. It opens nothing.
func New(o Options) *Link {
	l := &Link{o: o.withDefaults(), names: net.DefaultResolver, kind: tcpSockets{}, acceptTime: acceptTime}
	if len(o.Session.Sums) == 0 {
		l.sums = sync.OnceValue(transport.SumsByRate)
	}
	return l
}

// session returns the options of one connection's session.
func (l *Link) session() session.Options {
	o := l.o.Session
	if l.sums != nil {
		o.Sums = l.sums()
	}
	return o
}

// facts are what the link knows of a connection; the session adds what was
// agreed.
func (l *Link) facts(c net.Conn) transport.Facts {
	f := transport.Facts{Remote: remoteOf(c), ZeroCopy: true}
	f.Link, f.Local = l.kind.ends(c)
	return f
}
