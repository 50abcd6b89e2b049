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

	reading chan struct{} // has room for one, who reads or stops, and guards the next three
	closed  bool
	waited  time.Duration // for the client
	got     int64         // bytes

	state sync.Mutex // guards the rest, and the connection's deadline
	over  bool       // all of it came
	why   error      // it did not
}

// upload takes a request's body; nil where it has none.
func (f *Front) upload(w http.ResponseWriter, r *http.Request) *upload {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	return &upload{body: r.Body, conn: http.NewResponseController(w), idle: f.o.waits.idle, reading: make(chan struct{}, 1)}
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	u.reading <- struct{}{}
	defer func() { <-u.reading }()
	if u.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	earned := time.Duration(float64(u.got) / bodyRate * float64(time.Second))
	began := time.Now()
	u.deadline(began.Add(min(u.idle, u.idle+earned-u.waited)))
	n, err := u.body.Read(p)
	u.waited += time.Since(began)
	u.got += int64(n)
	if err != nil {
		u.end(err)
	}
	return n, err
}

// end notes how the body ended. Of one that came whole, or of which the server took the
// rest, no deadline must be left: it watches the connection from then on, and one that
// passes ends the requests that come after. Of another nothing more is waited for.
func (u *upload) end(err error) {
	u.state.Lock()
	defer u.state.Unlock()
	if err == io.EOF || errors.Is(err, http.ErrBodyReadAfterClose) { //nolint:errorlint // as readers say it
		u.over = true
		u.conn.SetReadDeadline(time.Time{}) //nolint:errcheck // as above
		return
	}
	if u.why == nil {
		u.why = err
	}
	u.conn.SetReadDeadline(time.Now()) //nolint:errcheck // as above
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
	select {
	case u.reading <- struct{}{}:
	default:
		// A deadline must not pass once all has come: the server looks for the end of the
		// connection from then on, and would find it. So it is set only after a while.
		late := time.AfterFunc(lingerTime, func() { u.deadline(time.Now()) })
		u.reading <- struct{}{}
		late.Stop()
	}
	u.closed = true
	<-u.reading
	u.deadline(time.Now().Add(lingerTime))
	if _, err := u.body.Read(nil); err != nil { // the server may have read the rest already
		u.end(err)
	}
}

// deadline sets the connection's, while anything of the body may come.
func (u *upload) deadline(t time.Time) {
	u.state.Lock()
	defer u.state.Unlock()
	if !u.over && u.why == nil {
		u.conn.SetReadDeadline(t) //nolint:errcheck // as above
	}
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
// the decoder, and gone when that has been sent. It may be used concurrently.
type held struct {
	room *semaphore.Weighted // the memory for bodies of all requests

	mu    sync.Mutex // guards the rest
	data  []byte
	at    int
	taken int64 // of the room

	patience time.Duration // how long room is waited for
}

// errRoom is for people.
var errRoom = errors.New("too many long bodies at a time")

// grow makes room for n bytes in all. It waits for it, but not long.
func (h *held) grow(ctx context.Context, n int) error {
	if more := int64(n) - firstBody - h.taken; more > 1 { // the first ones are everybody's
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
	h.data = append(make([]byte, 0, n), h.data...)
	return nil
}

// Read implements io.Reader.
func (h *held) Read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at == len(h.data) {
		h.release()
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

// release gives the memory back. It is called with mu held.
func (h *held) release() {
	h.room.Release(h.taken)
	h.data, h.at, h.taken = nil, 0, 0
}

// read takes a body that may be planned into memory. why says why not all of it is
// there; the error is the client's. The caller owes Close.
func (f *Front) read(r *http.Request, u *upload) (h *held, why string, err error) {
	h = &held{room: f.room, patience: f.o.waits.room}
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
// its length, negative: nothing. What it says costs it at most growth times what came.
func nextSize(have int, size, limit int64) int {
	want := max(int64(2*have), firstBody)
	if size >= 0 {
		want = min(max(int64(growth*have), firstBody), size)
	}
	return int(max(min(want, limit), int64(have)) + 1) // one more, so that the end is seen
}
