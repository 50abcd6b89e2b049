package plugin

import (
	"io"
	"net/http"
	"sync"
)

// lent is what a call was given to send. A transport may read a body when the call has
// returned, of which its caller does what it likes then. It may be used concurrently.
type lent struct {
	mu   sync.Mutex // guards over, and is held while something is read
	over bool
}

// reader returns the body from its beginning on.
func (l *lent) reader(body []byte) io.ReadCloser { return &lentReader{lent: l, left: body} }

// end takes the body back.
func (l *lent) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
}

// lentReader reads a body once.
type lentReader struct {
	lent *lent
	left []byte // guarded by lent.mu
}

// Read implements io.Reader.
func (r *lentReader) Read(p []byte) (int, error) {
	r.lent.mu.Lock()
	defer r.lent.mu.Unlock()
	switch {
	case r.lent.over:
		return 0, http.ErrBodyReadAfterClose
	case len(r.left) == 0:
		return 0, io.EOF
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// Close implements io.Closer.
func (r *lentReader) Close() error { return nil }
