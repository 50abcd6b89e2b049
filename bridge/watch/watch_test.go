package watch_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"pdlink/bridge/watch"
	"pdlink/transport"
)

// TestListsAreBounded: of what ended, and of what is shown.
func TestListsAreBounded(t *testing.T) {
	w := watch.New(watch.Options{})
	for i := range 100 {
		w.Ended(watch.Transfer{Transfer: transport.NewID().String(), State: "complete", Blocks: i, Total: i})
		w.Refused(watch.Transfer{State: "declined"})
		w.Answered(watch.Request{Outcome: "bypass", Tokens: i})
	}
	s := w.State()
	if len(s.Done) != 32 || s.Done[1].Blocks != 99 || s.Done[0].State != "declined" || len(s.Requests) != 32 || s.Requests[0].Tokens != 99 {
		t.Errorf("%d %d %+v", len(s.Done), len(s.Requests), s.Done[:2])
	}
	c := w.Tally()
	if c.Ended["complete"] != 100 || c.Ended["declined"] != 100 || c.Requests["bypass"] != 100 {
		t.Errorf("%+v", c)
	}
	s.Peers = make([]watch.Peer, 1000)
	s.Trim()
	b, err := json.Marshal(s)
	if err != nil || len(s.Peers) != 64 || strings.Contains(strings.ReplaceAll(string(b), `"store":null`, ""), "null") {
		t.Errorf("%v, %d peers: %s", err, len(s.Peers), b)
	}
}

// TestTextsOfOthersAreBounded: in length, in what they do to a terminal, and in what
// becomes a figure's label.
func TestTextsOfOthersAreBounded(t *testing.T) {
	w := watch.New(watch.Options{})
	long := strings.Repeat("x", 10000) + "\n"
	w.Ended(watch.Transfer{Transfer: long, State: "exploded", Reason: long, Links: []watch.LinkBytes{{Link: "gopher", Bytes: 1}}, Tokens: 1})
	w.Answered(watch.Request{Outcome: "new", Path: "/\u202e\x07", Reason: long, Less: true, Client: true})
	for _, link := range []string{"tcp://10.0.0.5:7411", "rdma://h:1?device=mlx5_0", "tcp", "https://x", ""} {
		w.Dial(link, watch.Failed)
	}
	w.Dial("tcp", watch.Connected)
	w.Dial("tcp", watch.Lost)
	s, c := w.State(), w.Tally()
	if n := len(s.Done[0].Reason); n > 310 || len(s.Done[0].Transfer) > 310 || s.Requests[0].Path != "/??" {
		t.Errorf("%d bytes, path %q", n, s.Requests[0].Path)
	}
	if c.Ended["other"] != 1 || c.Tokens["other"] != 1 || c.Requests["other"] != 1 || c.Less != 1 || c.Clients != 1 {
		t.Errorf("%+v", c)
	}
	want := []watch.Dials{{Link: "other", Failed: 2}, {Link: "rdma", Failed: 1}, {Link: "tcp", Connected: 1, Failed: 2, Lost: 1}}
	if len(s.Dials) != 3 || s.Dials[0] != want[0] || s.Dials[1] != want[1] || s.Dials[2] != want[2] {
		t.Errorf("%+v", s.Dials)
	}
}

