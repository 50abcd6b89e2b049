package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// upload is a request's body as its client sends it. A client that stands still, or
// that is slower than anybody who has something to send, ends it with an error, and
// what it fails of is known: it is not the decoder's fault. One goroutine reads at a
// time; the others may be called meanwhile.
type upload struct {
	body io.ReadCloser
	conn *http.ResponseController // a writer without deadlines has none: its errors say nothing
	idle time.Duration
	left func() error // of the request's context: why its client is gone

	reading chan struct{} // has room for one, who reads or stops, and guards the next two
	closed  bool
	credit  time.Duration // that the client has earned, less what it was waited for

	state   sync.Mutex // guards the rest, and the connection's deadline
	begun   bool       // somebody read
	over    bool       // all of it came
	why     error      // it did not
	moot    bool       // the decoder answered, or went, before all of it came
	gone    bool       // it went
	stopped bool       // the connection is the server's
}

// errMoot ends a body that the decoder does not want any more.
var errMoot = errors.New("it ended the connection while the request was sent to it")

// upload takes a request's body; nil where it has none.
func (f *Front) upload(w http.ResponseWriter, r *http.Request) *upload {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	return &upload{
		body: r.Body, conn: http.NewResponseController(w), idle: f.o.waits.idle, left: r.Context().Err, reading: make(chan struct{}, 1),
	}
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	u.reading <- struct{}{}
	defer func() { <-u.reading }()
	if u.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	began := time.Now()
	if !u.begin(began.Add(min(u.idle, u.idle+u.credit))) {
		return 0, errMoot
	}
	n, err := u.body.Read(p)
	earned := time.Duration(float64(n) / bodyRate * float64(time.Second))
	u.credit = min(u.credit-time.Since(began)+earned, u.idle) // no hours of single bytes for a long beginning
	if err != nil {
		err = u.end(err)
	}
	return n, err
}

// begin sets a Read's deadline. It reports whether anybody wants what is read.
func (u *upload) begin(t time.Time) bool {
	u.state.Lock()
	defer u.state.Unlock()
	u.begun = true
	if !u.over && u.why == nil && !u.moot {
		u.conn.SetReadDeadline(t) //nolint:errcheck // as above
	}
	return !u.gone
}

// end notes how the body ended, and returns the error for whoever reads. Of one that came
// whole, or of which the server took the rest, no deadline must be left: it watches the
// connection from then on, and one that passes ends the requests that come after. Of
// another nothing more is waited for.
func (u *upload) end(err error) error {
	u.state.Lock()
	defer u.state.Unlock()
	switch {
	case err == io.EOF || errors.Is(err, http.ErrBodyReadAfterClose): //nolint:errorlint // as readers say it
		u.over = true
		u.conn.SetReadDeadline(time.Time{}) //nolint:errcheck // as above
	case u.moot: // the decoder was first
		return errMoot
	default:
		if u.why == nil {
			u.why = err
		}
		u.conn.SetReadDeadline(time.Now()) //nolint:errcheck // as above
	}
	return err
}

// answered notes that there is an answer. What has not come of the body until then may
// come while the answer is passed on, or not: that is no fault of the client's. It reports
// whether anything has not come: the connection must not be kept then, since the server
// would hold the answer back until it has read the rest.
func (u *upload) answered() (rest bool) {
	if u == nil {
		return false
	}
	u.state.Lock()
	defer u.state.Unlock()
	if u.over || u.why != nil {
		return !u.over
	}
	if !u.moot {
		u.moot = true
		u.conn.SetReadDeadline(time.Time{}) //nolint:errcheck // one that passes would break the answer off
	}
	return true
}

// abandon ends a Read that runs, and those that come: the decoder is gone without an
// answer, and who sends to it would wait for the client. It does nothing once all has
// come, there is an answer, or the handler has ended; nor where the client is gone, whose
// request is broken off before the Read that found it has returned.
func (u *upload) abandon() {
	u.state.Lock()
	defer u.state.Unlock()
	if !u.over && u.why == nil && !u.moot && !u.stopped && u.left() == nil {
		u.moot, u.gone = true, true
		u.conn.SetReadDeadline(time.Now()) //nolint:errcheck // as above
	}
}

// Close implements io.Closer. It does nothing: stop does.
func (u *upload) Close() error { return nil }

// stop ends reading: the connection is the server's again, which reads what little is
// left for the sake of the next request. A Read that runs is waited for; one that stands
// still is ended. The handler that took the body owes it.
func (u *upload) stop() {
	if u == nil {
		return
	}
	// A deadline must not pass once all has come: the server looks for the end of the
	// connection from then on, and would find it. So it is set only after a while, unless
	// the connection is not kept anyway.
	patience := lingerTime
	if u.is(&u.moot) {
		patience = 0
	}
	select {
	case u.reading <- struct{}{}:
	default:
		late := time.AfterFunc(patience, func() { u.deadline(time.Now()) })
		u.reading <- struct{}{}
		late.Stop()
	}
	u.closed = true
	<-u.reading
	u.deadline(time.Now().Add(lingerTime))
	if !u.is(&u.moot) { // the server may have read the rest already
		if _, err := u.body.Read(nil); err != nil {
			u.end(err) //nolint:errcheck // nobody reads any more
		}
	}
	u.state.Lock()
	defer u.state.Unlock()
	u.stopped = true
}

// deadline sets the connection's, while anything of the body may come.
func (u *upload) deadline(t time.Time) {
	u.state.Lock()
	defer u.state.Unlock()
	if !u.over && u.why == nil && !u.stopped {
		u.conn.SetReadDeadline(t) //nolint:errcheck // as above
	}
}

