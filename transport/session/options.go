package session

import (
	"slices"
	"time"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// Options are the wishes of one end of a connection. The zero value works. A
// link copies them from its own options; both ends' values meet in [Handshake].
type Options struct {
	// Name is what this end calls itself to the peer, for people: printable,
	// at most 255 bytes, cut and cleaned where it is not. Default: empty.
	Name string

	// Boot changes when the process restarts. Default: a random id, drawn by
	// WithDefaults; a link calls that once, so that its connections agree.
	Boot transport.ID

	// SendRing is where leases come from. It may be shared by connections and
	// stays the caller's. Default: the session makes one of
	// transport.DefaultSlots slots of transport.DefaultSlot bytes when it is
	// first needed, and closes it.
	SendRing *transport.Ring

	// RecvRing is where frames arrive, under the same rule as SendRing. One
	// ring must not be both: a sender's leases would take what the receiver
	// has promised.
	RecvRing *transport.Ring

	// Window is the most frames that a transfer is granted ahead of what has
	// been released. A transfer begins with one or two and gets more as it uses
	// them, up to Window and as long as it has less of RecvRing than is left of
	// it; what others need more it gives back. Default:
	// transport.DefaultWindow; clamped to 1..1024.
	Window int

	// Lanes is the wished number of data lanes; the smaller wish counts.
	// Default: 1; clamped to 1..64.
	Lanes int

	// Sums are the checksum algorithms that this end accepts, best first.
	// Unknown names are ignored. "none" is taken only where both ends wish it
	// first. Default: transport.Sums without "none".
	Sums []string

	// Features are names of optional parts of the protocol that the link adds
	// to those of the session: distinct, 1 to wire.MaxNameItem bytes each, of
	// the form that wire.Hello asks for; no more than wire.MaxNames-1 are named.
	// What both ends named is in Agreement.Features. Default: none.
	Features []string

	// MaxMeta is the longest Meta, answer and result in bytes; the smaller
	// wish counts. Default: transport.MaxMeta, which is also the largest.
	MaxMeta int

	// MaxOffers is how many offers wait for Accept before further ones are
	// refused as busy. Default and largest: transport.MaxTransfers.
	MaxOffers int

	// Intercept wraps the driver, for faults and measuring. Default: nothing.
	Intercept Interceptor

	// HandshakeTimeout bounds Handshake. Default: 10 s; at most 10 minutes.
	HandshakeTimeout time.Duration

	// Linger bounds how long Close waits for queued control messages to go
	// out. Default: 1 s; at most 1 minute; negative: 10 ms, which is enough for
	// a peer that reads.
	Linger time.Duration

	// PingEvery is how long nothing may be heard of the peer while a transfer
	// is on offer or open, in either direction, before it is asked for a sign of
	// life, and after each such question before the next. It is also how often
	// the connection looks, whatever it does. Default: 1 s; 1 ms to 1 minute;
	// negative: the peer is not asked and its silence ends nothing. Whatever
	// this end wishes, it answers the peer's questions.
	PingEvery time.Duration

	// LostAfter is how long nothing may be heard meanwhile before the
	// connection is lost. It is judged by questions that really went out, so
	// the end may come later by some PingEvery. Default: 6 s; at least twice
	// PingEvery, at most 10 minutes; negative: silence ends nothing.
	LostAfter time.Duration

	// IdlePingEvery takes PingEvery's place on a connection without any
	// transfer. Default: 15 s; at least PingEvery, at most 10 minutes;
	// negative: as with PingEvery.
	IdlePingEvery time.Duration

	// IdleLostAfter takes LostAfter's place there. Default: 45 s; at least
	// twice IdlePingEvery, at most 1 hour; negative: as with LostAfter.
	IdleLostAfter time.Duration
}

// WithDefaults returns o with defaults in place of zero values and every value
// within its bounds. Rings stay nil where they are. It is idempotent.
func (o Options) WithDefaults() Options {
	o.Name = wire.Printable(o.Name, wire.MaxName)
	if o.Boot == (transport.ID{}) {
		o.Boot = transport.NewID()
	}
	o.Window = clamp(o.Window, transport.DefaultWindow, maxWindow)
	o.Lanes = clamp(o.Lanes, 1, wire.MaxLanes)
	o.Sums = knownSums(o.Sums)
	o.MaxMeta = clamp(o.MaxMeta, transport.MaxMeta, transport.MaxMeta)
	o.MaxOffers = clamp(o.MaxOffers, transport.MaxTransfers, transport.MaxTransfers)
	o.HandshakeTimeout = clamp(o.HandshakeTimeout, defaultHandshake, maxHandshake)
	if o.Linger < 0 {
		o.Linger = minLinger
	}
	o.Linger = clamp(o.Linger, defaultLinger, maxLinger)
	o.PingEvery = interval(o.PingEvery, defaultPing, minPing, maxPing)
	o.LostAfter = interval(o.LostAfter, defaultLost, 2*o.PingEvery, maxLost)
	o.IdlePingEvery = interval(o.IdlePingEvery, defaultIdlePing, max(o.PingEvery, minPing), maxIdlePing)
	o.IdleLostAfter = interval(o.IdleLostAfter, defaultIdleLost, 2*o.IdlePingEvery, maxIdleLost)
	return o
}

// clamp returns def for values below 1, and at most limit.
func clamp[T int | time.Duration](v, def, limit T) T {
	if v < 1 {
		v = def
	}
	return min(v, limit)
}

// interval returns negative values as they are, def for zero, and what is
// between the bounds for others.
func interval(v, def, least, most time.Duration) time.Duration {
	switch {
	case v < 0:
		return v
	case v == 0:
		v = def
	}
	return min(max(v, least), most)
}

// knownSums returns the names of this build in the wished order, without
// repeats; the default for no wish.
func knownSums(wish []string) []string {
	all := transport.Sums()
	var sums []string
	for _, s := range wish {
		if slices.Contains(all, s) && !slices.Contains(sums, s) {
			sums = append(sums, s)
		}
	}
	if len(sums) > 0 {
		return sums
	}
	return slices.DeleteFunc(all, func(s string) bool { return s == transport.SumNone })
}

// maxPayload is the largest frame that both of this end's rings take.
func (o *Options) maxPayload() int {
	n := transport.MaxSlot - transport.HeaderRoom
	for _, r := range []*transport.Ring{o.SendRing, o.RecvRing} {
		if r == nil {
			n = min(n, transport.DefaultSlot-transport.HeaderRoom)
		} else {
			n = min(n, r.Payload())
		}
	}
	return n
}
