package prefill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
)

// pump is a transfer's source: it sends what was committed, in the order in which
// that came. It is also the sink of what the kernels make of rows. It belongs
// to the goroutine of Transfer.Run.
type pump struct {
	t   *Transfer
	ran bool

	open   *holding // the frame that is being filled; nil: none
	filled int      // bytes of it
	puts   []int64  // bytes that were put, by block

	made      *maker // of rows; nil before the first
	projected time.Duration
	recovered int // frames
}

// Run implements bridge.Source. Bytes of an engine cannot be made again: what a
// link could not deliver stays missing, and the receiver says what that leaves.
func (p *pump) Run(ctx context.Context, _ bridge.Sink) error {
	if p.ran {
		return nil
	}
	p.ran = true
	if err := p.again(ctx); err != nil {
		return err
	}
	for {
		done, wait := p.t.settled()
		err := p.drain(ctx)
		switch {
		case err != nil:
			return err
		case done:
			return p.Push(ctx)
		}
		if err := p.await(ctx, wait); err != nil {
			return err
		}
	}
}

// drain sends all that is queued.
func (p *pump) drain(ctx context.Context) error {
	for {
		select {
		case h := <-p.t.work:
			if err := p.commit(ctx, h); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// await waits until there may be something to do. A frame that is well filled goes
// out when nothing comes for a moment; one that is not waits longer, since it
// would take a slot, kept until its blocks are durable, for a few bytes.
func (p *pump) await(ctx context.Context, again time.Duration) error {
	var timer <-chan time.Time
	push := p.open != nil
	if push {
		after := p.t.s.o.waits.push
		if p.filled < p.t.job.Room/2 {
			after *= pushLate
		}
		if again == 0 || again > after {
			again = after
		}
	}
	if again > 0 {
		t := time.NewTimer(again)
		defer t.Stop()
		timer = t.C
	}
	select {
	case h := <-p.t.work:
		return p.commit(ctx, h)
	case <-p.t.wake:
	case <-timer:
		if push {
			return p.Push(ctx)
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	return p.t.failed
}

// commit sends what a slot has. The slot is over when it returns.
func (p *pump) commit(ctx context.Context, h *holding) error {
	switch {
	case h.mode == modeRows:
		defer p.t.s.table.free(h)
		return p.rows(ctx, h)
	case !p.any(h):
		p.t.s.table.free(h)
		return nil
	}
	return p.send(ctx, h)
}

// any reports whether any piece of a slot is wanted.
func (p *pump) any(h *holding) bool {
	for list := h.list[:h.entries*entrySize]; len(list) > 0; list = list[entrySize:] {
		if p.Wants(int(piece(list).Block)) {
			return true
		}
	}
	return false
}

// send sends a slot from where it is. The slot is over when it returns.
func (p *pump) send(ctx context.Context, h *holding) error {
	l, err := p.t.s.table.frame(h)
	if err != nil {
		p.t.s.table.free(h)
		return err
	}
	return p.give(ctx, l)
}

func (p *pump) give(ctx context.Context, l *transport.Lease) error {
	if err := p.t.job.Carrier.Give(ctx, l); err != nil {
		return fmt.Errorf("send frame: %w", err)
	}
	return nil
}

// again sends what an earlier sidecar left. What is not as it was is left out:
// the slot was used for something else since, or the plan is another.
func (p *pump) again(ctx context.Context) error {
	t := p.t
	for len(t.recovered) > 0 {
		h := t.recovered[0]
		t.recovered = t.recovered[1:]
		if !p.fits(h) || !p.any(h) {
			t.s.table.free(h)
			continue
		}
		l, err := t.s.table.frame(h)
		if err != nil {
			t.s.table.free(h)
			continue
		}
		p.recovered++
		if err := p.give(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// fits reports whether a slot of before a restart is of this plan.
func (p *pump) fits(h *holding) bool {
	size := 0
	for list := h.list[:h.entries*entrySize]; len(list) > 0; list = list[entrySize:] {
		x := piece(list)
		size += int(x.Length)
		if p.t.outside(x) || size > p.t.job.Room {
			return false
		}
	}
	return true
}

// Wants implements bridge.Sink.
func (p *pump) Wants(block int) bool {
	return block >= 0 && block < len(p.t.wanted) && p.t.wanted[block] && int64(block) < int64(p.t.sealedAt())
}

// Put implements bridge.Sink. Bytes that find no slot in time are dropped, and
// the transfer is sealed before them.
func (p *pump) Put(ctx context.Context, block int, off int64, b []byte) error {
	for len(b) > 0 && p.Wants(block) {
		if p.open == nil {
			if err := p.lease(ctx, block); err != nil || p.open == nil {
				return err
			}
		}
		h := p.open
		n := min(len(b), p.t.job.Room-p.filled)
		if n < 1 || h.entries == maxEntries {
			if err := p.Push(ctx); err != nil {
				return err
			}
			continue
		}
		copy(p.t.s.table.data(h.slot)[p.filled:], b[:n])
		putPiece(h.list[h.entries*entrySize:], transport.Piece{Block: uint32(block), Offset: uint64(off), Length: uint32(n)})
		h.entries++
		p.filled += n
		b, off = b[n:], off+int64(n)
		if p.whole(block, n) {
			if err := p.Push(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// whole counts bytes of a block, and reports whether those were the last that the
// workers' rows make: then it should not wait for others.
func (p *pump) whole(block, n int) bool {
	if p.puts == nil {
		p.puts = make([]int64, len(p.t.wanted))
	}
	p.puts[block] += int64(n)
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	return p.puts[block] == p.t.share
}

// lease opens a frame; none when the transfer was sealed for want of one.
func (p *pump) lease(ctx context.Context, block int) error {
	h, c := p.t.slot(ctx, modePieces, uint32(block), time.Now().Add(p.t.s.o.LeaseWait))
	switch {
	case h != nil:
		p.t.s.table.grant(h, p.t.job.ID, transport.ID{}, modePieces)
		p.open, p.filled = h, 0
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case c == codeOver || c == codeFailed:
		return fmt.Errorf("%w: no slot for block %d: %s", transport.ErrCancelled, block, c)
	}
	return nil
}

// Push implements bridge.Sink.
func (p *pump) Push(ctx context.Context) error {
	h := p.open
	if h == nil {
		return nil
	}
	p.open = nil
	if h.entries == 0 {
		p.t.s.table.free(h)
		return nil
	}
	return p.send(ctx, h)
}

// close frees a frame that was not sent.
func (p *pump) close() {
	if p.open != nil {
		p.t.s.table.free(p.open)
		p.open = nil
	}
}

// rows makes pieces of a slot of rows.
func (p *pump) rows(ctx context.Context, h *holding) error {
	begin := time.Now()
	defer func() { p.projected += time.Since(begin) }()
	if p.made == nil {
		p.made = newMaker(p.t, p)
	}
	data := p.t.s.table.data(h.slot)
	for list := h.list[:h.entries*entrySize]; len(list) > 0; list = list[entrySize:] {
		x, err := getRows(list)
		if err != nil {
			return err
		}
		if err := p.made.rows(ctx, x, data[:x.Length]); err != nil {
			return errors.Join(fmt.Errorf("layer %d, tokens from %d on: %w", x.Layer, x.First, err))
		}
		data = data[x.Length:]
	}
	return nil
}
