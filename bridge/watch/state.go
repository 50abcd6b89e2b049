package watch

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"pdlink/bridge"
)

// LinkBytes is what one link carried of a transfer.
type LinkBytes struct {
	Link   string `json:"link"`   // scheme, one of Links
	Sealed bool   `json:"sealed"` // the bytes travelled encrypted
	Bytes  uint64 `json:"bytes"`  // payload

	Saved uint64 `json:"saved,omitempty"` // of Bytes, those that a codec kept off the wire
	Codec string `json:"codec,omitempty"` // that did so
}

// Transfer is one that ended, at either end.
type Transfer struct {
	Transfer string      `json:"transfer"` // its id
	State    string      `json:"state"`    // complete, partial, skipped, declined, and what else an end knows
	Reason   string      `json:"reason,omitempty"`
	Blocks   int         `json:"blocks"`  // visible at the end
	Total    int         `json:"total"`   // of the plan
	Present  int         `json:"present"` // of Blocks, visible before
	Bytes    uint64      `json:"bytes"`   // payload that arrived
	Bad      uint64      `json:"bad,omitempty"`
	Tokens   int         `json:"tokens,omitempty"` // of the blocks that it made visible; 0: not known
	Seconds  float64     `json:"seconds"`
	Links    []LinkBytes `json:"links,omitempty"`
	Peers    []string    `json:"peers,omitempty"` // that proved who they are
	Ended    time.Time   `json:"ended"`

	// Engine is the seconds that the engine took to read the prompt, where this end asked
	// it.
	Engine float64 `json:"engine_seconds,omitempty"`
}

// Saved is how many of its bytes codecs kept off the wire.
func (t Transfer) Saved() (n uint64) {
	for _, l := range t.Links {
		n += l.Saved
	}
	return n
}

// Verdict is the transfer's outcome in one text: "complete", "partial 3/5: why".
func (t Transfer) Verdict() string {
	var b strings.Builder
	b.WriteString(t.State)
	if t.State == "partial" {
		b.WriteString(" " + itoa(t.Blocks) + "/" + itoa(t.Total))
	}
	if t.Reason != "" {
		b.WriteString(": " + t.Reason)
	}
	return b.String()
}

// Request is what became of a request to the front door.
type Request struct {
	ID       string    `json:"id"`
	Path     string    `json:"path"`
	Model    string    `json:"model,omitempty"`
	Outcome  string    `json:"outcome"` // bypass, complete, partial, declined
	Reason   string    `json:"reason,omitempty"`
	Tokens   int       `json:"tokens,omitempty"`
	Promised int       `json:"promised,omitempty"`      // tokens that the decoder should have found
	Cached   *int      `json:"cached_tokens,omitempty"` // that it found; nil: it did not say
	Less     bool      `json:"less,omitempty"`          // it found fewer than promised
	Client   bool      `json:"client,omitempty"`        // the client broke off, or was too slow
	Status   int       `json:"status,omitempty"`        // of the decoder's answer
	Plan     float64   `json:"plan_seconds,omitempty"`
	Bridge   float64   `json:"bridge_seconds,omitempty"` // queue, prefill, adoption
	Adopt    float64   `json:"adopt_seconds,omitempty"`  // of that, from the last block in the store on
	First    float64   `json:"first_seconds,omitempty"`  // to the first byte of the answer
	Seconds  float64   `json:"seconds"`                  // to the end of the answer
	Ended    time.Time `json:"ended"`
}

// Store is the block store now.
type Store struct {
	Dir   string `json:"dir"`
	Free  uint64 `json:"free_bytes"` // what this user can still write
	Size  uint64 `json:"size_bytes"` // of the file system
	Error string `json:"error,omitempty"`
}

// Live is a transfer that is open.
type Live struct {
	Transfer string      `json:"transfer"`
	Peers    []string    `json:"peers,omitempty"`
	Links    []LinkBytes `json:"links,omitempty"`
	Visible  int         `json:"visible"` // blocks
	Total    int         `json:"total"`   // blocks; 0: no block became visible yet
	Bytes    uint64      `json:"bytes"`
	Seconds  float64     `json:"seconds"` // since it was opened
	Rate     float64     `json:"rate"`    // bytes a second since the State before; 0 where there was none
}

// Link is what one kind of link did since the process began.
type Link struct {
	Link        string  `json:"link"`
	Sealed      bool    `json:"sealed"`
	Connections int     `json:"connections"` // that are open
	Opened      uint64  `json:"opened"`      // connections so far
	Received    uint64  `json:"received_bytes"`
	Sent        uint64  `json:"sent_bytes"`
	Resent      uint64  `json:"resent_bytes"` // of Sent, what the link sent again by itself
	Saved       uint64  `json:"saved_bytes"`  // of Received and Sent, what a codec kept off the wire
	Damaged     uint64  `json:"damaged_pieces"`
	Rate        float64 `json:"rate"` // bytes a second, both ways, since the State before
}

