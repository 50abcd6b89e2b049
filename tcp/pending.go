package tcp

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"pdlink/transport/wire"
)

// Reasons why a lane is turned away. They stay on the listener's side: the
// stranger only sees its socket close.
var (
	errNoSession = errors.New("tcp: lane names no waiting session")
	errLaneRange = errors.New("tcp: lane index out of range")
	errLaneTwice = errors.New("tcp: lane is bound already")
	errLaneProof = errors.New("tcp: lane's proof is wrong")
)

// token names a session to its lanes.
type token = [16]byte

// pending is a session whose control handshake is done and whose lanes are not
// all there. It owns the lanes' sockets until take.
type pending struct {
	token token
	guard *guard        // nil without keys
	done  chan struct{} // closed when all lanes are ready or the session failed

	lanes []socket // guarded by table.mu, as the rest
	ready int
	over  bool
	err   error
}

// table is the set of pending sessions of a listener. When it is full the
// oldest has to go. It may be used concurrently.
type table struct {
	limit  int
	mu     sync.Mutex
	waits  []*pending // oldest first
	closed bool
}

// add makes a pending session of n lanes, or fails when the table is closed.
func (t *table) add(tok token, n int, g *guard) (*pending, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, net.ErrClosed
	}
	if len(t.waits) == t.limit {
		t.end(t.waits[0], errCrowded)
	}
	p := &pending{token: tok, guard: g, done: make(chan struct{}), lanes: make([]socket, n)}
	t.waits = append(t.waits, p)
	return p, nil
}

// bind gives c to the session that hello names and, with keys, proves to be of,
// and returns the proof of this end. The session owns c from then on; the caller
// answers the peer and calls arrived. Only here, under the lock, are a session's
// keys used while it waits.
func (t *table) bind(hello *wire.LaneHello, c socket) (_ *pending, answer [wire.ProofSize]byte, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	none := answer
	p, index := t.find(hello.Token), int(hello.Lane)
	switch {
	case p == nil:
		return nil, none, errNoSession
	case p.guard.check(hello.Proof, index) != nil:
		return nil, none, fmt.Errorf("%w: lane %d", errLaneProof, index)
	case index >= len(p.lanes):
		return nil, none, fmt.Errorf("%w: %d of %d", errLaneRange, index, len(p.lanes))
	case p.lanes[index] != nil:
		return nil, none, fmt.Errorf("%w: %d", errLaneTwice, index)
	}
	if answer, err = p.guard.prove(index); err != nil {
		return nil, none, err
	}
	p.lanes[index] = c
	return p, answer, nil
}

// find compares with every token in constant time, so that the time of an
// answer tells nothing about how much of a guess was right.
func (t *table) find(tok token) *pending {
	var found *pending
	for _, p := range t.waits {
		if subtle.ConstantTimeCompare(p.token[:], tok[:]) == 1 {
			found = p
		}
	}
	return found
}

// arrived says that one more lane of p was answered.
func (t *table) arrived(p *pending) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.ready++
	if p.ready == len(p.lanes) {
		t.end(p, nil)
	}
}

// fail ends p unless it has ended, and closes its lanes.
func (t *table) fail(p *pending, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end(p, err)
}

// end is called with mu held.
func (t *table) end(p *pending, err error) {
	if p.over {
		return
	}
	p.over, p.err = true, err
	if i := slices.Index(t.waits, p); i >= 0 {
		t.waits = slices.Delete(t.waits, i, i+1)
	}
	if err != nil {
		for _, c := range p.lanes {
			if c != nil {
				closeSocket(c) //nolint:errcheck // the error that counts is err
			}
		}
	}
	close(p.done)
}

// take returns the lanes of a session that has ended well; the caller owns
// them.
func (t *table) take(p *pending) ([]socket, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.err != nil {
		return nil, p.err
	}
	return p.lanes, nil
}

// close ends every session and takes no new one.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for len(t.waits) > 0 {
		t.end(t.waits[0], net.ErrClosed)
	}
}
