package transport

import "sync"

// Salvage takes the frames of a transfer that outlive its connection: the ones
// that a source which cannot be read again has given away and that no
// acknowledgement has freed. Its owner puts it into Request.Salvage, again for
// each connection that the transfer is opened on. The zero value is empty. All
// methods may be called concurrently.
//
// When the connection ends, by a loss or because this end closed it, or when the
// peer gives a result without having acknowledged all blocks, the link adds each
// frame that it kept, had queued, or was given too late, as a lease that has the
// frame's pieces and bytes. All are there when Conn.Close has returned and no call
// of Send is running. A transfer that either end cancelled leaves nothing, and nor
// does one that is Replayable. A frame whose Send returned because its context
// ended is lost: whoever wants to go on waits with another context.
type Salvage struct {
	mu     sync.Mutex // guards what follows
	leases []*Lease
	closed bool
}

// Take hands over all leases, in about the order in which they were sent. Each
// holds a slot, or with others a part of one, until the caller sends or releases
// it: Outgoing.Send of another connection takes it, after Lease.Narrow where the
// peer has some of its pieces.
func (s *Salvage) Take() []*Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	leases := s.leases
	s.leases = nil
	return leases
}

// Add puts live leases in. It is for implementations of Outgoing, and for callers
// that could not send what Take gave them.
func (s *Salvage) Add(leases ...*Lease) {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.leases = append(s.leases, leases...)
	}
	s.mu.Unlock()
	if closed {
		for _, l := range leases {
			l.Release()
		}
	}
}

// Close is Release for an owner that needs nothing more: what is added later is given
// back too, by a connection that others use and that goes on, above all.
func (s *Salvage) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.Release()
}

// Release gives all slots back: the frames are lost.
func (s *Salvage) Release() {
	for _, l := range s.Take() {
		l.Release()
	}
}
