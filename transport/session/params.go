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

	// maxLanes bounds Options.Lanes: two goroutines each, and no link profits
	// from more.
	maxLanes = 64

	// maxFlushes is how many flushes of one transfer wait for answers at a
	// time; further callers queue at the sender. A flush waits for a disk, so
	// more of them in flight help nobody.
	maxFlushes = 4

	// maxBad is how many pieces a peer may report bad between two flushes. A
	// link that damages more is beyond repair by repeating; the transfer is
	// cancelled.
	maxBad = 1 << 16

	// maxAnswers is how many unsent refusals make a peer one that sends
	// without reading. A peer that follows the protocol has at most
	// MaxTransfers offers unanswered.
	maxAnswers = 1024

	// maxBacklog is how many unsent bytes of control messages make further
	// offers be refused as busy: two answers of the largest size.
	maxBacklog = 32 << 20

	// ackBatch is how many ranges one acknowledgement carries: 32 KiB, far
	// below the bound of a message.
	ackBatch = 4096

	// defaultHandshake is generous to a host that swaps, and short enough
	// that a wrong port is noticed.
	defaultHandshake = 10 * time.Second

	// defaultLinger bounds the wait of Close for a peer that does not read: a
	// result of the largest size needs 0.15 s at 1 Gbit/s.
	defaultLinger = time.Second

	// maxLinger and maxHandshake keep mistyped durations from looking like a
	// hang.
	maxLinger    = time.Minute
	maxHandshake = 10 * time.Minute
)

// controlGrace is how long a connection whose lane has failed waits for what
// the peer said last on the control channel: lanes and control may be sockets
// of their own, and a peer that closes after its result closes them all.
const controlGrace = 200 * time.Millisecond

// maxMetaHeld bounds the bytes of Meta that offers and incoming transfers of one
// connection hold: four plans of the largest size.
const maxMetaHeld = 4 * transport.MaxMeta
