package front

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
)

// waiting is a prefill host that is connected and takes no calls yet.
type waiting struct {
	key hostKey
	why string // in its own words

	forget func() // those who were told of it; idempotent
}

// wait keeps a host among those that take no calls yet, while its word of that stands.
func (h *Hosts) wait(conn transport.Conn, offer transport.Offer) {
	about := conn.Facts()
	said, err := calls.ParseHost(offer.Request().Meta)
	if err == nil && said.Waits == "" {
		err = errors.New("it does not say what it waits for")
	}
	if err != nil {
		h.refuse(HostEvent{Name: about.Peer, Remote: about.Remote}, offer, err)
		return
	}
	in, err := offer.Admit(nil)
	if err != nil { // the host is gone
		return
	}
	event := HostEvent{Name: cmp.Or(said.Name, about.Peer, about.Remote), Remote: about.Remote, Group: said.Group, Waits: said.Waits}
	x := h.halt(hostKey{about.Peer, said.Name, about.PeerBoot}, said.Waits, event.Name)
	h.o.OnHost(event)
	err = drain(h.ctx, in)
	in.Cancel("nobody is told of it any more")
	h.resume(func(y *waiting) bool { return y == x })
	if h.ctx.Err() == nil && !errors.Is(err, transport.ErrCancelled) { // it did not say that it waits no longer
		event.Waits, event.Gone, event.Err = "", true, err
		h.o.OnHost(event)
	}
}

// halt notes a host that takes no calls yet.
func (h *Hosts) halt(key hostKey, why, name string) *waiting {
	x := &waiting{key, why, sync.OnceFunc(h.o.Waits(name, why))}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting = append(h.waiting, x)
	return x
}

// resume forgets hosts that take no calls yet: which says so.
func (h *Hosts) resume(which func(*waiting) bool) {
	h.mu.Lock()
	var ended []*waiting
	h.waiting = slices.DeleteFunc(h.waiting, func(x *waiting) bool {
		if which(x) {
			ended = append(ended, x)
			return true
		}
		return false
	})
	h.mu.Unlock()
	for _, x := range ended {
		x.forget()
	}
}

// state is what is known of a host that has the name of who asks: that it takes calls, or
// for what it waits. A name that is proven is of this peer only.
func (h *Hosts) state(about transport.Facts, said calls.Host) (takes bool, waits string) {
	same := func(k hostKey) bool { return k.name == said.Name && (!about.Proven || k.peer == about.Peer) }
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, x := range h.byKey {
		takes = takes || len(x.conns) > 0 && same(k)
	}
	for _, x := range h.waiting {
		if same(x.key) {
			waits = x.why
		}
	}
	return takes, waits
}

// drain takes what comes until the transfer ends, of which nothing else is expected, and
// returns how it did.
func drain(ctx context.Context, in transport.Incoming) error {
	for {
		d, err := in.Recv(ctx)
		if err != nil {
			return err
		}
		if !d.Mark() {
			d.Release()
		}
	}
}
