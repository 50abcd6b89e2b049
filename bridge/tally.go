package bridge

import (
	"slices"
	"sync"

	"pdlink/transport"
)

// Sent is what a sender has handed to its links, and what those sent again by
// themselves: of the connection at hand that is known once the transfer is over.
type Sent struct {
	Connects int       `json:"connects"`        // connections that the transfer was opened on
	Bytes    uint64    `json:"bytes"`           // payload bytes
	Again    uint64    `json:"again,omitempty"` // of Bytes, those that had been sent before
	Links    []LinkUse `json:"links,omitempty"` // Bytes by link
}

// AddLink adds to what one link carried.
func (s *Sent) AddLink(u LinkUse) { s.Links = addLink(s.Links, u) }

// tally counts what is sent of a transfer over all of its connections. The zero
// value is ready. It may be used concurrently.
type tally struct {
	mu      sync.Mutex // guards the fields below
	sent    Sent       // without repeats, and without link
	link    LinkUse    // of the connection at hand
	repeats uint64     // bytes that it sent again by itself
}

// open begins to count for another connection.
func (t *tally) open(f transport.Facts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent = t.sum()
	t.link, t.repeats = LinkUse{Link: f.Link, Sealed: f.Sealed}, 0
	t.sent.Connects++
}

// total is what was sent so far.
func (t *tally) total() Sent {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sum()
}

// sum is total. The caller holds mu.
func (t *tally) sum() Sent {
	sum := t.sent
	sum.Bytes += t.repeats
	sum.Again += t.repeats
	sum.Links = slices.Clone(sum.Links)
	if link := t.link; link.Bytes > 0 {
		link.Bytes += t.repeats
		sum.Links = addLink(sum.Links, link)
	}
	return sum
}

// count counts a frame that was sent: its bytes, and those of them that had been
// sent before.
func (t *tally) count(bytes, twice uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent.Bytes += bytes
	t.sent.Again += min(twice, bytes)
	t.link.Bytes += bytes
}

// repeated notes what the link of the connection at hand has sent again by itself.
func (t *tally) repeated(s transport.Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.repeats = s.RepeatBytes
	t.link.Saved, t.link.Codec = s.Saved, s.Codec
}
