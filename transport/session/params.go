package session

import (
	"time"

	"pdlink/transport"
)

// The engine's numbers. Limits of the contract are in package transport, limits
// of the encoding in package wire.
const (
	// maxWindow bounds Options.Window: the queue of a transfer has room for
	// it, and 1024 frames of 1 MiB are more than any link has in flight.
	maxWindow = 1024

	// reorderSpan is how far ahead of the first frame that has not arrived
	// later frames may be granted: a stalled lane holds the others up after
	// that many frames, in exchange for a bitmap of fixed size. At least
	// maxWindow; a multiple of 64.
	reorderSpan = 4096

	// firstWindow is how many frames a transfer may send before the first of
	// them has arrived: one is under way while the receiver has the other in
	// hand. From there its window grows with what it uses. Where less than
	// half of the ring is left, firstScarce takes its place, so that many
	// transfers find room.
	firstWindow = 2
	firstScarce = 1

	// maxRepeats is how often the frame of a source that cannot be read again
	// is sent again on one connection. A link that damages one frame in a hundred
	// fails all of them once in 10^8 frames; what fails more often is broken, and is
	// given up like a connection that is lost.
	maxRepeats = 3

	// maxAcked is how many separate ranges of durable blocks a transfer notes for
	// frames that it will be given later. Blocks become durable in the chain's
	// order, one range; those that were there before make more. What is beyond is
	// acknowledged again when it is sent.
	maxAcked = 4096

	// maxBad is how many pieces that the caller has to send again a peer may
	// report between two flushes. A link that damages more is beyond repair by
	// repeating; the transfer is cancelled.
	maxBad = 1 << 16

	// maxAnswers is how many unsent refusals make a peer one that sends
	// without reading. A peer that follows the protocol has at most
	// MaxTransfers offers unanswered.
	maxAnswers = 1024

	// maxBacklog is how many unsent bytes of control messages make further
	// offers be refused as busy: two answers of the largest size.
	maxBacklog = 32 << 20

	// defaultHandshake is generous to a host that swaps, and short enough
	// that a wrong port is noticed.
	defaultHandshake = 10 * time.Second

	// defaultLinger bounds the wait of Close for a peer that does not read: a
	// result of the largest size needs 0.15 s at 1 Gbit/s.
	defaultLinger = time.Second

	// minLinger is what a caller gets who wants no wait: a peer that reads has
	// the farewell by then.
	minLinger = 10 * time.Millisecond

	// maxLinger and maxHandshake keep mistyped durations from looking like a
	// hang.
	maxLinger    = time.Minute
	maxHandshake = 10 * time.Minute
)

// Signs of life.
const (
	// defaultPing is far above any round trip, and one small message a second
	// costs nothing beside a transfer.
	defaultPing = time.Second

	// defaultLost leaves room for a carrier that repeats what was lost after
	// 0.2, 0.4, 0.8 and 1.6 s, and for a peer whose process stands still for
	// some seconds. A request waits that long for a host that is gone.
	defaultLost = 6 * time.Second

	// defaultIdlePing keeps a connection that nothing happens on alive in
	// firewalls that forget it after 30 s, and wakes a sleeping core rarely.
	defaultIdlePing = 15 * time.Second

	// defaultIdleLost is two pings unanswered and time to repeat them: nobody
	// waits, and a peer that comes back keeps its connection.
	defaultIdleLost = 45 * time.Second

	// stuckLosses is how many times longer a peer may be silent while the first
	// ping waits behind something that it does not read, or reads slowly: 30 s
	// for a plan of 16 MiB at 5 Mbit/s.
	stuckLosses = 5

	// lateLooks is how many intervals may lie between two looks before the
	// later one is no evidence: this process was held up, and what the peer
	// said meanwhile may still have to be read.
	lateLooks = 2

	// minPing keeps a mistyped interval from spinning, the others from looking
	// like none.
	minPing     = time.Millisecond
	maxPing     = time.Minute
	maxLost     = 10 * time.Minute
	maxIdlePing = 10 * time.Minute
	maxIdleLost = time.Hour
)

// controlGrace is how long a connection whose lane has failed waits for what
// the peer said last on the control channel: lanes and control may be sockets
// of their own, and a peer that closes after its result closes them all.
const controlGrace = 200 * time.Millisecond

// maxMetaHeld bounds the bytes of Meta that offers and incoming transfers of one
// connection hold: four plans of the largest size.
const maxMetaHeld = 4 * transport.MaxMeta
