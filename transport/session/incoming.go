package session

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// incoming implements transport.Incoming, from the offer to the end.
type incoming struct {
	c      *conn
	handle uint32
	req    transport.Request
	done   chan struct{} // closed when the transfer has ended
	eof    chan struct{} // closed when Recv has said so
	queue  chan *rxFrame // room for every granted frame, every open flush and the end; made by Admit

	dirty bool // in the outbox's list; guarded by the outbox's mutex

	mu       sync.Mutex // guards the fields below
	decided  bool       // admitted or refused
	admitted bool
	ended    bool
	err      error // why it ended
	ring     *transport.Ring
	window   int // slots of ring that are promised to the transfer
	most     int // what window may grow to
	held     int // slots of ring that carry its frames now

	sent     uint64 // frames granted in all, as the peer was told
	released uint64 // frames whose slots are free again
	got      uint64 // frames that have arrived
	low      uint64 // every frame below has arrived
	claimed  bitmap // frames from low on that lanes have begun to read
	arrived  bitmap // frames from low on that have arrived

	marks    []flushMark // not delivered yet
	unclosed int         // flushes not answered yet
	final    bool        // the peer said Finish
	frames   uint64      // how many frames there are, once final
	acks     []wire.BlockRange
	stats    transport.Stats
}

// flushMark is a flush whose frames have not all arrived.
type flushMark struct{ token, frames uint64 }

// bitmap has a bit for each frame of a span that moves up.
type bitmap [reorderSpan / 64]uint64

func (b *bitmap) has(seq uint64) bool { return b[seq%reorderSpan/64]>>(seq%64)&1 != 0 }
func (b *bitmap) set(seq uint64)      { b[seq%reorderSpan/64] |= 1 << (seq % 64) }
func (b *bitmap) clear(seq uint64)    { b[seq%reorderSpan/64] &^= 1 << (seq % 64) }

// Request implements transport.Incoming and transport.Offer.
func (in *incoming) Request() transport.Request { return in.req }

// Recv implements transport.Incoming.
func (in *incoming) Recv(ctx context.Context) (*transport.Delivery, error) {
	select {
	case f := <-in.queue:
		return in.deliver(f)
	default:
	}
	select {
	case f := <-in.queue:
		return in.deliver(f)
	case <-in.done:
		return nil, in.why()
	case <-in.eof:
		if err := in.why(); err != nil {
			return nil, err
		}
		return nil, io.EOF
	case <-ctx.Done():
		return nil, fmt.Errorf("receive: %w", ctx.Err())
	}
}

func (in *incoming) deliver(f *rxFrame) (*transport.Delivery, error) {
	switch f.kind {
	case isMark:
		f.d.SetMark(f.answer)
	case isEnd:
		close(in.eof) // there is one end
		return nil, io.EOF
	default:
		f.d.SetFrame(f.pieces, f.starts, f.payload, f.free)
	}
	return &f.d, nil
}

// why is the error of calls after the end.
func (in *incoming) why() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.shut()
}

// shut is why the transfer has ended, nil before. The caller holds mu.
func (in *incoming) shut() error {
	if !in.ended {
		return nil
	}
	return in.c.explain(in.err)
}

// Ack implements transport.Incoming.
func (in *incoming) Ack(blocks ...uint32) error {
	in.mu.Lock()
	if err := in.shut(); err != nil {
		in.mu.Unlock()
		return err
	}
	for _, b := range blocks {
		if n := len(in.acks); n > 0 && uint64(in.acks[n-1].First)+uint64(in.acks[n-1].Count) == uint64(b) {
			in.acks[n-1].Count++
			continue
		}
		in.acks = append(in.acks, wire.BlockRange{First: b, Count: 1})
	}
	in.mu.Unlock()
	if len(blocks) > 0 {
		in.c.out.mark(in)
	}
	return nil
}

// Finish implements transport.Incoming. A result that is too large leaves the
// transfer as it was.
func (in *incoming) Finish(result []byte) error {
	if n, limit := len(result), in.c.facts.MaxMeta; n > limit {
		return fmt.Errorf("finish: %w: result of %d bytes, agreed limit %d", transport.ErrTooLarge, n, limit)
	}
	if err := in.why(); err != nil {
		return err
	}
	msg, err := wire.AppendResult(nil, &wire.Result{Handle: in.handle, Meta: result})
	if err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	if !in.endWith(errFinished, msg) {
		return in.why()
	}
	return nil
}

// Cancel implements transport.Incoming.
func (in *incoming) Cancel(reason string) {
	reason = wire.Printable(reason, transport.MaxReason)
	if in.end(&transport.CancelledError{Transfer: in.req.ID, Reason: reason}) {
		in.c.cancel(in.handle, false, reason)
	}
}

