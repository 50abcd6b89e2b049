package bridge

import (
	"fmt"
	"time"
)

// finisher seals and publishes blocks as they become whole, and ends the
// transfer.
func (a *assembly) finisher() {
	a.mu.Lock()
	for {
		a.awaitSenders()
		if a.isOver() {
			break
		}
		a.startSeals()
		a.startPublish()
		a.cond.Wait()
	}
	a.over = true
	a.cond.Broadcast() // flushes may wait for blocks
	a.timer.Stop()
	a.mu.Unlock()
	a.stopWrites()
	var ports []PortUse
	if a.ports != nil {
		ports = a.ports()
	}
	err := a.target.Close()
	a.mu.Lock()
	a.verdict.Ports = ports
	if err != nil && a.failed == nil {
		a.failed = fmt.Errorf("%w: close: %w", ErrStore, err)
	}
	a.decide()
	a.decided = true
	v, tell := a.verdict, a.admitted && a.r.o.OnVerdict != nil
	a.mu.Unlock()
	a.r.forget(a)
	close(a.done)
	if tell {
		a.r.o.OnVerdict(v)
	}
}

// startSeals starts to seal blocks that are whole, up to the limit. After a
// failure these are the ones that can still become visible: no byte will come
// for the first that is not whole.
func (a *assembly) startSeals() {
	for i := a.visible; !a.end.over(i) && a.sealing < sealers; i++ {
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
		a.breaks(i, fmt.Errorf("%w: seal block %d: %w", ErrStore, i, err))
	}
	a.cond.Broadcast()
}

// startPublish starts to publish the next blocks, one group at a time. Those that
// are being sealed right behind them are waited for: a group costs one
// synchronisation of names, however large it is.
func (a *assembly) startPublish() {
	first, n := a.visible, 0
	for n < maxGroup && !a.end.over(first+n) && a.blocks[first+n].stage == stageSealed {
		n++
	}
	more := n < maxGroup && !a.end.over(first+n) && a.blocks[first+n].stage == stageSealing
	if a.publishing || n == 0 || more {
		return
	}
	a.publishing = true
	go a.publish(first, n)
}

// publish makes n blocks visible and durable in chain order, and acknowledges
// them.
func (a *assembly) publish(first, n int) {
	var err error
	named := 0
	for named < n && err == nil {
		if err = a.target.Publish(first + named); err == nil {
			named++
		} else {
			err = fmt.Errorf("%w: publish block %d: %w", ErrStore, first+named, err)
		}
	}
	durable := 0
	if named > 0 {
		var serr error
		if durable, serr = a.target.Settle(first, named); serr != nil {
			err = fmt.Errorf("%w: publish block %d: %w", ErrStore, first+durable, serr)
		}
	}
	a.mu.Lock()
	var visible [maxGroup]int
	var acks [maxGroup]uint32
	for i := range durable {
		b := &a.blocks[first+i]
		b.stage = stagePublished
		b.visible.Store(true)
		a.advance()
		visible[i], acks[i] = a.visible, uint32(first+i)
	}
	if durable > 0 {
		a.lastAt = time.Since(a.started)
	}
	if err != nil {
		a.breaks(first+durable, err)
	}
	to := a.listeners()
	a.mu.Unlock()
	for _, m := range to {
		m.in.Ack(acks[:durable]...) //nolint:errcheck // a member that is gone is noticed by its own loop
	}
	for _, v := range visible[:durable] {
		if a.r.o.OnBlock != nil {
			a.r.o.OnBlock(a.id, v, len(a.blocks))
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.publishing = false
	a.cond.Broadcast()
}

// breaks records a failure after which a block and those behind it cannot become
// visible. It is called with a.mu held.
func (a *assembly) breaks(index int, err error) {
	if a.failed == nil {
		a.failed = err
	}
	a.lower(index)
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
	close(a.halt)
	for i := range a.blocks {
		a.blocks[i].io.Lock()
		a.blocks[i].io.Unlock() //nolint:staticcheck // empty on purpose: it waits for the holders
	}
}
