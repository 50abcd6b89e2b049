package front

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// raw is a decoder that does with each connection what a test says.
func raw(t *testing.T, serve func(c net.Conn, in *bufio.Reader)) *url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			go serve(c, bufio.NewReader(c))
		}
	}()
	return &url.URL{Scheme: "http", Host: l.Addr().String()}
}

// patient are the times of a front that waits for its clients for longer than answer does:
// what comes has not waited for them.
func patient() waits { return waits{idle: time.Hour} }

// stands sends the beginning of a request and stands still. It returns the answer.
func (h *house) stands(t *testing.T, request string) (*http.Response, string) {
	t.Helper()
	return h.send(t, request).answer()
}

// blamed reports whether a client was.
func (h *house) blamed(t *testing.T) bool {
	t.Helper()
	waitFor(t, h.idle)
	w := &recorder{header: http.Header{}}
	h.front.Transfers().ServeHTTP(w, must(http.NewRequest(http.MethodGet, "/pdlink/metrics", nil)))
	return !strings.Contains(w.body.String(), "pdlink_client_errors_total 0\n")
}

// TestEarlyAnswer: what the decoder answers before a body is whole reaches a client that
// stands still at once, and is not the client's fault.
func TestEarlyAnswer(t *testing.T) {
	const text = `{"error":"too large"}`
	answers := map[string]string{
		"with a length": fmt.Sprintf("HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n%s", len(text), text),
		"in chunks":     fmt.Sprintf("HTTP/1.1 413 Too Large\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(text), text),
		"to the end":    "HTTP/1.1 413 Too Large\r\nConnection: close\r\n\r\n" + text,
		"empty":         "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n",
	}
	for where, head := range map[string]string{"unplanned": unplanned, "too long to plan": planned} {
		for body, begun := range map[string]string{
			"length": "Content-Length: 100000\r\n\r\nhello there", "long": "Content-Length: 1000000\r\n\r\nhello there", "chunks": "Transfer-Encoding: chunked\r\n\r\nb\r\nhello there\r\n",
		} {
			for how, answer := range answers {
				t.Run(where+", "+body+", "+how, func(t *testing.T) {
					t.Parallel()
					h := build(t, nil, Options{Planner: always(coldPlan()), MaxBody: 10, waits: patient()})
					up := raw(t, func(c net.Conn, in *bufio.Reader) {
						if _, err := http.ReadRequest(in); err == nil {
							io.WriteString(c, answer)
						}
						if how == "to the end" {
							c.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // of tcp
						}
					})
					h.front.proxy = newProxy(up, h.front.rt, nil)
					r, got := h.stands(t, head+begun)
					if r.StatusCode != http.StatusRequestEntityTooLarge || how != "empty" && got != text {
						t.Errorf("%d %q", r.StatusCode, got)
					}
					if !r.Close {
						t.Error("the connection is kept, and the body has not come")
					}
					if h.blamed(t) {
						t.Error("it is the client's fault")
					}
				})
			}
		}
	}
}

// TestEarlyAnswerThatTakesItsTime is not broken off by what the rest of a body may take.
func TestEarlyAnswerThatTakesItsTime(t *testing.T) {
	const pause = lingerTime + 200*time.Millisecond
	h := build(t, nil, Options{Planner: always(coldPlan()), waits: patient()})
	up := raw(t, func(c net.Conn, in *bufio.Reader) {
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
		time.Sleep(pause)
		io.WriteString(c, "hello")
	})
	h.front.proxy = newProxy(up, h.front.rt, nil)
	if r, got := h.stands(t, unplanned+"Content-Length: 100000\r\n\r\nhello"); r.StatusCode != http.StatusOK || got != "hellohello" {
		t.Errorf("%d %q", r.StatusCode, got)
	}
	if h.blamed(t) {
		t.Error("it is the client's fault")
	}
}

// TestDecoderGoesWhileAClientSends: the client hears of it at once, and is not blamed.
func TestDecoderGoesWhileAClientSends(t *testing.T) {
	for where, head := range map[string]string{"unplanned": unplanned, "too long to plan": planned} {
		t.Run(where, func(t *testing.T) {
			h := build(t, nil, Options{Planner: always(coldPlan()), MaxBody: 10, waits: patient()})
			up := raw(t, func(c net.Conn, in *bufio.Reader) {
				http.ReadRequest(in)
				c.Close()
			})
			h.front.proxy = newProxy(up, h.front.rt, nil)
			r, body := h.stands(t, head+"Content-Length: 100000\r\n\r\nhello there")
			if r.StatusCode != http.StatusBadGateway || !strings.Contains(body, "decoder_gone") || !strings.HasPrefix(r.Header.Get(headerVerdict), "bypass; ") {
				t.Errorf("%d %s %s", r.StatusCode, r.Header, body)
			}
			if h.blamed(t) {
				t.Error("it is the client's fault")
			}
		})
	}
}

// TestDecoderIsDownForAClientThatStands: nobody waits for its body.
func TestDecoderIsDownForAClientThatStands(t *testing.T) {
	h := build(t, nil, Options{Planner: always(coldPlan()), waits: patient()})
	h.front.proxy = newProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:1"}, h.front.rt, nil)
	if r, body := h.stands(t, unplanned+"Content-Length: 100000\r\n\r\nhello"); r.StatusCode != http.StatusBadGateway || !strings.Contains(body, "decoder_unreachable") {
		t.Errorf("%d %s", r.StatusCode, body)
	}
	if h.blamed(t) {
		t.Error("it is the client's fault")
	}
}

// leaver is a listener whose connections end as the next request arrives, once they were
// used: what a server does whose time for idle ones has just passed.
type leaver struct {
	net.Listener
	reset bool
	every bool   // also the first request of a connection, once going is set
	until string // what has come of the request by then
	going atomic.Bool
	made  atomic.Int32
}

func (l *leaver) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.made.Add(1)
	return &leaving{Conn: c, l: l}, nil
}

