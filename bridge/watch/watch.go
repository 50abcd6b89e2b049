package watch

import (
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
)

// Sink is told of what ended, besides what is kept for State. Its methods may be called
// concurrently, and must return soon: whoever calls them has work to do.
type Sink interface {
	Transfer(t Transfer)
	Request(r Request)
	// Phase is told how long one phase of a transfer took in all: one of Phases.
	Phase(name string, took time.Duration)
}

// Options of a Watch. The zero value works.
type Options struct {
	// Program, Host and Version are what the process is, for people.
	Program, Host, Version string

	// Ignore says of which kinds of transfer nothing is to be seen: those that carry
	// calls. Nil: there are none.
	Ignore func(kind string) bool

	// Tokens tells how many tokens a block of a transfer has, by its kind and plan; it is
	// asked once for each. 0 is not known. Nil: none is.
	Tokens func(kind string, meta []byte) int

	// Store looks at the block store when somebody wants to see it; it may take its time.
	// Nil from it: there is none yet. Nil: there is none.
	Store func() *Store

	// Running is how many requests the front door has that are not answered. Nil: there
	// is no front door.
	Running func() int

	// Sink is told of what ended. Nil: nobody is told.
	Sink Sink

	// Log gets one line for each transfer and each request that ended, under the names
	// of the fields of Transfer and Request; what is not complete is a warning. Nil: none.
	Log *slog.Logger
}

// RingUse is the part of transport.Ring that is looked at.
type RingUse interface {
	Slots() int
	InUse() int
}

// Watch sees what a process does. It has no goroutine of its own
// but one that looks at the store for who wants to see it. It may be used concurrently.
type Watch struct {
	o     Options
	began time.Time
	store storeLook

	mu       sync.Mutex // guards the fields below
	open     map[transport.ID]*entry
	streams  map[*stream]struct{}
	conns    map[*conn]struct{}
	links    map[linkKey]*Link // totals of streams and connections that ended, and counts
	dials    map[string]*Dials
	done     ring[Transfer]
	requests ring[Request]
	rings    []namedRing
	tally    Tally
}

// Tally is what is counted since the process began.
type Tally struct {
	Blocks   uint64            // that became visible
	Tokens   map[string]uint64 // of them, by the link that carried most of their transfer
	Ended    map[string]uint64 // transfers, by state
	Requests map[string]uint64 // by outcome
	Less     uint64            // requests for which the decoder found less than promised
	Clients  uint64            // requests whose client broke off
}

type linkKey struct {
	link   string
	sealed bool
}

type namedRing struct {
	name string
	use  RingUse
}

// entry is a transfer that is open: from its first sender on until it has a verdict.
type entry struct {
	since          time.Time
	visible, total int
	tokens         int       // of a block
	streams        int       // that are open
	idle           time.Time // since when there are none
	settled        []LinkBytes
	peers          []string
}

// New returns a Watch that has seen nothing.
func New(o Options) *Watch {
	return &Watch{
		o: o, began: time.Now(), open: make(map[transport.ID]*entry), streams: make(map[*stream]struct{}), conns: make(map[*conn]struct{}),
		links: make(map[linkKey]*Link), dials: make(map[string]*Dials),
		tally: Tally{Tokens: make(map[string]uint64), Ended: make(map[string]uint64), Requests: make(map[string]uint64)},
	}
}

// Ring has the use of a ring be seen, under a name.
func (w *Watch) Ring(name string, r RingUse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rings = append(w.rings, namedRing{name, r})
}

// Block notes that a block of an open transfer became visible: how many of it are.
func (w *Watch) Block(id transport.ID, visible, total int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.open[id]; e != nil {
		e.visible, e.total = visible, total
	}
}

// Attempt is how trying to connect went.
type Attempt int

// The ways that it can go.
const (
	Connected Attempt = iota
	Failed
	Lost // a connection that there was
)

// Dial notes an attempt to connect, or the loss of a connection, over a link: a scheme or
// a URL.
func (w *Watch) Dial(link string, how Attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	link = linkName(link)
	d := w.dials[link]
	if d == nil {
		d = &Dials{Link: link}
		w.dials[link] = d
	}
	switch how {
	case Connected:
		d.Connected++
	case Failed:
		d.Failed++
	case Lost:
		d.Lost++
	}
}

