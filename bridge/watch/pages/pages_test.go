package pages

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pdlink/bridge/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// served is a server on loopback.
type served struct {
	*Server
	url string
	*http.Client
}

func serve(t *testing.T, o Options) served {
	t.Helper()
	if o.Watch == nil {
		o.Watch = watch.New(watch.Options{Program: "decode", Host: "mac"})
	}
	o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "figures") })
	l, err := Addr{"tcp", "127.0.0.1:0"}.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := New(o)
	s.Serve(l)
	c := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		c.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return served{s, URL(l), c}
}

// get is the answer to a request.
func (s served) get(t *testing.T, path string, change func(*http.Request)) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	a, err := s.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(b), a.Header
}

// TestPages: each is there, with what keeps a browser from doing anything else with it.
func TestPages(t *testing.T) {
	s := serve(t, Options{})
	for path, want := range map[string][2]string{
		"":          {"text/html; charset=utf-8", "<title>pdlink</title>"},
		"watch.js":  {"text/javascript; charset=utf-8", "EventSource"},
		"watch.css": {"text/css; charset=utf-8", "color-scheme"},
		"icon.svg":  {"image/svg+xml", "<svg"},
		"state":     {"application/json", `"program":"decode"`},
		"metrics":   {"text/plain; charset=utf-8", "figures"},
		"healthz":   {"text/plain; charset=utf-8", "ok\n"},
		"readyz":    {"text/plain; charset=utf-8", "ready\n"},
	} {
		status, body, h := s.get(t, path, nil)
		if status != http.StatusOK || h.Get("Content-Type") != want[0] || !strings.Contains(body, want[1]) {
			t.Errorf("/%s: %d %s %s", path, status, h.Get("Content-Type"), body)
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Content-Security-Policy": policy} {
			if h.Get(name) != want {
				t.Errorf("/%s: %s: %s", path, name, h.Get(name))
			}
		}
	}
	for _, path := range []string{"nothing", "page/watch.js", "debug/pprof/"} {
		if status, _, _ := s.get(t, path, nil); status != http.StatusNotFound {
			t.Errorf("/%s: %d", path, status)
		}
	}
	if status, _, _ := s.get(t, "state", func(r *http.Request) { r.Method = http.MethodPost }); status != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", status)
	}
}

// TestPageNeedsNobodyElse: no script, style or picture of another place, none in the text
// of the page, and nothing that makes markup of texts.
func TestPageNeedsNobodyElse(t *testing.T) {
	for name, forbidden := range map[string][]string{
		"index.html": {"http:", "https:", "<style", " style=", "onclick", "onload", "<script>"},
		"watch.js":   {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "https:", "import"},
		"watch.css":  {"url(", "@import"},
	} {
		b, err := files.ReadFile("page/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range forbidden {
			if strings.Contains(string(b), x) {
				t.Errorf("%s has %s", name, x)
			}
		}
	}
}

// TestNamesOfOthersAreRefused: a page of somebody else's server whose name leads here now
// cannot read this one.
func TestNamesOfOthersAreRefused(t *testing.T) {
	s := serve(t, Options{})
	for host, want := range map[string]int{
		"evil.example": 403, "evil.example:9411": 403, "localhost.evil.example": 403, "localhost:9411": 200, "LOCALHOST": 200, "[::1]:9411": 200, "127.0.0.1": 200,
	} {
		if status, _, _ := s.get(t, "state", func(r *http.Request) { r.Host = host }); status != want {
			t.Errorf("%s: %d, want %d", host, status, want)
		}
	}
}

