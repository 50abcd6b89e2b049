package tcp

import (
	"errors"
	"sync"
	"time"
)

// Reasons why a connection that was complete came to nothing. They stay on the
// listener's side.
var (
	errNobody = errors.New("tcp: nobody accepts connections: too many are waiting")
	errLate   = errors.New("tcp: nobody accepted the connection in time")
)

// lobby holds the complete connections that nobody accepted yet, each for a bounded
// time: they have sockets, and the lanes of a carrier have memory of its device. It
// may be used concurrently.
type lobby struct {
	limit int
	time  time.Duration
	late  func(*arrival) // ends one whose time is over; called in a goroutine of its own

	come   chan struct{}  // capacity 1: somebody may be there
	ending sync.WaitGroup // of calls of late

	mu     sync.Mutex // guards the rest
	inside []*waiting // oldest first
	closed bool
}

// waiting is one arrival in a lobby.
type waiting struct {
	a     *arrival
	timer *time.Timer
}

func newLobby(limit int, limitTime time.Duration, late func(*arrival)) *lobby {
	return &lobby{limit: limit, time: limitTime, late: late, come: make(chan struct{}, 1)}
}

// enter adds an arrival, which is the lobby's then. The error, where it is full or
// closed, Is errNobody.
func (l *lobby) enter(a *arrival) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.inside) == l.limit {
		return errNobody
	}
	w := &waiting{a: a}
	w.timer = time.AfterFunc(l.time, func() {
		if l.leave(w) {
			defer l.ending.Done()
			l.late(a)
		}
	})
	l.inside = append(l.inside, w)
	l.ring()
	return nil
}

// next takes the oldest out; nil where nobody is inside. Whoever waits for come calls
// it again.
func (l *lobby) next() *arrival {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.inside) == 0 {
		return nil
	}
	w := l.inside[0]
	l.remove(0)
	if len(l.inside) > 0 { // another caller may wait
		l.ring()
	}
	return w.a
}

// leave takes w out, whose time is over, and reports false where somebody else did.
// The caller owes ending a Done.
func (l *lobby) leave(w *waiting) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, v := range l.inside {
		if v == w {
			l.remove(i)
			l.ending.Add(1)
			return true
		}
	}
	return false
}

// remove is called with mu held.
func (l *lobby) remove(i int) {
	l.inside[i].timer.Stop()
	l.inside = append(l.inside[:i:i], l.inside[i+1:]...)
}

// ring wakes one who waits for come. It is called with mu held.
func (l *lobby) ring() {
	select {
	case l.come <- struct{}{}:
	default:
	}
}

// close ends all who are inside, at the same time since each may be slow, and lets
// nobody in from then on.
func (l *lobby) close() {
	l.mu.Lock()
	l.closed = true
	left := l.inside
	l.inside = nil
	l.mu.Unlock()
	for _, w := range left {
		w.timer.Stop()
		l.ending.Go(w.a.close)
	}
	l.ending.Wait()
}

// len is how many are inside.
func (l *lobby) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.inside)
}
