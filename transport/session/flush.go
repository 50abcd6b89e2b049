package session

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// Flush implements transport.Outgoing. The answer to a flush whose context ends
// first is not lost: the pieces that it lists are listed by the next one.
func (o *outgoing) Flush(ctx context.Context) error {
	_, err := o.flush(ctx)
	return err
}

// flush is Flush; it returns how many frames it covered. What this end can send
// again by itself it sends, and asks again.
func (o *outgoing) flush(ctx context.Context) (frames uint64, err error) {
	for {
		if frames, err = o.ask(ctx); err != nil {
			return frames, err
		}
		if err := o.repeating(ctx); err != nil {
			return frames, err
		}
		if !o.repeated(frames) {
			return frames, o.listMissing()
		}
	}
}

// ask asks the peer once about the frames that were sent so far and returns how
// many those are.
func (o *outgoing) ask(ctx context.Context) (frames uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("flush: %w", err)
	}
	select {
	case o.flushing <- struct{}{}: // taken out by the peer's answer
	case <-o.done:
		return 0, o.why()
	case <-ctx.Done():
		return 0, fmt.Errorf("flush: wait for earlier flushes: %w", ctx.Err())
	}
	f, err := o.mark()
	if err != nil {
		<-o.flushing
		return 0, err
	}
	select {
	case <-f.answered:
		return f.frames, nil
	case <-o.done:
		return f.frames, o.why()
	case <-ctx.Done():
		return f.frames, fmt.Errorf("flush: wait for the peer's answer: %w", ctx.Err())
	}
}

// mark says Flush.
func (o *outgoing) mark() (*openFlush, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.shut(); err != nil {
		return nil, err
	}
	o.tokens++
	msg, err := wire.AppendFlush(nil, &wire.Flush{Handle: o.handle, Token: o.tokens, Frames: o.next})
	if err != nil {
		return nil, fmt.Errorf("flush: %w", err)
	}
	f := &openFlush{frames: o.next, answered: make(chan struct{})}
	o.flushes[o.tokens] = f
	o.c.out.add(msg)
	return f, nil
}

// listMissing is the error of a flush that was answered: what has to be sent
// again, each piece once.
func (o *outgoing) listMissing() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.missing) == 0 && !o.more {
		return nil
	}
	// A bad piece is reported by the engine at the other end, and again by the
	// application there, which never saw it.
	slices.SortFunc(o.missing, func(a, b transport.Piece) int {
		return cmp.Or(cmp.Compare(a.Block, b.Block), cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Length, b.Length))
	})
	o.missing = slices.CompactFunc(o.missing, func(a, b transport.Piece) bool {
		return a.Block == b.Block && a.Offset == b.Offset && a.Length == b.Length
	})
	n := min(len(o.missing), transport.MaxMissing)
	e := &transport.MissingError{
		Transfer: o.id, Pieces: slices.Clone(o.missing[:n]),
		More: o.more || n < len(o.missing),
	}
	o.missing = slices.Delete(o.missing, 0, n)
	o.more = false
	return e
}

// Finish implements transport.Outgoing. When its context ends while it waits for
// the result, the transfer lives on and another Finish goes on waiting.
func (o *outgoing) Finish(ctx context.Context) (transport.Outcome, error) {
	select {
	case o.finishing <- struct{}{}:
	case <-ctx.Done():
		out, _ := o.outcome()
		return out, fmt.Errorf("finish: wait for an earlier finish: %w", ctx.Err())
	}
	defer func() { <-o.finishing }()
	for said := false; !said; {
		frames, err := o.flushAll(ctx)
		if err != nil {
			out, ok := o.outcome()
			if ok {
				err = nil
			}
			return out, err
		}
		if said, err = o.sayFinish(frames); err != nil {
			out, _ := o.outcome()
			return out, err
		}
	}
	select {
	case <-o.done:
	case <-ctx.Done():
		out, _ := o.outcome()
		return out, fmt.Errorf("finish: wait for the peer's result: %w", ctx.Err())
	}
	out, ok := o.outcome()
	if ok {
		return out, nil
	}
	return out, o.why()
}

// flushAll flushes unless Finish was said before.
func (o *outgoing) flushAll(ctx context.Context) (uint64, error) {
	o.mu.Lock()
	final, frames := o.final && !o.ended, o.next
	o.mu.Unlock()
	if final {
		return frames, nil
	}
	return o.flush(ctx)
}

// outcome is what was sent, and the result, once it is there.
func (o *outgoing) outcome() (transport.Outcome, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return transport.Outcome{Result: o.result, Stats: o.stats}, o.resulted
}

// sayFinish says Finish after a flush of frames, unless more were sent since.
// It reports true too when the transfer has ended: there is no more to say.
func (o *outgoing) sayFinish(frames uint64) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.ended || o.final:
		return true, nil
	case o.next != frames || o.lacking > 0:
		return false, nil
	}
	msg, err := wire.AppendFinish(nil, &wire.Finish{Handle: o.handle, Frames: o.next})
	if err != nil {
		return false, fmt.Errorf("finish: %w", err)
	}
	o.final = true
	o.c.out.add(msg)
	return true, nil
}

