package bridge

import (
	"slices"
	"sync"

	"pdlink/transport"
)

// Sent is what a sender has handed to its links.
type Sent struct {
	Connects int       `json:"connects"`        // connections that the transfer was opened on
	Bytes    uint64    `json:"bytes"`           // payload bytes
	Again    uint64    `json:"again,omitempty"` // of Bytes, those that had been sent before
	Links    []LinkUse `json:"links,omitempty"` // Bytes by link
}

// AddLink adds to what one link carried.
func (s *Sent) AddLink(u LinkUse) { s.Links = addLink(s.Links, u) }

// tally counts what is sent of a transfer over all of its connections. The zero
// value is ready; nil counts nothing. It may be used concurrently, but for note and
// count.
type tally struct {
	mu     sync.Mutex // guards the fields below
	sent   Sent
	blocks map[uint32]*transport.Coverage // sent at least once
	frame  []transport.Piece              // of the frame at hand
	link   LinkUse                        // of the connection at hand, since open
	frames int                            // sent on it
}

// open begins to count for another connection.
func (t *tally) open(f transport.Facts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.link.Bytes > 0 {
		t.sent.Links = addLink(t.sent.Links, t.link)
	}
	t.link, t.frames = LinkUse{Link: f.Link, Sealed: f.Sealed}, 0
	t.sent.Connects++
}

// total is what was sent so far.
func (t *tally) total() Sent {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := t.sent
	sum.Links = slices.Clone(sum.Links)
	if t.link.Bytes > 0 {
		sum.Links = addLink(sum.Links, t.link)
	}
	return sum
}

// onConnection is how many frames were sent on the connection at hand.
func (t *tally) onConnection() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.frames
}

// note takes note of a frame that is about to be sent.
func (t *tally) note(l *transport.Lease) {
	if t != nil {
		lo, hi := l.Wanted()
		t.frame = append(t.frame[:0], l.Pieces()[lo:hi]...)
	}
}

// count counts the frame that was noted.
func (t *tally) count() {
	if t == nil || len(t.frame) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.blocks == nil {
		t.blocks = make(map[uint32]*transport.Coverage)
	}
	t.frames++
	for _, p := range t.frame {
		c := t.blocks[p.Block]
		if c == nil {
			c = new(transport.Coverage)
			t.blocks[p.Block] = c
		}
		fresh := c.Add(transport.Range{Begin: p.Offset, End: p.End()})
		t.sent.Bytes += uint64(p.Length)
		t.sent.Again += uint64(p.Length) - fresh
		t.link.Bytes += uint64(p.Length)
	}
}

// repeated counts what a link sent again by itself.
func (t *tally) repeated(s transport.Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent.Bytes += s.RepeatBytes
	t.sent.Again += s.RepeatBytes
	t.link.Bytes += s.RepeatBytes
}