// Dials is what became of attempts to connect over one kind of link.
type Dials struct {
	Link      string `json:"link"`
	Connected uint64 `json:"connected"`
	Failed    uint64 `json:"failed"`
	Lost      uint64 `json:"lost"` // connections
}

// Peer is the other end of a connection that is open.
type Peer struct {
	Name    string  `json:"name"`   // what it calls itself, unless Proven
	Proven  bool    `json:"proven"` // the name is the one that its key is pinned under
	Link    string  `json:"link"`
	Sealed  bool    `json:"sealed"`
	Remote  string  `json:"remote"` // address
	Lanes   int     `json:"lanes"`
	Seconds float64 `json:"seconds"` // since it connected
}

// Ring is memory for frames.
type Ring struct {
	Ring  string `json:"ring"` // receive, send
	Slots int    `json:"slots"`
	Used  int    `json:"used"`
}

// State is what a Watch sees at one time. It shares nothing with the Watch.
type State struct {
	Program string    `json:"program"` // decode, prefill
	Host    string    `json:"host"`
	Version string    `json:"version"`
	Time    time.Time `json:"time"`
	Seconds float64   `json:"seconds"` // since the process began

	Open      int        `json:"open"` // transfers
	Transfers []Live     `json:"transfers"`
	Done      []Transfer `json:"done"` // the newest first
	Running   int        `json:"running"`
	Requests  []Request  `json:"requests"` // of the front door, the newest first
	Front     bool       `json:"front"`    // there is one
	Links     []Link     `json:"links"`
	Dials     []Dials    `json:"dials"`
	Peers     []Peer     `json:"peers"`
	Rings     []Ring     `json:"rings"`
	Store     *Store     `json:"store"` // nil: there is none, or none yet
}

// Rates fills in the rates of s, the State at hand, from one before it.
func (s *State) Rates(before *State) {
	d := s.Time.Sub(before.Time).Seconds()
	if d <= 0 {
		return
	}
	was := make(map[string]uint64, len(before.Transfers))
	for _, t := range before.Transfers {
		was[t.Transfer] = t.Bytes
	}
	for i := range s.Transfers {
		t := &s.Transfers[i]
		t.Rate = rate(t.Bytes, was[t.Transfer], d)
	}
	for i := range s.Links {
		l := &s.Links[i]
		b := Link{}
		for _, x := range before.Links {
			if x.Link == l.Link && x.Sealed == l.Sealed {
				b = x
			}
		}
		l.Rate = rate(l.Received+l.Sent, b.Received+b.Sent, d)
	}
}

func rate(now, before uint64, seconds float64) float64 {
	if now < before {
		return 0
	}
	return float64(now-before) / seconds
}

// Links are the kinds of link that figures tell apart; another one is "other".
func Links() []string { return []string{"mem", "tcp", "unix", "rdma", "other"} }

// linkName is the kind of a link, by its scheme or a URL.
func linkName(text string) string {
	scheme, _, _ := strings.Cut(text, "://")
	if list := Links(); slices.Contains(list, scheme) {
		return scheme
	}
	return "other"
}

// printable makes a peer's text fit to be shown, in about maxText bytes.
func printable(s string) string {
	if len(s) <= maxText {
		return bridge.Printable(s, maxText)
	}
	return bridge.Printable(s, maxText) + "..."
}

// addBytes sums bytes up by link.
func addBytes(list []LinkBytes, l LinkBytes) []LinkBytes {
	for i := range list {
		if list[i].Link == l.Link && list[i].Sealed == l.Sealed {
			list[i].Bytes += l.Bytes
			list[i].Saved += l.Saved
			list[i].Codec = cmp.Or(l.Codec, list[i].Codec)
			return list
		}
	}
	return append(list, l)
}

// shown is at most maxShown of a list, and never nil: it is a list in JSON.
func shown[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list[:min(len(list), maxShown)]
}

func byLink(a, b Link) int { return linkOrder(a.Link, b.Link, a.Sealed, b.Sealed) }

func byBytes(a, b LinkBytes) int { return linkOrder(a.Link, b.Link, a.Sealed, b.Sealed) }

// linkOrder is the order in which links are shown.
func linkOrder(a, b string, sealedA, sealedB bool) int {
	return cmp.Or(cmp.Compare(a, b), cmp.Compare(truth(sealedA), truth(sealedB)))
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}
