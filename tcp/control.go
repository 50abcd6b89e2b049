package tcp

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// control frames messages on a control channel. Reading and writing may happen
// at the same time, each by one goroutine.
type control struct {
	sock  socket
	tls   *tls.Conn // on sock, when the link has keys; else nil
	conn  net.Conn  // what messages go through: tls, or sock
	in    *bufio.Reader
	first []byte // a message that was read before control was made
	msg   []byte // backing of the message returned last
	limit int    // body bytes of the longest message that is taken
	held  []byte // messages written while hold is set
	hold  bool
}

// newControl is for a control channel in clear.
func newControl(sock socket, limit int) *control {
	return &control{sock: sock, conn: sock, in: bufio.NewReaderSize(sock, controlBuffer), limit: limit}
}

// newSecureControl is for the application data of a TLS session on sock, and
// takes a hello first.
func newSecureControl(sock socket, t *tls.Conn) *control {
	return &control{sock: sock, tls: t, conn: t, in: bufio.NewReaderSize(t, controlBuffer), limit: wire.MaxHello}
}

// agreed sets the limit that the handshake gave.
func (c *control) agreed(maxMeta int) {
	c.limit = max(wire.MaxSmallControl, maxMeta+wire.MaxControl-transport.MaxMeta)
}

// WriteControl sends one encoded message.
func (c *control) WriteControl(msg []byte) error {
	if c.hold {
		c.held = append(c.held, msg...)
		return nil
	}
	if _, err := c.conn.Write(msg); err != nil {
		return fmt.Errorf("write control message: %w", err)
	}
	return nil
}

// release writes what was held back.
func (c *control) release() error {
	held := c.held
	c.hold, c.held = false, nil
	if len(held) == 0 {
		return nil
	}
	return c.WriteControl(held)
}

// ReadControl returns the next message, prefix included, valid until the next
// call. io.EOF means that the peer ended its direction between two messages.
func (c *control) ReadControl() ([]byte, error) {
	if msg := c.first; msg != nil {
		c.first = nil
		return msg, nil
	}
	if cap(c.msg) > wire.MaxSmallControl+wire.ControlPrefix {
		c.msg = nil // one large plan must not cost memory for ever
	}
	msg, err := readMessage(c.in, c.msg[:0], c.limit)
	c.msg = msg
	if err != nil {
		return nil, err
	}
	return msg, nil
}

// readMessage appends one message from r to buf[:0]: prefix and body. The body
// may have limit bytes, checked before any of it is read; memory grows with
// what has arrived. It reads no further than the message.
func readMessage(r io.Reader, buf []byte, limit int) ([]byte, error) {
	buf = slices.Grow(buf[:0], wire.ControlPrefix)[:wire.ControlPrefix]
	if _, err := io.ReadFull(r, buf); err != nil {
		if errors.Is(err, io.EOF) {
			return buf, io.EOF
		}
		return buf, fmt.Errorf("read control prefix: %w", err)
	}
	n, kind, err := wire.ControlLength(buf)
	if err != nil {
		return buf, fmt.Errorf("control prefix: %w", err)
	}
	if n > limit {
		return buf, fmt.Errorf("%w: control message of type %v with %d bytes, limit %d",
			transport.ErrProtocol, kind, n, limit)
	}
	for want := wire.ControlPrefix + n; len(buf) < want; {
		at := len(buf)
		step := min(want-at, max(cap(buf)-at, at, controlStep))
		buf = slices.Grow(buf, step)[:at+step]
		if _, err := io.ReadFull(r, buf[at:]); err != nil {
			return buf, fmt.Errorf("read control body: %w", noEOF(err))
		}
	}
	return buf, nil
}

// noEOF turns an end of the stream inside a message into the error it is.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