// Stats implements transport.Incoming.
func (in *incoming) Stats() transport.Stats {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.stats
}

// end ends the transfer once. It reports whether it was the one.
func (in *incoming) end(err error) bool { return in.endWith(err, nil) }

// endWith is end with a last message for the peer, which goes out before the
// connection can forget the transfer.
func (in *incoming) endWith(err error, msg []byte) bool {
	in.mu.Lock()
	if in.ended {
		in.mu.Unlock()
		return false
	}
	in.ended, in.err = true, err
	if msg != nil {
		in.c.out.add(msg)
	}
	if in.admitted {
		// Slots that are out stay promised until they come back, each by
		// itself.
		in.ring.Unpromise(in.window - in.held)
	}
	close(in.done)
	drop := in.drain()
	in.mu.Unlock()
	for _, f := range drop {
		f.drop()
	}
	in.c.forgetIncoming(in)
	return true
}

// drain empties the queue of what nobody will receive. The caller holds mu,
// without which nothing is put there.
func (in *incoming) drain() (frames []*rxFrame) {
	for {
		select {
		case f := <-in.queue:
			if f.kind == isFrame {
				frames = append(frames, f)
			}
		default:
			return frames
		}
	}
}

func (c *conn) forgetIncoming(in *incoming) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ins, in.handle)
	delete(c.live, in.key())
	c.metaHeld -= len(in.req.Meta)
	c.offers = slices.DeleteFunc(c.offers, func(o *incoming) bool { return o == in })
}

func (in *incoming) key() liveKey { return liveKey{in.req.ID, uint16(in.req.Part)} }

// claim is called by a lane that is about to read the payload of frame seq. take
// is false when the transfer has ended and the payload is to be thrown away. A
// claimed frame's slot is among the transfer's promised ones.
func (in *incoming) claim(seq uint64) (take bool, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.ended:
		return false, nil
	case seq >= in.sent: // nothing is granted before Admit either
		return false, wire.Violation("frame %d of transfer %v beyond the %d granted", seq, in.req.ID, in.sent)
	case seq < in.low || in.claimed.has(seq):
		return false, wire.Violation("frame %d of transfer %v came twice", seq, in.req.ID)
	case in.final && seq >= in.frames:
		return false, wire.Violation("frame %d of transfer %v, which finished with %d", seq, in.req.ID, in.frames)
	}
	in.claimed.set(seq)
	in.held++
	return true, nil
}

// arrive takes a frame whose payload is complete. bad counts its pieces that
// were damaged; f has the others.
func (in *incoming) arrive(f *rxFrame, bad int) {
	in.mu.Lock()
	if in.ended {
		in.mu.Unlock()
		f.drop()
		return
	}
	in.got++
	in.arrived.set(f.seq)
	for in.arrived.has(in.low) {
		in.arrived.clear(in.low)
		in.claimed.clear(in.low)
		in.low++
	}
	in.stats.Frames++
	in.stats.Bytes += uint64(f.size)
	in.stats.Pieces += uint64(len(f.pieces) + bad)
	in.stats.BadPiece += uint64(bad)
	if f.repeat {
		in.stats.Repeats++
		in.stats.RepeatBytes += uint64(f.size)
	}
	if f.codec != "" {
		in.stats.Saved += uint64(f.saved)
		in.stats.Codec = f.codec
	}
	in.widen()
	spoilt := len(f.pieces) == 0
	if spoilt {
		in.free(f)
	} else {
		in.queue <- f // room for all that was granted
	}
	in.advance()
	due := in.grantDue()
	in.mu.Unlock()
	if spoilt {
		in.c.pool.putRx(f)
	}
	if due {
		in.c.out.mark(in)
	}
}

// advance delivers the marks and the end that waited for the frames below low.
// The caller holds mu.
func (in *incoming) advance() {
	in.marks = slices.DeleteFunc(in.marks, func(m flushMark) bool {
		if m.frames > in.low {
			return false
		}
		in.queue <- newMark(in, m.token) // room for wire.MaxFlushes
		return true
	})
	if in.final && in.low == in.frames && len(in.marks) == 0 {
		in.queue <- &rxFrame{kind: isEnd} // room for one; low does not come here again
	}
}

// widen gives a transfer that uses its grants one more, as long as it has less of
// the ring than is left of it: n busy transfers come to rest at one part in n+1
// each, and the last part is there for whoever comes next. The caller holds mu.
func (in *incoming) widen() {
	if in.window < in.most && in.window < in.ring.Unpromised() {
		in.window += in.ring.Promise(1)
	}
}

