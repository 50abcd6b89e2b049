package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"pdlink/transport"
)

// serve receives a member's frames until it ends, and gives it the verdict. One
// that finished and went away before that has done its part all the same, but
// it may come again: it does not know.
func (a *assembly) serve(ctx context.Context, gone <-chan struct{}, m *member, in transport.Incoming) {
	a.mu.Lock()
	m.in, a.admitted = in, true
	a.mu.Unlock()
	stop := make(chan struct{})
	var end sync.WaitGroup
	end.Go(func() { // a verdict may come before the sender's end
		select {
		case <-a.done:
		case <-stop:
		}
		select {
		case <-a.done:
			finish(in, a.verdict)
		default:
		}
	})
	err := a.receive(ctx, m)
	a.leave(m, errors.Is(err, io.EOF))
	if errors.Is(err, io.EOF) || errors.Is(err, errFailed) {
		select {
		case <-a.done:
		case <-gone:
			a.mu.Lock()
			m.gone = true
			a.mu.Unlock()
		case <-ctx.Done():
		}
	}
	close(stop)
	end.Wait()
}

// finish gives a sender its verdict: whole, or where the sender takes less, what
// counts of it. A sender that is gone needs none.
func finish(in transport.Incoming, v Verdict) {
	err := in.Finish(v.encode())
	if errors.Is(err, transport.ErrTooLarge) {
		v.Reason, v.Links = "", nil
		err = in.Finish(v.encode())
	}
	if errors.Is(err, transport.ErrTooLarge) {
		in.Cancel(v.String())
	}
}

// receive is a member's loop. It returns io.EOF when the sender finished, and
// errFailed when the transfer cannot go on: its marks are then left to the
// verdict, since nothing may be called durable any more.
func (a *assembly) receive(ctx context.Context, m *member) error {
	in := m.in
	for {
		d, err := in.Recv(ctx)
		if err != nil {
			return err
		}
		if d.Mark() {
			if err := a.sync(); err != nil {
				a.fail(err)
				return errFailed
			}
			if err := d.Flushed(nil); err != nil {
				return err
			}
			continue
		}
		now := int64(time.Since(a.started))
		a.arrived.Store(now)
		m.heard.Store(now)
		err = a.frame(in, d)
		d.Release()
		switch {
		case errors.Is(err, ErrPlan):
			in.Cancel(err.Error()) // this sender is wrong, not the others
			return err
		case err != nil:
			a.fail(err)
			return errFailed
		}
	}
}

// frame writes a frame's pieces.
func (a *assembly) frame(in transport.Incoming, d *transport.Delivery) error {
	for i, p := range d.Pieces() {
		if int64(p.Block) >= int64(len(a.blocks)) || p.End() > uint64(a.size) {
			return fmt.Errorf("%w: piece [%d,%d) of block %d, the plan has %d blocks of %d bytes",
				ErrPlan, p.Offset, p.End(), p.Block, len(a.blocks), a.size)
		}
		b := &a.blocks[p.Block]
		if b.visible.Load() {
			// It was visible before the sender knew. If this fails the loop's
			// next Recv says why.
			in.Ack(p.Block) //nolint:errcheck // see above
			continue
		}
		if err := a.piece(int(p.Block), b, p, d.Data(i)); err != nil {
			return err
		}
	}
	return nil
}

// piece writes the part of a piece that nobody sent before.
func (a *assembly) piece(index int, b *block, p transport.Piece, data []byte) error {
	b.io.RLock()
	if a.stopped.Load() {
		b.io.RUnlock()
		return nil // the transfer is over, the next Recv says so
	}
	var err error
	var fresh int64
	b.mu.Lock()
	whole := transport.Range{Begin: p.Offset, End: p.End()}
	var todo [1]transport.Range // nearly always the piece as it is
	list := todo[:0]
	for r := range b.cov.Uncovered(whole) {
		list = append(list, r)
	}
	b.cov.Add(whole)
	scattered := len(b.cov.Ranges()) > maxRanges
	b.dirty.Store(true) // before anybody can find the range taken, see block.io
	b.mu.Unlock()
	for _, r := range list {
		if err = a.write(index, int64(r.Begin), data[r.Begin-p.Offset:r.End-p.Offset]); err != nil {
			err = fmt.Errorf("%w: write block %d at %d: %w", ErrStore, index, r.Begin, err)
			break
		}
		fresh += int64(r.End - r.Begin)
	}
	b.io.RUnlock()
	if err == nil && scattered {
		err = fmt.Errorf("%w: block %d arrives in more than %d separate ranges", ErrPlan, index, maxRanges)
	}
	if err == nil && fresh > 0 && b.written.Add(fresh) == a.size {
		a.mu.Lock()
		b.stage = stageWhole
		a.cond.Broadcast()
		a.mu.Unlock()
	}
	return err
}

// write hands bytes to the target. While that takes no further block it waits:
// the frame is not released, so the sender waits too.
func (a *assembly) write(index int, off int64, p []byte) error {
	for {
		err := a.target.Write(index, off, p)
		if !errors.Is(err, ErrFull) {
			return err
		}
		a.full.Store(true)
		time.Sleep(fullPoll)
		if a.stopped.Load() {
			return nil // the transfer is over, the next Recv says so
		}
	}
}

// sync makes durable what was written of blocks that are not sealed. It fails
// when any write before it did.
func (a *assembly) sync() error {
	a.mu.Lock()
	failed := a.failed
	a.mu.Unlock()
	if failed != nil {
		return failed
	}
	for i := range a.blocks {
		b := &a.blocks[i]
		if b.visible.Load() || !b.dirty.Load() {
			continue
		}
		b.io.Lock()
		b.dirty.Store(false)
		a.mu.Lock()
		sealed := b.stage >= stageSealed || a.stopped.Load()
		a.mu.Unlock()
		var err error
		if !sealed {
			err = a.target.Sync(i)
		}
		b.io.Unlock()
		if err != nil {
			return fmt.Errorf("%w: sync block %d: %w", ErrStore, i, err)
		}
	}
	return nil
}
