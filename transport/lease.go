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

// Reset is for implementations of Outgoing, which may reuse ended leases.
func (l *Lease) Reset(slot Slot) {
	l.slot, l.pieces, l.summed, l.used = slot, l.pieces[:0], l.summed[:0], 0
	l.from, l.lo, l.hi, l.narrow, l.framed, l.head = 0, 0, 0, false, "", nil
	l.limit = min(l.limit, len(slot.Payload()))
	l.ended.Store(false)
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
	if !l.End() {
		panic("transport: lease released after its end")
	}
	l.release(l)
}

// End is for implementations of Outgoing: it ends the lease and reports whether
// it was live. The slot then belongs to the caller.
func (l *Lease) End() bool { return l.ended.CompareAndSwap(false, true) }

// Header is for implementations of Outgoing: HeaderRoom bytes for the header of the
// frame that the lease becomes. They are the slot's own, but for a part that Split
// made: parts of one slot may be sent at the same time.
func (l *Lease) Header() []byte {
	if l.head != nil {
		return l.head
	}
	return l.slot.Header()
}

// Slot is for implementations of Outgoing: the slot of an ended lease.
func (l *Lease) Slot() Slot { return l.slot }

// Free is for implementations of Outgoing: it gives an ended lease, with its slot,
// back to where it came from, which may be another connection.
func (l *Lease) Free() { l.release(l) }

// Frame is for implementations of Outgoing: it computes the sums that the
// caller did not give, or gave by another algorithm than sums, and returns the
// slot, the pieces (valid until Reset) and the payload.
func (l *Lease) Frame(sums string, sum SumFunc) (slot Slot, pieces []Piece, payload []byte) {
	payload = l.payload()
	at := 0
	for i := range l.pieces {
		n := int(l.pieces[i].Length)
		if !l.has(i, sums) {
			l.pieces[i].Sum = sum(payload[at : at+n])
		}
		at += n
	}
	l.framed = sums
	return l.slot, l.pieces, payload
}

// has reports whether piece i has its sum by an algorithm.
func (l *Lease) has(i int, sums string) bool {
	if l.framed != "" {
		return l.framed == sums
	}
	return l.summed[i] && l.sums == sums
}

// Wanted is for implementations of Outgoing: the indices lo <= i < hi of the
// pieces that go on the wire.
func (l *Lease) Wanted() (lo, hi int) {
	if l.narrow {
		return l.lo, l.hi
	}
	return 0, len(l.pieces)
}

// Revive is for implementations of Outgoing: it returns a live lease with the
// slot, the pieces and the bytes of one that has ended, and must not be used any
// more. All pieces are wanted. It goes back to where that one would have.
func (l *Lease) Revive() *Lease {
	r := NewLease(l.limit, l.known(), l.release)
	r.slot, r.from, r.head, r.used = l.slot, l.from, l.head, l.used
	r.pieces = append(r.pieces, l.pieces...)
	for i := range l.pieces {
		r.summed = append(r.summed, l.has(i, r.sums))
	}
	return r
}

// known is the algorithm of the sums that the lease has.
func (l *Lease) known() string {
	if l.framed != "" {
		return l.framed
	}
	return l.sums
}

// MoveTo is for implementations of Outgoing: it copies an ended lease into a live
// one, for a link that cannot send from the other's memory. Errors: ErrTooLarge.
func (l *Lease) MoveTo(to *Lease) error {
	if l.used > to.limit {
		return fmt.Errorf("%w: frame of %d bytes, limit %d", ErrTooLarge, l.used, to.limit)
	}
	to.pieces, to.summed = append(to.pieces[:0], l.pieces...), to.summed[:0]
	for i := range l.pieces {
		to.summed = append(to.summed, l.has(i, to.sums))
	}
	to.used, to.lo, to.hi, to.narrow = l.used, l.lo, l.hi, l.narrow
	copy(to.slot.Payload(), l.payload())
	return nil
}

// Split is for implementations of Outgoing, whose connection takes smaller frames
// than the one that the lease is of: it cuts an ended lease into live ones of at
// most limit bytes each, at least 1, which have its bytes in order. Pieces that are
// longer become several. What Narrow left out stays left out. They share the slot,
// which goes back to where it came from when the last of them has; the lease itself
// must not be used any more.
func (l *Lease) Split(limit int) []*Lease {
	c := cutter{l: l, limit: limit}
	lo, hi := l.Wanted()
	for i, p := range l.pieces {
		c.piece(p, l.has(i, l.known()), lo <= i && i < hi)
	}
	left := new(atomic.Int32)
	left.Store(int32(len(c.parts)))
	for _, part := range c.parts {
		part.narrow, part.limit = true, part.used // the memory behind it is the next part's
		part.head = make([]byte, HeaderRoom)
		part.release = func(*Lease) {
			if left.Add(-1) == 0 {
				l.release(l)
			}
		}
	}
	return c.parts
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
