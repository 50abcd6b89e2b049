package session

import (
	"context"
	"fmt"
	"slices"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// repeats is what an outgoing transfer whose source cannot be read again sends
// again by itself: it keeps the frames, so it has the bytes. The transfer's
// mutex guards it.
type repeats struct {
	again      []*txFrame    // kept frames that wait for a grant to be sent again, oldest first
	lacking    int           // kept frames whose lack is not empty: those in again, and others that are being written
	settled    chan struct{} // closed when lacking comes down to 0; nil while it is 0
	repeatedTo uint64        // frames that were sent again have lower numbers
}

// openFlush is a flush that the peer has not answered.
type openFlush struct {
	frames   uint64        // it speaks of those with lower numbers
	answered chan struct{} // closed by the answer
}

// span is the indices lo <= i < hi.
type span struct{ lo, hi int }

func (s span) empty() bool { return s.lo == s.hi }

// join is the smallest span that has both.
func (s span) join(t span) span {
	switch {
	case s.empty():
		return t
	case t.empty():
		return s
	}
	return span{min(s.lo, t.lo), max(s.hi, t.hi)}
}

// cut is the pieces of f that are sent this time, and their bytes.
func (f *txFrame) cut() ([]transport.Piece, []byte) {
	pieces := f.pieces[f.part.lo:f.part.hi]
	return pieces, f.payload[size(f.pieces[:f.part.lo]):][:size(pieces)]
}

// size is how many bytes pieces have together.
func size(pieces []transport.Piece) (n int) {
	for i := range pieces {
		n += int(pieces[i].Length)
	}
	return n
}

// lacks notes that the peer lacks pieces of a kept frame, which is sent again
// from the first of them to the last. Its error ends the connection: the frame was
// sent often enough, and a slot that nobody can empty would hold up who waits for
// one. The caller holds mu and calls repeat.
func (o *outgoing) lacks(f *txFrame, pieces span) error {
	if f.lack.empty() {
		if f.repeats == maxRepeats {
			return fmt.Errorf("%w: transfer %v, a frame with block %d: %d times", transport.ErrDamaged, o.id, f.pieces[pieces.lo].Block, maxRepeats+1)
		}
		if o.lacking++; o.settled == nil {
			o.settled = make(chan struct{})
		}
		if !f.busy {
			o.again = append(o.again, f)
		}
	}
	f.lack = f.lack.join(pieces)
	return nil
}

// repeat sends again what waits for that, as far as grants reach. The caller
// holds mu.
func (o *outgoing) repeat() {
	for len(o.again) > 0 && o.next < o.granted {
		f := o.again[0]
		o.again = slices.Delete(o.again, 0, 1)
		f.part, f.seq, f.busy = f.lack, o.next, true
		f.repeats++
		o.settle(f)
		o.next++
		o.repeatedTo = o.next
		pieces, payload := f.cut()
		o.stats.Frames++
		o.stats.Bytes += uint64(len(payload))
		o.stats.Pieces += uint64(len(pieces))
		o.stats.Repeats++
		o.stats.RepeatBytes += uint64(len(payload))
		o.c.ready.push(f)
	}
}

// settle notes that nothing of f has to be sent again any more, or that it is on
// its way. The caller holds mu.
func (o *outgoing) settle(f *txFrame) {
	if f.lack.empty() {
		return
	}
	f.lack = span{}
	if o.lacking--; o.lacking == 0 {
		close(o.settled)
		o.settled = nil
	}
}

// forgive is settle for a frame that is not kept any more. The caller holds mu.
func (o *outgoing) forgive(f *txFrame) {
	if f.lack.empty() {
		return
	}
	o.settle(f)
	o.again = slices.DeleteFunc(o.again, func(x *txFrame) bool { return x == f })
}

// repeated reports whether pieces were sent again, or have to be, that a flush
// of frames said nothing about.
func (o *outgoing) repeated(frames uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lacking > 0 || o.repeatedTo > frames
}

// repeating waits until all that has to be sent again is on its way.
func (o *outgoing) repeating(ctx context.Context) error {
	o.mu.Lock()
	settled := o.settled
	o.mu.Unlock()
	if settled == nil {
		return nil
	}
	select {
	case <-settled:
		return nil
	case <-o.done:
		return o.why()
	case <-ctx.Done():
		return fmt.Errorf("flush: send missing pieces again: %w", ctx.Err())
	}
}

// onNack takes note of pieces that arrived damaged.
func (o *outgoing) onNack(m *wire.Nack) error {
	if err := o.answered("nack"); err != nil {
		return err
	}
	o.mu.Lock()
	if m.Seq >= o.next {
		o.mu.Unlock()
		return wire.Violation("nack of frame %d of transfer %v, %d were sent", m.Seq, o.id, o.next)
	}
	o.stats.BadPiece += uint64(len(m.Pieces))
	rest := m.Pieces
	var err error
	if !o.replay {
		rest, err = o.damaged(m)
	}
	o.mu.Unlock()
	o.miss(rest, false)
	return err
}

// damaged has damaged pieces sent again and returns those that cannot be. Its error
// ends the connection. The caller holds mu.
func (o *outgoing) damaged(m *wire.Nack) ([]transport.Piece, error) {
	i := slices.IndexFunc(o.kept, func(f *txFrame) bool { return f.seq == m.Seq })
	if i < 0 {
		return nil, nil // its blocks are durable by now, whoever sent them
	}
	f, bad := o.kept[i], span{}
	for _, p := range m.Pieces {
		at := slices.IndexFunc(f.pieces, func(q transport.Piece) bool { return q.Block == p.Block && q.Offset == p.Offset })
		if at < 0 {
			return m.Pieces, nil // the peer means something else
		}
		bad = bad.join(span{at, at + 1})
	}
	if err := o.lacks(f, bad); err != nil {
		return nil, err
	}
	o.repeat()
	return nil, nil
}

// recall has pieces sent again that the peer misses although it was given all
// frames below a number, and returns what cannot be. Its error ends the connection.
// The caller holds mu. The work is bounded by the pieces of the kept frames and by
// those that are missing.
func (o *outgoing) recall(missing []transport.Piece, below uint64) (rest []transport.Piece, err error) {
	want, have := transport.BlockCoverage{}, transport.BlockCoverage{}
	for _, p := range missing {
		want.Add(p)
	}
	for _, f := range o.kept {
		var lost span
		for i, p := range f.pieces {
			if want.Touches(p) {
				lost = lost.join(span{i, i + 1})
			}
		}
		// What has a higher number is on its way, and the next flush tells.
		said := f.seq < below || f.seq == neverSent
		if lost.empty() {
			continue
		}
		if said {
			if err := o.lacks(f, lost); err != nil {
				return nil, err
			}
		}
		for _, p := range f.pieces[lost.lo:lost.hi] {
			have.Add(p)
		}
	}
	o.repeat()
	for _, p := range missing {
		c := have[p.Block]
		if c == nil {
			rest = append(rest, p)
			continue
		}
		for r := range c.Uncovered(p.Range()) {
			rest = append(rest, transport.Piece{Block: p.Block, Offset: r.Begin, Length: uint32(r.End - r.Begin)})
		}
	}
	return rest, nil
}
