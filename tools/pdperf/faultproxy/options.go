// Package faultproxy forwards byte streams and does to them what bad cables,
// middle boxes and slow links do: it cuts, half-closes, flips bits, delays and
// limits the rate. It sits below all framing and knows none.
package faultproxy

import "time"

// Options are the faults. The zero value forwards everything unchanged. Bytes
// are counted over both directions and all connections together, in the order
// in which they are forwarded.
type Options struct {
	// Seed decides the random choices: the same bytes in the same order are
	// damaged in the same places. Order between connections is not decided.
	Seed uint64

	// CutAfter ends all connections once so many bytes have passed since the
	// start or the last cut. 0: never.
	CutAfter int64

	// Cuts is how often that happens. 0: once; negative: every time.
	Cuts int

	// Reset makes a cut a reset instead of an orderly end of the stream.
	Reset bool

	// HalfClose makes a cut end only the direction whose byte it was, in
	// order; what else comes there is thrown away, and the other direction
	// goes on. It goes before Reset.
	HalfClose bool

	// CorruptEvery flips one random bit in about every so many bytes: the gaps
	// are uniform up to twice as many. 0: none.
	CorruptEvery int64

	// Delay is added to the way of each byte, in each direction. It does not
	// limit the rate, up to the bytes that the proxy holds (holdBytes): beyond
	// holdBytes per Delay it does.
	Delay time.Duration

	// Rate limits each direction, all connections together, in bytes a second.
	// 0: no limit.
	Rate int64

	// OnEvent, when set, is told what happens, from several goroutines. It
	// must not block.
	OnEvent func(Event)
}

// Kind says what an Event is.
type Kind string

// Kinds of events.
const (
	Opened    Kind = "open"      // a connection came and the target took it
	Refused   Kind = "refused"   // a connection came and was dropped; Err says why
	Ended     Kind = "end"       // both directions of a connection have ended
	Cut       Kind = "cut"       // all connections were ended on purpose
	HalfCut   Kind = "half-cut"  // one direction was ended on purpose
	Corrupted Kind = "corrupted" // a bit was flipped
)

// Event is one thing that happened.
type Event struct {
	Kind        Kind
	Conn        int    // number of the connection, from 1
	Remote      string // who dialled it
	Offset      int64  // bytes that had passed, for Cut, HalfCut and Corrupted
	FromDialler bool   // the direction, for Cut, HalfCut and Corrupted
	Err         error  // for Refused
}

// Stats counts what happened so far.
type Stats struct {
	Conns        int   // connections that were forwarded
	FromDialler  int64 // bytes forwarded from the dialling ends to the target
	FromTarget   int64 // bytes forwarded the other way
	Cuts         int   // of both kinds
	Corruptions  int   // bits flipped
	OpenNow      int   // connections that are open
	RefusedConns int   // connections that were dropped at once
}

const (
	// chunkBytes is how much is read, delayed and written at a time. Larger
	// ones would make the rate of a slow link come in bursts.
	chunkBytes = 64 << 10

	// holdBytes bounds what one direction of one connection holds while its
	// bytes wait: the bandwidth-delay product of 10 Gbit/s at 3 ms, or of
	// 160 Mbit/s at 200 ms.
	holdBytes = 4 << 20

	// maxConns bounds the connections at a time: two goroutines and up to two
	// times holdBytes each.
	maxConns = 64

	// acceptPause is how long to wait after accepting failed, for want of
	// descriptors for example.
	acceptPause = 50 * time.Millisecond
)
