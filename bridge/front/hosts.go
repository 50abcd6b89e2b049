package front

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pdlink/bridge/facts"
	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
)

// ErrHost is returned by the engines that Hosts make, for a prefill host that cannot
// be used now: its connection is gone, or its engine.
var ErrHost = errors.New("front: prefill host cannot be used")

// HostsOptions of Hosts. Add is required; the zero value of the rest works.
type HostsOptions struct {
	// Add takes an engine on, as Front.Add does.
	Add func(Engine) (remove func())

	// Waits notes a host that is connected and takes no calls yet, as Front.Waits does. Nil:
	// nobody is told but OnHost.
	Waits func(name, why string) (remove func())

	// OnHost is told of hosts that come and go. Nil: nobody is told.
	OnHost func(HostEvent)

	// Matches hold what hosts say of their models against the decoder's. Nil: nothing is
	// compared.
	Matches *Matches

	// Build is this program's version, for people at the other end.
	Build string

	// Rejoin is how long a call waits for its host when the connection was lost. 0
	// means DefaultRejoin; negative: not at all.
	Rejoin time.Duration
}

// HostEvent is a prefill host that came or went.
type HostEvent struct {
	Name    string       // of the host, as engines are called
	Remote  string       // its address
	Here    bool         // it takes calls now
	Models  []string     // that it reads prompts for, or its group does, which is complete now
	Group   *calls.Group // that it is a part of; nil: it is an engine by itself
	Lacks   []int        // members of the group that are not here: while there are any it is no engine
	Hosts   []string     // of a group that is complete now, their names
	Waits   string       // it is connected and takes no calls yet: for what it waits, in its own words
	Gone    bool         // one that took no calls yet is not connected any more
	Refused bool         // the announcement was not taken
	Err     error        // why, or why the host went
}

// Hosts are the prefill hosts that are connected: each that takes calls is an
// engine, or a part of one. They know each other again when a connection is replaced.
// All methods may be called concurrently.
type Hosts struct {
	o      HostsOptions
	ctx    context.Context // ends with Close
	stop   context.CancelFunc
	wg     sync.WaitGroup
	groups groups

	mu      sync.Mutex // guards the fields below
	byKey   map[hostKey]*host
	watched map[transport.ID]*sight // transfers that calls wait for
	waiting []*waiting              // hosts that take no calls yet, oldest first
	closed  bool
}

// hostKey is a process at the other end.
type hostKey struct {
	peer, name string
	boot       transport.ID
}

// NewHosts returns hosts, of which there are none yet. The caller closes them. The error Is
// ErrOptions.
func NewHosts(o HostsOptions) (*Hosts, error) {
	if o.Add == nil {
		return nil, fmt.Errorf("%w: nothing takes prefill hosts on", ErrOptions)
	}
	if o.Rejoin == 0 {
		o.Rejoin = DefaultRejoin
	}
	if o.Waits == nil {
		o.Waits = func(string, string) func() { return func() {} }
	}
	if o.OnHost == nil {
		o.OnHost = func(HostEvent) {}
	}
	h := &Hosts{
		o: o, groups: groups{add: o.Add, patience: seatWait, byName: make(map[string]*group)},
		byKey: make(map[hostKey]*host), watched: make(map[transport.ID]*sight),
	}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h, nil
}

// Close ends the calls that run and lets the hosts go; their connections stay. It is
// idempotent.
func (h *Hosts) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.stop()
	h.wg.Wait()
	return nil
}

// Block is told of a block that became visible, as bridge.Options.OnBlock is: a call
// that fails in the middle then knows how far its transfer got.
func (h *Hosts) Block(id transport.ID, visible, _ int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.watched[id]; w != nil {
		w.visible = visible
	}
}

// Attend returns a connection that is c but for announcements of prefill hosts, which
// it takes itself while somebody waits in Accept. Transfers that calls wait for are
// watched as they pass.
func (h *Hosts) Attend(c transport.Conn) transport.Conn { return &attended{c, h} }

// attended is a connection whose announcements are taken.
type attended struct {
	transport.Conn
	h *Hosts
}

// Accept implements transport.Conn.
func (a *attended) Accept(ctx context.Context) (transport.Offer, error) {
	for {
		offer, err := a.Conn.Accept(ctx)
		if err != nil {
			return nil, err
		}
		serve := a.h.attend
		switch offer.Request().Kind {
		case calls.KindHost:
		case calls.KindWait:
			serve = a.h.wait
		case calls.KindProbe:
			serve = a.h.probe
		default:
			return a.h.seen(offer), nil
		}
		if !a.h.goes(func() { serve(a.Conn, offer) }) {
			offer.Refuse(transport.RefuseOther, "the decode host is stopping") //nolint:errcheck // it fails when nobody is left to tell
		}
	}
}

// goes starts a goroutine that Close waits for; false when it is too late.
func (h *Hosts) goes(f func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.wg.Go(f)
	}
	return !h.closed
}

