package tcp

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"pdlink/transport"
)

// SocketReporter is implemented by the connections of this link, for those who
// measure. What wraps a connection hides it.
type SocketReporter interface {
	// Sockets asks the kernel about the connection's sockets: the control
	// socket, then the lanes. Nil after Close, and on systems that this
	// package cannot ask (neither Linux nor macOS). It may be called at any
	// time and costs some system calls a socket.
	Sockets() []SocketFacts
}

// SocketFacts is what the kernel has granted one socket, which need not be what
// was asked for, and what it has counted. Zero: unknown to the system.
type SocketFacts struct {
	Lane          int    // -1: the control socket
	Local, Remote string // addresses, for people

	NoDelay           bool
	KeepAliveIdle     time.Duration // 0: no keep-alive
	KeepAliveInterval time.Duration
	KeepAliveCount    int
	UserTimeout       time.Duration // how long sent bytes may wait for the peer
	SendBuffer        int           // bytes now; the system tunes it
	RecvBuffer        int           // bytes now; the system tunes it
	LowWater          int           // bytes that wake the reader, as it was set last
	Congestion        string        // congestion control

	MSS         int           // bytes of the largest segment
	RTT         time.Duration // smoothed
	Retransmits uint64        // segments sent again

	Reads uint64 // reads of a lane that returned bytes
	Marks uint64 // changes of a lane's LowWater, a system call each
}

// conn is a session over TCP.
type conn struct {
	transport.Conn
	d *driver
}

var _ SocketReporter = (*conn)(nil)

// Open implements transport.Conn. That other hosts send parts of the transfer, over the
// same link to the receiver, is what the codec's governor has to know. It is told once
// the peer has taken the transfer, and before anybody can send a frame of it.
func (c *conn) Open(ctx context.Context, r transport.Request) (transport.Outgoing, error) {
	out, err := c.Conn.Open(ctx, r)
	if err != nil || c.d.governor == nil || r.Parts < 2 {
		return out, err //nolint:wrapcheck // the session's own error
	}
	return &part{Outgoing: out, end: c.d.governor.Share(r.Parts)}, nil
}

// Sockets implements SocketReporter.
func (c *conn) Sockets() []SocketFacts {
	out := make([]SocketFacts, 0, 1+len(c.d.lanes))
	out, ok := appendFacts(out, c.d.ctl.sock, -1)
	for i := range c.d.lanes {
		if !ok {
			return nil
		}
		l := &c.d.lanes[i]
		if out, ok = appendFacts(out, l.conn, i); ok {
			w := l.in.sock.done()
			out[len(out)-1].Reads, out[len(out)-1].Marks = w.reads, w.marks
		}
	}
	if !ok {
		return nil
	}
	return out
}

// appendFacts appends what the kernel says about a socket, or reports false.
func appendFacts(out []SocketFacts, c socket, lane int) ([]SocketFacts, bool) {
	f := SocketFacts{Lane: lane, Local: c.LocalAddr().String(), Remote: c.RemoteAddr().String()}
	raw, err := c.SyscallConn()
	if err != nil {
		return out, false
	}
	ok := false
	if raw.Control(func(fd uintptr) { ok = readSocket(int(fd), &f) }) != nil || !ok {
		return out, false
	}
	return append(out, f), true
}

// tune sets the link's options on a socket or a listener.
func tune(c syscall.Conn, congestion string) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("set socket options: %w", err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = tuneSocket(int(fd), congestion) }); err != nil {
		return fmt.Errorf("set socket options: %w", err)
	}
	return failed
}
