package transport

import (
	"fmt"
	"sync/atomic"
)

// Lease is the right to fill one slot of the sender's ring. It belongs to one
// goroutine at a time. It ends once, by Outgoing.Send or Release; its memory
// must not be touched afterwards.
type Lease struct {
	slot    Slot
	pieces  []Piece // capacity is fixed when the lease is made
	summed  []bool  // pieces[i].Sum was given by the caller
	used    int
	limit   int
	ended   atomic.Bool
	release func(*Lease)
}

// NewLease is for implementations of Outgoing: a lease of slots whose payload is
// limited to limit bytes. release takes it back, ended and with its slot, when
// its holder calls Release; nil: the slot goes back to its ring.
func NewLease(limit int, release func(*Lease)) *Lease {
	if release == nil {
		release = func(l *Lease) { l.slot.Put() }
	}
	return &Lease{
		pieces: make([]Piece, 0, MaxPieces), summed: make([]bool, 0, MaxPieces), limit: limit, release: release,
	}
}

// Reset is for implementations of Outgoing, which may reuse ended leases.
func (l *Lease) Reset(slot Slot) {
	l.slot, l.pieces, l.summed, l.used = slot, l.pieces[:0], l.summed[:0], 0
	l.limit = min(l.limit, len(slot.Payload()))
	l.ended.Store(false)
}

// Room is how many more bytes a piece can have; 0 when the frame is full.
func (l *Lease) Room() int {
	if len(l.pieces) == cap(l.pieces) {
		return 0
	}
	return l.limit - l.used
}

// Empty reports whether the lease has no pieces yet.
func (l *Lease) Empty() bool { return len(l.pieces) == 0 }

// Reserve adds a piece of n bytes and returns the memory for it, inside the
// slot, to be filled before Send. The checksum is computed by Send. Errors:
// ErrTooLarge (n is above Room: send this lease and take another), ErrInvalid (n
// is below 1, or the piece would end past 2^64).
func (l *Lease) Reserve(block uint32, offset uint64, n int) ([]byte, error) {
	switch {
	case n < 1 || offset+uint64(n) < offset:
		return nil, fmt.Errorf("%w: piece of %d bytes at offset %d", ErrInvalid, n, offset)
	case n > l.Room():
		return nil, fmt.Errorf("%w: piece of %d bytes, room %d", ErrTooLarge, n, l.Room())
	}
	l.pieces = append(l.pieces, Piece{Block: block, Offset: offset, Length: uint32(n)})
	l.summed = append(l.summed, false)
	mem := l.slot.Payload()[l.used : l.used+n : l.used+n]
	l.used += n
	return mem, nil
}

// SetSum gives the checksum of the piece added last, for bytes that were summed
// where they were made. Send then does not compute it.
func (l *Lease) SetSum(sum uint64) {
	if i := len(l.pieces) - 1; i >= 0 {
		l.pieces[i].Sum, l.summed[i] = sum, true
	}
}

// Append copies as much of p as fits as one piece and returns how much that
// was: 0 when the frame is full, when p is empty, and for bytes that would end
// past 2^64.
func (l *Lease) Append(block uint32, offset uint64, p []byte) int {
	n := min(len(p), l.Room())
	if n < 1 {
		return 0
	}
	mem, err := l.Reserve(block, offset, n)
	if err != nil {
		return 0
	}
	return copy(mem, p)
}

// Release gives the lease back unsent. It panics on a lease that has ended
// already: its slot may carry somebody else's frame by now.
func (l *Lease) Release() {
	if !l.End() {
		panic("transport: lease released after its end")
	}
	l.release(l)
}

// End is for implementations of Outgoing: it ends the lease and reports whether
// it was live. The slot then belongs to the caller.
func (l *Lease) End() bool { return l.ended.CompareAndSwap(false, true) }

// Slot is for implementations of Outgoing: the slot of an ended lease.
func (l *Lease) Slot() Slot { return l.slot }

// Frame is for implementations of Outgoing: it computes the sums that the
// caller did not give and returns the slot, the pieces (valid until Reset) and
// the payload.
func (l *Lease) Frame(sum SumFunc) (slot Slot, pieces []Piece, payload []byte) {
	payload = l.slot.Payload()[:l.used]
	at := 0
	for i := range l.pieces {
		n := int(l.pieces[i].Length)
		if !l.summed[i] {
			l.pieces[i].Sum = sum(payload[at : at+n])
		}
		at += n
	}
	return l.slot, l.pieces, payload
}
