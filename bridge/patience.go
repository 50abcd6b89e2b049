package bridge

import "time"

// isOver reports whether nothing more will come of the transfer. It is called
// with a.mu held.
func (a *assembly) isOver() bool {
	if a.sealing > 0 || a.publishing {
		return false
	}
	whole := !a.end.over(a.visible) && a.blocks[a.visible].stage != stageOpen // it can still be sealed and published
	switch {
	case a.failed != nil:
		return !whole
	case !a.joined || whole:
		return false
	case a.finished() == a.parts, a.visible == len(a.blocks) && !a.live():
		return true
	}
	return a.expired
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

// finished is how many parts their senders finished in order. It is called with
// a.mu held.
func (a *assembly) finished() int {
	n := 0
	for _, m := range a.members {
		if m.ended {
			n++
		}
	}
	return n
}

// patience is how long the transfer, as it stands, may be without a frame. It is
// called with a.mu held.
func (a *assembly) patience() time.Duration {
	partWait := a.r.o.PartWait
	switch {
	case a.joined && len(a.members) == 0 && a.arrived.Load() == 0:
		return 0 // nobody is here, and nothing would be lost
	case partWait < 0 && a.joined && !a.live():
		return 0
	case partWait < 0:
		partWait = DefaultPartWait
	}
	// Senders that must keep their bytes until blocks are durable come to a
	// halt without the missing ones: they end with them.
	if missing := len(a.members) < a.parts || !a.live(); missing || a.visible == len(a.blocks) {
		return partWait
	}
	return a.r.o.IdleWait
}

// awaitSenders sets expired, or the time to look again. It is called with a.mu
// held.
func (a *assembly) awaitSenders() {
	last := max(time.Duration(a.arrived.Load()), a.joinedAt, a.lostAt)
	left := a.patience() - (time.Since(a.started) - last)
	a.expired = left <= 0
	if !a.expired {
		a.timer.Reset(left)
	}
}
