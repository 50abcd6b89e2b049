package bridge

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// finisher seals and publishes blocks as they become whole, and ends the
// transfer. It is the only one that publishes.
func (a *assembly) finisher() {
	a.mu.Lock()
	for {
		a.awaitParts()
		if a.isOver() {
			break
		}
		a.startSeals()
		if !a.broken && a.visible < len(a.blocks) && a.blocks[a.visible].stage == stageSealed {
			a.publish()
			continue
		}
		a.cond.Wait()
	}
	a.over = true
	if a.waiting != nil {
		a.waiting.Stop()
		a.waiting = nil
	}
	a.mu.Unlock()
	a.stopWrites()
	err := a.target.Close()
	a.mu.Lock()
	if err != nil && a.failed == nil {
		a.failed = fmt.Errorf("%w: close: %w", ErrStore, err)
	}
	a.decide()
	a.decided = true
	v := a.verdict
	a.mu.Unlock()
	a.r.forget(a)
	if a.r.o.OnVerdict != nil {
		a.r.o.OnVerdict(v)
	}
	close(a.done)
}

// startSeals starts to seal blocks that are whole, up to the limit. After a
// failure these are the ones that can still become visible: no byte will come
// for the first that is not whole.
func (a *assembly) startSeals() {
	for i := a.visible; i < len(a.blocks) && !a.broken && a.sealing < sealers; i++ {
		b := &a.blocks[i]
		if a.failed != nil && b.stage == stageOpen {
			return
		}
		if b.stage == stageWhole && (!a.ordered || i == 0 || a.blocks[i-1].stage >= stageSealed) {
			b.stage = stageSealing
			a.sealing++
			go a.seal(i)
		}
	}
}

func (a *assembly) seal(i int) {
	b := &a.blocks[i]
	b.io.Lock() // a sync of the same block may run
	err := a.target.Seal(i)
	b.io.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sealing--
	if err == nil {
		b.stage = stageSealed
	} else {
		a.breaks(fmt.Errorf("%w: seal block %d: %w", ErrStore, i, err))
	}
	a.cond.Broadcast()
}

// publish makes the next block visible and acknowledges it. It is called with
// a.mu held and gives it up meanwhile.
func (a *assembly) publish() {
	i := a.visible
	a.mu.Unlock()
	err := a.target.Publish(i)
	a.mu.Lock()
	if err != nil {
		a.breaks(fmt.Errorf("%w: publish block %d: %w", ErrStore, i, err))
		return
	}
	a.blocks[i].stage = stagePublished
	a.blocks[i].visible.Store(true)
	a.lastAt = time.Since(a.started)
	a.advance()
	visible := a.visible
	var to []*member
	for _, m := range a.members {
		if m.in != nil && !m.ended {
			to = append(to, m)
		}
	}
	a.mu.Unlock()
	for _, m := range to {
		m.in.Ack(uint32(i)) //nolint:errcheck // a member that is gone is noticed by its own loop
	}
	if a.r.o.OnBlock != nil {
		a.r.o.OnBlock(a.id, visible, len(a.blocks))
	}
	a.mu.Lock()
}

// breaks records a failure after which no further block can become visible. It
// is called with a.mu held.
func (a *assembly) breaks(err error) {
	if a.failed == nil {
		a.failed = err
	}
	a.broken = true
}

// advance moves the visible prefix over published blocks.
func (a *assembly) advance() {
	for a.visible < len(a.blocks) && a.blocks[a.visible].stage == stagePublished {
		a.visible++
	}
}

// isOver reports whether nothing more will come of the transfer. It is called
// with a.mu held.
func (a *assembly) isOver() bool {
	if a.sealing > 0 {
		return false
	}
	whole := a.visible < len(a.blocks) && a.blocks[a.visible].stage != stageOpen // it can still be sealed and published
	switch {
	case a.broken:
		return true
	case a.failed != nil:
		return !whole
	case !a.joined || whole:
		return false
	case a.live() && (a.visible == len(a.blocks) || len(a.members) == a.parts):
		return false
	}
	return a.visible == len(a.blocks) || a.finished() == a.parts || a.expired
}

// live reports whether a member still sends. It is called with a.mu held.
func (a *assembly) live() bool {
	for _, m := range a.members {
		if !m.ended {
			return true
		}
	}
	return false
}

// awaitParts starts the wait for senders that are missing, if any are. Those
// that must keep their bytes until blocks are durable come to a halt without the
// missing ones: they end with them. It is called with a.mu held.
func (a *assembly) awaitParts() {
	if !a.joined || a.expired || a.waiting != nil || len(a.members) == a.parts && a.live() {
		return
	}
	limit := a.r.o.PartWait
	switch {
	case limit < 0 && !a.live():
		a.expired = true
		return
	case limit < 0:
		limit = DefaultPartWait
	}
	a.wait(limit, limit)
}

// wait lets the transfer expire when nothing has arrived for limit; left is how
// long that takes at the least. It is called with a.mu held.
func (a *assembly) wait(limit, left time.Duration) {
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		quiet := time.Since(a.started) - time.Duration(a.arrived.Load())
		switch {
		case a.waiting != timer: // somebody came
		case quiet < limit && a.live():
			a.wait(limit, limit-quiet)
		default:
			a.expired = true
			a.cond.Broadcast()
		}
	})
	a.waiting = timer
}

// stopWrites returns when no member writes to the target any more.
func (a *assembly) stopWrites() {
	a.stopped.Store(true)
	for i := range a.blocks {
		a.blocks[i].io.Lock()
		a.blocks[i].io.Unlock() //nolint:staticcheck // empty on purpose: it waits for the holders
	}
}

// decide fixes the verdict. It is called with a.mu held.
func (a *assembly) decide() {
	v := &a.verdict
	for _, m := range a.members {
		if m.in != nil {
			a.count(m)
		}
	}
	v.Transfer, v.Total, v.Present, v.Blocks = a.id.String(), len(a.blocks), a.present, a.visible
	v.Seconds = a.lastAt.Seconds()
	if a.lastAt == 0 { // nothing became visible
		v.Seconds = time.Duration(a.arrived.Load()).Seconds()
	}
	switch {
	case v.Total == 0:
		v.State, v.Reason = Skipped, "the plan has no blocks"
	case v.Blocks == v.Total:
		v.State = Complete
	case errors.Is(a.failed, ErrClosed):
		v.State, v.Reason = Partial, "the receiver was stopped"
	case a.failed != nil:
		v.State, v.Reason = Partial, a.failed.Error()
	case a.finished() < a.parts:
		v.State, v.Reason = Partial, a.unfinished()
	default:
		v.State, v.Reason = Partial, "the senders finished without sending every byte"
	}
}

// unfinished says which senders did not finish. It is called with a.mu held.
func (a *assembly) unfinished() string {
	if a.parts == 1 {
		return "the sender did not finish"
	}
	var parts []string
	for p := range a.parts {
		if m := a.members[p]; m == nil || !m.ended {
			parts = append(parts, strconv.Itoa(p+1))
		}
	}
	return fmt.Sprintf("of %d parts these did not finish: %s", a.parts, strings.Join(parts, ", "))
}
