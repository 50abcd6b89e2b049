package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
	"pdlink/transport/carrier"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// conn is the lanes of one connection. It implements carrier.Lanes and
// session.Queuer.
type conn struct {
	link *Link
	dev  verbs.Device
	seat seat
	pd   verbs.PD
	t    terms

	lanes    []*lane
	peerBody int    // bytes of the peer's slots
	ring     []byte // memory of the session's send ring, where it is registered
	parts    []part // of it

	ctx     context.Context // ends when the lanes do
	stop    context.CancelFunc
	workers sync.WaitGroup
	say     atomic.Pointer[func(msg []byte) error]

	mu     sync.Mutex // guards cause
	cause  error      // why no frame passes any more
	dead   chan struct{}
	closed atomic.Bool
	once   sync.Once
	fault  error // what closing said
}

var (
	_ carrier.Lanes  = (*conn)(nil)
	_ session.Queuer = (*conn)(nil)
)

// errShut is what calls get after Close.
var errShut = fmt.Errorf("rdma: %w", net.ErrClosed)

// fail ends all lanes, for the first reason that it is given.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return
	}
	c.cause = err
	close(c.dead)
}

// why is the error of calls after the end.
func (c *conn) why() error {
	if c.closed.Load() {
		return errShut
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Lanes implements carrier.Lanes.
func (c *conn) Lanes() int { return len(c.lanes) }

// Start implements carrier.Lanes.
func (c *conn) Start(say func(msg []byte) error) {
	c.say.Store(&say)
	c.workers.Go(c.events)
	c.workers.Go(c.watch)
	for _, l := range c.lanes {
		l.in.using.Lock()
		err := l.in.grant(l, 1)
		l.in.using.Unlock()
		if err != nil {
			c.fail(err)
		}
	}
}

// tell sends a link message. Before Start nothing is said.
func (c *conn) tell(t wire.Type, n count) error {
	say := c.say.Load()
	if say == nil {
		return nil
	}
	var room [64]byte
	msg, err := wire.AppendLink(room[:0], &wire.Link{Of: t, Body: n.append(room[48:48])})
	if err != nil {
		return err
	}
	return (*say)(msg)
}

// Take implements carrier.Lanes.
func (c *conn) Take(msg []byte) error {
	m, err := wire.Decode(msg)
	if err != nil {
		return err
	}
	body, ok := m.(*wire.Link)
	if !ok {
		return wire.Violation("rdma: %v message", m.Type())
	}
	if !known(body.Of) && body.Optional { // of a later version
		return nil
	}
	var n count
	r := reader{b: body.Body}
	n.parse(&r)
	switch {
	case r.err != nil:
		return r.err
	case n.epoch != c.t.epoch:
		return nil // said on a connection that is gone
	case int(n.lane) >= len(c.lanes):
		return wire.Violation("rdma: %v about lane %d of %d", body.Of, n.lane, len(c.lanes))
	}
	switch l := c.lanes[n.lane]; body.Of {
	case typeGrant:
		return l.out.granting(l, n.total)
	case typeSent:
		return l.in.promised(l, n.total)
	}
	return wire.Violation("rdma: %v on an established connection", body.Of)
}

// WriteFrame implements carrier.Lanes.
func (c *conn) WriteFrame(lane int, header, payload []byte) error {
	done := make(chan struct{})
	if err := c.QueueFrame(lane, header, payload, func() { close(done) }); err != nil {
		return err
	}
	<-done // closed by Close at the latest
	select {
	case <-c.dead:
		return c.why()
	default:
		return nil
	}
}

// QueueFrame implements session.Queuer.
func (c *conn) QueueFrame(lane int, header, payload []byte, done func()) error {
	l := c.lanes[lane]
	if err := l.out.queue(l, header, payload, done); err != nil {
		return fmt.Errorf("lane %d: %w", lane, err)
	}
	return nil
}

// ReadFrame implements carrier.Lanes.
func (c *conn) ReadFrame(lane int, header []byte, place session.Placer) (int, error) {
	l := c.lanes[lane]
	n, err := l.in.read(l, header, place)
	if err != nil {
		return 0, fmt.Errorf("lane %d: %w", lane, err)
	}
	return n, nil
}

// events ends the lanes when the device says that they are dead.
func (c *conn) events() {
	for {
		e, err := c.dev.Event(c.ctx)
		if err != nil {
			return // the device has none, or the connection ends
		}
		switch e.Kind {
		case verbs.EventQPFatal, verbs.EventQPRequest, verbs.EventQPAccess:
			c.fail(fmt.Errorf("%w: queue pair %d of %s: %v", transport.ErrLost, e.QP, c.seat.info.Name, e.Kind))
		case verbs.EventDeviceFatal:
			c.link.setBad(c.seat.info.Name, fmt.Errorf("it says %v", e.Kind))
			c.fail(fmt.Errorf("%w: device %s: %v", transport.ErrLost, c.seat.info.Name, e.Kind))
		case verbs.EventCQError:
			c.fail(fmt.Errorf("%w: device %s: %v", transport.ErrLost, c.seat.info.Name, e.Kind))
		case verbs.EventPortError:
			if e.Port == c.seat.port {
				c.fail(fmt.Errorf("%w: port %d of %s is down", transport.ErrLost, e.Port, c.seat.info.Name))
			}
		}
	}
}

// watch ends the lanes when one of them makes no progress.
func (c *conn) watch() {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-c.ctx.Done():
			return
		}
		for _, l := range c.lanes {
			err := l.out.look(l)
			if err == nil {
				err = l.in.look()
			}
			if err != nil {
				c.fail(fmt.Errorf("%w: lane %d: %w", transport.ErrLost, l.index, err))
			}
		}
	}
}

// Close implements carrier.Lanes.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.closed.Store(true)
		c.fail(errShut)
		c.stop()
		for _, l := range c.lanes {
			l.wake()
		}
		c.workers.Wait()
		if err := c.destroy(); err != nil {
			c.link.setBad(c.seat.info.Name, fmt.Errorf("it did not let go of its objects: %w", err))
			c.fault = fmt.Errorf("rdma: device %s: %w", c.seat.info.Name, err)
		}
	})
	return c.fault
}

// destroy frees what the connection has of the device, in order: queue pairs, then
// memory, then the rest. Memory is deregistered even where a queue pair does not go, so
// that the peer cannot reach it any more; then it stays mapped, and the rest stays too,
// since the device may still use it.
func (c *conn) destroy() error {
	var errs []error
	for _, l := range c.lanes {
		if err := l.end(); err != nil {
			errs = append(errs, fmt.Errorf("lane %d: %w", l.index, err))
		}
		l.out.abandon()
	}
	errs = append(errs, deregister(c.regions()))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, l := range c.lanes {
		errs = append(errs, l.out.close(), l.in.close())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if c.pd != nil {
		if err := persist(c.pd.Close); err != nil {
			return err
		}
	}
	if c.dev != nil {
		return persist(c.dev.Close)
	}
	return nil
}

// regions is all memory that is registered for the connection.
func (c *conn) regions() []part {
	list := slices.Clone(c.parts)
	for _, l := range c.lanes {
		for _, a := range []*arena{l.out.heads, l.out.notes, l.out.bodies, l.in.heads, l.in.notes, l.in.bodies} {
			if a != nil {
				list = append(list, a.parts...)
			}
		}
	}
	return list
}
