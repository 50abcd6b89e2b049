package tcp

import (
	"errors"
	"net"
	"slices"
	"sync"
)

// errCrowded ends a peer that had to make room for a newer one.
var errCrowded = errors.New("tcp: dropped for a newer connection: too many unfinished handshakes")

// gate bounds how many sockets wait for their first message. When it is full
// the oldest has to go: an honest peer needs one round trip, so whoever has
// waited longest is the least likely to be one. It may be used concurrently.
type gate struct {
	limit  int
	mu     sync.Mutex // guards the rest
	inside []net.Conn // oldest first
	closed bool
}

// enter admits c and reports false when the gate is closed.
func (g *gate) enter(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	if len(g.inside) == g.limit {
		closeSocket(g.inside[0]) //nolint:errcheck // its own goroutine reports
		g.inside = slices.Delete(g.inside, 0, 1)
	}
	g.inside = append(g.inside, c)
	return true
}

// leave takes c out and reports false when it was thrown out before.
func (g *gate) leave(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.inside, c)
	if i < 0 {
		return false
	}
	g.inside = slices.Delete(g.inside, i, i+1)
	return true
}

// close throws everybody out and admits nobody from then on.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, c := range g.inside {
		closeSocket(c) //nolint:errcheck // its own goroutine reports
	}
	g.inside = nil
}
