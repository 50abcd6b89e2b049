package session_test

import (
	"sync"
	"testing"

	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
	"pdlink/transport/transporttest"
)

// queueing makes a driver one that has several frames of a lane on their way: they are
// written by a goroutine of each lane.
type queueing struct {
	session.Driver
	queues []chan queued
	wait   sync.WaitGroup

	mu  sync.Mutex // guards err
	err error

	queueing sync.RWMutex // held while a frame is queued, and guards closed
	closed   bool
}

type queued struct {
	header, payload []byte
	done            func()
}

// depth is how many frames a queue holds.
const depth = 3

func newQueueing(d session.Driver) session.Driver {
	q := &queueing{Driver: d}
	for lane := range d.Lanes() {
		c := make(chan queued, depth)
		q.queues = append(q.queues, c)
		q.wait.Go(func() {
			for f := range c {
				if err := d.WriteFrame(lane, f.header, f.payload); err != nil {
					q.fail(err)
				}
				f.done()
			}
		})
	}
	return q
}

func (q *queueing) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
	}
}

// QueueFrame implements session.Queuer.
func (q *queueing) QueueFrame(lane int, header, payload []byte, done func()) error {
	q.mu.Lock()
	err := q.err
	q.mu.Unlock()
	q.queueing.RLock()
	defer q.queueing.RUnlock()
	if q.closed && err == nil {
		err = transport.ErrClosed
	}
	if err == nil {
		q.queues[lane] <- queued{header, payload, done}
	}
	return err
}

// Close implements session.Driver.
func (q *queueing) Close() error {
	err := q.Driver.Close() // nothing that is queued is waited for any more
	q.queueing.Lock()
	q.closed = true
	q.queueing.Unlock()
	for _, c := range q.queues {
		close(c)
	}
	q.wait.Wait()
	return err
}

// TestQueuer runs the suite on a link whose drivers queue frames.
func TestQueuer(t *testing.T) {
	intercept := func(o session.Options) session.Options {
		inner := o.Intercept
		o.Intercept = func(d session.Driver) session.Driver {
			if inner != nil {
				d = inner(d)
			}
			return newQueueing(d)
		}
		return o
	}
	transporttest.Run(t, transporttest.Harness{
		Name: "mem", Tries: 40,
		Links: func(_ testing.TB, a, b session.Options) (dial, listen transport.Link, addr string) {
			l := mem.New(mem.Options{Session: intercept(a)})
			return l, l.With(mem.Options{Session: intercept(b)}), ""
		},
	})
}
