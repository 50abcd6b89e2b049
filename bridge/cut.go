package bridge

import (
	"errors"
	"sync/atomic"
)

// ErrNoSpace is returned by Target.Write when there is no space for a block: the
// transfer ends before it, once the blocks in front have all their bytes.
var ErrNoSpace = errors.New("bridge: no space for further blocks")

// cutting is where a transfer ends early: blocks from the end on cannot become
// visible any more, those in front still can.
type cutting struct {
	end atomic.Int64 // lowered with assembly.mu held
	why error        // why there is an end while bytes for the blocks in front are awaited; guarded by assembly.mu
}

// over reports whether a block is behind the end.
func (c *cutting) over(block int) bool { return int64(block) >= c.end.Load() }

// cut ends the transfer before a block that has no space. Its senders are told
// that the receiver is done with it and with those behind it, so that nobody keeps
// their bytes or waits for them: the verdict says what became of them.
func (a *assembly) cut(index int, err error) {
	a.mu.Lock()
	if a.end.why == nil {
		a.end.why = err
	}
	before := a.end.end.Load()
	a.lower(index)
	a.reach()
	to := a.listeners()
	a.mu.Unlock()
	dropped := make([]uint32, 0, max(before-int64(index), 0))
	for i := int64(index); i < before; i++ {
		dropped = append(dropped, uint32(i))
	}
	for _, m := range to {
		m.in.Ack(dropped...) //nolint:errcheck // a member that is gone is noticed by its own loop
	}
}

// lower moves the end. It is called with a.mu held.
func (a *assembly) lower(index int) {
	a.end.end.Store(min(a.end.end.Load(), int64(index)))
	a.cond.Broadcast()
}

// reach fails the transfer once all blocks in front of a cut are whole. It is
// called with a.mu held.
func (a *assembly) reach() {
	if a.end.why == nil || a.failed != nil || a.front() < int(a.end.end.Load()) {
		return
	}
	a.failed = a.end.why
	a.cond.Broadcast()
}

// front is the first block that is not whole. It is called with a.mu held.
func (a *assembly) front() int {
	i := a.visible
	for i < len(a.blocks) && a.blocks[i].stage != stageOpen {
		i++
	}
	return i
}

// listeners are the members that acknowledgements are for. It is called with a.mu
// held.
func (a *assembly) listeners() []*member {
	var to []*member
	for _, m := range a.members {
		if m.in != nil && !m.ended {
			to = append(to, m)
		}
	}
	return to
}
