package main

import (
	"sync"
	"time"

	"pdlink/transport/session"
)

// waitFacts are what a sending end's frames waited for in the measured window. Each is for
// how long it went on, whoever waited.
type waitFacts struct {
	Device float64 `json:"device_seconds"` // the link's device had frames to move; 0 where a link has none
	Leases float64 `json:"lease_seconds"`  // a frame waited for a free slot of the sender
	Grants float64 `json:"grant_seconds"`  // a frame waited for the receiver's promise of room
	Acks   float64 `json:"ack_seconds"`    // as many blocks as may be on their way were, and all of them were handed over
}

// period adds up for how long at least so many of something were going on. Safe for
// concurrent use.
type period struct {
	least int

	mu    sync.Mutex // guards what follows
	n     int
	since time.Time
	sum   time.Duration
}

// add notes that one more (1) goes on, or one less (-1).
func (p *period) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.n >= p.least
	p.n += n
	switch is := p.n >= p.least; {
	case is && !was:
		p.since = time.Now()
	case was && !is:
		p.sum += time.Since(p.since)
	}
}

// so is for how long it was so until now; 0 for nil.
func (p *period) so() time.Duration {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n >= p.least {
		return p.sum + time.Since(p.since)
	}
	return p.sum
}

// newDeviceTime is for a meter of links whose device moves frames by itself: it has
// something to do while one at least is queued.
func newDeviceTime() *period { return &period{least: 1} }

// intercept is a session.Interceptor. Links that have sockets are left as they are: the
// kernel tells more of them.
func (p *period) intercept(d session.Driver) session.Driver {
	if q, ok := d.(session.Queuer); ok {
		return &metered{d, q, p}
	}
	return d
}

type metered struct {
	session.Driver
	q    session.Queuer
	time *period
}

// QueueFrame implements session.Queuer.
func (m *metered) QueueFrame(lane int, header, payload []byte, done func()) error {
	m.time.add(1)
	err := m.q.QueueFrame(lane, header, payload, func() {
		m.time.add(-1)
		done()
	})
	if err != nil {
		m.time.add(-1)
	}
	return err
}
