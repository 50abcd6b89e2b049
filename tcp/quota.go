package tcp

import (
	"fmt"
	"sync"

	"pdlink/transport"
	"pdlink/transport/keys"
)

// quota bounds how many connections one peer has with a listener: a peer's key may
// be in the wrong hands, and descriptors are what the listener reads the news of
// that with. It may be used concurrently.
type quota struct {
	limit int
	mu    sync.Mutex // guards held
	held  map[keys.PublicKey]int
}

// take counts one more connection of a peer, until the function that it returns is
// called, once. The error Is transport.ErrTooLarge.
func (q *quota) take(p keys.Peer) (give func(), err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held[p.Key] >= q.limit {
		return nil, fmt.Errorf("tcp: %w: %s (key %s) has %d connections already", transport.ErrTooLarge, p.Name, p.Key.Short(), q.limit)
	}
	if q.held == nil {
		q.held = map[keys.PublicKey]int{}
	}
	q.held[p.Key]++
	return func() { q.give(p.Key) }, nil
}

func (q *quota) give(k keys.PublicKey) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held[k]--; q.held[k] == 0 {
		delete(q.held, k)
	}
}
