package session

import (
	"errors"
	"fmt"
	"sync"

	"pdlink/transport"
)

// lazyRing is a ring that the caller gave, or one that is made when it is first
// needed: a connection on which only one end sends maps half of what it may.
type lazyRing struct {
	mu      sync.Mutex // guards the fields
	ring    *transport.Ring
	own     bool
	retired bool
}

// slots is how many slots the ring has or would have. Only before the first get.
func (r *lazyRing) slots() int {
	if r.ring != nil {
		return r.ring.Slots()
	}
	return transport.DefaultSlots
}

// get returns the ring.
func (r *lazyRing) get() (*transport.Ring, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ring == nil {
		if r.retired {
			return nil, errClosed
		}
		ring, err := transport.NewRing(0, 0)
		if err != nil {
			return nil, fmt.Errorf("session: %w", err)
		}
		r.ring, r.own = ring, true
	}
	return r.ring, nil
}

// retire closes a ring of our own, or leaves that to settle while slots are out.
func (r *lazyRing) retire() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retired = true
	return r.closeOwn()
}

// settle closes a retired ring once its last slot came back. It is called after
// a slot was given back; what unmapping says then has nobody to hear it.
func (r *lazyRing) settle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.retired {
		r.closeOwn() //nolint:errcheck // see above
	}
}

func (r *lazyRing) closeOwn() error {
	if !r.own {
		return nil
	}
	if err := r.ring.Close(); err != nil && !errors.Is(err, transport.ErrRingInUse) {
		return fmt.Errorf("session: close ring: %w", err)
	}
	return nil
}

// pools keep what frames need, so that a steady flow allocates nothing. First
// in, first out: a holder that ends a lease or a delivery twice is caught as
// long as possible before the value serves somebody else.
type pools struct {
	tx     chan *txFrame
	leases chan *transport.Lease
	rx     chan *rxFrame
	limit  int    // payload bytes of a lease
	sums   string // the connection's checksum algorithm

	released func(*transport.Lease) // takes leases back that are not sent
}

func newPools(sendSlots, recvSlots, maxPayload int, sums string, released func(*transport.Lease)) pools {
	return pools{
		tx:     make(chan *txFrame, sendSlots),
		leases: make(chan *transport.Lease, sendSlots),
		rx:     make(chan *rxFrame, recvSlots),
		limit:  maxPayload, sums: sums, released: released,
	}
}

func (p *pools) getTx() *txFrame {
	select {
	case f := <-p.tx:
		return f
	default:
		return newTxFrame()
	}
}

func (p *pools) putTx(f *txFrame) {
	*f = txFrame{blocks: f.blocks[:0], written: f.written}
	select {
	case p.tx <- f:
	default:
	}
}

func (p *pools) getLease() *transport.Lease {
	select {
	case l := <-p.leases:
		return l
	default:
		return transport.NewLease(p.limit, p.sums, p.released)
	}
}

func (p *pools) putLease(l *transport.Lease) {
	select {
	case p.leases <- l:
	default:
	}
}

func (p *pools) getRx() *rxFrame {
	select {
	case f := <-p.rx:
		return f
	default:
		return newRxFrame()
	}
}

func (p *pools) putRx(f *rxFrame) {
	f.in, f.slot = nil, transport.Slot{}
	select {
	case p.rx <- f:
	default:
	}
}
