package front

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// starting is a planner of a decoder that is starting.
type starting struct {
	*script
	looks atomic.Int32
	until int32         // looks at it until it is ready; negative: never
	ready chan struct{} // closed then; nil: it makes no plan even so
}

func (s *starting) Starting(context.Context, http.Header) string {
	n := s.looks.Add(1)
	if s.until < 0 || n < s.until {
		return "model m is being loaded"
	}
	if n == s.until && s.ready != nil {
		close(s.ready)
	}
	return ""
}

func (s *starting) Plan(ctx context.Context, a Ask) (Plan, error) {
	select {
	case <-s.ready:
		return s.script.Plan(ctx, a)
	case <-ctx.Done():
		return Plan{}, ctx.Err()
	}
}

// TestDecoderThatStarts: the first request waits for a decoder that gets ready, and no
// longer than that for one that is only slow.
func TestDecoderThatStarts(t *testing.T) {
	soon := waits{plan: 10 * time.Millisecond, poll: time.Millisecond, start: time.Minute}
	short := soon
	short.start = 20 * time.Millisecond
	patient := soon
	patient.plan = 2 * time.Second // more than a busy host takes for a plan that is ready
	for name, c := range map[string]struct {
		until int32
		makes bool // a plan
		waits waits
		want  string
	}{
		"gets ready":           {20, true, patient, "complete "},
		"is only slow":         {1, false, soon, "declined; plan: the decoder made no plan within 10ms"},
		"is slow when ready":   {5, false, soon, "declined; plan: the decoder made no plan within 10ms"},
		"does not become that": {-1, false, short, "declined; plan: the decoder is not ready after 20ms: model m is being loaded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &starting{script: always(coldPlan()), until: c.until}
			if c.makes {
				p.ready = make(chan struct{})
			}
			h := build(t, answering(90), Options{Planner: p, Engines: []Engine{quick("a")}, waits: c.waits})
			r, body := h.post(t, chat(false))
			if v := r.Header.Get(headerVerdict); !strings.HasPrefix(v, c.want) || !strings.Contains(body, "choices") {
				t.Errorf("%q %s", v, body)
			}
		})
	}
}

// TestStreamingClientIsKeptAliveMeanwhile hears comments while the decoder starts.
func TestStreamingClientIsKeptAliveMeanwhile(t *testing.T) {
	p := &starting{script: always(coldPlan()), until: 30, ready: make(chan struct{})}
	h := build(t, answering(90), Options{
		Planner: p, Engines: []Engine{quick("a")}, KeepAlive: 2 * time.Millisecond,
		waits: waits{plan: time.Millisecond, poll: 2 * time.Millisecond, start: time.Minute},
	})
	r, err := h.client.Post(h.url+"/v1/chat/completions", "application/json", strings.NewReader(chat(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || !strings.HasPrefix(string(b), ": pdlink: the decoder is starting\n\n") {
		t.Errorf("%q, %v", b, err)
	}
}

// TestPlainPlannerIsNotWaitedFor: one that cannot tell has its time and no more.
func TestPlainPlannerIsNotWaitedFor(t *testing.T) {
	p := struct{ Planner }{&starting{script: always(coldPlan())}}
	h := build(t, answering(0), Options{Planner: p, Engines: []Engine{quick("a")}, waits: waits{plan: 10 * time.Millisecond}})
	if r, _ := h.post(t, chat(false)); !strings.HasPrefix(r.Header.Get(headerVerdict), "declined; plan: the decoder made no plan") {
		t.Error(r.Header)
	}
}

// TestPluginSaysWhatStarts: as info says it; who does not say is not starting.
func TestPluginSaysWhatStarts(t *testing.T) {
	s, p := newPluginServer(t)
	for body, want := range map[string]string{
		`{"api":1,"models":[],"starting":"a model is being loaded"}`: "a model is being loaded",
		`{"api":1,"models":[]}`:    "",
		`{"api":2,"starting":"x"}`: "",
		`<html>`:                   "",
		`{"api":1,"models":[{"id":7}],"starting":"x"}`: "",
	} {
		s.say("info", 0, body)
		if got := p.Starting(t.Context(), nil); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}
