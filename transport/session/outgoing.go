package session

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// outgoing implements transport.Outgoing.
type outgoing struct {
	c      *conn
	handle uint32
	id     transport.ID
	replay bool // slots are free once written
	ring   *transport.Ring
	keep   *transport.Salvage // where frames go that outlive the connection; nil: nowhere

	opened    chan struct{} // closed when the peer has admitted the transfer
	done      chan struct{} // closed when the transfer has ended
	wake      chan struct{} // capacity 1: there may be a grant to use
	flushing  chan struct{} // capacity wire.MaxFlushes: flushes that the peer has not answered
	finishing chan struct{} // capacity 1: held by Finish

	mu       sync.Mutex // guards the fields below
	admitted bool
	ended    bool
	err      error // why it ended, for every call but Finish
	rescue   bool  // it ended otherwise than by a cancel, and its frames go to keep
	answer   []byte
	result   []byte
	resulted bool // result came; Finish returns it whatever err says
	final    bool // Finish was said: nothing may be sent any more

	next, granted uint64                // frames sent; frames that may be sent in all
	kept          []*txFrame            // frames whose slots are not free
	acked         transport.Coverage    // blocks that are durable, as ranges of indices, at most maxAcked
	tokens        uint64                // the last flush's
	flushes       map[uint64]*openFlush // by token
	missing       []transport.Piece     // to be listed by the next flush
	more          bool                  // the peer's list was cut
	stats         transport.Stats

	repeats // what is sent again

	wreck   wreck      // of a transfer that ended
	handing sync.Mutex // held from taking the wreck until the opener has it: two parts keep their order

	line sendLine // its frames in conn.ready, whose mutex guards it
}

// txFrame is a frame on its way. The transfer's mutex guards the fields from
// blocks on; the others belong to Send or, when it is sent again, to the
// transfer's mutex, until the frame is queued, then to the lane that writes it,
// then to whoever drops it.
type txFrame struct {
	o       *outgoing
	lease   *transport.Lease
	seq     uint64            // of the last time that it was sent
	pieces  []transport.Piece // all that the slot has
	payload []byte            // theirs
	part    span              // pieces that are sent: at first all that the peer lacks

	blocks  []uint32 // touched and not durable yet, without repeats
	busy    bool     // queued or being written
	at      int      // index in outgoing.kept
	lack    span     // pieces that the peer lacks and that have to be sent again
	repeats int      // how often it was sent again
	saved   int      // bytes that did not have to travel the last time
	codec   string   // that saved them

	next *txFrame // in the queue, whose mutex guards it

	written func() // tells o that the link no longer needs the bytes; made once: a method value allocates
}

func newTxFrame() *txFrame {
	f := &txFrame{blocks: make([]uint32, 0, transport.MaxPieces)}
	f.written = func() { f.o.wrote(f) }
	return f
}

func newOutgoing(c *conn, handle uint32, r transport.Request, ring *transport.Ring) *outgoing {
	keep := r.Salvage
	if r.Replayable {
		keep = nil
	}
	return &outgoing{
		c: c, handle: handle, id: r.ID, replay: r.Replayable, ring: ring, keep: keep,
		opened: make(chan struct{}), done: make(chan struct{}),
		wake:      make(chan struct{}, 1),
		flushing:  make(chan struct{}, wire.MaxFlushes),
		finishing: make(chan struct{}, 1),
		flushes:   make(map[uint64]*openFlush, wire.MaxFlushes),
	}
}

// offer says Open.
func (o *outgoing) offer(r transport.Request) error {
	msg, err := wire.AppendOpen(nil, &wire.Open{
		Handle: o.handle, ID: r.ID, Part: uint16(r.Part), Parts: uint16(r.Parts),
		Replayable: r.Replayable, Kind: r.Kind, Meta: r.Meta,
	})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	o.c.out.add(msg)
	return nil
}

// await waits until the peer has admitted the transfer. What came right after that
// the caller hears from the transfer.
func (o *outgoing) await(ctx context.Context) error {
	select {
	case <-o.opened:
	case <-o.done:
	case <-ctx.Done():
	}
	select {
	case <-o.opened:
		return nil
	default:
	}
	if err := o.why(); err != nil {
		return err
	}
	o.Cancel("the opener did not wait for an answer")
	return fmt.Errorf("open: wait for the peer's answer: %w", ctx.Err())
}

