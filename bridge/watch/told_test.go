package watch

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pdlink/bridge"
	"pdlink/transport"
)

// carried is an incoming transfer that counted something.
type carried struct {
	transport.Incoming
	stats transport.Stats
}

func (c carried) Stats() transport.Stats { return c.stats }

// TestLinksAreInOrder: of a transfer that is open, always, and of one that ended; what a
// codec saved is with them.
func TestLinksAreInOrder(t *testing.T) {
	for range 50 { // a map has any order
		w := New(Options{})
		id := transport.NewID()
		for _, f := range []transport.Facts{{Link: "tcp", Sealed: true}, {Link: "tcp"}, {Link: "rdma"}, {Link: "mem"}, {Link: "unix"}} {
			w.begin(&stream{id: id, conn: &conn{w: w, facts: f}, in: carried{stats: transport.Stats{Bytes: 100, Saved: 30, Codec: "bf16"}}}, transport.Request{})
		}
		var open []string
		for s := range w.streams {
			w.total(s.conn.key())
		}
		live := w.State().Transfers[0]
		for _, l := range live.Links {
			open = append(open, linkWords([]LinkBytes{l}))
		}
		want := []string{"mem clear", "rdma clear", "tcp clear", "tcp sealed", "unix clear"}
		if !slices.Equal(open, want) || live.Bytes != 500 {
			t.Fatalf("open: %q, %d bytes", open, live.Bytes)
		}
		for s := range w.streams {
			w.settled(s)
		}
		w.Ended(Transfer{Transfer: id.String(), State: "complete"})
		s := w.State()
		if done := s.Done[0]; linkWords(done.Links) != strings.Join(want, ", ") || done.Saved() != 150 || done.Links[0].Codec != "bf16" {
			t.Fatalf("done: %+v", done)
		}
		if s.Links[0].Saved != 30 || s.Links[0].Received != 100 {
			t.Fatalf("%+v", s.Links[0])
		}
	}
}

// TestLogHasTheWholeReason: where the page shows its beginning.
func TestLogHasTheWholeReason(t *testing.T) {
	var b bytes.Buffer
	w := New(Options{Log: slog.New(slog.NewJSONHandler(&b, nil))})
	reason := strings.Repeat("lane 3: no route to host; ", 30) + "the last word"
	w.Ended(Transfer{State: "partial", Reason: reason})
	w.Refused(Transfer{State: "declined", Reason: reason})
	w.Answered(Request{Outcome: "declined", Reason: reason})
	w.Ended(Transfer{State: "partial", Reason: strings.Repeat("x", 1<<20)})
	n := 0
	for line := range strings.Lines(b.String()) {
		var m struct{ Reason string }
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		if n++; n <= 3 && m.Reason != reason || n == 4 && len(m.Reason) != maxLogged {
			t.Errorf("line %d: %d bytes: %s", n, len(m.Reason), m.Reason)
		}
	}
	s := w.State()
	if n != 4 || len(s.Done[2].Reason) > maxText+3 || len(s.Requests[0].Reason) > maxText+3 {
		t.Errorf("%d lines, %+v", n, s.Done[2])
	}
}

// TestTextsAreCutBetweenCharacters: none is left half.
func TestTextsAreCutBetweenCharacters(t *testing.T) {
	for n := range 5 {
		text := strings.Repeat("y", maxText-n) + strings.Repeat("é中", 20)
		if cut := printable(text); strings.Contains(cut, "?") || !utf8.ValidString(cut) || len(cut) > maxText+3 || !strings.HasPrefix(text, strings.TrimSuffix(cut, "...")) {
			t.Errorf("%d: %q", n, cut)
		}
	}
}

// phases notes what it is told of.
type phases struct{ told map[string]time.Duration }

func (p *phases) Transfer(Transfer)                  {}
func (p *phases) Request(Request)                    {}
func (p *phases) Phase(name string, d time.Duration) { p.told[name] += d }

// quiet is a target that does nothing.
type quiet struct{ bridge.Target }

func (quiet) Write(int, int64, []byte) error { return nil }
func (quiet) Publish(int) error              { return nil }
func (quiet) Close() error                   { return nil }

// TestPhasesThatWereNotAreNotTold: a transfer without a sync has no sample of it.
func TestPhasesThatWereNotAreNotTold(t *testing.T) {
	p := &phases{told: map[string]time.Duration{}}
	w := New(Options{Sink: p})
	for _, write := range []bool{true, false} {
		x := w.Target(quiet{})
		if write {
			if err := x.Write(0, 0, nil); err != nil {
				t.Fatal(err)
			}
			if err := x.Publish(0); err != nil {
				t.Fatal(err)
			}
		}
		clear(p.told)
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		if _, wrote := p.told[PhaseWrite]; wrote != write || len(p.told) != map[bool]int{true: 2, false: 0}[write] {
			t.Errorf("%v", p.told)
		}
	}
}