// Ended notes how a transfer ended. Links, Peers, Tokens and Ended are filled in where
// they are not there and known.
func (w *Watch) Ended(t Transfer) {
	reason := t.Reason
	t.Transfer, t.Reason = printable(t.Transfer), printable(reason)
	if t.Ended.IsZero() {
		t.Ended = time.Now()
	}
	w.mu.Lock()
	id, err := transport.ParseID(t.Transfer)
	if e := w.open[id]; err == nil && e != nil {
		delete(w.open, id)
		if t.Tokens == 0 {
			t.Tokens = (t.Blocks - t.Present) * e.tokens
		}
		if t.Links == nil {
			t.Links = slices.SortedFunc(slices.Values(e.settled), byBytes)
		}
		if t.Peers == nil {
			t.Peers = e.peers
		}
	}
	w.tally.Ended[stateName(t.State)]++
	w.tally.Blocks += uint64(max(0, t.Blocks-t.Present))
	if l := t.Main(); t.Tokens > 0 && l != "" {
		w.tally.Tokens[l] += uint64(t.Tokens)
	}
	w.done.add(t)
	w.mu.Unlock()
	w.tell(t, reason)
}

// Refused notes an offer that was refused; a transfer of its id may be open.
func (w *Watch) Refused(t Transfer) {
	reason := t.Reason
	t.Transfer, t.Reason, t.Ended = printable(t.Transfer), printable(reason), time.Now()
	w.mu.Lock()
	w.tally.Ended[stateName(t.State)]++
	w.done.add(t)
	w.mu.Unlock()
	w.tell(t, reason)
}

// tell tells of a transfer; the log has the whole of its reason.
func (w *Watch) tell(t Transfer, reason string) {
	if w.o.Sink != nil {
		w.o.Sink.Transfer(t)
	}
	if w.o.Log != nil {
		t.Reason = bridge.Printable(reason, maxLogged)
		t.log(w.o.Log)
	}
}

// Main is the link that carried most of a transfer; "" when none carried anything.
func (t Transfer) Main() string {
	link, most := "", uint64(0)
	for _, l := range t.Links {
		if l.Bytes > most {
			link, most = linkName(l.Link), l.Bytes
		}
	}
	return link
}

// States are those of a transfer that figures tell apart.
func States() []string {
	return []string{"complete", "partial", "skipped", "declined", "failed", "other"}
}

func stateName(s string) string {
	if list := States(); slices.Contains(list, s) {
		return s
	}
	return "other"
}

// Outcomes are those of a request.
func Outcomes() []string { return []string{"bypass", "complete", "partial", "declined", "other"} }

// Answered notes what became of a request.
func (w *Watch) Answered(r Request) {
	reason := r.Reason
	r.Path, r.Model, r.Reason, r.ID = printable(r.Path), printable(r.Model), printable(reason), printable(r.ID)
	if r.Ended.IsZero() {
		r.Ended = time.Now()
	}
	w.mu.Lock()
	outcome := r.Outcome
	if !slices.Contains(Outcomes(), outcome) {
		outcome = "other"
	}
	w.tally.Requests[outcome]++
	if r.Less {
		w.tally.Less++
	}
	if r.Client {
		w.tally.Clients++
	}
	w.requests.add(r)
	w.mu.Unlock()
	if w.o.Sink != nil {
		w.o.Sink.Request(r)
	}
	if w.o.Log != nil {
		r.Reason = bridge.Printable(reason, maxLogged)
		r.log(w.o.Log)
	}
}

// ring keeps the last keptDone of what is added.
type ring[T any] struct{ list []T }

func (r *ring[T]) add(x T) {
	if len(r.list) == keptDone {
		r.list = slices.Delete(r.list, 0, 1)
	}
	r.list = append(r.list, x)
}

// newest is a copy, the last one first.
func (r *ring[T]) newest() []T {
	list := slices.Clone(r.list)
	slices.Reverse(list)
	return list
}

func itoa(n int) string { return strconv.Itoa(n) }

// linkWords is what log lines say of links: "tcp sealed, rdma clear".
func linkWords(list []LinkBytes) string {
	words := make([]string, len(list))
	for i, l := range list {
		words[i] = linkName(l.Link) + " clear"
		if l.Sealed {
			words[i] = linkName(l.Link) + " sealed"
		}
	}
	return strings.Join(words, ", ")
}