// leaving is one of them; one goroutine reads and writes.
type leaving struct {
	net.Conn
	l    *leaver
	used atomic.Bool
}

func (c *leaving) Write(p []byte) (int, error) {
	c.used.Store(c.used.Load() || !bytes.HasPrefix(p, []byte("HTTP/1.1 100 ")))
	return c.Conn.Write(p)
}

func (c *leaving) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 || !c.l.going.Load() || !c.used.Load() && !c.l.every {
		return n, err
	}
	come := bytes.Clone(p[:n])
	for more := make([]byte, 1<<10); err == nil && !bytes.HasSuffix(come, []byte(c.l.until)); come = append(come, more[:n]...) {
		n, err = c.Conn.Read(more)
	}
	if c.l.reset {
		c.Conn.(*net.TCPConn).SetLinger(0) //nolint:forcetypeassert // of tcp
	}
	c.Close()
	return 0, net.ErrClosed
}

// leave starts a decoder behind such a listener, before a front.
func leave(t *testing.T, l *leaver, decoder http.Handler, o Options) *house {
	t.Helper()
	var err error
	if l.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	up := &httptest.Server{Listener: l, Config: &http.Server{Handler: decoder}}
	up.Start()
	t.Cleanup(up.Close)
	h := build(t, nil, o)
	h.front.proxy = newProxy(must(url.Parse(up.URL)), h.front.rt, nil)
	return h
}

// prompt makes a request for one. It returns when the front is done with it: what it kept
// of connections is there for the next one.
func (h *house) prompt(t *testing.T, body string) (*http.Response, string) {
	t.Helper()
	r, got := h.post(t, body)
	waitFor(t, h.idle)
	return r, got
}

// crossing are the times of a front whose requests may cross however slow the host is.
func crossing() waits { return waits{cross: time.Hour} }

