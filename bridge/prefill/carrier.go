package prefill

import (
	"context"
	"fmt"

	"pdlink/bridge"
	"pdlink/transport"
)

// conn is a carrier over one connection.
type conn struct {
	*bridge.Sender
	out transport.Outgoing
}

// tap keeps the outgoing half that bridge.OpenSender opens on a connection.
type tap struct {
	transport.Conn
	out transport.Outgoing
}

// Open implements transport.Conn.
func (c *tap) Open(ctx context.Context, r transport.Request) (transport.Outgoing, error) {
	out, err := c.Conn.Open(ctx, r)
	c.out = out
	return out, err
}

// OnConn opens a transfer on a connection that was made with Server.Ring as its
// SendRing and returns its carrier, and the room for Job.Room. It ends with the
// connection: what was not acknowledged is lost then. Errors: those of
// bridge.OpenSender; ErrJob for a request that is Replayable, since an engine's
// bytes cannot be made again.
func OnConn(ctx context.Context, c transport.Conn, r transport.Request, shape bridge.Shape) (Carrier, int, error) {
	if r.Replayable {
		return nil, 0, fmt.Errorf("%w: request is replayable", ErrJob)
	}
	t := tap{Conn: c}
	s, err := bridge.OpenSender(ctx, &t, r, shape)
	if err != nil {
		return nil, 0, err
	}
	return &conn{s, t.out}, c.Facts().MaxPayload, nil
}

// Give implements Carrier.
func (c *conn) Give(ctx context.Context, l *transport.Lease) error { return c.out.Send(ctx, l) }

// Close implements Carrier.
func (c *conn) Close() { c.out.Cancel("the sender gave it up") }
