package front

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"pdlink/bridge/prefill/calls"
)

// groups are the engines that are spread over several prefill hosts, by name. It may be
// used concurrently.
type groups struct {
	add      func(Engine) (remove func())
	patience time.Duration // how long a place is waited for

	mu     sync.Mutex // guards the rest, and is held while engines are added and removed
	byName map[string]*group
}

// group is one of them, while any of its hosts is here. The mutex of groups guards it.
type group struct {
	seats   []*seat       // by member; nil: nobody has it
	changed chan struct{} // closed, and made anew, when a seat becomes free
	engine  *spread       // nil: there is none, since somebody is missing
	remove  func()        // leaves it out
}

// seat is a member's place.
type seat struct {
	host   *host
	said   calls.Group
	models []string // of which the host reads prompts; empty: as the others say
	refs   int      // announcements of the host that have the seat
	here   int      // of them, those that stand
}

// take gives a host its place, waiting for one that is to become free: its process was
// restarted, and the end of the old one's connection is about to be noticed. The error
// says what does not fit, and what to do. The caller owes leave.
func (s *groups) take(ctx context.Context, x *host, said calls.Host) error {
	patience := time.NewTimer(s.patience)
	defer patience.Stop()
	for {
		s.mu.Lock()
		g := s.byName[said.Group.Name]
		if g == nil {
			g = &group{seats: make([]*seat, said.Group.Members), changed: make(chan struct{})}
			s.byName[said.Group.Name] = g
		}
		err := g.conflict(x, said)
		changed := g.changed
		if err == nil {
			g.sit(x, said)
		}
		s.mu.Unlock()
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-patience.C:
			return err
		case <-ctx.Done():
			return ErrClosed
		}
	}
}

// conflict says why a host does not fit into the group as it is.
func (g *group) conflict(x *host, said calls.Host) error {
	me := said.Group
	models, leads := said.Models, me.Leads
	full := true
	for i, o := range g.seats {
		switch {
		case o != nil && o.said.Members != me.Members:
			return fmt.Errorf("group %s has %d hosts, as %s says, and %d, as %s says: give all of them the same number",
				me.Name, o.said.Members, o.host.name, me.Members, x.name)
		case i == me.Member:
			if o != nil && o.host != x {
				return fmt.Errorf("%v is %s already: give each host another rank", me, o.host.name)
			}
		case o == nil:
			full = false
		case o.said.Leads && me.Leads:
			return fmt.Errorf("of group %s both %s and %s have an engine to ask: one of them does, the host with the engine's own API",
				me.Name, o.host.name, x.name)
		default:
			leads = leads || o.said.Leads
			both := common(models, o.models)
			if len(both) == 0 && len(models) > 0 && len(o.models) > 0 {
				return fmt.Errorf("of group %s %s reads prompts for %s, and %s for %s: they have no model in common",
					me.Name, o.host.name, strings.Join(o.models, ", "), x.name, strings.Join(said.Models, ", "))
			}
			models = both
		}
	}
	if full && !leads {
		return fmt.Errorf("of group %s no host has an engine to ask: one has to, the host with the engine's own API", me.Name)
	}
	return nil
}

// common is what two hosts read prompts for; one that names no models follows the other.
func common(a, b []string) []string {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	return slices.DeleteFunc(slices.Clone(a), func(m string) bool { return !slices.Contains(b, m) })
}

// sit takes a place that is free or the host's own.
func (g *group) sit(x *host, said calls.Host) {
	o := g.seats[said.Group.Member]
	if o == nil {
		o = &seat{host: x}
		g.seats[said.Group.Member] = o
	}
	o.said, o.models = *said.Group, said.Models
	o.refs++
}

// enter notes that a host that has its place can be called. The engine is there when the
// last one has come, and is returned; otherwise what the group still lacks.
func (s *groups) enter(me calls.Group) (e *spread, lacks []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.byName[me.Name]
	g.seats[me.Member].here++
	if lacks = g.lacks(); len(lacks) > 0 {
		return nil, lacks
	}
	e = &spread{name: me.Name}
	for i, o := range g.seats {
		e.members = append(e.members, o.host)
		e.models = common(e.models, o.models)
		if o.said.Leads {
			e.lead = i
		}
	}
	if g.engine == nil || g.engine.lead != e.lead || !slices.Equal(g.engine.models, e.models) {
		g.end()
		g.engine, g.remove = e, s.add(e)
	}
	return g.engine, nil
}

// end leaves the engine out, if there is one.
func (g *group) end() {
	if g.engine != nil {
		g.remove()
		g.engine, g.remove = nil, nil
	}
}

// lacks are the members that are not here.
func (g *group) lacks() (list []int) {
	for i, o := range g.seats {
		if o == nil || o.here == 0 {
			list = append(list, i)
		}
	}
	return list
}

// leave gives a place back. here says that enter was called for it: a group without one
// of its members is no engine.
func (s *groups) leave(me calls.Group, here bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.byName[me.Name]
	o := g.seats[me.Member]
	o.refs--
	if here {
		o.here--
	}
	if o.here == 0 {
		g.end()
	}
	if o.refs > 0 {
		return
	}
	g.seats[me.Member] = nil
	close(g.changed)
	g.changed = make(chan struct{})
	if !slices.ContainsFunc(g.seats, func(o *seat) bool { return o != nil }) {
		delete(s.byName, me.Name)
	}
}
