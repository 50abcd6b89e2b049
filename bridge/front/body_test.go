package front

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// sending is a client that sends bytes as they are.
type sending struct {
	t *testing.T
	c *net.TCPConn
}

func (h *house) send(t *testing.T, request string) *sending {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s := &sending{t, c.(*net.TCPConn)} //nolint:forcetypeassert // of tcp
	s.more(request)
	return s
}

func (s *sending) more(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.c, text); err != nil {
		s.t.Fatal(err)
	}
}

// answer is what is made of what was sent.
func (s *sending) answer() (*http.Response, string) {
	s.t.Helper()
	if err := s.c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		s.t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(s.c), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return r, string(b)
}

const (
	planned   = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
	unplanned = "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n"
)

// TestBrokenBody: a body that cannot be read is the client's fault, whatever it is for:
// it is answered as the API answers, and neither the decoder nor a host is blamed.
func TestBrokenBody(t *testing.T) {
	long := fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n3e8\r\n%s\r\nzz\r\n", strings.Repeat("x", 1000))
	for name, request := range map[string]string{
		"planned, bad chunk":   planned + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
		"planned, half":        planned + "Content-Length: 100\r\n\r\nhello",
		"too long to plan":     planned + long,
		"too long, half":       planned + "Content-Length: 2000\r\n\r\nhello",
		"unplanned, bad chunk": unplanned + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
		"unplanned, half":      unplanned + "Content-Length: 100\r\n\r\nhello",
	} {
		t.Run(name, func(t *testing.T) {
			h := build(t, answering(0), Options{Planner: always(coldPlan()), MaxBody: 500})
			s := h.send(t, request)
			if err := s.c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			r, body := s.answer()
			if r.StatusCode != http.StatusBadRequest || !strings.Contains(body, "unreadable_body") {
				t.Errorf("%d %s", r.StatusCode, body)
			}
			rec := h.last(t)
			if v := r.Header.Get(headerVerdict); !strings.HasPrefix(v, "bypass; ") || !strings.Contains(v, rec.ID) {
				t.Errorf("verdict %q", v)
			}
			if !rec.Client || rec.Status != http.StatusBadRequest || !strings.Contains(rec.Reason, "the client's body") {
				t.Errorf("%+v", rec)
			}
			w := &recorder{header: http.Header{}}
			h.front.Transfers().ServeHTTP(w, must(http.NewRequest(http.MethodGet, "/pdlink/metrics", nil)))
			if !strings.Contains(w.body.String(), "pdlink_client_errors_total 1\n") {
				t.Error(w.body.String())
			}
		})
	}
}

// TestSlowClient: one that stands still, or sends single bytes, is let go.
func TestSlowClient(t *testing.T) {
	for name, head := range map[string]string{"planned": planned, "unplanned": unplanned, "too long to plan": planned} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Options{Planner: always(coldPlan()), waits: waits{idle: 500 * time.Millisecond}}
			if name == "too long to plan" {
				o.MaxBody = 10
			}
			h := build(t, answering(0), o)
			for _, every := range []time.Duration{time.Hour, 100 * time.Millisecond} {
				s := h.send(t, head+"Content-Length: 100000\r\n\r\nhello")
				gone := make(chan struct{})
				go func() {
					for {
						select {
						case <-gone:
							return
						case <-time.After(every):
							io.WriteString(s.c, "x")
						}
					}
				}()
				if r, body := s.answer(); r.StatusCode != http.StatusRequestTimeout || !strings.Contains(body, "slow_body") {
					t.Errorf("every %v: %d %s", every, r.StatusCode, body)
				}
				close(gone)
			}
		})
	}
}

// feed is a connection's side of a body: it gives what a test sends, until its deadline.
type feed struct {
	recorder
	come chan int // bytes

	mu       sync.Mutex // guards the rest
	deadline time.Time
	changed  chan struct{} // closed when the deadline is another one
}

// SetReadDeadline is what a server's response writer has.
func (f *feed) SetReadDeadline(t time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deadline = t
	close(f.changed)
	f.changed = make(chan struct{})
	return nil
}

