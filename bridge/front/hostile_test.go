package front

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdlink/bridge/prefill/calls"
)

// TestDeclinedByOne: a host that does not do a job, at once, is followed by another one,
// and the reason is told where there is none.
func TestDeclinedByOne(t *testing.T) {
	for state, bytes := range map[string]uint64{calls.Declined: 0, calls.Partial: 1000} {
		h := build(t, answering(90), Options{Planner: always(coldPlan())})
		first := &engine{name: "a", work: func(context.Context, Job) (Result, error) {
			return Result{State: state, Bytes: bytes, Reason: "too long for this one"}, nil
		}}
		h.front.Add(first)
		h.post(t, chat(false))
		if r := h.last(t); !strings.Contains(r.Reason, "too long for this one") {
			t.Errorf("%s, alone: %+v", state, r)
		}
		second := quick("b")
		h.front.Add(second)
		for range 3 {
			h.post(t, chat(false))
		}
		if second.jobs.Load() == 0 {
			t.Errorf("%s: the other host had no jobs", state)
		}
	}
}

// TestLongVerdict: whatever a host is called or reads, the header is short and names the
// request.
func TestLongVerdict(t *testing.T) {
	r := Record{Outcome: Declined, Reason: strings.Repeat("x", 1<<16), ID: "0123"}
	if s := r.String(); len(s) > maxVerdict+100 || !strings.HasSuffix(s, "...; id=0123") {
		t.Errorf("%d bytes, %.40s … %s", len(s), s, s[len(s)-40:])
	}
	if s := (&Record{Reason: strings.Repeat("\n", 1<<16)}).String(); len(s) > maxVerdict+100 {
		t.Errorf("lines only: %d bytes", len(s))
	}
	var many []string
	for i := range 58 {
		many = append(many, fmt.Sprint("m", i))
	}
	if got := some(many); got != "m0, m1, m2 and 55 more" {
		t.Error(got)
	}
}

// TestKeptAliveIsNotEncoded: once comments were sent, an encoding could not be told any
// more, so none is asked for.
func TestKeptAliveIsNotEncoded(t *testing.T) {
	asked := make(chan string, 1)
	decoder := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		asked <- r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: [DONE]\n\n")
	})
	h := build(t, decoder, Options{Planner: always(coldPlan()), KeepAlive: time.Millisecond})
	heard := make(chan struct{}) // the client has a comment
	h.front.Add(&engine{name: "slow", work: func(ctx context.Context, _ Job) (Result, error) {
		select {
		case <-heard:
		case <-ctx.Done():
			return Result{}, ctx.Err()
		}
		return Result{Blocks: 9, Bytes: 1, State: calls.Complete}, nil
	}})
	req, err := http.NewRequest(http.MethodPost, h.url+"/v1/chat/completions", strings.NewReader(chat(true)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "gzip")
	answer, err := h.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewReader(answer.Body)
	first, err := lines.ReadString('\n')
	if err != nil || !strings.HasPrefix(first, ": ") {
		t.Fatalf("%v: %q", err, first)
	}
	close(heard)
	if b, err := io.ReadAll(lines); err != nil || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
		t.Errorf("%v: %q", err, b)
	}
	if got := <-asked; got != "" {
		t.Errorf("the decoder was asked for %q", got)
	}
}

// TestStreamsAsTheDecoderReads: names are exact, as in the decoder, and the last of
// several counts.
func TestStreamsAsTheDecoderReads(t *testing.T) {
	for body, want := range map[string]bool{
		`{"stream":true}`:                 true,
		`{"stream": true ,"x":1}`:         true,
		`{"stream":false}`:                false,
		`{"stream":false,"Stream":true}`:  false,
		`{"ſtream":true}`:                 false,
		`{"stream":"true"}`:               false,
		`{"stream":false,"stream":true}`:  true,
		`{"messages":[{"stream":true}]}`:  false,
		`[true]`:                          false,
		`{"stream":true`:                  false,
		`{"stream":true,"messages":null}`: true,
	} {
		if got := streams([]byte(body)); got != want {
			t.Errorf("%s: %v, want %v", body, got, want)
		}
	}
}
