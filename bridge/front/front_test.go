package front

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestOutcomes(t *testing.T) {
	warm, short, part := coldPlan(), coldPlan(), coldPlan()
	warm.Present = 9
	short.Tokens, short.Blocks, short.IDs = 15, 1, make([]int32, 10)
	part.Present = 4
	bad := coldPlan()
	bad.Blocks = 10 // covers every token
	few := &engine{name: "few", work: func(context.Context, Job) (Result, error) {
		return Result{Blocks: 5, State: "partial", Reason: "engine ran out of room"}, nil
	}}
	for name, c := range map[string]struct {
		plan     *script
		engines  []Engine
		cached   int
		outcome  Outcome
		reason   string
		promised int
		check    Check
	}{
		"cold":             {always(coldPlan()), []Engine{quick("a")}, 90, Bridged, "", 90, CheckEqual},
		"warm":             {always(warm), []Engine{quick("a")}, 90, Bypassed, "warm", 90, CheckEqual},
		"short":            {always(short), []Engine{quick("a")}, 0, Bypassed, "short", 0, CheckEqual},
		"half present":     {always(part), []Engine{quick("a")}, 90, Bridged, "", 90, CheckEqual},
		"promise broken":   {always(coldPlan()), []Engine{quick("a")}, 50, Bridged, "", 90, CheckLess},
		"partial":          {always(coldPlan()), []Engine{few}, 50, Part, "ran out of room", 50, CheckEqual},
		"second engine":    {always(coldPlan()), []Engine{broken("a"), quick("b")}, 90, Bridged, "", 90, CheckEqual},
		"engines down":     {always(coldPlan()), []Engine{broken("a"), broken("b")}, 0, Declined, "connection refused", 0, CheckEqual},
		"plug-in confused": {always(bad), []Engine{quick("a")}, 0, Declined, "contradicts itself", 0, CheckEqual},
		"plug-in down": {
			&script{plan: func(Ask) (Plan, error) { return Plan{}, errors.New("no route") }},
			[]Engine{quick("a")}, 0, Declined, "no route", 0, CheckEqual,
		},
		"unplannable": {
			&script{plan: func(Ask) (Plan, error) { return Plan{}, ErrUnplannable }},
			[]Engine{quick("a")}, 0, Bypassed, "cannot be planned", 0, CheckEqual,
		},
		"not adopted": {
			&script{
				plan:  func(Ask) (Plan, error) { return coldPlan(), nil },
				adopt: func(Plan, int, int) (Adoption, error) { return Adoption{Reason: "signature differs"}, nil },
			},
			[]Engine{quick("a")}, 0, Declined, "signature differs", 0, CheckEqual,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := build(t, answering(c.cached), Options{Planner: c.plan, Engines: c.engines})
			r, body := h.post(t, chat(false))
			if r.StatusCode != http.StatusOK || !strings.Contains(body, "choices") {
				t.Fatalf("the decoder's answer did not come through: %d %s", r.StatusCode, body)
			}
			rec := h.last(t)
			if rec.Outcome != c.outcome || rec.Promised != c.promised || rec.Check != c.check || !strings.Contains(rec.Reason, c.reason) {
				t.Errorf("got %+v", rec)
			}
			for _, name := range []string{headerVerdict, headerAlias} {
				if v := r.Header.Get(name); !strings.HasPrefix(v, string(c.outcome)) || !strings.Contains(v, rec.ID) {
					t.Errorf("header %s: %q", name, v)
				}
			}
		})
	}
}

