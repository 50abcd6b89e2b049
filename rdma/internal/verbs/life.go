//go:build !nordma && (linux || darwin) && (amd64 || arm64)

package verbs

import (
	"fmt"
	"sync"
)

// life counts the users of an object, which may end only when it has none. May be
// used concurrently.
type life struct {
	ending sync.Mutex // held by end, so that one end is under way at a time
	mu     sync.Mutex // guards the rest
	users  int
	closed bool // no user may come: it ended, or is about to
	gone   bool // it ended
}

// use says that a user comes. Errors: ErrClosed.
func (l *life) use() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.users++
	return nil
}

// leave says that a user is gone.
func (l *life) leave() {
	l.mu.Lock()
	l.users--
	l.mu.Unlock()
}

// end destroys the object unless it has users, and remembers that; when destroy fails
// the object lives on. Once it is destroyed release frees what this end had for it, and
// what that says is said beside it (ErrLeft): the object is gone all the same.
func (l *life) end(what string, destroy, release func() error) error {
	l.ending.Lock()
	defer l.ending.Unlock()
	l.mu.Lock()
	if l.gone {
		l.mu.Unlock()
		return nil
	}
	if l.users > 0 {
		defer l.mu.Unlock()
		return fmt.Errorf("%w: %s has %d users", ErrBusy, what, l.users)
	}
	l.closed = true
	l.mu.Unlock()
	err := destroy()
	l.mu.Lock()
	l.closed, l.gone = err == nil, err == nil
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if err := release(); err != nil {
		return fmt.Errorf("%w: of a %s: %w", ErrLeft, what, err)
	}
	return nil
}
