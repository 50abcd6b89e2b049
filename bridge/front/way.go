package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// errCut reports that the decoder ended a connection before it answered.
var errCut = errors.New("it ended the connection before it answered")

// way is the way to the decoder: connections that are kept, and new ones. A request that
// crosses with the end of a kept one is made again, once, over a new one, where that is
// known to do no harm. It is an http.RoundTripper.
type way struct {
	kept, fresh *http.Transport
	buffers     sync.Pool // of *[sendBuffer]byte
}

// newWay returns a way with a transport's settings.
func newWay(base *http.Transport) *way {
	y := &way{kept: newTransport(base), fresh: newTransport(base)}
	y.fresh.DisableKeepAlives = true
	for _, t := range []*http.Transport{y.kept, y.fresh} {
		dial := t.DialContext
		if dial == nil {
			dial = (&net.Dialer{}).DialContext
		}
		t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &line{Conn: c, buffers: &y.buffers}, nil
		}
	}
	return y
}

// CloseIdleConnections ends those that nobody uses.
func (y *way) CloseIdleConnections() {
	y.kept.CloseIdleConnections()
	y.fresh.CloseIdleConnections()
}

// RoundTrip implements http.RoundTripper.
func (y *way) RoundTrip(r *http.Request) (*http.Response, error) {
	w, ok := r.Context().Value(watchKey{}).(*watch)
	if !ok {
		w = &watch{}
	}
	first := &try{watch: w}
	resp, err := first.over(y.kept, r)
	if err == nil {
		return resp, nil
	}
	again := r.WithContext(r.Context())
	switch {
	case !first.crossed() || r.Context().Err() != nil || w.upload.failed() != nil:
		return nil, first.why(err)
	case w.body != nil && w.body.rewind():
		again.Body = w.body
	case w.body == nil && w.upload.renew():
		again.Body = w.upload
	default:
		return nil, first.why(err)
	}
	second := &try{watch: w}
	if resp, err = second.over(y.fresh, again); err != nil {
		return nil, second.why(err)
	}
	return resp, nil
}

// try is one making of a request. It is used once.
type try struct {
	watch *watch

	mu     sync.Mutex // guards the rest
	got    time.Time  // a connection; zero: none
	reused bool
	heard  bool // something of an answer
	late   *time.Timer
}

// over makes the request.
func (t *try) over(rt http.RoundTripper, r *http.Request) (*http.Response, error) {
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: t.on, GotFirstResponseByte: t.hear})
	resp, err := rt.RoundTrip(r.WithContext(ctx))
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.late != nil {
		t.late.Stop()
	}
	return resp, err
}

// on is told of the connection, before anything is sent over it.
func (t *try) on(i httptrace.GotConnInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.got, t.reused = time.Now(), i.Reused
	if b := t.watch.body; b != nil && i.Reused && t.late == nil {
		b.keep(true)
		t.late = time.AfterFunc(crossTime, func() { b.keep(false) })
	}
	c := i.Conn
	if s, ok := c.(*tls.Conn); ok {
		c = s.NetConn()
	}
	if l, ok := c.(*line); ok {
		l.carries(t.watch.upload)
	}
}

// hear is told that an answer begins.
func (t *try) hear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard = true
	if b := t.watch.body; b != nil {
		b.keep(false)
	}
}

// crossed reports whether the request met the end of a connection that was kept: the
// decoder had ended it before it could have begun with the request.
func (t *try) crossed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reused && !t.heard && time.Since(t.got) < crossTime
}

// why makes an error of a request one that says who ended what.
func (t *try) why(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.got.IsZero() || errors.Is(err, errMoot) || t.heard && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return fmt.Errorf("%w: %w", errCut, err)
}

// line is a connection to the decoder. The transport closes it when the decoder does, but
// tells of it only when the request's body has ended: line ends that.
type line struct {
	net.Conn
	buffers *sync.Pool // of *[sendBuffer]byte

	mu   sync.Mutex
	body *upload // of the request that is under way; guarded by mu
}

// ReadFrom implements io.ReaderFrom: the transport sends bodies with it.
func (l *line) ReadFrom(r io.Reader) (int64, error) {
	p, ok := l.buffers.Get().(*[sendBuffer]byte)
	if !ok {
		p = new([sendBuffer]byte)
	}
	defer l.buffers.Put(p)
	return io.CopyBuffer(struct{ io.Writer }{l.Conn}, struct{ io.Reader }{r}, p[:])
}

// carries says what body is sent over it from now on; nil: none.
func (l *line) carries(u *upload) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.body = u
}

// CloseWrite ends one direction, of a connection that was upgraded.
func (l *line) CloseWrite() error {
	if c, ok := l.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return l.Close()
}

// Close implements net.Conn.
func (l *line) Close() error {
	err := l.Conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.body != nil {
		l.body.abandon()
		l.body = nil
	}
	return err
}