// What the front has no business with arrives as it was sent, and so does the
// answer.
func TestPassThrough(t *testing.T) {
	const request = "POST /v1/embeddings?a=1;b=%zz HTTP/1.1\r\nHost: some.host:99\r\nAuthorization: Bearer k\r\n" +
		"X-Forwarded-For: 1.2.3.4\r\nContent-Type: text/odd\r\nContent-Length: 5\r\n\r\n{bad}"
	const answer = "HTTP/1.1 418 I'm a teapot\r\nContent-Type: x/y\r\nX-Odd: 1\r\nContent-Length: 3\r\nDate: never\r\n\r\n\x00\x01\x02"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	seen := make(chan *http.Request, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			close(seen)
			return
		}
		b, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(b))
		seen <- r
		io.WriteString(c, answer)
	}()
	h := build(t, http.NotFoundHandler(), Options{Planner: always(coldPlan()), Engines: []Engine{quick("a")}})
	h.front.proxy = newProxy(&url.URL{Scheme: "http", Host: l.Addr().String()}, h.front.rt, nil)
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r.Body)
	if err != nil || string(got) != "\x00\x01\x02" || r.StatusCode != http.StatusTeapot || len(r.Header) != 4 ||
		r.Header.Get("Date") != "never" || r.Header.Get("X-Odd") != "1" {
		t.Errorf("answer: %d %v %q %v", r.StatusCode, r.Header, got, err)
	}
	q := <-seen
	if q == nil {
		t.Fatal("the decoder could not read the request")
	}
	body, err := io.ReadAll(q.Body)
	want := http.Header{
		"Authorization": {"Bearer k"}, "X-Forwarded-For": {"1.2.3.4"}, "Content-Type": {"text/odd"}, "Content-Length": {"5"},
	}
	if err != nil || string(body) != "{bad}" || q.Host != "some.host:99" || q.RequestURI != "/v1/embeddings?a=1;b=%zz" ||
		fmt.Sprint(q.Header) != fmt.Sprint(want) {
		t.Errorf("request: %s %s %v %q", q.RequestURI, q.Host, q.Header, body)
	}
}

func TestStreamsAsItComes(t *testing.T) {
	next := make(chan struct{})
	h := build(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush() //nolint:forcetypeassert // net/http's writer
			<-next
		}
		fmt.Fprint(w, "data: {\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":90}}}\n\ndata: [DONE]\n\n")
	}), Options{Planner: always(coldPlan()), Engines: []Engine{quick("a")}})
	r, err := h.client.Post(h.url+"/v1/chat/completions", "application/json", strings.NewReader(chat(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	in := bufio.NewReader(r.Body)
	for i := range 3 {
		line, err := in.ReadString('\n')
		if err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("event %d: %q, %v", i, line, err)
		}
		in.ReadString('\n')
		next <- struct{}{}
	}
	io.Copy(io.Discard, in)
	if rec := h.last(t); rec.Check != CheckEqual || *rec.Cached != 90 {
		t.Errorf("got %+v", rec)
	}
}

func TestBodyTooLongIsForwarded(t *testing.T) {
	var got int
	h := build(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = len(b)
	}), Options{Planner: always(coldPlan()), Engines: []Engine{quick("a")}, MaxBody: 1000})
	for _, known := range []bool{true, false} {
		var body io.Reader = strings.NewReader(strings.Repeat("x", 5000))
		if !known {
			body = io.MultiReader(body) // sent in chunks
		}
		r, err := h.client.Post(h.url+"/v1/completions", "application/json", body)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if got != 5000 || !strings.HasPrefix(r.Header.Get(headerVerdict), "bypass") {
			t.Errorf("%d bytes arrived, %v", got, r.Header)
		}
	}
}