// Answer implements transport.Outgoing.
func (o *outgoing) Answer() []byte { return o.answer }

// why is the error of calls after the end.
func (o *outgoing) why() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.shut()
}

// shut is why nothing can be sent, nil while it can. The caller holds mu.
func (o *outgoing) shut() error {
	switch {
	case o.ended:
		return o.c.explain(o.err)
	case o.final:
		return errFinished
	}
	return nil
}

// Lease implements transport.Outgoing.
func (o *outgoing) Lease(ctx context.Context) (*transport.Lease, error) {
	if err := o.why(); err != nil {
		return nil, err
	}
	slot, err := o.ring.Take(ctx, o.done)
	if err != nil {
		if why := o.why(); why != nil {
			return nil, why
		}
		return nil, fmt.Errorf("lease: %w", err)
	}
	// The end may have come meanwhile, and with it a ring that waits for its
	// slots to be unmapped.
	if err := o.why(); err != nil {
		slot.Put()
		return nil, err
	}
	l := o.c.pool.getLease()
	l.Held().Reset(slot)
	return l, nil
}

// Send implements transport.Outgoing.
func (o *outgoing) Send(ctx context.Context, l *transport.Lease) error {
	if !l.Held().End() {
		panic("session: lease sent after its end")
	}
	if l.Empty() {
		l.Held().Free()
		return o.why()
	}
	if limit := o.c.facts.MaxPayload; l.Size() > limit {
		return o.sendParts(ctx, l.Held().Split(limit))
	}
	return o.send(ctx, l)
}

// sendParts sends a lease of a connection with larger frames than this one's, cut
// into parts.
func (o *outgoing) sendParts(ctx context.Context, parts []*transport.Lease) (err error) {
	for _, l := range parts {
		l.Held().End()
		if err == nil {
			err = o.send(ctx, l)
		} else {
			o.reject(l)
		}
	}
	return err
}

// send sends an ended lease that fits into a frame.
func (o *outgoing) send(ctx context.Context, l *transport.Lease) error {
	err := o.why()
	if err == nil && !l.Held().Slot().Of(o.ring) {
		if l, err = o.move(ctx, l); l == nil {
			return err
		}
	}
	if err != nil {
		o.reject(l)
		return err
	}
	lo, hi := l.Wanted()
	if lo == hi && o.needless(l.Pieces()) {
		l.Held().Free()
		return nil
	}
	f := o.c.pool.getTx()
	f.o, f.lease, f.part = o, l, span{lo, hi}
	_, f.pieces, f.payload = l.Held().Frame(o.c.facts.Sum, o.c.sum)
	if f.part.empty() {
		err = o.hold(f)
	} else {
		err = o.queue(ctx, f)
	}
	if err != nil {
		o.c.pool.putTx(f)
		o.reject(l)
	}
	return err
}

// queue waits for a grant and hands f to the lanes.
func (o *outgoing) queue(ctx context.Context, f *txFrame) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	for {
		queued, err := o.tryQueue(f)
		if queued || err != nil {
			return err
		}
		select {
		case <-o.wake:
		case <-o.done:
		case <-ctx.Done():
			return fmt.Errorf("send: wait for a grant: %w", ctx.Err())
		}
	}
}

func (o *outgoing) tryQueue(f *txFrame) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.shut(); err != nil {
		return false, err
	}
	if o.next >= o.granted {
		return false, nil
	}
	f.seq, f.busy = o.next, true
	o.touch(f)
	o.next++
	pieces, payload := f.cut()
	o.stats.Frames++
	o.stats.Bytes += uint64(len(payload))
	o.stats.Pieces += uint64(len(pieces))
	f.at = len(o.kept)
	o.kept = append(o.kept, f)
	o.c.ready.push(f) // under mu, so that the transfer's end cannot come between
	if o.next < o.granted {
		signal(o.wake)
	}
	return true, nil
}

// touch lists the blocks that f has to be kept for. The caller holds mu.
func (o *outgoing) touch(f *txFrame) {
	f.blocks = f.blocks[:0]
	if o.replay {
		return
	}
	for i := range f.pieces {
		b := f.pieces[i].Block
		if n := len(f.blocks); n > 0 && (f.blocks[n-1] == b || slices.Contains(f.blocks, b)) {
			continue
		}
		if !o.durable(b) {
			f.blocks = append(f.blocks, b)
		}
	}
}

