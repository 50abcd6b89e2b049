package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"pdlink/transport"
)

// serve receives a member's frames until it ends, and gives it the verdict. One
// that finished and went away before that has done its part all the same, but
// it may come again: it does not know.
func (a *assembly) serve(ctx context.Context, gone <-chan struct{}, m *member, in transport.Incoming) {
	a.admit(m, in)
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
	if errors.Is(err, io.EOF) {
		err = nil
	}
	a.leave(m, err)
	if err == nil || errors.Is(err, errFailed) {
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
		v.Reason, v.Links, v.Ports = "", nil, nil
		err = in.Finish(v.encode())
	}
	if errors.Is(err, transport.ErrTooLarge) {
		in.Cancel(v.String())
	}
}

// receive is a member's loop: it takes frames and hands them to the stage that
// writes them. It returns io.EOF when the sender finished and everything is written,
// and errFailed when the transfer cannot go on: flushes that wait are then left to
// the verdict.
func (a *assembly) receive(ctx context.Context, m *member) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := newWriting(a, m.in, stop)
	err := a.frames(ctx, m, w)
	switch failed := w.close(); {
	case errors.Is(failed, ErrPlan):
		return failed
	case failed != nil:
		return errFailed
	}
	return err
}

func (a *assembly) frames(ctx context.Context, m *member, w *writing) error {
	for {
		d, err := m.in.Recv(ctx)
		if err != nil {
			return err
		}
		if !d.Mark() {
			now := time.Since(a.started)
			a.arrived.Store(int64(now))
			a.pace.note(now, d.Pieces())
		}
		w.take(d)
	}
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
	var todo [1]transport.Range // nearly always the piece as it is
	list, crowded, scattered := a.claim(b, transport.Range{Begin: p.Offset, End: p.End()}, todo[:0])
	for _, r := range list {
		if err = a.write(index, int64(r.Begin), data[r.Begin-p.Offset:r.End-p.Offset]); err != nil {
			err = fmt.Errorf("%w: write block %d at %d: %w", ErrStore, index, r.Begin, err)
			break
		}
		fresh += int64(r.End - r.Begin)
	}
	b.io.RUnlock()
	if crowded {
		a.r.relieve()
	}
	switch {
	case errors.Is(err, ErrNoSpace):
		a.cut(index, err)
		return nil
	case err == nil && scattered != nil:
		return fmt.Errorf("block %d: %w", index, scattered)
	case err == nil && fresh > 0 && b.written.Add(fresh) == a.size:
		a.mu.Lock()
		b.stage = stageWhole
		a.reach()
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
			a.moves()
			return err
		}
		if a.waits() {
			a.fail(errYield)
		}
		select {
		case <-time.After(fullPoll):
		case <-a.halt:
			return nil // the transfer is over, the next Recv says so
		}
	}
}

// sync makes durable what was written of blocks that are not visible yet. It fails
// when any write before it did. Blocks behind a cut are left out: the verdict does
// not count them.
func (a *assembly) sync() error {
	var group errgroup.Group
	group.SetLimit(sealers)
	for i := range a.blocks {
		b := &a.blocks[i]
		if b.visible.Load() || !b.dirty.Load() || a.end.over(i) {
			continue
		}
		switch visible, err := a.settles(i); {
		case err != nil:
			return errors.Join(err, group.Wait())
		case !visible:
			group.Go(func() error { return a.syncBlock(i, b) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// settles waits for a block that becomes visible, and with that durable, without
// any further byte: to synchronise it too would only delay that. It reports false
// for a block that has to be synchronised.
func (a *assembly) settles(i int) (visible bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.failed == nil && a.blocks[i].stage != stagePublished {
		switch {
		case a.over:
			return false, errOver
		case a.front() <= i || a.end.over(i):
			return false, nil
		}
		a.cond.Wait()
	}
	return true, a.failed
}

func (a *assembly) syncBlock(i int, b *block) error {
	b.io.Lock()
	defer b.io.Unlock()
	if a.stopped.Load() || b.visible.Load() {
		return nil
	}
	b.dirty.Store(false)
	if err := a.target.Sync(i); err != nil {
		return fmt.Errorf("%w: sync block %d: %w", ErrStore, i, err)
	}
	return nil
}