// Equal prompts share one transfer; it goes on while anybody waits and ends, down
// to the engine, with the last.
func TestSharedTransfer(t *testing.T) {
	started, ended := make(chan context.Context, 4), make(chan struct{})
	slow := &engine{name: "slow", work: func(ctx context.Context, _ Job) (Result, error) {
		started <- ctx
		<-ctx.Done()
		close(ended)
		return Result{}, ctx.Err()
	}}
	h := build(t, answering(0), Options{Planner: always(coldPlan()), Engines: []Engine{slow}})
	ctxs := make([]context.CancelFunc, 3)
	var wg sync.WaitGroup
	for i := range ctxs {
		ctx, cancel := context.WithCancel(t.Context())
		ctxs[i] = cancel
		wg.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/v1/chat/completions", strings.NewReader(chat(false)))
			if err != nil {
				return
			}
			if resp, err := h.client.Do(r); err == nil {
				resp.Body.Close()
				t.Error("an answer came for a client that left")
			}
		})
	}
	work := <-started
	waitFor(t, func() bool {
		h.front.flights.mu.Lock()
		defer h.front.flights.mu.Unlock()
		for _, fl := range h.front.flights.byKey {
			return fl.waiting == 3
		}
		return false
	})
	for i, leave := range ctxs {
		leave()
		if i < 2 {
			time.Sleep(20 * time.Millisecond)
			if work.Err() != nil {
				t.Fatalf("the work ended with client %d of 3", i+1)
			}
		}
	}
	<-ended
	wg.Wait()
	if slow.jobs.Load() != 1 {
		t.Errorf("%d jobs for equal prompts", slow.jobs.Load())
	}
	waitFor(t, func() bool { return len(h.front.records.list()) == 3 })
}

func TestQueue(t *testing.T) {
	release := make(chan struct{})
	var n int
	var mu sync.Mutex
	keyed := &script{plan: func(Ask) (Plan, error) {
		mu.Lock()
		defer mu.Unlock()
		n++
		p := coldPlan()
		p.Key = fmt.Sprint(n)
		return p, nil
	}}
	one := &engine{name: "one", work: func(ctx context.Context, j Job) (Result, error) {
		select {
		case <-release:
			return Result{Blocks: j.Plan.Blocks}, nil
		case <-ctx.Done():
			return Result{}, ctx.Err()
		}
	}}
	h := build(t, answering(90), Options{Planner: keyed, Engines: []Engine{one}, PerEngine: 1, QueueWait: 100 * time.Millisecond})
	first := make(chan string, 1)
	go func() {
		r, _ := h.post(t, chat(false))
		first <- r.Header.Get(headerVerdict)
	}()
	waitFor(t, func() bool { return one.jobs.Load() == 1 })
	r, _ := h.post(t, chat(false))
	if v := r.Header.Get(headerVerdict); !strings.HasPrefix(v, "declined") || !strings.Contains(v, "room") {
		t.Errorf("while the engine was full: %q", v)
	}
	h.front.o.QueueWait = time.Hour // nobody is in the queue, or comes meanwhile
	second := make(chan string, 1)
	go func() {
		r, _ := h.post(t, chat(false))
		second <- r.Header.Get(headerVerdict)
	}()
	waitFor(t, func() bool {
		h.front.engines.mu.Lock()
		defer h.front.engines.mu.Unlock()
		return len(h.front.engines.waiting) == 1
	})
	release <- struct{}{}
	release <- struct{}{}
	for _, ch := range []chan string{first, second} {
		if v := <-ch; !strings.HasPrefix(v, "complete") {
			t.Errorf("after the engine had room: %q", v)
		}
	}
}