// Read implements io.Reader.
func (f *feed) Read([]byte) (int, error) {
	for {
		f.mu.Lock()
		at, changed := f.deadline, f.changed
		f.mu.Unlock()
		var late <-chan time.Time
		if !at.IsZero() {
			late = time.After(time.Until(at))
		}
		select {
		case n, ok := <-f.come:
			if !ok {
				return 0, io.EOF
			}
			return n, nil
		case <-late:
			return 0, os.ErrDeadlineExceeded
		case <-changed:
		}
	}
}

// Close implements io.Closer.
func (f *feed) Close() error { return nil }

// feeds is an upload whose client sends so many bytes at once, and then some every so often.
func feeds(first, bytes, times int, every time.Duration) *upload {
	f := &feed{come: make(chan int), changed: make(chan struct{})}
	u := &upload{body: f, conn: http.NewResponseController(f), idle: bodyIdle, left: func() error { return nil }, reading: make(chan struct{}, 1)}
	go func() {
		defer close(f.come)
		if first > 0 {
			f.come <- first
		}
		for range times {
			time.Sleep(every)
			select {
			case f.come <- bytes:
			case <-time.After(time.Hour): // nobody reads any more
			}
		}
	}()
	return u
}

// TestPaceOfAnUpload: how long a client may take, to the second.
func TestPaceOfAnUpload(t *testing.T) {
	for name, c := range map[string]struct {
		first, bytes, times int // bytes at once, then so many so often
		every, took         time.Duration
		err                 error
	}{
		"slow, but steady":        {0, bodyRate * 29, 60, 29 * time.Second, 60 * 29 * time.Second, nil},
		"stands":                  {0, 1, 1, time.Minute, bodyIdle, os.ErrDeadlineExceeded},
		"single bytes":            {0, 1, 1000, time.Second, bodyIdle, os.ErrDeadlineExceeded},
		"half as fast":            {0, bodyRate / 2, 1000, time.Second, 2 * bodyIdle, os.ErrDeadlineExceeded},
		"much, then single bytes": {64 << 20, 1, 1000, time.Second, 2 * bodyIdle, os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := feeds(c.first, c.bytes, c.times, c.every)
				began := time.Now()
				_, err := io.Copy(io.Discard, u)
				if took := time.Since(began); !errors.Is(err, c.err) || took < c.took-time.Second || took > c.took+time.Second {
					t.Errorf("%v after %v, want %v after %v", err, took, c.err, c.took)
				}
				for err == nil || errors.Is(err, os.ErrDeadlineExceeded) { // the client's goroutine ends
					if _, err = u.body.Read(nil); errors.Is(err, os.ErrDeadlineExceeded) {
						u.conn.SetReadDeadline(time.Time{})
					}
				}
			})
		})
	}
}

// TestAnsweredUpload: once there is an answer a body takes the time that it takes.
func TestAnsweredUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := feeds(0, 1, 1, time.Hour)
		go func() {
			time.Sleep(bodyIdle - time.Second)
			if !u.answered() {
				t.Error("all has come")
			}
		}()
		began := time.Now()
		if n, err := u.Read(make([]byte, 10)); n != 1 || err != nil || time.Since(began) != time.Hour {
			t.Errorf("%d bytes, %v after %v", n, err, time.Since(began))
		}
		if _, err := u.Read(make([]byte, 10)); err != io.EOF { //nolint:errorlint // as readers say it
			t.Error(err)
		}
	})
}

// TestConnectionAfterABody: no deadline of a body is left for the requests behind it.
func TestConnectionAfterABody(t *testing.T) {
	h := build(t, answering(0), Options{Planner: always(coldPlan()), waits: waits{idle: 50 * time.Millisecond}})
	for _, path := range []string{"/v1/embeddings", "/v1/chat/completions"} {
		for range 5 {
			r, err := h.client.Post(h.url+path, "application/json", strings.NewReader(chat(false)))
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(r.Body); err != nil || !strings.Contains(string(b), "choices") {
				t.Errorf("%s: %q, %v", path, b, err)
			}
			r.Body.Close()
			time.Sleep(60 * time.Millisecond)
		}
	}
}

