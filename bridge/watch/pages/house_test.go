package pages

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdlink/bridge/watch"
)

// raw is a connection that says text, whatever that is.
func (s served) raw(t *testing.T, text string) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestStandingClientsKeepNobodyOut: those that say nothing, half a request, or that there
// is a body which never comes, are as many as there is room for, and then three times so;
// somebody who asks is answered, and so is a page that was open before them.
func TestStandingClientsKeepNobodyOut(t *testing.T) {
	s := serve(t, Options{every: time.Millisecond, conns: 4})
	p := s.open(t)
	for i := range 12 {
		s.raw(t, []string{"", "GET /state HTTP/1.1\r\nHost: loc", "GET /state HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"}[i%3])
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // a client that is new
	for range 3 {
		a, err := c.Get(s.url + "healthz")
		if err != nil {
			t.Fatalf("nobody is let in: %v", err)
		}
		a.Body.Close()
		if a.StatusCode != http.StatusOK {
			t.Errorf("status %d", a.StatusCode)
		}
	}
	p.next()
}

// TestConnectionsAreBounded: all that are answered keep their place, and one more is closed;
// whoever waits longest goes first.
func TestConnectionsAreBounded(t *testing.T) {
	h := newHouse(nil, 2)
	guests := make([]*guest, 5)
	for i := range guests {
		c, other := net.Pipe()
		t.Cleanup(func() { c.Close(); other.Close() })
		guests[i] = &guest{Conn: c, house: h}
	}
	enter := func(i int, gone *guest, ok bool) {
		t.Helper()
		if x, in := h.admit(guests[i]); x != gone || in != ok {
			t.Errorf("guest %d: let in %v", i, in)
		}
	}
	enter(0, nil, true)
	enter(1, nil, true)
	guests[0].answering(true)
	guests[0].answering(false) // it waits since later than guest 1
	enter(2, guests[1], true)
	guests[0].answering(true)
	guests[2].answering(true)
	enter(3, nil, false)
	guests[2].answering(false)
	enter(3, guests[2], true)
	for range 2 { // gives its room back once
		guests[0].Close()
		guests[2].Close() // has none
	}
	enter(4, nil, true)
	if len(h.guests) != 2 {
		t.Errorf("%d guests", len(h.guests))
	}
}

// TestBodiesAreRefused: at once, whether they come or not.
func TestBodiesAreRefused(t *testing.T) {
	s := serve(t, Options{})
	for _, head := range []string{"Content-Length: 100000", "Transfer-Encoding: chunked"} {
		c := s.raw(t, "GET /state HTTP/1.1\r\nHost: localhost\r\n"+head+"\r\n\r\n")
		a, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if a.StatusCode != http.StatusRequestEntityTooLarge || !a.Close {
			t.Errorf("%s: %d", head, a.StatusCode)
		}
		a.Body.Close()
	}
}

// TestStuckReaderIsDropped: and has its place given to another.
func TestStuckReaderIsDropped(t *testing.T) {
	w := watch.New(watch.Options{})
	for range 40 { // so that the connection's buffers are soon full
		w.Ended(watch.Transfer{State: "partial", Reason: strings.Repeat("x", 300)})
	}
	s := serve(t, Options{Watch: w, every: time.Millisecond, write: 500 * time.Millisecond})
	c := s.raw(t, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if _, err := c.Read(make([]byte, 1)); err != nil { // it is a page that is open
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s.hub.mu.Lock()
		n := len(s.hub.clients)
		s.hub.mu.Unlock()
		if n == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("it is waited for, for ever")
		}
	}
}

// TestPagesOutliveTheirRequest: the time that a client has to ask does not end what it
// reads, and does end one that does not ask.
func TestPagesOutliveTheirRequest(t *testing.T) {
	s := serve(t, Options{every: 5 * time.Millisecond, read: time.Second})
	p := s.open(t)
	for begun := time.Now(); time.Since(begun) < 2500*time.Millisecond; {
		p.next()
	}
	c := s.raw(t, "GET /state HTTP/1.1\r\n")
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	// Until it is closed, or reset: that depends on what the server had read.
	var late net.Error
	if _, err := io.ReadAll(c); errors.As(err, &late) && late.Timeout() {
		t.Errorf("half a request stays: %v", err)
	}
}

// TestToken: what can be read with it, in both ways to say it, and without.
func TestToken(t *testing.T) {
	const token = "a-token-of-some-length"
	down := Check{Name: "store", Probe: func(context.Context) error { return errors.New("/Users/anna is full") }}
	s := serve(t, Options{Token: token, Checks: []Check{down}})
	bearer := func(text string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", text) }
	}
	basic := func(password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth("anybody", password) }
	}
	for _, path := range []string{"", "watch.js", "state", "events", "metrics"} {
		for _, change := range []func(*http.Request){nil, bearer("Bearer x" + token), bearer(token), bearer("Basic " + token), bearer("Bearer "), basic(""), basic("x")} {
			status, body, h := s.get(t, path, change)
			if status != http.StatusUnauthorized || !strings.HasPrefix(h.Get("WWW-Authenticate"), "Basic ") || strings.Contains(body, token) {
				t.Errorf("/%s: %d %s", path, status, body)
			}
		}
		if path == "events" { // it has no end
			continue
		}
		for _, change := range []func(*http.Request){bearer("Bearer " + token), bearer("bearer  " + token), basic(token)} {
			if status, _, _ := s.get(t, path, change); status != http.StatusOK {
				t.Errorf("/%s with the token: %d", path, status)
			}
		}
	}
	if status, body, _ := s.get(t, "healthz", nil); status != http.StatusOK || body != "ok\n" {
		t.Errorf("%d %q", status, body)
	}
	if status, body, _ := s.get(t, "readyz", nil); status != http.StatusServiceUnavailable || body != "not ready\n" {
		t.Errorf("%d %q", status, body)
	}
	if status, body, _ := s.get(t, "readyz", basic(token)); status != http.StatusServiceUnavailable || !strings.Contains(body, "anna") {
		t.Errorf("%d %q", status, body)
	}
}
