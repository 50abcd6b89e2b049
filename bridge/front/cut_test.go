package front

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestCutAnswers: what was said in an answer that is not whole is no word, and who ended it
// is told.
func TestCutAnswers(t *testing.T) {
	const usage = "data: {\"usage\":{\"cache_read_input_tokens\":90}}\n\n"
	for name, c := range map[string]struct {
		said   string
		leaves bool
		reason string
		check  Check
	}{
		"decoder":             {usage, false, errBroken.Error(), CheckUnknown},
		"client":              {usage, true, errLeft.Error(), CheckUnknown},
		"client, at the end":  {usage + "data: [DONE]\n\n", true, "", CheckEqual},
		"decoder, at the end": {usage + "data: [DONE]\n\n", false, errBroken.Error(), CheckUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			h := build(t, nil, Options{Planner: always(coldPlan()), Engines: []Engine{quick("a")}})
			h.front.proxy = newProxy(raw(t, func(to net.Conn, in *bufio.Reader) {
				defer to.Close()
				r, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				io.Copy(io.Discard, r.Body)
				fmt.Fprintf(to, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(c.said), c.said)
				if c.leaves {
					in.ReadByte() // the front hangs up
				}
			}), h.front.rt, log.New(io.Discard, "", 0))
			r, err := h.client.Post(h.url+"/v1/chat/completions", "application/json", strings.NewReader(chat(true)))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(r.Body, make([]byte, len(c.said))); err != nil {
				t.Fatal(err)
			}
			if !c.leaves {
				if _, err := io.ReadAll(r.Body); err == nil {
					t.Error("it is whole")
				}
			}
			r.Body.Close()
			rec := h.last(t)
			if rec.Outcome != Bridged || rec.Reason != c.reason || rec.Check != c.check || rec.Client != (c.reason == errLeft.Error()) {
				t.Errorf("%+v", rec)
			}
		})
	}
}

// TestHalfClosed: a client that ends its half of the connection and reads on gets no answer
// that the decoder did not give, whatever is done for it at that time.
func TestHalfClosed(t *testing.T) {
	began := make(chan struct{}, 10) // more than anybody says
	waits := func(ctx context.Context) {
		began <- struct{}{}
		<-ctx.Done()
	}
	decoder := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		waits(r.Context())
	})
	flies := &engine{name: "a", work: func(ctx context.Context, _ Job) (Result, error) {
		waits(ctx)
		return Result{}, ctx.Err()
	}}
	hold := make(chan struct{})
	plans := &script{plan: func(Ask) (Plan, error) {
		began <- struct{}{}
		<-hold
		return coldPlan(), nil
	}}
	for name, c := range map[string]struct {
		head string
		o    Options
	}{
		"plan":         {planned, Options{Planner: plans, Engines: []Engine{flies}}},
		"flight":       {planned, Options{Planner: always(coldPlan()), Engines: []Engine{flies}}},
		"decode":       {planned, Options{Planner: always(coldPlan())}},
		"pass-through": {unplanned, Options{Planner: always(coldPlan())}},
	} {
		t.Run(name, func(t *testing.T) {
			h := build(t, decoder, c.o)
			s := h.send(t, fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", c.head, len(chat(false)), chat(false)))
			<-began
			if err := s.c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if name == "plan" {
				time.Sleep(50 * time.Millisecond) // the server finds it meanwhile, or the flight does
				close(hold)
			}
			if err := s.c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if b, _ := io.ReadAll(s.c); len(b) > 0 {
				t.Errorf("%q", b)
			}
			if c.head == unplanned {
				return
			}
			if rec := h.last(t); rec.Outcome != Bypassed || rec.Status != statusLeft || rec.Check != CheckUnknown || !rec.Client || !strings.HasSuffix(rec.Reason, errLeft.Error()) {
				t.Errorf("%+v", rec)
			}
		})
	}
}

// TestNoStatus: an answer with a number that is no status is the decoder's fault, and said
// to be.
func TestNoStatus(t *testing.T) {
	for _, status := range []string{"000", "099"} {
		h := build(t, nil, Options{Planner: always(coldPlan())})
		h.front.proxy = newProxy(raw(t, func(c net.Conn, in *bufio.Reader) {
			defer c.Close()
			if r, err := http.ReadRequest(in); err == nil {
				io.Copy(io.Discard, r.Body)
				fmt.Fprintf(c, "HTTP/1.1 %s X\r\nContent-Length: 2\r\n\r\n{}", status)
			}
		}), h.front.rt, nil)
		for _, path := range []string{"/v1/chat/completions", "/v1/embeddings"} {
			r, err := h.client.Post(h.url+path, "application/json", strings.NewReader(chat(false)))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(r.Body)
			r.Body.Close()
			if err != nil || r.StatusCode != http.StatusBadGateway || !strings.Contains(string(b), "status "+status) {
				t.Errorf("%d %s %v", r.StatusCode, b, err)
			}
		}
	}
}
