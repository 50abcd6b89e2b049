package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// socket is what the link needs of a stream socket.
type socket interface {
	net.Conn
	syscall.Conn
	CloseWrite() error // ends this end's direction in order
}

var _ socket = (*net.TCPConn)(nil)

// past is a deadline that interrupts whatever waits.
func past() time.Time { return time.Unix(1, 0) }

// closeSocket closes c; that somebody else did is no error.
func closeSocket(c net.Conn) error {
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("tcp: close: %w", err)
	}
	return nil
}

// lingerClose ends this end's direction of c in order and reads away what the
// peer still sends, at most limit bytes, until it ends its own or the time is
// over. The caller closes c. Nobody else may use it meanwhile.
func lingerClose(c *control, within time.Duration, limit int64) {
	if c.sock.SetDeadline(time.Now().Add(within)) != nil {
		return
	}
	if c.tls != nil {
		// The farewell of TLS brings a deadline of its own, of 5 s.
		t := time.AfterFunc(within, func() {
			c.sock.SetDeadline(past()) //nolint:errcheck // a dead socket unblocks by itself
		})
		defer t.Stop()
		c.tls.CloseWrite() //nolint:errcheck // a write that was interrupted has broken it; the end of the stream follows
	}
	if c.sock.CloseWrite() != nil {
		return
	}
	io.CopyN(io.Discard, c.sock, limit) //nolint:errcheck // whatever ends the wait ends it
}

// replayed is a socket of which the first bytes were read already.
type replayed struct {
	socket
	first []byte
}

// Read gives out the first bytes, then the socket's.
func (r *replayed) Read(p []byte) (int, error) {
	if len(r.first) > 0 {
		n := copy(p, r.first)
		r.first = r.first[n:]
		return n, nil
	}
	return r.socket.Read(p)
}
