package session

import (
	"context"
	"errors"
	"fmt"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// What an entry of a transfer's queue is.
const (
	isFrame = iota
	isMark
	isEnd
)

// rxFrame is a frame that was received, with memory for its lists, or a mark.
type rxFrame struct {
	d       transport.Delivery
	kind    int
	in      *incoming
	slot    transport.Slot
	seq     uint64
	size    int               // payload bytes as received
	repeat  bool              // its pieces were sent before
	saved   int               // bytes that did not have to travel
	codec   string            // that saved them
	payload []byte            // in slot
	pieces  []transport.Piece // verified ones; capacity MaxPieces
	starts  []uint32          // where they start in payload; capacity MaxPieces

	free   func(*transport.Delivery)                          // made once: a method value allocates
	answer func(*transport.Delivery, []transport.Piece) error // of a mark
}

func newRxFrame() *rxFrame {
	f := &rxFrame{
		pieces: make([]transport.Piece, 0, transport.MaxPieces),
		starts: make([]uint32, 0, transport.MaxPieces),
	}
	f.free = func(*transport.Delivery) { f.drop() }
	return f
}

func newMark(in *incoming, token uint64) *rxFrame {
	return &rxFrame{kind: isMark, answer: func(_ *transport.Delivery, missing []transport.Piece) error {
		return in.answerMark(token, missing)
	}}
}

// drop ends a frame, delivered or not. f serves another frame afterwards.
func (f *rxFrame) drop() { f.in.release(f) }

// writeLane writes frames, whichever comes next, until the connection ends.
func (c *conn) writeLane(lane int) {
	var h wire.FrameHeader
	for {
		f := c.ready.pop()
		if f == nil {
			select {
			case <-c.ready.wake:
			case <-c.down: // all transfers have ended, their frames are out of the queue
				return
			}
			continue
		}
		if err := c.writeFrame(lane, f, &h); err != nil {
			c.lose(fmt.Sprintf("write on lane %d", lane), err)
			return
		}
	}
}

func (c *conn) writeFrame(lane int, f *txFrame, h *wire.FrameHeader) error {
	o := f.o
	if o.dead() {
		o.wrote(f)
		return nil
	}
	pieces, payload := f.cut()
	*h = wire.FrameHeader{
		Handle: o.handle, Epoch: c.terms.Epoch, Seq: f.seq,
		Payload: uint32(len(payload)), Repeat: f.repeats > 0, Pieces: pieces,
	}
	header, err := wire.AppendFrame(f.lease.Held().Header()[:0], h)
	switch {
	case err != nil:
	case c.queuer != nil:
		if err = c.queuer.QueueFrame(lane, header, payload, f.written); err == nil {
			return nil
		}
	default:
		if err = c.d.WriteFrame(lane, header, payload); err == nil && c.packer != nil {
			f.saved, f.codec = c.packer.LastSent(lane)
		}
	}
	o.wrote(f)
	return err
}

// laneReader receives the frames of one lane.
type laneReader struct {
	c       *conn
	header  [transport.HeaderRoom]byte
	scratch []byte            // for payloads that nobody wants
	bad     []transport.Piece // damaged ones of the frame at hand
	f       *rxFrame          // the frame at hand
	claimed bool              // f has a slot
}

// readLane receives frames until the connection ends.
func (c *conn) readLane(lane int) {
	r := &laneReader{c: c, bad: make([]transport.Piece, 0, transport.MaxPieces), f: c.pool.getRx()}
	place := Placer(r.place)
	for {
		_, err := c.d.ReadFrame(lane, r.header[:], place)
		if err != nil {
			if r.claimed {
				r.f.drop()
			}
			c.lose(fmt.Sprintf("read on lane %d", lane), err)
			return
		}
		c.pulse.heard.Add(1)
		if !r.claimed {
			continue
		}
		if r.f.saved, r.f.codec = 0, ""; c.packer != nil {
			r.f.saved, r.f.codec = c.packer.LastReceived(lane)
		}
		if err := r.verify(); err != nil {
			r.f.drop()
			c.violated(err)
			return
		}
		r.f, r.claimed = c.pool.getRx(), false
	}
}

// place decides where the payload of a frame goes. It implements Placer: the
// driver has judged the header's fixed part.
func (r *laneReader) place(header []byte) ([]byte, error) {
	if r.claimed {
		return nil, errors.New("session: driver placed two payloads for one frame")
	}
	r.c.pulse.heard.Add(1) // a long payload may take its time
	h, err := wire.DecodeChecked(header, r.f.pieces[:0])
	if err != nil {
		return nil, err
	}
	if limit := r.c.facts.MaxPayload; int(h.Payload) > limit {
		return nil, fmt.Errorf("session: driver let a payload of %d bytes pass, agreed limit %d", h.Payload, limit)
	}
	if h.Epoch != r.c.terms.Epoch {
		return r.waste(int(h.Payload)), nil
	}
	in := r.c.incoming(h.Handle)
	if in == nil {
		return r.waste(int(h.Payload)), nil
	}
	take, err := in.claim(h.Seq)
	if err != nil {
		return nil, err
	}
	if !take {
		return r.waste(int(h.Payload)), nil
	}
	// The slot was promised, so this waits only where the ring's owner takes
	// slots past the promises.
	slot, err := in.ring.Take(context.Background(), r.c.down)
	if err != nil {
		in.unclaim()
		return nil, errDone
	}
	f := r.f
	f.kind, f.in, f.slot, f.seq, f.size, f.repeat = isFrame, in, slot, h.Seq, int(h.Payload), h.Repeat
	f.pieces, f.payload = h.Pieces, slot.Payload()[:h.Payload]
	r.claimed = true
	return f.payload, nil
}

// waste returns memory for a payload that is thrown away, at most the agreed
// limit of one frame.
func (r *laneReader) waste(n int) []byte {
	if n > len(r.scratch) {
		r.scratch = make([]byte, n)
	}
	return r.scratch[:n]
}

// verify checks the sums of the frame at hand, tells the peer of damaged pieces
// and delivers the others.
func (r *laneReader) verify() error {
	f, c := r.f, r.c
	at, good := uint32(0), 0
	r.bad, f.starts = r.bad[:0], f.starts[:0]
	for _, p := range f.pieces {
		if c.check && c.sum(f.payload[at:at+p.Length]) != p.Sum {
			r.bad = append(r.bad, p)
		} else {
			f.pieces[good] = p
			f.starts = append(f.starts, at)
			good++
		}
		at += p.Length
	}
	f.pieces = f.pieces[:good]
	if len(r.bad) > 0 {
		// Before the frame counts as arrived: a flush is answered after that,
		// and the peer has to know by then.
		msg, err := wire.AppendNack(nil, &wire.Nack{Handle: f.in.handle, Seq: f.seq, Pieces: r.bad})
		if err != nil {
			return fmt.Errorf("session: %w", err)
		}
		c.out.add(msg)
	}
	f.in.arrive(f, len(r.bad))
	return nil
}