// TestRoomForBodies: many long bodies at a time are passed on whole, without a plan, as
// soon as there is no memory for another one; it is free again when a body was sent on,
// not only when its answer has ended.
func TestRoomForBodies(t *testing.T) {
	const size = 1 << 20
	came, answer := make(chan int, 10), make(chan struct{})
	decoder := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		came <- int(n)
		<-answer
		io.WriteString(w, "{}")
	})
	hold, asked := make(chan struct{}), make(chan struct{}, 10)
	planner := &script{plan: func(Ask) (Plan, error) {
		asked <- struct{}{}
		<-hold
		return Plan{}, ErrUnplannable
	}}
	h := build(t, decoder, Options{Planner: planner, Engines: []Engine{quick("a")}, MaxBody: size, MaxBodies: 1, waits: waits{room: 20 * time.Millisecond}})
	body := strings.Repeat("x", size)
	verdicts := make(chan string, 10)
	post := func(chunked bool) {
		var b io.Reader = strings.NewReader(body)
		if chunked {
			b = io.MultiReader(b)
		}
		r, err := h.client.Post(h.url+"/v1/completions", "application/json", b)
		if err != nil {
			t.Error(err)
			return
		}
		r.Body.Close()
		verdicts <- r.Header.Get(headerVerdict)
	}
	go post(false)
	<-asked // it has the room, and its plan takes a while
	for _, chunked := range []bool{false, true} {
		go post(chunked)
		if n := <-came; n != size {
			t.Errorf("%d bytes arrived", n)
		}
	}
	close(hold)
	<-came                   // the first one is sent, and its answer takes a while
	waitFor(t, func() bool { // its memory is back
		ok := h.front.room.TryAcquire(h.front.o.MaxBodies)
		if ok {
			h.front.room.Release(h.front.o.MaxBodies)
		}
		return ok
	})
	go post(true)
	<-asked
	<-came
	close(answer)
	none := 0
	for range 4 {
		if strings.Contains(<-verdicts, errRoom.Error()) {
			none++
		}
	}
	if none != 2 || planner.asked.Load() != 2 {
		t.Errorf("%d were not planned, %d were", none, planner.asked.Load())
	}
	waitFor(t, func() bool { return h.front.room.TryAcquire(h.front.o.MaxBodies) })
}

// TestNextSize: what a client says of a body's length costs little before it comes.
func TestNextSize(t *testing.T) {
	const limit = 64 << 20
	for _, c := range []struct {
		have       int
		size, want int64
	}{
		{0, 100, 101}, {0, limit, firstBody + 1}, {0, -1, firstBody + 1}, {firstBody, 1 << 20, growth*firstBody + 1},
		{1 << 20, 1<<20 + 7, 1<<20 + 8}, {firstBody, -1, 2*firstBody + 1}, {limit - 5, -1, limit + 1}, {limit - 5, limit, limit + 1},
	} {
		if got := nextSize(c.have, c.size, limit); int64(got) != c.want {
			t.Errorf("%d of %d: %d, want %d", c.have, c.size, got, c.want)
		}
	}
}

// TestOwnAnswersCarryTheVerdict: also where the decoder is down.
func TestOwnAnswersCarryTheVerdict(t *testing.T) {
	h := build(t, http.NotFoundHandler(), Options{Planner: always(coldPlan()), Engines: []Engine{quick("a")}})
	h.front.proxy = newProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:1"}, h.front.rt, nil)
	for path, want := range map[string]string{"/v1/chat/completions": "complete ", "/v1/embeddings": "bypass; "} {
		r, err := h.client.Post(h.url+path, "application/json", strings.NewReader(chat(false)))
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		for _, name := range []string{headerVerdict, headerAlias} {
			if v := r.Header.Get(name); r.StatusCode != http.StatusBadGateway || !strings.HasPrefix(v, want) || !strings.Contains(v, "; id=") {
				t.Errorf("%s: %d, %s is %q", path, r.StatusCode, name, v)
			}
		}
	}
}
