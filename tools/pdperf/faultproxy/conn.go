package faultproxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// conn is one connection through the proxy: two sockets.
type conn struct {
	p      *Proxy
	number int
	remote string

	mu    sync.Mutex // guards what follows
	ends  []net.Conn // the dialler's, and the target's once there is one
	ended bool
}

// join adds the target's socket. It reports false, and closes it, when the
// connection has ended.
func (c *conn) join(out net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		out.Close() //nolint:errcheck // nothing was forwarded
		return false
	}
	c.ends = append(c.ends, out)
	return true
}

// end closes both sockets, by a reset or in order.
func (c *conn) end(reset bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, s := range c.ends {
		if t, ok := s.(*net.TCPConn); ok && reset {
			t.SetLinger(0) //nolint:errcheck // the connection is being destroyed
		}
		s.Close() //nolint:errcheck // likewise, and perhaps a second time
	}
}

// forward runs both directions until both have ended.
func (c *conn) forward() {
	dialler, target := c.ends[0], c.ends[1] // they do not change any more
	var both sync.WaitGroup
	both.Go(func() { c.pump(target, dialler, true) })
	both.Go(func() { c.pump(dialler, target, false) })
	both.Wait()
}

// chunk is bytes on their way, or the end of a direction.
type chunk struct {
	buf []byte // chunkBytes of memory
	n   int
	due time.Time
	err error // the direction ends here; io.EOF: in order
}

// pump moves one direction: this goroutine reads, another one waits and writes.
// Between them are at most holdBytes.
func (c *conn) pump(to, from net.Conn, fromDialler bool) {
	const chunks = holdBytes / chunkBytes
	spare := make(chan []byte, chunks)
	ready := make(chan chunk, chunks+1) // and the end
	var writer sync.WaitGroup
	writer.Go(func() { c.drain(to, ready, spare, fromDialler) })
	defer writer.Wait()
	defer close(ready)
	for made := 0; ; {
		var buf []byte
		select {
		case buf = <-spare:
		default:
			if made < chunks {
				buf = make([]byte, chunkBytes)
				made++
			} else {
				buf = <-spare // the writer gives back every one
			}
		}
		n, err := from.Read(buf)
		now := time.Now()
		if n > 0 {
			ready <- chunk{buf: buf, n: n, due: c.p.damage.due(n, fromDialler, now)}
		}
		if err != nil {
			ready <- chunk{due: c.p.damage.due(0, fromDialler, now), err: err}
			return
		}
	}
}

// drain writes what is due until the direction has ended, and takes what comes
// after that.
func (c *conn) drain(to net.Conn, ready <-chan chunk, spare chan<- []byte, fromDialler bool) {
	alive := true
	for k := range ready {
		if alive {
			alive = c.p.sleep(k.due)
		}
		switch {
		case k.err == nil:
			alive = alive && c.pass(to, k.buf[:k.n], fromDialler)
			spare <- k.buf // room for all that were made
		case errors.Is(k.err, io.EOF):
			if alive { // a direction that was cut has ended already
				closeWrite(to)
			}
		default:
			c.end(false) // the other direction has nobody to talk to
		}
	}
}

// sleep waits until a time. It reports false when the proxy closes first.
func (p *Proxy) sleep(until time.Time) bool {
	d := time.Until(until)
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.ctx.Done():
		return false
	}
}

// pass forwards b, damaged as the options say, and reports whether the
// direction lives on.
func (c *conn) pass(to net.Conn, b []byte, fromDialler bool) bool {
	keep, cut, at, flips := c.p.damage.apply(b, fromDialler)
	for _, offset := range flips {
		c.p.tell(Event{Kind: Corrupted, Conn: c.number, Remote: c.remote, Offset: offset, FromDialler: fromDialler})
	}
	_, err := to.Write(b[:keep])
	if !cut {
		if err != nil {
			c.end(false)
		}
		return err == nil
	}
	kind := Cut
	if c.p.o.HalfClose {
		kind = HalfCut
		closeWrite(to)
	} else {
		c.p.cut(c.p.o.Reset)
	}
	c.p.tell(Event{Kind: kind, Conn: c.number, Remote: c.remote, Offset: at, FromDialler: fromDialler})
	return false
}

// closeWrite ends a direction in order.
func closeWrite(to net.Conn) {
	if h, ok := to.(interface{ CloseWrite() error }); ok {
		h.CloseWrite() //nolint:errcheck // the other end may be gone
		return
	}
	to.Close() //nolint:errcheck // a stream without half-closing
}