// A client that streams hears comments while its prompt is read, and the
// decoder's refusal as the API's own error frame.
func TestKeepAlive(t *testing.T) {
	for name, c := range map[string]struct {
		path   string
		status int
		want   string
	}{
		"answer":         {"/v1/chat/completions", 200, "data: hello\n\n"},
		"error":          {"/v1/chat/completions", 503, "data: {\"error\":{\"message\":\"full\"}}\n\n"},
		"messages error": {"/v1/messages", 503, "event: error\ndata: {\"error\":{\"message\":\"full\"}}\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			slow := &engine{name: "slow", work: func(_ context.Context, j Job) (Result, error) {
				time.Sleep(60 * time.Millisecond)
				return Result{Blocks: j.Plan.Blocks}, nil
			}}
			h := build(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.status != 200 {
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(c.status)
					fmt.Fprint(w, "{\"error\":\n{\"message\":\"full\"}}")
					return
				}
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprint(w, "data: hello\n\n")
			}), Options{Planner: always(coldPlan()), Engines: []Engine{slow}, KeepAlive: 10 * time.Millisecond})
			r, err := h.client.Post(h.url+c.path, "application/json", strings.NewReader(chat(true)))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			b, err := io.ReadAll(r.Body)
			if err != nil || r.StatusCode != http.StatusOK || !strings.HasPrefix(string(b), ": pdlink: reading 100 tokens\n\n") ||
				!strings.HasSuffix(string(b), "\n\n"+c.want) || strings.Count(string(b), "data:") != 1 {
				t.Errorf("%d %q %v", r.StatusCode, b, err)
			}
			if rec := h.last(t); rec.Status != c.status {
				t.Errorf("got %+v", rec)
			}
		})
	}
}

func TestDecoderDown(t *testing.T) {
	h := build(t, http.NotFoundHandler(), Options{Planner: always(coldPlan()), Engines: []Engine{quick("a")}})
	h.front.proxy = newProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:1"}, h.front.rt, nil)
	r, body := h.post(t, chat(false))
	if r.StatusCode != http.StatusBadGateway || !strings.Contains(body, "the decoder cannot be reached") {
		t.Errorf("%d %s", r.StatusCode, body)
	}
	if rec := h.last(t); rec.Status != http.StatusBadGateway || rec.Check != CheckUnknown {
		t.Errorf("got %+v", rec)
	}
}

// An answer that breaks off is broken off for the client too, and is recorded.
func TestAnswerBreaksOff(t *testing.T) {
	h := build(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, "half")
	}), Options{Planner: always(coldPlan()), Engines: []Engine{quick("a")}})
	r, err := h.client.Post(h.url+"/v1/chat/completions", "application/json", strings.NewReader(chat(false)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); err == nil {
		t.Errorf("a broken answer read as whole: %q", b)
	}
	if rec := h.last(t); rec.Outcome != Bridged || rec.Check != CheckUnknown || rec.Reason != errBroken.Error() || rec.Client {
		t.Errorf("got %+v", rec)
	}
}

func TestTransfersAndMetrics(t *testing.T) {
	h := build(t, answering(50), Options{Planner: always(coldPlan()), Engines: []Engine{quick("a")}, Keep: 2})
	for range 3 {
		h.post(t, chat(false))
	}
	get := func(path string) (int, string) {
		w := &recorder{header: http.Header{}}
		h.front.Transfers().ServeHTTP(w, must(http.NewRequest(http.MethodGet, path, nil)))
		return w.status, w.body.String()
	}
	waitFor(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.records) == 3
	})
	rec := h.last(t)
	if s, b := get("/pdlink/transfers"); s != 200 || strings.Count(b, `"id"`) != 2 || !strings.Contains(b, `"check":"less"`) {
		t.Errorf("list: %d %s", s, b)
	}
	if s, b := get("/pdlink/transfers/" + rec.Transfer); s != 200 || !strings.Contains(b, rec.ID) {
		t.Errorf("one: %d %s", s, b)
	}
	if s, _ := get("/pdlink/transfers/none"); s != 404 {
		t.Errorf("none: %d", s)
	}
	if _, b := get("/pdlink/metrics"); !strings.Contains(b, `pdlink_requests_total{outcome="complete"} 3`) ||
		!strings.Contains(b, "pdlink_cached_less_total 3") || !strings.Contains(b, "pdlink_requests_running 0") {
		t.Errorf("metrics: %s", b)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(s int)           { r.status = s }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

func TestOptions(t *testing.T) {
	for _, o := range []Options{{}, {Decoder: &url.URL{Scheme: "ftp", Host: "x"}}, {Decoder: &url.URL{Scheme: "http", Host: "x"}}} {
		if _, err := New(o); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