// TestReady says what is missing; a check that hangs is one that fails, and holds up
// neither the others nor the next look.
func TestReady(t *testing.T) {
	hold := make(chan struct{})
	var calls, broken atomic.Int32
	s := serve(t, Options{check: time.Second, Checks: []Check{
		{"store", func(context.Context) error {
			if broken.Load() > 0 {
				return errors.New("the disk is full")
			}
			return nil
		}},
		{"server", func(context.Context) error { calls.Add(1); <-hold; return nil }},
	}})
	broken.Store(1)
	for range 3 {
		status, body, _ := s.get(t, "readyz", nil)
		if status != http.StatusServiceUnavailable || body != "store: the disk is full\nserver: no answer in time\n" {
			t.Errorf("%d %q", status, body)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("a check that hangs was begun %d times", n)
	}
	if status, body, _ := s.get(t, "healthz", nil); status != http.StatusOK || body != "ok\n" {
		t.Errorf("not alive: %d %q", status, body)
	}
	if s.Ready() {
		t.Error("ready")
	}
	broken.Store(0)
	close(hold)
	for end := time.Now().Add(patience); !s.Ready(); {
		if time.Now().After(end) {
			t.Fatal("never ready")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if status, body, _ := s.get(t, "readyz", nil); status != http.StatusOK || body != "ready\n" {
		t.Errorf("%d %q", status, body)
	}
}

// page is one that is open.
type page struct {
	t    *testing.T
	body io.ReadCloser
	r    *bufio.Reader
}

func (s served) open(t *testing.T) page {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"events", nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if a.StatusCode != http.StatusOK || a.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%d %v", a.StatusCode, a.Header)
	}
	t.Cleanup(func() { a.Body.Close() })
	return page{t, a.Body, bufio.NewReader(a.Body)}
}

// next is the next state that the page is told.
func (p page) next() (s shownState) {
	p.t.Helper()
	line, err := p.r.ReadString('\n')
	empty, errEmpty := p.r.ReadString('\n')
	if err != nil || errEmpty != nil || empty != "\n" || !strings.HasPrefix(line, "data: {") {
		p.t.Fatalf("%q %q %v %v", line, empty, err, errEmpty)
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &s); err != nil {
		p.t.Fatal(err)
	}
	return s
}

// looks counts the looks at a Watch.
func looks(n *atomic.Int64) *watch.Watch {
	return watch.New(watch.Options{Running: func() int { return int(n.Add(1)) }})
}

// TestEvents: a page hears of what happens; while none is open nothing is looked at.
func TestEvents(t *testing.T) {
	var n atomic.Int64
	w := looks(&n)
	s := serve(t, Options{Watch: w, every: 5 * time.Millisecond})
	time.Sleep(50 * time.Millisecond) // ten times as long as between two looks
	if n.Load() != 0 {
		t.Errorf("%d looks at what nobody wants to see", n.Load())
	}
	a, b := s.open(t), s.open(t)
	first := a.next()
	if !first.Ready || first.Lacks == nil || len(first.Done) != 0 || first.Done == nil {
		t.Errorf("%+v", first)
	}
	w.Ended(watch.Transfer{Transfer: "<b>", State: "complete", Reason: "\n\ndata: {}"})
	for _, p := range []page{a, b} {
		for end := time.Now().Add(patience); ; {
			x := p.next()
			if len(x.Done) == 1 && x.Done[0].Transfer == "<b>" {
				break
			}
			if time.Now().After(end) {
				t.Fatal("never told of a transfer")
			}
		}
	}
	a.body.Close()
	b.body.Close()
	idle := func() bool {
		s.hub.mu.Lock()
		defer s.hub.mu.Unlock()
		return !s.hub.running && len(s.hub.clients) == 0
	}
	for end := time.Now().Add(patience); !idle(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it goes on although nobody looks")
		}
	}
	if was := n.Load(); was == 0 || s.open(t).next().Running <= int(was) {
		t.Error("a page that is opened later sees nothing new")
	}
}

// TestSlowClientHoldsNobodyUp: one that reads nothing, beside one that does; what it did
// not read is not kept for it.
func TestSlowClientHoldsNobodyUp(t *testing.T) {
	var n atomic.Int64
	w := looks(&n)
	for range 40 { // so that the connection's buffers are soon full
		w.Ended(watch.Transfer{State: "partial", Reason: strings.Repeat("x", 300)})
	}
	s := serve(t, Options{Watch: w, every: time.Millisecond})
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	p := s.open(t)
	last := 0
	for range 500 {
		x := p.next()
		if x.Running <= last {
			t.Fatalf("look %d after %d", x.Running, last)
		}
		last = x.Running
	}
}

// TestClientsAreBounded: pages that are open.
func TestClientsAreBounded(t *testing.T) {
	s := serve(t, Options{every: time.Hour})
	for range maxClients {
		if x := s.open(t).next(); x.Program != "decode" { // the first look is for all of them
			t.Errorf("%+v", x)
		}
	}
	if status, body, h := s.get(t, "events", nil); status != http.StatusServiceUnavailable || !strings.Contains(body, "enough pages") || h.Get("Retry-After") == "" {
		t.Errorf("%d %s %v", status, body, h)
	}
}

// TestCloseEndsPages at once, and twice is as good as once.
func TestCloseEndsPages(t *testing.T) {
	s := serve(t, Options{every: time.Hour})
	p := s.open(t)
	p.next()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { s.Close() })
	}
	if _, err := p.r.ReadByte(); err == nil {
		t.Error("a page goes on")
	}
	wg.Wait()
	if err := New(Options{Watch: watch.New(watch.Options{})}).Close(); err != nil {
		t.Errorf("one that never served: %v", err)
	}
}

// TestAddr: what people write.
func TestAddr(t *testing.T) {
	for text, want := range map[string]Addr{
		"9411": {"tcp", "127.0.0.1:9411"}, ":9411": {"tcp", "127.0.0.1:9411"}, "0": {"tcp", "127.0.0.1:0"}, "0.0.0.0:9411": {"tcp", "0.0.0.0:9411"},
		"[::1]:80": {"tcp", "[::1]:80"}, "mac:9411": {"tcp", "mac:9411"}, "unix:///run/x.sock": {"unix", "/run/x.sock"}, "unix://x": {"unix", "x"},
	} {
		if a, err := ParseAddr(text); err != nil || a != want {
			t.Errorf("%q: %v %v", text, a, err)
		}
	}
	for _, text := range []string{"", ":", "x", "70000", "-1", "::1", "h:http", "unix://", "unix://~/x", "http://h:1"} {
		if a, err := ParseAddr(text); err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%q: %v %v", text, a, err)
		}
	}
}

// TestUnixSocket: the pages are there, a socket that is in use is not taken, one of a
// process that is gone is, and a file is not.
func TestUnixSocket(t *testing.T) {
	dir := t.TempDir()
	a := Addr{"unix", filepath.Join(dir, "s")}
	listen := func() (net.Listener, error) { return a.Listen(t.Context()) }
	l, err := listen()
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Watch: watch.New(watch.Options{}), Metrics: http.NotFoundHandler()})
	s.Serve(l)
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", a.Text)
	}}
	r, err := (&http.Client{Transport: tr}).Get("http://anything/healthz")
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", r, err)
	}
	r.Body.Close()
	tr.CloseIdleConnections()
	if l, err := listen(); err == nil {
		l.Close()
		t.Error("a socket that is in use was taken")
	}
	if URL(l) != "unix://"+a.Text || Reachable(l) {
		t.Errorf("%s", URL(l))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: a.Text})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if l, err = listen(); err != nil {
		t.Fatalf("the socket of a process that is gone: %v", err)
	}
	l.Close()
	if err := os.WriteFile(a.Text, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(); err == nil {
		t.Error("a file was taken for a socket")
	}
	if b, err := os.ReadFile(a.Text); err != nil || string(b) != "x" {
		t.Errorf("%q %v", b, err)
	}
}