// TestCrossing: a request for a prompt that meets the end of a kept connection, and that
// the decoder has not read, is made again, whole, once, over a new one; that is said, and
// its body's memory is given back.
func TestCrossing(t *testing.T) {
	for _, size := range []int{200, 1 << 20} {
		t.Run(fmt.Sprintf("%d bytes", size), func(t *testing.T) {
			body := fmt.Sprintf(`{"prompt":%q}`, strings.Repeat("x", size))
			var came atomic.Int32
			decoder := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b, err := io.ReadAll(r.Body)
				if err != nil || string(b) != body {
					t.Errorf("%d bytes came, %v", len(b), err)
				}
				came.Add(1)
				io.WriteString(w, `{"usage":{"prompt_tokens_details":{"cached_tokens":90}}}`)
			})
			l := &leaver{reset: true}
			h := leave(t, l, decoder, Options{Planner: always(coldPlan()), Engines: []Engine{quick("a")}, waits: crossing()})
			l.going.Store(true)
			for i := range int32(4) {
				r, got := h.prompt(t, body)
				verdict := r.Header.Get(headerVerdict)
				if r.StatusCode != http.StatusOK || !strings.HasPrefix(verdict, "complete ") || !strings.Contains(got, "cached") {
					t.Errorf("%d %s %s", r.StatusCode, r.Header, got)
				}
				again := i%2 == 1 // a connection is kept, and is not
				if said := "sent to the decoder again"; strings.Contains(verdict, said) != again || strings.Contains(h.last(t).Reason, said) != again {
					t.Errorf("request %d: %q, %+v", i, verdict, h.last(t))
				}
				if came.Load() != i+1 {
					t.Errorf("%d requests came to the decoder, %d were made", came.Load(), i+1)
				}
			}
			waitFor(t, func() bool { return h.front.room.TryAcquire(h.front.o.MaxBodies) })
			if l.made.Load() != 4 {
				t.Errorf("%d connections", l.made.Load())
			}
		})
	}
}

// TestCrossingOfWhatWasRead: a decoder that has read a request and ends the connection then,
// however soon, may have begun with it: it does not get it again.
func TestCrossingOfWhatWasRead(t *testing.T) {
	const end = `"the end"}`
	for _, size := range []int{200, 1 << 20} {
		t.Run(fmt.Sprintf("%d bytes", size), func(t *testing.T) {
			l := &leaver{until: end}
			h := leave(t, l, answering(90), Options{Planner: always(coldPlan()), Engines: []Engine{quick("a")}, waits: crossing()})
			body := fmt.Sprintf(`{"prompt":%q,"more":%s`, strings.Repeat("x", size), end)
			if r, _ := h.prompt(t, body); r.StatusCode != http.StatusOK {
				t.Fatal(r.StatusCode)
			}
			l.going.Store(true)
			if r, text := h.prompt(t, body); r.StatusCode != http.StatusBadGateway || !strings.Contains(text, "decoder_gone") || strings.Contains(r.Header.Get(headerVerdict), "again") {
				t.Errorf("%d %s %s", r.StatusCode, r.Header, text)
			}
			if n := l.made.Load(); n != 1 {
				t.Errorf("%d connections", n)
			}
			waitFor(t, func() bool { return h.front.room.TryAcquire(h.front.o.MaxBodies) })
		})
	}
}

// TestCrossingOnceOnly: where the new connection ends too the client hears of it.
func TestCrossingOnceOnly(t *testing.T) {
	l := &leaver{every: true, reset: true}
	h := leave(t, l, answering(90), Options{Planner: always(coldPlan()), waits: crossing()})
	if r, _ := h.prompt(t, chat(false)); r.StatusCode != http.StatusOK {
		t.Fatal(r.StatusCode)
	}
	l.going.Store(true)
	r, body := h.post(t, chat(false))
	if r.StatusCode != http.StatusBadGateway || !strings.Contains(body, "decoder_gone") || !strings.Contains(body, "ended the connection") {
		t.Errorf("%d %s", r.StatusCode, body)
	}
	if n := l.made.Load(); n != 2 {
		t.Errorf("%d connections, want the kept one and a new one", n)
	}
	waitFor(t, func() bool { return h.front.room.TryAcquire(h.front.o.MaxBodies) })
}

