package front

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// errCut reports that the decoder ended a connection before it answered.
var errCut = errors.New("it ended the connection before it answered")

// way is the way to the decoder: connections that are kept, and new ones. A request that
// crosses with the end of a kept one is made again, once, over a new one, where the decoder
// cannot have begun with it. It is an http.RoundTripper.
type way struct {
	kept, fresh *http.Transport
	lines       lines
	cross       time.Duration // how long after its beginning a request may cross
}

// newWay returns a way with a transport's settings. room is the memory for bodies of all
// requests.
func newWay(base *http.Transport, room *semaphore.Weighted, cross time.Duration) *way {
	y := &way{kept: newTransport(base), fresh: newTransport(base), cross: cross}
	y.fresh.DisableKeepAlives = true
	y.lines.room = room
	y.lines.over(y.kept)
	y.lines.over(y.fresh)
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
	first := &try{watch: w, cross: y.cross}
	resp, err := first.over(y.kept, r)
	if err == nil {
		return resp, nil
	}
	again := r.WithContext(r.Context())
	switch {
	case !first.crossed() || r.Context().Err() != nil || w.upload.failed() != nil:
		return nil, first.why(err)
	case w.body != nil && first.unread() && w.body.rewind():
		again.Body = w.body
	case w.body == nil && w.upload.renew():
		again.Body = w.upload
	default:
		return nil, first.why(err)
	}
	if w.again != nil {
		w.again()
	}
	second := &try{watch: w, cross: y.cross}
	if resp, err = second.over(y.fresh, again); err != nil {
		return nil, second.why(err)
	}
	return resp, nil
}

// try is one making of a request. It is used once.
type try struct {
	watch *watch
	cross time.Duration

	mu     sync.Mutex // guards the rest
	got    time.Time  // a connection; zero: none
	line   *line      // that connection; nil: it is none of ours
	reused bool
	sent   bool // all of the request
	heard  bool // something of an answer
	late   *time.Timer
}

// over makes the request.
func (t *try) over(rt http.RoundTripper, r *http.Request) (*http.Response, error) {
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: t.on, WroteRequest: t.wrote, GotFirstResponseByte: t.hear})
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
		t.late = time.AfterFunc(t.cross, func() { b.keep(false) })
	}
	c := i.Conn
	s, sealed := c.(*tls.Conn)
	if sealed {
		c = s.NetConn()
	}
	if t.line, _ = c.(*line); t.line != nil {
		if sealed {
			t.line.under()
		}
		t.line.carries(t.watch.upload, t.watch.body != nil)
	}
}

// wrote is told how the request was sent.
func (t *try) wrote(i httptrace.WroteRequestInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent = i.Err == nil
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

// crossed reports whether the request may have met the end of a connection that was kept.
func (t *try) crossed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reused && !t.heard && time.Since(t.got) < t.cross
}

// unread reports whether the decoder has not read the request to its end: not all of it
// was sent, or the decoder's system refused what was sent (one that resets connections on
// purpose may have read it). A decoder that has all of it and ends the connection then may
// have begun, and may have ended because of it. It is asked after the round trip, when
// nothing is sent any more.
func (t *try) unread() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.sent {
		return true
	}
	if t.line == nil {
		return false
	}
	t.line.mu.Lock()
	defer t.line.mu.Unlock()
	return t.line.lost
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