// onAdmit begins the sending.
func (o *outgoing) onAdmit(m *wire.Admit) error {
	if len(m.Meta) > o.c.facts.MaxMeta {
		return wire.Violation("answer of %d bytes, agreed limit %d", len(m.Meta), o.c.facts.MaxMeta)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.admitted {
		return wire.Violation("transfer %v admitted twice", o.id)
	}
	if o.ended {
		return nil
	}
	o.admitted, o.granted, o.answer = true, uint64(m.Window), slices.Clone(m.Meta)
	close(o.opened)
	return nil
}

// onRefuse ends the transfer before it began.
func (o *outgoing) onRefuse(m *wire.Refuse) error {
	if err := o.answered("refusal"); err == nil {
		return wire.Violation("transfer %v refused after it was admitted", o.id)
	}
	o.end(&transport.RefusedError{Transfer: o.id, Code: m.Code, Reason: m.Reason})
	return nil
}

// answered is a violation unless the peer has admitted the transfer: what says
// so may be said only then.
func (o *outgoing) answered(what string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.admitted {
		return wire.Violation("%s for transfer %v, which was not admitted", what, o.id)
	}
	return nil
}

func (o *outgoing) onGrant(total uint64) error {
	if err := o.answered("grant"); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if total > o.granted {
		o.granted = total
		o.repeat() // first: blocks that are nearly whole, and slots, wait for it
		signal(o.wake)
	}
	return nil
}

// onAck frees the slots whose blocks are all durable, and notes the blocks for
// frames that are kept later. The work is bounded by what this end has kept and by
// maxAcked, whatever ranges the peer names.
func (o *outgoing) onAck(ranges []wire.BlockRange) error {
	ranges = tidy(ranges)
	o.mu.Lock()
	for _, r := range ranges {
		if len(o.acked.Ranges()) < maxAcked {
			o.acked.Add(transport.Range{Begin: uint64(r.First), End: uint64(r.First) + uint64(r.Count)})
		}
	}
	var free []*txFrame
	for i := len(o.kept) - 1; i >= 0; i-- {
		f := o.kept[i]
		had := len(f.blocks)
		f.blocks = slices.DeleteFunc(f.blocks, func(b uint32) bool { return isIn(b, ranges) })
		if had > 0 && len(f.blocks) == 0 && !f.busy {
			o.unkeep(f) // moves the last, which was looked at before
			free = append(free, f)
		}
	}
	o.mu.Unlock()
	for _, f := range free {
		o.c.drop(f)
	}
	return nil
}

// isIn reports whether b is in one of the tidy ranges.
func isIn(b uint32, ranges []wire.BlockRange) bool {
	_, found := slices.BinarySearchFunc(ranges, b, func(r wire.BlockRange, b uint32) int {
		switch {
		case r.First > b:
			return 1
		case b-r.First >= r.Count:
			return -1
		}
		return 0
	})
	return found
}

// tidy sorts ranges and trims those that overlap, in their own memory. None
// ends past the last block: the decoder saw to that.
func tidy(ranges []wire.BlockRange) []wire.BlockRange {
	slices.SortFunc(ranges, func(a, b wire.BlockRange) int { return cmp.Compare(a.First, b.First) })
	out, end := ranges[:0], uint64(0)
	for _, r := range ranges {
		begin := max(uint64(r.First), end)
		last := uint64(r.First) + uint64(r.Count)
		if begin >= last {
			continue
		}
		out = append(out, wire.BlockRange{First: uint32(begin), Count: uint32(last - begin)})
		end = last
	}
	return out
}

// onFlushed answers a flush.
func (o *outgoing) onFlushed(m *wire.Flushed) error {
	o.mu.Lock()
	f := o.flushes[m.Token]
	delete(o.flushes, m.Token)
	rest, more := m.Missing, m.More
	var err error
	if f != nil && !o.replay && !o.ended && len(rest) > 0 {
		rest, err = o.recall(rest, f.frames)
		more = more && len(rest) > 0 // else the flush that follows tells what was cut
	}
	o.mu.Unlock()
	if f == nil {
		return wire.Violation("answer to flush %d of transfer %v, which is not open", m.Token, o.id)
	}
	if err != nil {
		return err // the end of the connection answers the flush
	}
	o.miss(rest, more)
	close(f.answered)
	<-o.flushing
	return nil
}

// miss adds to the list for the next flush. A peer that misses more than
// maxBad pieces gets no further.
func (o *outgoing) miss(pieces []transport.Piece, more bool) {
	if len(pieces) == 0 && !more {
		return
	}
	o.mu.Lock()
	if o.ended {
		o.mu.Unlock()
		return
	}
	o.missing = append(o.missing, pieces...)
	o.more = o.more || more
	n := len(o.missing)
	o.mu.Unlock()
	if n > maxBad {
		o.Cancel(fmt.Sprintf("%d pieces are missing or damaged", n))
	}
}

// onResult ends the transfer as it should end. A receiver may finish before the
// sender did: then everything but Finish fails.
func (o *outgoing) onResult(m *wire.Result) error {
	if len(m.Meta) > o.c.facts.MaxMeta {
		return wire.Violation("result of %d bytes, agreed limit %d", len(m.Meta), o.c.facts.MaxMeta)
	}
	if err := o.answered("result"); err != nil {
		return err
	}
	var cause error = &transport.CancelledError{Transfer: o.id, Remote: true, Reason: "the receiver finished first"}
	o.mu.Lock()
	if o.ended {
		o.mu.Unlock()
		return nil
	}
	if o.final {
		cause = errFinished
	}
	o.result, o.resulted, o.rescue = slices.Clone(m.Meta), true, o.keep != nil
	free := o.finalize(cause)
	o.mu.Unlock()
	o.c.forgetOutgoing(o, free)
	return nil
}
