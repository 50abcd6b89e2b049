package front

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

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

	// OnHost is told of hosts that come and go. Nil: nobody is told.
	OnHost func(HostEvent)

	// Rejoin is how long a call waits for its host when the connection was lost. 0
	// means DefaultRejoin; negative: not at all.
	Rejoin time.Duration
}

// HostEvent is a prefill host that came or went.
type HostEvent struct {
	Name   string   // of the host, as engines are called
	Remote string   // its address
	Here   bool     // it takes calls now
	Models []string // that it reads prompts for
	Err    error    // why an announcement was not understood, or the host went
}

// Hosts are the prefill hosts that are connected: each that takes calls is an
// engine. They know each other again when a connection is replaced. All methods may
// be called concurrently.
type Hosts struct {
	o    HostsOptions
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	byKey   map[hostKey]*host
	visible map[transport.ID]int // blocks, of transfers that calls wait for
	closed  bool
}

// hostKey is a process at the other end.
type hostKey struct {
	peer, name string
	boot       transport.ID
}

// NewHosts returns hosts, of which there are none yet. The caller closes them.
func NewHosts(o HostsOptions) *Hosts {
	if o.Rejoin == 0 {
		o.Rejoin = DefaultRejoin
	}
	if o.OnHost == nil {
		o.OnHost = func(HostEvent) {}
	}
	h := &Hosts{o: o, byKey: make(map[hostKey]*host), visible: make(map[transport.ID]int)}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
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
	if _, wanted := h.visible[id]; wanted {
		h.visible[id] = visible
	}
}

// Attend returns a connection that is c but for announcements of prefill hosts, which
// it takes itself while somebody waits in Accept.
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
		if err != nil || offer.Request().Kind != calls.KindHost {
			return offer, err
		}
		if !a.h.goes(func() { a.h.attend(a.Conn, offer) }) {
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
	said, err := calls.ParseHost(offer.Request().Meta)
	if err != nil {
		h.o.OnHost(HostEvent{Name: facts.Peer, Remote: facts.Remote, Err: err})
		offer.Refuse(transport.RefuseOther, err.Error()) //nolint:errcheck // it fails when nobody is left to tell
		return
	}
	in, err := offer.Admit(nil)
	if err != nil {
		return // the host was told, or is gone
	}
	x := h.come(facts, said, conn)
	event := HostEvent{Name: x.name, Remote: facts.Remote, Here: true, Models: said.Models}
	remove := h.o.Add(&engaged{x, said.Models})
	h.o.OnHost(event)
	for err == nil { // nothing is expected but the end
		var d *transport.Delivery
		if d, err = in.Recv(h.ctx); err == nil && !d.Mark() {
			d.Release()
		}
	}
	in.Cancel("no calls are made any more")
	remove()
	h.gone(x, conn)
	event.Here, event.Err = false, err
	h.o.OnHost(event)
}

// come notes that a host can be reached over a connection.
func (h *Hosts) come(facts transport.Facts, said calls.Host, conn transport.Conn) *host {
	key := hostKey{facts.Peer, said.Name, facts.PeerBoot}
	h.mu.Lock()
	defer h.mu.Unlock()
	x := h.byKey[key]
	if x == nil {
		x = &host{h: h, key: key, name: said.Name, changed: make(chan struct{})}
		if x.name == "" {
			x.name = facts.Peer
		}
		if x.name == "" {
			x.name = facts.Remote
		}
		h.byKey[key] = x
	}
	x.conns = append(x.conns, conn)
	close(x.changed)
	x.changed = make(chan struct{})
	return x
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
	if len(x.conns) == 0 && x.calls == 0 && h.byKey[x.key] == x {
		delete(h.byKey, x.key)
	}
}

// engaged is a host that reads prompts for some models.
type engaged struct {
	*host
	models []string
}

// Serves implements Engine.
func (e *engaged) Serves(model string) bool { return slices.Contains(e.models, model) }

// host is a prefill host. The mutex of Hosts guards its fields.
type host struct {
	h     *Hosts
	key   hostKey
	name  string
	conns []transport.Conn // over which it takes calls, the newest last
	calls int              // that run

	changed chan struct{} // closed, and made anew, when a connection comes
}

// Name implements Engine.
func (x *host) Name() string { return x.name }

// Prefill implements Engine. A call whose connection is lost is made again on the
// host's next one, where it finds its work.
func (x *host) Prefill(ctx context.Context, j Job) (Result, error) {
	h := x.h
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	release := context.AfterFunc(h.ctx, func() { cancel(ErrClosed) })
	defer release()
	h.mu.Lock()
	x.calls++
	h.visible[j.Transfer] = 0
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		x.calls--
		delete(h.visible, j.Transfer)
		h.tidy(x)
	}()
	r, err := x.call(ctx, j)
	if err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		r.Blocks = max(r.Blocks, h.visible[j.Transfer])
	}
	return r, err
}

// call makes a call, on as many connections as that takes.
func (x *host) call(ctx context.Context, j Job) (Result, error) {
	var bad []transport.Conn
	var why error
	for {
		conn, err := x.connection(ctx, bad)
		if err != nil {
			return Result{}, errors.Join(err, why)
		}
		r, err := callOn(ctx, conn, j)
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
