package bridge

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pdlink/transport"
)

// await returns when a member whose part another connection sends now has written
// what came, or after rejoinWait: what it writes later is sent twice.
func (m *member) await(ctx context.Context) {
	t := time.NewTimer(rejoinWait)
	defer t.Stop()
	select {
	case <-m.left:
	case <-t.C:
	case <-ctx.Done():
	}
}

// answer is what a sender that joins now is told. What was taken from a frame and
// is not written yet counts: it will be, or the transfer fails. Blocks that were
// given up are not held: whoever keeps their bytes may need them for another
// receiver. One that is stopping tells nobody: ErrClosed.
func (a *assembly) answer(limit int) ([]byte, error) {
	out := Answer{Blocks: len(a.blocks), BlockBytes: a.size}
	present := make([]bool, len(a.blocks))
	open := make([]bool, len(a.blocks))
	a.mu.Lock()
	for i := range a.blocks {
		present[i] = a.blocks[i].stage == stagePublished
		open[i] = !present[i] && !a.end.over(i)
	}
	closing := a.closing.Load()
	a.mu.Unlock()
	if closing {
		return nil, ErrClosed
	}
	out.Present = spans(present)
	for i := range a.blocks {
		if !open[i] {
			continue
		}
		if held := a.blocks[i].held(); len(held) > 0 {
			out.Held = append(out.Held, Held{uint32(i), held})
		}
	}
	return out.encode(limit)
}

// held is the ranges of a block that need not be sent.
func (b *block) held() []transport.Range {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.cov.Ranges())
}

// claim takes what is left of r of a block for a writer and appends it to list.
// The map of a block that is claimed to the last byte shrinks to one range. Its
// error says that the block's map would become too large; crowded that those of all
// transfers together have.
func (a *assembly) claim(b *block, r transport.Range, list []transport.Range) (todo []transport.Range, crowded bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for u := range b.cov.Uncovered(r) {
		list = append(list, u)
	}
	before := len(b.cov.Ranges())
	b.cov.Add(r)
	if b.cov.Bytes() == uint64(a.size) {
		b.cov = transport.Coverage{} // and the memory of what was many ranges
		b.cov.Add(transport.Range{End: uint64(a.size)})
	}
	after := len(b.cov.Ranges())
	b.dirty.Store(true) // before anybody can find the range taken, see block.io
	if after > maxRanges {
		err = fmt.Errorf("%w: a block arrives in more than %d separate ranges", ErrPlan, maxRanges)
	}
	if after != before {
		a.ranges.Add(int64(after - before))
		crowded = a.r.ranges.Add(int64(after-before)) > maxAllRanges
	}
	return list, crowded, err
}