// TestLogLines: one for each, with the names that programs know from elsewhere.
func TestLogLines(t *testing.T) {
	var b bytes.Buffer
	w := watch.New(watch.Options{Log: slog.New(slog.NewJSONHandler(&b, nil))})
	cached := 7
	w.Ended(watch.Transfer{Transfer: "a", State: "complete", Blocks: 2, Total: 2, Bytes: 9, Seconds: 1.5, Peers: []string{"spark", "other"},
		Links: []watch.LinkBytes{{Link: "rdma", Sealed: true, Bytes: 8}, {Link: "tcp", Bytes: 1}}})
	w.Refused(watch.Transfer{Transfer: "b", State: "declined", Reason: "no\nroom"})
	w.Answered(watch.Request{ID: "c", Outcome: "complete", Cached: &cached})
	w.Answered(watch.Request{ID: "d", Outcome: "complete", Less: true})
	var lines []map[string]any
	for line := range strings.Lines(b.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, m)
	}
	if len(lines) != 4 {
		t.Fatalf("%d lines: %s", len(lines), b.String())
	}
	for i, want := range []map[string]any{
		{"level": "INFO", "msg": "transfer", "transfer": "a", "state": "complete", "bytes": 9., "links": "rdma sealed, tcp clear", "peers": "spark, other"},
		{"level": "WARN", "transfer": "b", "state": "declined", "reason": "no?room"},
		{"level": "INFO", "msg": "request", "id": "c", "cached_tokens": 7.},
		{"level": "WARN", "id": "d", "cached_tokens": -1.},
	} {
		for k, v := range want {
			if lines[i][k] != v {
				t.Errorf("line %d: %s is %v, want %v", i, k, lines[i][k], v)
			}
		}
	}
}

// target is one that does nothing, and says how it was called.
type target struct{ calls string }

func (t *target) Write(int, int64, []byte) error { t.calls += "w"; return errors.New("w") }
func (t *target) Sync(int) error                 { t.calls += "s"; return errors.New("s") }
func (t *target) Seal(int) error                 { t.calls += "e"; return errors.New("e") }
func (t *target) Publish(int) error              { t.calls += "p"; return errors.New("p") }
func (t *target) Settle(_, n int) (int, error)   { t.calls += "t"; return n - 1, errors.New("t") }
func (t *target) Close() error                   { t.calls += "c"; return errors.New("c") }

// TestPhasesAreTold: when the target closes, each once; its results are the target's own.
func TestPhasesAreTold(t *testing.T) {
	var told sink
	inner := &target{}
	x := watch.New(watch.Options{Sink: &told}).Target(inner)
	n, err := x.Settle(3, 9)
	for _, e := range []error{x.Write(0, 0, nil), x.Sync(0), x.Seal(0), x.Publish(0), err} {
		if e == nil {
			t.Error("an error is lost")
		}
	}
	if len(told.phases) != 0 {
		t.Errorf("told before the end: %v", told.phases)
	}
	if x.Close() == nil || n != 8 || inner.calls != "twsepc" {
		t.Errorf("%d %s", n, inner.calls)
	}
	if len(told.phases) != 5 {
		t.Errorf("%v", told.phases)
	}
	for _, p := range []string{watch.PhaseWrite, watch.PhaseSync, watch.PhaseSeal, watch.PhasePublish, watch.PhaseSettle} {
		if _, ok := told.phases[p]; !ok {
			t.Errorf("nothing of %s", p)
		}
	}
	if watch.New(watch.Options{}).Target(inner) != inner {
		t.Error("a target is timed although nobody wants to know")
	}
}

// TestStoreThatHangs holds up nobody, and costs one goroutine.
func TestStoreThatHangs(t *testing.T) {
	hold, asked := make(chan struct{}), make(chan struct{}, 100)
	w := watch.New(watch.Options{Store: func() *watch.Store {
		asked <- struct{}{}
		<-hold
		return &watch.Store{Dir: "d", Free: 5}
	}, Running: func() int { return 3 }})
	begun := time.Now()
	for range 2 {
		if s := w.State(); s.Store == nil || s.Store.Error == "" || !s.Front || s.Running != 3 {
			t.Errorf("%+v", s.Store)
		}
	}
	if d := time.Since(begun); d > 30*time.Second {
		t.Errorf("it took %v", d)
	}
	if n := len(asked); n != 1 {
		t.Errorf("%d looks at a time", n)
	}
	close(hold)
	for w.State().Store.Error != "" {
	}
	if s := w.State().Store; s.Free != 5 || s.Dir != "d" {
		t.Errorf("%+v", s)
	}
}
