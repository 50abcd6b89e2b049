package transport

import "sync/atomic"

// Delivery is what Incoming.Recv lends: a frame of verified pieces, or a mark
// that the sender's flush left in the stream. It belongs to one goroutine at a
// time and ends with Release (a frame) or Flushed (a mark), exactly once. Ending
// it twice, or by the method of the other kind, is a fault of the program that
// would lose a slot or leave the sender waiting, so it panics.
type Delivery struct {
	pieces  []Piece
	payload []byte
	starts  []uint32
	mark    bool
	ended   atomic.Bool
	release func(*Delivery)
	flushed func(*Delivery, []Piece) error
}

// Mark reports whether this is a mark instead of a frame. The receiver makes
// durable what was delivered before it and answers with Flushed.
func (d *Delivery) Mark() bool { return d.mark }

// Pieces are the frame's verified pieces, valid until Release.
func (d *Delivery) Pieces() []Piece { return d.pieces }

// Data is the bytes of piece i, valid until Release.
func (d *Delivery) Data(i int) []byte {
	at := d.starts[i]
	return d.payload[at : at+d.pieces[i].Length : at+d.pieces[i].Length]
}

// Release gives the frame's memory back, which grants the sender another
// frame. It panics when called twice and on a mark.
func (d *Delivery) Release() {
	if d.mark {
		panic("transport: mark released; Flushed ends it")
	}
	if !d.ended.CompareAndSwap(false, true) {
		panic("transport: delivery released twice")
	}
	if d.release != nil {
		d.release(d)
	}
}

// Flushed answers a mark: everything delivered before it is durable except
// missing, which the sender is asked to send again. The list is cut at
// MaxMissing entries; entries of no bytes are left out. It panics when called
// twice and on a frame. Errors: ErrInvalid (an entry would end past 2^64; the
// transfer is then cancelled, since its sender must not wait for ever),
// ErrCancelled, ErrLost, ErrClosed.
func (d *Delivery) Flushed(missing []Piece) error {
	if !d.mark {
		panic("transport: frame answered as a mark; Release ends it")
	}
	if !d.ended.CompareAndSwap(false, true) {
		panic("transport: mark answered twice")
	}
	if d.flushed == nil {
		return nil
	}
	return d.flushed(d, missing)
}

// SetFrame is for implementations of Incoming: it makes d a frame whose piece i
// starts at starts[i] of payload. release is called once.
func (d *Delivery) SetFrame(pieces []Piece, starts []uint32, payload []byte, release func(*Delivery)) {
	d.pieces, d.starts, d.payload, d.release, d.flushed, d.mark = pieces, starts, payload, release, nil, false
	d.ended.Store(false)
}

// SetMark is for implementations of Incoming: it makes d a mark that flushed
// answers.
func (d *Delivery) SetMark(flushed func(*Delivery, []Piece) error) {
	d.pieces, d.starts, d.payload, d.release, d.flushed, d.mark = nil, nil, nil, nil, flushed, true
	d.ended.Store(false)
}
