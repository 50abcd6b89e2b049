package watch

import (
	"testing"
	"time"

	"pdlink/transport"
)

// TestForget: a transfer that was let in after its verdict is not open for ever; one that
// has a connection is, however long it takes.
func TestForget(t *testing.T) {
	w := New(Options{})
	now := time.Now()
	w.open[transport.ID{1}] = &entry{since: now.Add(-time.Hour), idle: now.Add(-forgetAfter - time.Second)}
	w.open[transport.ID{2}] = &entry{since: now.Add(-time.Hour), idle: now.Add(-forgetAfter + time.Minute)}
	w.open[transport.ID{3}] = &entry{since: now.Add(-time.Hour), streams: 1}
	s := w.State()
	if s.Open != 2 || w.open[transport.ID{1}] != nil {
		t.Errorf("%+v", s.Transfers)
	}
}

// TestFollowedTransfersAreBounded: what is beyond is counted all the same.
func TestFollowedTransfersAreBounded(t *testing.T) {
	w := New(Options{})
	c := &conn{w: w, facts: transport.Facts{Link: "tcp"}}
	for i := range maxOpen + 10 {
		s := &stream{id: transport.ID{1, byte(i), byte(i >> 8)}, conn: c}
		w.begin(s, transport.Request{})
		s.sent.Add(1)
		w.settled(s)
		w.settled(s) // once
	}
	if s := w.State(); s.Open != maxOpen || s.Links[0].Sent != maxOpen+10 || len(w.streams) != 0 {
		t.Errorf("%d open, %+v, %d streams", s.Open, s.Links, len(w.streams))
	}
}
