package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	copies   error  // why it is not registered though it could be; nil: it is, or need not be

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

// WriteFrame implements carrier.Lanes. It copies the payload: it could not return while
// the device has it, which is for ever where one does not let go.
func (c *conn) WriteFrame(lane int, header, payload []byte) error {
	return c.QueueFrame(lane, header, payload, nil)
}

// QueueFrame implements session.Queuer. Of frames that the device does not let go of
// done is not called at all: what Close returns says how many there are.
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
		if errors.Is(err, verbs.ErrUnsupported) || c.ctx.Err() != nil {
			return
		}
		if err != nil { // what kills lanes would not be heard of
			c.fail(fmt.Errorf("%w: events of device %s: %w", transport.ErrLost, c.seat.info.Name, err))
			return
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
		switch err := c.destroy(); {
		case errors.Is(err, verbs.ErrLeft): // the device is sound
			c.fault = fmt.Errorf("rdma: device %s: %w", c.seat.info.Name, err)
		case err != nil:
			frames, bytes := c.held()
			err = fmt.Errorf("it did not let go of its objects: %d slots of the send ring stay taken and %d bytes mapped: %w", frames, bytes, err)
			c.link.setBad(c.seat.info.Name, err)
			c.fault = fmt.Errorf("rdma: device %s: %w", c.seat.info.Name, err)
		}
	})
	return c.fault
}

// held is what stays of a connection whose device does not let go: frames whose slots
// it may still read, and bytes of memory that it may still use.
func (c *conn) held() (frames, bytes int) {
	for _, l := range c.lanes {
		frames += l.out.held()
		for _, a := range l.arenas() {
			if a != nil && a.unmap != nil {
				bytes += len(a.mem)
			}
		}
	}
	return frames, bytes
}

// destroy frees what the connection has of the device, in the time that one connection
// has for it. It may be called again.
func (c *conn) destroy() error {
	deadline := time.Now().Add(drainTime)
	for _, l := range c.lanes {
		l.out.settle()
		l.flush(deadline)
	}
	return persist(c.letGo)
}

// letGo frees what goes, in order: queue pairs, then memory, then the rest. Memory is
// deregistered even where a queue pair does not go, so that the peer cannot reach it any
// more; then it stays mapped, and the rest stays too, since the device may still use it.
// A frame's bytes are free when the queue pair is gone or the memory is deregistered:
// either keeps the device from reading them. Where both are refused they are held.
func (c *conn) letGo() error {
	var errs []error
	for _, l := range c.lanes {
		if err := l.destroy(); err != nil {
			errs = append(errs, fmt.Errorf("lane %d: %w", l.index, err))
		}
	}
	ring := deregister(c.parts)
	errs = append(errs, ring)
	for _, l := range c.lanes {
		if l.pair == nil || l.gone || ring == nil {
			l.out.abandon()
		}
		for _, a := range l.arenas() {
			if a != nil {
				errs = append(errs, deregister(a.parts))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, l := range c.lanes {
		errs = append(errs, l.close(), l.out.close(), l.in.close())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if c.pd != nil {
		if err := c.pd.Close(); err != nil {
			return err
		}
	}
	if c.dev != nil {
		return c.dev.Close()
	}
	return nil
}

// arenas is the memory that the link has for the lane; nil where the mode needs none.
func (l *lane) arenas() []*arena {
	return []*arena{l.out.heads, l.out.notes, l.out.bodies, l.in.heads, l.in.notes, l.in.bodies}
}