// TestCrossingOfOthers: a request that may do something, and of which the decoder may have
// all, is not made twice. One whose body was not asked for cannot have been begun.
func TestCrossingOfOthers(t *testing.T) {
	var came atomic.Int32
	decoder := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		came.Add(1)
		io.WriteString(w, "{}")
	})
	for name, c := range map[string]struct {
		method, body, expect string
		status               int
	}{
		"a body":          {http.MethodPost, "hello", "", http.StatusBadGateway},
		"none":            {http.MethodPost, "", "", http.StatusBadGateway},
		"one not sent":    {http.MethodPost, "hello", "100-continue", http.StatusOK},
		"nothing is done": {http.MethodGet, "", "", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			l := &leaver{}
			if c.status != http.StatusOK {
				l.until = c.body
			}
			h := leave(t, l, decoder, Options{Planner: always(coldPlan()), waits: crossing()})
			send := func() (*http.Response, string) {
				r := must(http.NewRequestWithContext(t.Context(), c.method, h.url+"/v1/other", strings.NewReader(c.body)))
				if c.expect != "" {
					r.Header.Set("Expect", c.expect)
				}
				resp, err := h.client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				b, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return resp, string(b)
			}
			if r, _ := h.prompt(t, chat(false)); r.StatusCode != http.StatusOK {
				t.Fatal(r.StatusCode)
			}
			came.Store(0)
			l.going.Store(true)
			r, body := send()
			if r.StatusCode != c.status || c.status != http.StatusOK && !strings.Contains(body, "decoder_gone") {
				t.Errorf("%d %s", r.StatusCode, body)
			}
			if done := came.Load() == 1; done != (c.status == http.StatusOK) {
				t.Errorf("%d came", came.Load())
			}
			if h.blamed(t) {
				t.Error("it is the client's fault")
			}
		})
	}
}

// TestDecoderThatDiesOfARequest gets it once, however soon it dies.
func TestDecoderThatDiesOfARequest(t *testing.T) {
	t.Run("clear", func(t *testing.T) { diesOfARequest(t, func(*house, http.Handler) {}) })
	t.Run("TLS", func(t *testing.T) {
		diesOfARequest(t, func(h *house, decoder http.Handler) {
			up := httptest.NewTLSServer(decoder)
			t.Cleanup(up.Close)
			roots := x509.NewCertPool()
			roots.AddCert(up.Certificate())
			for _, rt := range []*http.Transport{h.front.rt.kept, h.front.rt.fresh} {
				rt.TLSClientConfig = &tls.Config{RootCAs: roots}
			}
			h.front.proxy = newProxy(must(url.Parse(up.URL)), h.front.rt, nil)
		})
	})
}

// diesOfARequest makes two requests to a decoder, the second of which ends it. before may
// put another decoder in its place.
func diesOfARequest(t *testing.T, before func(h *house, decoder http.Handler)) {
	t.Helper()
	var came atomic.Int32
	decoder := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if came.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, "{}")
	})
	h := build(t, decoder, Options{Planner: always(coldPlan()), waits: crossing()})
	before(h, decoder)
	h.prompt(t, chat(false))
	if r, body := h.post(t, chat(false)); r.StatusCode != http.StatusBadGateway || !strings.Contains(body, "decoder_gone") || came.Load() != 2 {
		t.Errorf("%d %s, asked %d times", r.StatusCode, body, came.Load())
	}
}

// TestClientThatLeaves while the decoder works is not a decoder that fails.
func TestClientThatLeaves(t *testing.T) {
	began := make(chan struct{})
	decoder := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		close(began)
		<-r.Context().Done()
	})
	h := build(t, decoder, Options{Planner: always(coldPlan())})
	s := h.send(t, planned+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(chat(false)), chat(false)))
	<-began
	s.c.Close()
	if r := h.last(t); r.Status != statusLeft || r.Check != CheckUnknown {
		t.Errorf("%+v", r)
	}
}
