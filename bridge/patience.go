package bridge

import (
	"errors"
	"sync/atomic"
	"time"

	"pdlink/transport"
)

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

// patience is how long the transfer, as it stands, may be without a frame. It counts
// from the last one, whatever the transfer's size, and grows with the time that a
// frame takes where somebody sends: what is slow and moves is not given up. It is
// called with a.mu held.
func (a *assembly) patience() time.Duration {
	wait := a.unhurried()
	if wait > 0 && a.live() {
		wait = max(wait, min(slowdown*a.pace.frame(), maxSlow))
	}
	return wait
}

// unhurried is patience with senders whose frames take no time to speak of.
func (a *assembly) unhurried() time.Duration {
	partWait := a.r.o.PartWait
	switch {
	case a.joined && len(a.members) == 0 && a.arrived.Load() == 0 && !a.cutOff():
		return 0 // nobody is here or will come again, and nothing would be lost
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

// pace is how fast the frames of a transfer come. It may be used concurrently.
type pace struct {
	frames  atomic.Uint64
	first   atomic.Int64  // when the first came, in ns from the transfer's start
	last    atomic.Int64  // when the last did
	bytes   atomic.Uint64 // of all but the first
	largest atomic.Uint64 // bytes of the largest
}

// note notes that a frame came.
func (p *pace) note(at time.Duration, pieces []transport.Piece) {
	n := uint64(0)
	for i := range pieces {
		n += uint64(pieces[i].Length)
	}
	for was := p.largest.Load(); was < n && !p.largest.CompareAndSwap(was, n); {
		was = p.largest.Load()
	}
	if p.frames.Add(1) == 1 {
		p.first.Store(int64(at))
		return
	}
	p.last.Store(int64(at))
	p.bytes.Add(n)
}

// frame is how long the largest frame takes; 0 while nobody knows.
func (p *pace) frame() time.Duration {
	bytes := p.bytes.Load()
	if bytes == 0 {
		return 0
	}
	return time.Duration(float64(p.last.Load()-p.first.Load()) * float64(p.largest.Load()) / float64(bytes))
}

// cutOff reports whether a sender's connection was lost: it comes again, as a rule.
// It is called with a.mu held.
func (a *assembly) cutOff() bool {
	for _, why := range a.losses {
		if errors.Is(why, transport.ErrLost) {
			return true
		}
	}
	return false
}