// free gives f's slot back, and the promise of it where others have less. The
// caller holds mu.
func (in *incoming) free(f *rxFrame) {
	f.slot.Put()
	in.held--
	if in.ended {
		in.ring.Unpromise(1)
		return
	}
	in.released++
	// The slot that came free is not granted again yet.
	if in.window > firstWindow && in.window > in.ring.Unpromised()+1 {
		in.window--
		in.ring.Unpromise(1)
	}
}

// release is the end of a delivered frame, or of one that nobody wants.
func (in *incoming) release(f *rxFrame) {
	in.mu.Lock()
	in.free(f)
	due := !in.ended && in.grantDue()
	in.mu.Unlock()
	in.c.pool.putRx(f)
	if due {
		in.c.out.mark(in)
	}
	if in.c.closed.Load() {
		in.c.recv.settle()
	}
}

// grantable is how many frames may be granted in all. The caller holds mu.
func (in *incoming) grantable() uint64 {
	return min(in.released+uint64(in.window), in.low+reorderSpan)
}

// grantDue reports whether the peer should hear of new grants now: half a window
// of them, or few that it can have left. The caller holds mu.
func (in *incoming) grantDue() bool {
	fresh := in.grantable() - in.sent
	window := uint64(in.window)
	return fresh > 0 && (2*fresh >= window || 4*(in.sent-in.got) <= window)
}

// pending appends the acknowledgements that wait to ranges, and returns the
// grants to announce, 0 for none.
func (in *incoming) pending(ranges []wire.BlockRange) ([]wire.BlockRange, uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	ranges = append(ranges, in.acks...)
	in.acks = in.acks[:0]
	if in.ended || !in.admitted || !in.grantDue() {
		return ranges, 0
	}
	in.sent = in.grantable()
	return ranges, in.sent
}

// onFlush takes the peer's flush.
func (in *incoming) onFlush(m *wire.Flush) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.ended:
		return nil
	case !in.admitted:
		return wire.Violation("flush of transfer %v, which was not admitted", in.req.ID)
	case in.final:
		return wire.Violation("flush of transfer %v after its finish", in.req.ID)
	case m.Frames > in.sent:
		return wire.Violation("flush of %d frames of transfer %v, %d were granted", m.Frames, in.req.ID, in.sent)
	case in.unclosed == wire.MaxFlushes:
		return wire.Violation("more than %d flushes of transfer %v at a time", wire.MaxFlushes, in.req.ID)
	}
	in.unclosed++
	in.marks = append(in.marks, flushMark{m.Token, m.Frames})
	in.advance()
	return nil
}

// onFinish takes the peer's last word.
func (in *incoming) onFinish(m *wire.Finish) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.ended:
		return nil
	case !in.admitted:
		return wire.Violation("finish of transfer %v, which was not admitted", in.req.ID)
	case in.final:
		return wire.Violation("transfer %v finished twice", in.req.ID)
	case m.Frames > in.sent:
		return wire.Violation("transfer %v finished with %d frames, %d were granted", in.req.ID, m.Frames, in.sent)
	case in.beyond(m.Frames):
		return wire.Violation("transfer %v finished with %d frames, more have come", in.req.ID, m.Frames)
	}
	in.final, in.frames = true, m.Frames
	in.advance()
	return nil
}

// beyond reports whether frames from the n-th on have been claimed, or a flush
// has named them. The caller holds mu.
func (in *incoming) beyond(n uint64) bool {
	for seq := n; seq < in.sent; seq++ {
		if seq < in.low || in.claimed.has(seq) {
			return true
		}
	}
	return slices.ContainsFunc(in.marks, func(m flushMark) bool { return m.frames > n })
}

// answerMark answers a flush.
func (in *incoming) answerMark(token uint64, missing []transport.Piece) error {
	more := len(missing) > transport.MaxMissing
	missing = missing[:min(len(missing), transport.MaxMissing)]
	if slices.ContainsFunc(missing, func(p transport.Piece) bool { return p.Length == 0 }) {
		missing = slices.DeleteFunc(slices.Clone(missing), func(p transport.Piece) bool { return p.Length == 0 })
	}
	msg, err := wire.AppendFlushed(nil, &wire.Flushed{Handle: in.handle, Token: token, More: more, Missing: missing})
	if err != nil {
		in.Cancel("the receiver cannot say what is missing")
		return fmt.Errorf("answer flush: %w", err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if err := in.shut(); err != nil {
		return err
	}
	in.unclosed--
	in.c.out.add(msg)
	return nil
}

// unclaim takes a claim back whose slot could not be had because the connection
// is ending.
func (in *incoming) unclaim() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.held--
	if in.ended {
		in.ring.Unpromise(1)
	}
}
