package main

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// turns gives the turn to be measured to one run at a time: two would spoil each other's
// figures, whatever way their bytes go. A run is a connection, or the two sockets of a
// floor; it may have several transfers, at the same time too, and the turn stays with it
// until it ends, so that nobody comes between its warm-up and what is measured. The zero
// value is free. Safe for concurrent use.
type turns struct {
	wait time.Duration // for the turn; 0: turnWait

	mu    sync.Mutex // guards what follows
	owner any        // nil: it is nobody's
	freed chan struct{}
}

// take waits for the turn and reports whether it is the owner's now. It is at once where
// it already was. ctx is over when nobody wants it any more.
func (t *turns) take(ctx context.Context, owner any) bool {
	late := time.NewTimer(cmp.Or(t.wait, turnWait))
	defer late.Stop()
	for {
		if ctx.Err() != nil { // also where it became free meanwhile
			return false
		}
		t.mu.Lock()
		if t.owner == nil || t.owner == owner {
			t.owner = owner
			t.mu.Unlock()
			return true
		}
		if t.freed == nil {
			t.freed = make(chan struct{})
		}
		freed := t.freed
		t.mu.Unlock()
		select {
		case <-freed:
		case <-late.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// give gives the turn back, where it is the owner's.
func (t *turns) give(owner any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if owner == nil || t.owner != owner {
		return
	}
	t.owner = nil
	if t.freed != nil {
		close(t.freed)
		t.freed = nil
	}
}

// otherRun is what a run is told that does not get the turn.
const otherRun = "another run is being measured"
