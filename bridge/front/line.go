package front

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"

	"golang.org/x/sync/semaphore"
)

// lines make connections to the decoder that share the buffers with which bodies are sent.
type lines struct {
	room         *semaphore.Weighted // the memory for bodies of all requests; nil: no large buffers
	small, large sync.Pool           // of *[copyBuffer]byte and *[sendBuffer]byte
}

// over has a transport make such connections.
func (s *lines) over(t *http.Transport) {
	dial := t.DialContext
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &line{Conn: c, lines: s}, nil
	}
}

// copyLarge copies with a large buffer, where there is memory for one.
func (s *lines) copyLarge(to io.Writer, from io.Reader) (int64, error) {
	if s.room == nil || !s.room.TryAcquire(sendBuffer) {
		return s.copySmall(to, from)
	}
	defer s.room.Release(sendBuffer)
	p, ok := s.large.Get().(*[sendBuffer]byte)
	if !ok {
		p = new([sendBuffer]byte)
	}
	defer s.large.Put(p)
	return io.CopyBuffer(to, from, p[:])
}

func (s *lines) copySmall(to io.Writer, from io.Reader) (int64, error) {
	p, ok := s.small.Get().(*[copyBuffer]byte)
	if !ok {
		p = new([copyBuffer]byte)
	}
	defer s.small.Put(p)
	return io.CopyBuffer(to, from, p[:])
}

// line is a connection to the decoder. The transport closes it when the decoder does, but
// tells of it only when the request's body has ended: line ends that. It knows whether the
// decoder took all that was sent.
type line struct {
	net.Conn
	lines *lines

	mu     sync.Mutex // guards the rest
	closed bool
	sealed bool    // by TLS, whose end sends something itself
	body   *upload // of the request that is under way
	whole  bool    // that request's body is in memory
	lost   bool    // something that was sent did not reach the decoder's process
}

// carries says what is sent over it from now on: a body that comes meanwhile, nil: none, or
// one that is whole in memory.
func (l *line) carries(u *upload, whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.whole = whole
	if l.body = u; l.closed {
		l.end()
	}
}

// end ends the body that is sent: nobody takes it. It is called with mu held.
func (l *line) end() {
	if l.body != nil {
		l.body.abandon()
		l.body = nil
	}
}

// loses notes that something sent was lost.
func (l *line) loses() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

// Read implements net.Conn.
func (l *line) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if err != nil && isReset(err) {
		l.loses()
	}
	return n, err
}

// Write implements net.Conn.
func (l *line) Write(p []byte) (int, error) {
	n, err := l.Conn.Write(p)
	if err != nil {
		l.loses()
	}
	return n, err
}

// ReadFrom implements io.ReaderFrom: the transport sends bodies with it. Only a body in
// memory is sent with a large buffer: a client could hold one for as long as it likes.
func (l *line) ReadFrom(r io.Reader) (int64, error) {
	l.mu.Lock()
	whole := l.whole
	l.mu.Unlock()
	to, from := struct{ io.Writer }{l}, struct{ io.Reader }{r} // nothing but these methods
	if whole {
		return l.lines.copyLarge(to, from)
	}
	return l.lines.copySmall(to, from)
}

// CloseWrite ends one direction, of a connection that was upgraded.
func (l *line) CloseWrite() error {
	if c, ok := l.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return l.Close()
}

// under notes that the connection is sealed by TLS. That sends a last word before it closes
// what is below it, which the other end may refuse though it has read the request.
func (l *line) under() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sealed = true
}

// Close implements net.Conn.
func (l *line) Close() error {
	l.mu.Lock()
	sealed := l.sealed
	l.mu.Unlock()
	if !sealed && wasReset(l.Conn) {
		l.loses()
	}
	err := l.Conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.end()
	return err
}
