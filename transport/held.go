package transport

import (
	"fmt"
	"sync/atomic"
)

// Held is a Lease as implementations of Outgoing have it, once they gave it out or
// when it came to them with Send: the same memory, seen from the other side. Whoever
// fills a lease has no use for it.
type Held Lease

// Held is for implementations of Outgoing: their view of the lease. It costs nothing.
func (l *Lease) Held() *Held { return (*Held)(l) }

// Reset gives a new lease, or one that has ended, a slot: leases may be used again.
func (h *Held) Reset(slot Slot) {
	h.slot, h.pieces, h.summed, h.used = slot, h.pieces[:0], h.summed[:0], 0
	h.from, h.lo, h.hi, h.narrow, h.framed, h.head = 0, 0, 0, false, "", nil
	h.limit = min(h.limit, len(slot.Payload()))
	h.ended.Store(false)
}

// End ends the lease and reports whether it was live. The slot then belongs to the
// caller.
func (h *Held) End() bool { return h.ended.CompareAndSwap(false, true) }

// Header is HeaderRoom bytes for the header of the frame that the lease becomes. They
// are the slot's own, but for a part that Split made: parts of one slot may be sent
// at the same time.
func (h *Held) Header() []byte {
	if h.head != nil {
		return h.head
	}
	return h.slot.Header()
}

// Slot is the slot of an ended lease.
func (h *Held) Slot() Slot { return h.slot }

// Free gives an ended lease, with its slot, back to where it came from, which may be
// another connection.
func (h *Held) Free() { h.release((*Lease)(h)) }

// Frame computes the sums that the caller did not give, or gave by another algorithm
// than sums, and returns the slot, the pieces (valid until Reset) and the payload.
func (h *Held) Frame(sums string, sum SumFunc) (slot Slot, pieces []Piece, payload []byte) {
	l := (*Lease)(h)
	payload = l.payload()
	at := 0
	for i := range h.pieces {
		n := int(h.pieces[i].Length)
		if !l.has(i, sums) {
			h.pieces[i].Sum = sum(payload[at : at+n])
		}
		at += n
	}
	h.framed = sums
	return h.slot, h.pieces, payload
}

// Revive returns a live lease with the slot, the pieces and the bytes of one that has
// ended, and must not be used any more. All pieces are wanted. It goes back to where
// that one would have.
func (h *Held) Revive() *Lease {
	l := (*Lease)(h)
	r := NewLease(h.limit, l.known(), h.release)
	r.slot, r.from, r.head, r.used = h.slot, h.from, h.head, h.used
	r.pieces = append(r.pieces, h.pieces...)
	for i := range h.pieces {
		r.summed = append(r.summed, l.has(i, r.sums))
	}
	return r
}

// MoveTo copies an ended lease into a live one, for a link that cannot send from the
// other's memory. Errors: ErrTooLarge.
func (h *Held) MoveTo(to *Lease) error {
	l := (*Lease)(h)
	if h.used > to.limit {
		return fmt.Errorf("%w: frame of %d bytes, limit %d", ErrTooLarge, h.used, to.limit)
	}
	to.pieces, to.summed = append(to.pieces[:0], h.pieces...), to.summed[:0]
	for i := range h.pieces {
		to.summed = append(to.summed, l.has(i, to.sums))
	}
	to.used, to.lo, to.hi, to.narrow = h.used, h.lo, h.hi, h.narrow
	copy(to.slot.Payload(), l.payload())
	return nil
}

// Split is for a connection that takes smaller frames than the one that the lease is
// of: it cuts an ended lease into live ones of at most limit bytes each, at least 1,
// which have its bytes in order. Pieces that are longer become several. What Narrow
// left out stays left out. They share the slot, which goes back to where it came from
// when the last of them has; the lease itself must not be used any more.
func (h *Held) Split(limit int) []*Lease {
	l := (*Lease)(h)
	c := cutter{l: l, limit: limit}
	lo, hi := l.Wanted()
	for i, p := range h.pieces {
		c.piece(p, l.has(i, l.known()), lo <= i && i < hi)
	}
	left := new(atomic.Int32)
	left.Store(int32(len(c.parts)))
	for _, part := range c.parts {
		part.narrow, part.limit = true, part.used // the memory behind it is the next part's
		part.head = make([]byte, HeaderRoom)
		part.release = func(*Lease) {
			if left.Add(-1) == 0 {
				h.release(l)
			}
		}
	}
	return c.parts
}
