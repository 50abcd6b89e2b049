package watch

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"pdlink/transport"
)

// State looks at everything. A store that does not answer is waited for as long as
// storeWait.
func (w *Watch) State() *State {
	s := w.look()
	if w.o.Store != nil {
		s.Store = w.store.look(w.o.Store)
	}
	if w.o.Running != nil {
		s.Front, s.Running = true, w.o.Running()
	}
	return s
}

// Connections is how many connections are open.
func (w *Watch) Connections() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.conns)
}

// Tally is what was counted so far.
func (w *Watch) Tally() Tally {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tally
	t.Tokens, t.Ended, t.Requests = maps.Clone(t.Tokens), maps.Clone(t.Ended), maps.Clone(t.Requests)
	return t
}

// look is State without what others have to be asked for.
func (w *Watch) look() *State {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.forget(now)
	s := &State{
		Program: w.o.Program, Host: w.o.Host, Version: w.o.Version, Time: now, Seconds: now.Sub(w.began).Seconds(),
		Open: len(w.open), Done: w.done.newest(), Requests: w.requests.newest(),
	}
	w.lookStreams(s, now)
	for _, d := range w.dials {
		s.Dials = append(s.Dials, *d)
	}
	slices.SortFunc(s.Dials, func(a, b Dials) int { return cmp.Compare(a.Link, b.Link) })
	for _, r := range w.rings {
		s.Rings = append(s.Rings, Ring{r.name, r.use.Slots(), r.use.InUse()})
	}
	return s
}

// Trim bounds the lists of a State, for who shows it: none is nil then.
func (s *State) Trim() {
	s.Transfers, s.Links, s.Done, s.Requests = shown(s.Transfers), shown(s.Links), shown(s.Done), shown(s.Requests)
	s.Dials, s.Rings, s.Peers = shown(s.Dials), shown(s.Rings), shown(s.Peers)
}

// storeLook looks at a store in a goroutine of its own: a file system that hangs holds one
// of them up, and nobody else.
type storeLook struct {
	mu   sync.Mutex // guards the fields below
	busy chan struct{}
	last *Store // what the look that ended last saw
}

// look returns what f sees of the store now, or that it does not answer.
func (l *storeLook) look(f func() *Store) *Store {
	l.mu.Lock()
	if l.busy == nil {
		busy := make(chan struct{})
		l.busy = busy
		go func() {
			s := f()
			l.mu.Lock()
			defer l.mu.Unlock()
			l.last, l.busy = s, nil
			close(busy)
		}()
	}
	busy := l.busy
	l.mu.Unlock()
	t := time.NewTimer(storeWait)
	defer t.Stop()
	select {
	case <-busy:
	case <-t.C:
		s := Store{}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.last != nil {
			s = *l.last
		}
		s.Error = "the file system does not answer"
		return &s
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// lookStreams fills in transfers, links and peers. The caller holds mu.
func (w *Watch) lookStreams(s *State, now time.Time) {
	links := make(map[linkKey]*Link, len(w.links))
	for k, l := range w.links {
		c := *l
		links[k] = &c
	}
	live := make(map[transport.ID]*Live, len(w.open))
	for id, e := range w.open {
		live[id] = &Live{
			Transfer: id.String(), Peers: slices.Clone(e.peers), Links: slices.Clone(e.settled),
			Visible: e.visible, Total: e.total, Seconds: now.Sub(e.since).Seconds(),
		}
	}
	for x := range w.streams {
		n := x.stats()
		links[x.conn.key()].add(x, n)
		if l := live[x.id]; l != nil {
			l.Links = addBytes(l.Links, x.bytes(n))
		}
	}
	for c := range w.conns {
		links[c.key()].Connections++
		s.Peers = append(s.Peers, Peer{
			Name: printable(c.facts.Peer), Proven: c.facts.Proven, Link: linkName(c.facts.Link), Sealed: c.facts.Sealed,
			Remote: printable(c.facts.Remote), Lanes: c.facts.Lanes, Seconds: now.Sub(c.since).Seconds(),
		})
	}
	for _, l := range live {
		slices.SortFunc(l.Links, byBytes)
		for _, b := range l.Links {
			l.Bytes += b.Bytes
		}
		s.Transfers = append(s.Transfers, *l)
	}
	for _, l := range links {
		s.Links = append(s.Links, *l)
	}
	slices.SortFunc(s.Links, byLink)
	slices.SortFunc(s.Transfers, func(a, b Live) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Transfer, b.Transfer))
	})
	slices.SortFunc(s.Peers, func(a, b Peer) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Remote, b.Remote))
	})
}