// is reads one of the things that state guards.
func (u *upload) is(what *bool) bool {
	u.state.Lock()
	defer u.state.Unlock()
	return *what
}

// lost reports whether the decoder went while the body was sent to it.
func (u *upload) lost() bool { return u != nil && u.is(&u.gone) }

// renew begins the body anew for another connection, where nothing of it was asked for. It
// reports whether that is so.
func (u *upload) renew() bool {
	if u == nil {
		return false
	}
	u.state.Lock()
	defer u.state.Unlock()
	if u.begun || u.stopped {
		return false
	}
	u.moot, u.gone = false, false
	return true
}

// await waits for a Read that runs. The server ends a request's context before the Read
// that failed has returned.
func (u *upload) await() {
	if u != nil {
		u.reading <- struct{}{}
		<-u.reading
	}
}

// failed says why the body did not come whole; nil where it did, or was not wanted.
func (u *upload) failed() error {
	if u == nil {
		return nil
	}
	u.state.Lock()
	defer u.state.Unlock()
	return u.why
}

// refusal is what a client hears of its own body.
func refusal(why error) (status int, v map[string]any) {
	if errors.Is(why, os.ErrDeadlineExceeded) {
		return http.StatusRequestTimeout, apiError("invalid_request_error", "slow_body", "pdlink: the request's body did not come in time")
	}
	return http.StatusBadRequest, apiError("invalid_request_error", "unreadable_body", fmt.Sprintf("pdlink: the request's body: %v", why))
}

// held is a body, or the beginning of one, in memory. It is the body of the request to
// the decoder, and gone when that has been sent, or a little later where it may have to be
// sent again. It may be used concurrently.
type held struct {
	room  *semaphore.Weighted // the memory for bodies of all requests
	spare *spare
	limit int64 // no body is longer

	mu    sync.Mutex // guards the rest
	buf   *buffer
	data  []byte // the beginning of that
	at    int
	taken int64 // of the room
	kept  bool  // after it was read

	patience time.Duration // how long room is waited for
}

// errRoom is for people.
var errRoom = errors.New("too many long bodies at a time")

// grow makes room for n bytes in all. It waits for it, but not long.
func (h *held) grow(ctx context.Context, n int) error {
	size, _ := spareSize(n)
	size = int(min(int64(size), h.limit+1))
	if more := int64(size) - (firstBody + 1) - h.taken; more > 0 { // the first ones are everybody's
		if !h.room.TryAcquire(more) {
			ctx, cancel := context.WithTimeout(ctx, h.patience)
			defer cancel()
			began := time.Now()
			if h.room.Acquire(ctx, more) != nil {
				return errRoom
			}
			h.patience -= time.Since(began)
		}
		h.taken += more
	}
	buf := h.spare.get(size)
	h.data = buf.b[:copy(buf.b, h.data)]
	h.spare.put(h.buf)
	h.buf = buf
	return nil
}

// Read implements io.Reader.
func (h *held) Read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at == len(h.data) {
		if !h.kept {
			h.release()
		}
		return 0, io.EOF
	}
	n := copy(p, h.data[h.at:])
	h.at += n
	return n, nil
}

// Close implements io.Closer. It is idempotent.
func (h *held) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.release()
	return nil
}

// keep says whether the body may be wanted a second time.
func (h *held) keep(yes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = yes
	if !yes && h.at == len(h.data) {
		h.release()
	}
}

// rewind begins the body anew, for the last time. It reports whether it is there.
func (h *held) rewind() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at, h.kept = 0, false
	return len(h.data) > 0
}

// release gives the memory back: the next body overwrites it. It is called with mu held.
func (h *held) release() {
	h.room.Release(h.taken)
	h.spare.put(h.buf)
	h.buf, h.data, h.at, h.taken = nil, nil, 0, 0
}

// read takes a body that may be planned into memory. why says why not all of it is
// there; the error is the client's. The caller owes Close.
func (f *Front) read(r *http.Request, u *upload) (h *held, why string, err error) {
	h = &held{room: f.room, spare: &f.spare, limit: f.o.MaxBody, patience: f.o.waits.room}
	size := r.ContentLength
	switch {
	case u == nil:
		return h, "", nil
	case size > f.o.MaxBody:
		return h, fmt.Sprintf("the body has more than %d bytes", f.o.MaxBody), nil
	}
	for {
		if len(h.data) == cap(h.data) {
			if err := h.grow(r.Context(), nextSize(cap(h.data), size, f.o.MaxBody)); err != nil {
				return h, err.Error(), nil //nolint:nilerr // what is there is passed on
			}
		}
		n, err := u.Read(h.data[len(h.data):cap(h.data)])
		h.data = h.data[:len(h.data)+n]
		switch {
		case err == io.EOF: //nolint:errorlint // as readers say it
			return h, "", nil
		case err != nil:
			return h, "", err
		case int64(len(h.data)) > f.o.MaxBody:
			return h, fmt.Sprintf("the body has more than %d bytes", f.o.MaxBody), nil
		}
	}
}

// nextSize is the memory for a body after have bytes of it. size is what the client says of
// its length, negative: nothing. What it says costs it at most growth times
// what came, and a quarter for the size of its buffer.
func nextSize(have int, size, limit int64) int {
	want := max(int64(2*have), firstBody)
	if size >= 0 {
		want = min(max(int64(growth*have), firstBody), size)
	}
	return int(max(min(want, limit), int64(have)) + 1) // one more, so that the end is seen
}