// attend keeps a host among the engines while its announcement stands.
func (h *Hosts) attend(conn transport.Conn, offer transport.Offer) {
	facts := conn.Facts()
	event := HostEvent{Name: facts.Peer, Remote: facts.Remote}
	said, err := calls.ParseHost(offer.Request().Meta)
	if err != nil {
		h.refuse(event, offer, err)
		return
	}
	x := h.hold(facts, said)
	defer h.drop(x)
	x.told.Store(toldFacts(said.Facts))
	event.Name, event.Models, event.Group = x.name, said.Models, said.Group
	if said.Group != nil {
		if err := h.groups.take(h.ctx, x, said); err != nil {
			h.refuse(event, offer, err)
			return
		}
	}
	in, err := offer.Admit(nil)
	if err != nil { // the host was told, or is gone
		if said.Group != nil {
			h.groups.leave(*said.Group, false)
		}
		return
	}
	h.come(x, conn)
	h.resume(func(w *waiting) bool { return w.key == x.key }) // whose end may be noticed later
	event.Here = true
	remove := h.enter(x, said, &event)
	h.o.OnHost(event)
	h.goes(func() { h.meet(x, said) })
	err = drain(h.ctx, in)
	in.Cancel("no calls are made any more")
	remove()
	h.gone(x, conn)
	event.Here, event.Hosts, event.Err = false, nil, err
	h.o.OnHost(event)
}

// enter makes a host an engine, or a part of one, and returns how it is left out.
func (h *Hosts) enter(x *host, said calls.Host, event *HostEvent) (remove func()) {
	if said.Group == nil {
		return h.o.Add(&engaged{x, said.Models})
	}
	var e *spread
	if e, event.Lacks = h.groups.enter(*said.Group); e != nil {
		event.Models = e.models
		for _, m := range e.members {
			event.Hosts = append(event.Hosts, m.name)
		}
	}
	return func() { h.groups.leave(*said.Group, true) }
}

// refuse does not take an announcement.
func (h *Hosts) refuse(e HostEvent, offer transport.Offer, why error) {
	e.Refused, e.Err = true, why
	h.o.OnHost(e)
	offer.Refuse(transport.RefuseOther, why.Error()) //nolint:errcheck // it fails when nobody is left to tell
}

// hold returns a host, which is remembered until drop.
func (h *Hosts) hold(facts transport.Facts, said calls.Host) *host {
	key := hostKey{facts.Peer, said.Name, facts.PeerBoot}
	h.mu.Lock()
	defer h.mu.Unlock()
	x := h.byKey[key]
	if x == nil {
		x = &host{h: h, key: key, name: cmp.Or(said.Name, facts.Peer, facts.Remote), changed: make(chan struct{})}
		h.byKey[key] = x
	}
	x.holds++
	return x
}

// drop ends a hold.
func (h *Hosts) drop(hosts ...*host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range hosts {
		x.holds--
		h.tidy(x)
	}
}

// come notes that a host can be reached over a connection.
func (h *Hosts) come(x *host, conn transport.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x.conns = append(x.conns, conn)
	close(x.changed)
	x.changed = make(chan struct{})
}

// gone notes that a host cannot be reached over a connection any more.
func (h *Hosts) gone(x *host, conn transport.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(x.conns, conn); i >= 0 {
		x.conns = slices.Delete(x.conns, i, i+1)
	}
	h.tidy(x)
}

// tidy forgets a host that nobody needs. It is called with mu held.
func (h *Hosts) tidy(x *host) {
	if len(x.conns) == 0 && x.holds == 0 && h.byKey[x.key] == x {
		delete(h.byKey, x.key)
	}
}

// engaged is a host that reads prompts for some models.
type engaged struct {
	*host
	models []string
}

// Serves implements Engine.
func (e *engaged) Serves(model string) bool {
	return slices.Contains(e.models, model) && e.Refused(model) == ""
}

// host is a prefill host. The mutex of Hosts guards its fields.
type host struct {
	h     *Hosts
	key   hostKey
	name  string
	conns []transport.Conn // over which it takes calls, the newest last
	holds int              // calls that run, and announcements

	told atomic.Pointer[facts.Facts] // of its model; nil: nothing. Not guarded

	changed chan struct{} // closed, and made anew, when a connection comes
}

// Name implements Engine.
func (x *host) Name() string { return x.name }

// Prefill implements Engine. A call whose connection is lost is made again on the
// host's next one, where it finds its work.
func (x *host) Prefill(ctx context.Context, j Job) (Result, error) {
	w, ctx, end := x.h.watch(ctx, j.Transfer, x)
	defer end()
	r, err := x.call(ctx, j, share{})
	if err != nil {
		r.Hosts = w.sent(x)
		return w.sums(r), err
	}
	if r.Bytes > 0 {
		r.Hosts = []Sent{{x.name, r.Bytes}}
	}
	return r, nil
}

// call makes a call, on as many connections as that takes.
func (x *host) call(ctx context.Context, j Job, s share) (Result, error) {
	var bad []transport.Conn
	var why error
	for {
		conn, err := x.connection(ctx, bad)
		if err != nil {
			return Result{}, errors.Join(err, why)
		}
		r, err := callOn(ctx, conn, j, s)
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		if !errors.Is(err, transport.ErrLost) && !errors.Is(err, transport.ErrClosed) {
			return r, err
		}
		bad, why = append(bad, conn), err
		if len(bad) > maxRejoins {
			return r, fmt.Errorf("%w: %w", ErrHost, err)
		}
	}
}

// connection is one over which the host takes calls, but for bad ones; where there is
// none it waits for it.
func (x *host) connection(ctx context.Context, bad []transport.Conn) (transport.Conn, error) {
	wait := time.NewTimer(max(x.h.o.Rejoin, 0))
	defer wait.Stop()
	for {
		x.h.mu.Lock()
		conns, changed := slices.Clone(x.conns), x.changed
		x.h.mu.Unlock()
		for _, c := range slices.Backward(conns) {
			if !slices.Contains(bad, c) {
				return c, nil
			}
		}
		select {
		case <-changed:
		case <-wait.C:
			return nil, fmt.Errorf("%w: %s is not connected", ErrHost, x.name)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
