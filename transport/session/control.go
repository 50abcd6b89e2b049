package session

import (
	"errors"
	"fmt"
	"io"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// readControl handles what the peer says until it stops. It never waits for
// anything but the peer.
func (c *conn) readControl() {
	var dec wire.Decoder
	for {
		msg, err := c.d.ReadControl()
		if err == nil {
			c.pulse.heard.Add(1)
			err = c.handle(&dec, msg)
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, transport.ErrProtocol):
			c.violated(err)
		case errors.Is(err, io.EOF):
			c.end(c.lostError("control channel", errors.New("ended without a farewell")), false)
		default:
			c.end(c.lostError("control channel", err), false)
		}
		return
	}
}

// handle decodes a message and hands it to what it is about.
func (c *conn) handle(dec *wire.Decoder, msg []byte) error {
	m, err := dec.Decode(msg)
	if err != nil {
		return err
	}
	switch m := m.(type) {
	case *wire.Open:
		return c.onOpen(m)
	case *wire.Flush:
		return c.withIncoming(m.Handle, func(in *incoming) error { return in.onFlush(m) })
	case *wire.Finish:
		return c.withIncoming(m.Handle, func(in *incoming) error { return in.onFinish(m) })
	case *wire.Cancel:
		return c.onCancel(m)
	case *wire.Grant:
		return c.onGrant(m)
	case *wire.Ack:
		return c.withOutgoing(m.Handle, func(o *outgoing) error { return o.onAck(m.Ranges) })
	case *wire.Admit:
		return c.withOutgoing(m.Handle, func(o *outgoing) error { return o.onAdmit(m) })
	case *wire.Refuse:
		return c.withOutgoing(m.Handle, func(o *outgoing) error { return o.onRefuse(m) })
	case *wire.Nack:
		return c.withOutgoing(m.Handle, func(o *outgoing) error { return o.onNack(m) })
	case *wire.Flushed:
		return c.withOutgoing(m.Handle, func(o *outgoing) error { return o.onFlushed(m) })
	case *wire.Result:
		return c.withOutgoing(m.Handle, func(o *outgoing) error { return o.onResult(m) })
	case *wire.Ping:
		return c.onPing(m)
	case *wire.Pong:
		return c.onPong(m)
	case *wire.Unknown:
		return nil
	case *wire.Bye:
		return c.onBye(m)
	default:
		return wire.Violation("%v message on an established connection", m.Type())
	}
}

// withIncoming calls f with the peer's transfer of that handle; one that has
// ended here may still be spoken of by a peer that does not know yet.
func (c *conn) withIncoming(handle uint32, f func(*incoming) error) error {
	if in := c.incoming(handle); in != nil {
		return f(in)
	}
	return nil
}

func (c *conn) incoming(handle uint32) *incoming {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ins[handle]
}

// withOutgoing is withIncoming for transfers that this end opened.
func (c *conn) withOutgoing(handle uint32, f func(*outgoing) error) error {
	c.mu.Lock()
	o, last := c.outs[handle], c.lastHandle
	c.mu.Unlock()
	switch {
	case o != nil:
		return f(o)
	case handle == 0 || handle > last:
		return wire.Violation("message about transfer %d, which this end never opened", handle)
	}
	return nil
}

// onGrant is apart from the rest because it comes with every few frames.
func (c *conn) onGrant(m *wire.Grant) error {
	if m.Epoch != c.terms.Epoch {
		return nil // said on a connection that is gone
	}
	total := m.Total
	return c.withOutgoing(m.Handle, func(o *outgoing) error { return o.onGrant(total) })
}

func (c *conn) onCancel(m *wire.Cancel) error {
	if m.FromOpener {
		return c.withIncoming(m.Handle, func(in *incoming) error {
			in.end(&transport.CancelledError{Transfer: in.req.ID, Remote: true, Reason: m.Reason})
			return nil
		})
	}
	return c.withOutgoing(m.Handle, func(o *outgoing) error {
		o.end(&transport.CancelledError{Transfer: o.id, Remote: true, Reason: m.Reason})
		return nil
	})
}

func (c *conn) onBye(m *wire.Bye) error {
	if m.Reason == "" {
		return errBye
	}
	return fmt.Errorf("%w: %s", errBye, m.Reason)
}
