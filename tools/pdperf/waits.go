package main

import (
	"sync"
	"time"

	"pdlink/transport/session"
)

// waitFacts are what a sending end's frames waited for in the measured window. Each is for
// how long it went on, whoever waited.
type waitFacts struct {
	Device float64 `json:"device_seconds"` // the link's device had frames to move; 0 where nobody can tell, see metered
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
	round int // how often it was reset
}

// add notes that one more (1) goes on, or one less (-1).
func (p *period) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change(n)
}

// change is add. The caller holds mu.
func (p *period) change(n int) {
	was := p.n >= p.least
	p.n += n
	switch is := p.n >= p.least; {
	case is && !was:
		p.since = time.Now()
	case was && !is:
		p.sum += time.Since(p.since)
	}
}

// enter is add(1). What it returns is for leave.
func (p *period) enter() (round int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change(1)
	return p.round
}

// leave is add(-1) of what entered in a round, unless a reset has taken it out.
func (p *period) leave(round int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if round == p.round {
		p.change(-1)
	}
}

// reset takes out whatever entered and has not left: a device that is out of order never
// lets go of its frames. nil has nothing to take out.
func (p *period) reset() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change(-p.n)
	p.round++
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
// something to do while it has one at least.
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

// QueueFrame implements session.Queuer. The device has a frame from when the call returns
// until it lets go of it. A frame that the link lets go of within the call was copied, to be
// sealed or to where the device reaches it: how long the device has the copy nobody says,
// and what the call takes is the processor's time. So it does not count.
func (m *metered) QueueFrame(lane int, header, payload []byte, done func()) error {
	f := &meteredFrame{time: m.time, done: done}
	if err := m.q.QueueFrame(lane, header, payload, f.end); err != nil {
		return err
	}
	f.queued()
	return nil
}

// meteredFrame is a frame that a device may have.
type meteredFrame struct {
	time *period
	done func()

	mu      sync.Mutex // guards what follows
	ended   bool
	counted bool
	round   int // of time, where it is counted
}

// queued begins the device's time, unless it is over.
func (f *meteredFrame) queued() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ended {
		f.counted, f.round = true, f.time.enter()
	}
}

// end ends it, and tells the frame's owner.
func (f *meteredFrame) end() {
	f.mu.Lock()
	f.ended = true
	if f.counted {
		f.time.leave(f.round)
	}
	f.mu.Unlock()
	f.done()
}