// durable reports whether block b was acknowledged. The caller holds mu.
func (o *outgoing) durable(b uint32) bool {
	return o.acked.Covers(transport.Range{Begin: uint64(b), End: uint64(b) + 1})
}

// wrote is called by a lane when the link no longer needs f. The frame may be
// gone when it returns.
func (o *outgoing) wrote(f *txFrame) {
	o.mu.Lock()
	f.busy = false
	if f.codec != "" {
		o.stats.Saved += uint64(f.saved)
		o.stats.Codec = f.codec
		f.saved, f.codec = 0, ""
	}
	free := len(f.blocks) == 0
	saved := o.rescue && !free
	free = free || o.ended && !saved
	if o.rescue {
		o.wreck.busy--
	}
	switch {
	case free:
		o.unkeep(f)
	case saved:
		o.wreck.frames = append(o.wreck.frames, f)
	case !f.lack.empty(): // the peer was faster
		o.again = append(o.again, f)
		o.repeat()
	}
	rescue := o.rescue
	o.mu.Unlock()
	if free {
		o.c.drop(f)
	}
	if rescue {
		o.recover()
	}
}

// unkeep takes f off the list of kept frames, if it is there. The caller holds
// mu.
func (o *outgoing) unkeep(f *txFrame) {
	last := len(o.kept) - 1
	if f.at > last || o.kept[f.at] != f {
		return
	}
	moved := o.kept[last]
	o.kept[f.at], moved.at = moved, f.at
	o.kept[last] = nil
	o.kept = o.kept[:last]
	o.forgive(f)
}

// drop gives back what a frame that nobody needs holds.
func (c *conn) drop(f *txFrame) {
	l := f.lease
	c.pool.putTx(f)
	l.Held().Free()
}

// takeBack takes an ended lease of this connection's back, and its slot.
func (c *conn) takeBack(l *transport.Lease) {
	l.Held().Slot().Put()
	c.pool.putLease(l)
	if c.closed.Load() {
		c.send.settle()
	}
}

// dead reports whether f's transfer has ended, so that a lane need not write it.
func (o *outgoing) dead() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}

// end ends the transfer once and frees the slots that it kept or queued; those
// that lanes hold follow when the lanes are done. It reports whether it was the one.
func (o *outgoing) end(err error) bool { return o.endWith(err, false) }

// lose is end for a transfer that ends with its connection: what it kept or
// queued is saved where the opener wanted that.
func (o *outgoing) lose(err error) { o.endWith(err, o.keep != nil) }

func (o *outgoing) endWith(err error, rescue bool) bool {
	o.mu.Lock()
	if o.ended {
		o.mu.Unlock()
		return false
	}
	o.rescue = rescue
	idle := o.finalize(err)
	o.mu.Unlock()
	o.c.forgetOutgoing(o, idle)
	return true
}

// finalize marks the end and returns the kept frames that no lane holds. The
// caller holds mu.
func (o *outgoing) finalize(err error) (idle []*txFrame) {
	o.ended, o.err = true, err
	o.c.ready.remove(o)
	for _, f := range o.kept {
		switch {
		case !f.busy:
			idle = append(idle, f)
		case o.rescue:
			o.wreck.busy++
		}
	}
	if o.rescue {
		o.wreck.frames = idle
	}
	o.kept, o.missing, o.again = nil, nil, nil
	close(o.done)
	return idle
}

// forgetOutgoing is the end of a transfer that finalize has marked.
func (c *conn) forgetOutgoing(o *outgoing, idle []*txFrame) {
	o.dispose(idle)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.outs, o.handle)
}

// Cancel implements transport.Outgoing.
func (o *outgoing) Cancel(reason string) {
	reason = wire.Printable(reason, transport.MaxReason)
	if !o.end(&transport.CancelledError{Transfer: o.id, Reason: reason}) {
		return
	}
	o.c.cancel(o.handle, true, reason)
}

// cancel tells the peer that a transfer ended early.
func (c *conn) cancel(handle uint32, opener bool, reason string) {
	msg, err := wire.AppendCancel(nil, &wire.Cancel{Handle: handle, FromOpener: opener, Reason: reason})
	if err != nil {
		c.end(fmt.Errorf("session: encode cancel: %w", err), true)
		return
	}
	c.out.add(msg)
}
