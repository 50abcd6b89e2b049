package transport

import (
	"fmt"
	"sync/atomic"
)

// Lease is the right to fill one slot of the sender's ring. It belongs to one
// goroutine at a time. It ends once, by Outgoing.Send or Release; its memory
// must not be touched afterwards. What implementations of Outgoing do with it is
// in [Held].
type Lease struct {
	slot    Slot
	from    int     // where in the slot's payload the lease's begins; 0 but for parts of another lease
	pieces  []Piece // capacity is fixed when the lease is made
	summed  []bool  // pieces[i].Sum was given by the caller
	used    int
	limit   int
	lo, hi  int    // the pieces that Send puts on the wire, where narrow
	narrow  bool   // Narrow was called
	head    []byte // of a part, whose slot has other parts; nil: the slot's
	sums    string // the algorithm of the sums that were given
	framed  string // the algorithm of the sums that all pieces have; "": some have none yet
	ended   atomic.Bool
	release func(*Lease)
}

// NewLease is for implementations of Outgoing: a lease of slots whose payload is
// limited to limit bytes, for a connection with the checksum algorithm sums.
// release takes it back, ended and with its slot, when its holder calls Release or
// whoever it was sent with calls Free; nil: the slot goes back to its ring.
func NewLease(limit int, sums string, release func(*Lease)) *Lease {
	if release == nil {
		release = func(l *Lease) { l.slot.Put() }
	}
	return &Lease{
		pieces: make([]Piece, 0, MaxPieces), summed: make([]bool, 0, MaxPieces), limit: limit, sums: sums, release: release,
	}
}

// Room is how many more bytes a piece can have; 0 when the frame is full.
func (l *Lease) Room() int {
	if l.narrow || len(l.pieces) == cap(l.pieces) {
		return 0
	}
	return l.limit - l.used
}

// payload is the memory of the bytes that the lease has.
func (l *Lease) payload() []byte { return l.slot.Payload()[l.from : l.from+l.used] }

// Size is how many bytes the lease has.
func (l *Lease) Size() int { return l.used }

// Empty reports whether the lease has no pieces yet.
func (l *Lease) Empty() bool { return len(l.pieces) == 0 }

// Pieces is what the lease has so far, valid until it ends. Sums of pieces that
// Send computes are not there yet. Read only.
func (l *Lease) Pieces() []Piece { return l.pieces }

// Data is the bytes of piece i, valid until the lease ends. The work grows with i.
func (l *Lease) Data(i int) []byte {
	at := 0
	for _, p := range l.pieces[:i] {
		at += int(p.Length)
	}
	n := int(l.pieces[i].Length)
	return l.payload()[at : at+n : at+n]
}

// Narrow says that the peer has all pieces of the lease but those of index
// lo <= i < hi: Send puts only them on the wire. A transfer that is not Replayable
// keeps the others with them, to send them when the peer turns out to miss them.
// With lo == hi nothing goes on the wire, which needs no grant. Further pieces
// cannot be added. It panics on indices that are none.
func (l *Lease) Narrow(lo, hi int) {
	_ = l.pieces[lo:hi]
	l.lo, l.hi, l.narrow = lo, hi, true
}

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
	if !l.Held().End() {
		panic("transport: lease released after its end")
	}
	l.release(l)
}

// has reports whether piece i has its sum by an algorithm.
func (l *Lease) has(i int, sums string) bool {
	if l.framed != "" {
		return l.framed == sums
	}
	return l.summed[i] && l.sums == sums
}

// Wanted is the indices lo <= i < hi of the pieces that go on the wire: all, or
// those that Narrow left.
func (l *Lease) Wanted() (lo, hi int) {
	if l.narrow {
		return l.lo, l.hi
	}
	return 0, len(l.pieces)
}

// known is the algorithm of the sums that the lease has.
func (l *Lease) known() string {
	if l.framed != "" {
		return l.framed
	}
	return l.sums
}

// cutter makes the parts of a lease.
type cutter struct {
	l     *Lease
	limit int
	parts []*Lease
	at    int // bytes of l that the parts have
}

// piece appends a piece of the lease to the parts.
func (c *cutter) piece(p Piece, summed, wanted bool) {
	for whole := p.Length; p.Length > 0; {
		to := c.room()
		q := p
		q.Length = min(p.Length, uint32(to.Room()))
		to.pieces, to.summed = append(to.pieces, q), append(to.summed, summed && q.Length == whole)
		to.used += int(q.Length)
		n := len(to.pieces)
		switch {
		case !wanted:
		case to.lo == to.hi:
			to.lo, to.hi = n-1, n
		default:
			to.hi = n
		}
		c.at += int(q.Length)
		p.Offset, p.Length = p.Offset+uint64(q.Length), p.Length-q.Length
	}
}

// room is a part that takes a further byte.
func (c *cutter) room() *Lease {
	if n := len(c.parts); n > 0 && c.parts[n-1].Room() > 0 {
		return c.parts[n-1]
	}
	part := NewLease(c.limit, c.l.known(), nil)
	part.slot, part.from = c.l.slot, c.at
	c.parts = append(c.parts, part)
	return part
}
