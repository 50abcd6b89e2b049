package tcp

import (
	"context"
	"slices"

	"pdlink/transport/carrier"
	"pdlink/transport/seal"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// carries reports whether the lanes of an arrival whose hellos were exchanged are the
// carrier's.
func (l *Link) carries(a *arrival) bool {
	if l.o.Carrier == nil || l.o.CarrierOnly {
		return l.o.Carrier != nil
	}
	for _, f := range l.o.Carrier.Features() {
		if !slices.Contains(a.agreed.Features, f) {
			return false
		}
	}
	return true
}

// carry gets the lanes of a connection that is agreed from the link's carrier.
func (l *Link) carry(ctx context.Context, a *arrival, role session.Role) error {
	a.ctl.limit = wire.MaxLink
	b := carrier.Base{
		Control: a.ctl, Role: role, Agreed: a.agreed, Options: &a.opts,
		Local: a.ctl.sock.LocalAddr(), Remote: a.ctl.sock.RemoteAddr(),
	}
	if a.guard.sealed() {
		o := seal.Options{Suite: a.guard.suite, MaxPayload: a.agreed.MaxPayload}
		b.Seals = func(lane int) (*seal.Sealer, *seal.Opener, error) { return a.guard.seals(lane, o) }
	}
	return bounded(ctx, a.ctl.sock, func() (err error) {
		a.carried, err = l.o.Carrier.Carry(ctx, b)
		return err
	})
}

// carried is a driver whose lanes are a carrier's.
type carried struct {
	*driver
	lanes carrier.Lanes
}

// queueing is one whose lanes take several frames at a time.
type queueing struct {
	*carried
	q session.Queuer
}

// newCarried makes the driver of a complete connection.
func newCarried(d *driver, lanes carrier.Lanes) session.Driver {
	d.cut = lanes.Close
	c := &carried{d, lanes}
	if q, ok := lanes.(session.Queuer); ok {
		return &queueing{c, q}
	}
	return c
}

// ReadControl implements session.Driver.
func (c *carried) ReadControl() ([]byte, error) {
	for {
		msg, err := c.driver.ReadControl()
		if err != nil {
			return nil, err
		}
		if !ofLink(msg) {
			return msg, nil
		}
		if err := c.lanes.Take(msg); err != nil {
			return nil, c.why(err)
		}
	}
}

// ofLink reports whether a message is the carrier's. What is wrong with another one
// the session says.
func ofLink(msg []byte) bool {
	_, t, err := wire.ControlLength(msg)
	return err == nil && t.OfLink()
}

// Lanes implements session.Driver.
func (c *carried) Lanes() int { return c.lanes.Lanes() }

// WriteFrame implements session.Driver.
func (c *carried) WriteFrame(lane int, header, payload []byte) error {
	return c.why(c.lanes.WriteFrame(lane, header, payload))
}

// ReadFrame implements session.Driver.
func (c *carried) ReadFrame(lane int, header []byte, place session.Placer) (int, error) {
	n, err := c.lanes.ReadFrame(lane, header, place)
	return n, c.why(err)
}

// QueueFrame implements session.Queuer.
func (c *queueing) QueueFrame(lane int, header, payload []byte, done func()) error {
	return c.why(c.q.QueueFrame(lane, header, payload, done))
}
