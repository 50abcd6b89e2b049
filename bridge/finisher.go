package bridge

import (
	"fmt"
	"time"
)

// finisher seals and publishes blocks as they become whole, and ends the
// transfer. It is the only one that publishes.
func (a *assembly) finisher() {
	a.mu.Lock()
	for {
		a.awaitSenders()
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
	a.timer.Stop()
	a.mu.Unlock()
	a.stopWrites()
	err := a.target.Close()
	a.mu.Lock()
	if err != nil && a.failed == nil {
		a.failed = fmt.Errorf("%w: close: %w", ErrStore, err)
	}
	a.decide()
	a.decided = true
	v, tell := a.verdict, a.admitted && a.r.o.OnVerdict != nil
	a.mu.Unlock()
	a.r.forget(a)
	if tell {
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

// stopWrites returns when no member writes to the target any more.
func (a *assembly) stopWrites() {
	a.stopped.Store(true)
	for i := range a.blocks {
		a.blocks[i].io.Lock()
		a.blocks[i].io.Unlock() //nolint:staticcheck // empty on purpose: it waits for the holders
	}
}
