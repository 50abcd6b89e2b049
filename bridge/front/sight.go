package front

import (
	"context"
	"sync"

	"pdlink/transport"
)

// sight is what is seen of a transfer that a call waits for: it is still known when its
// host is not there to say it.
type sight struct {
	h       *Hosts
	visible int // blocks; guarded by Hosts.mu

	mu      sync.Mutex                   // guards arrived
	arrived map[int][]transport.Incoming // by part: one for each connection
}

// watch begins to watch a transfer of a call to hosts, which are remembered meanwhile.
// The context that it returns ends with Close too. The caller owes end.
func (h *Hosts) watch(ctx context.Context, id transport.ID, hosts ...*host) (w *sight, _ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	release := context.AfterFunc(h.ctx, func() { cancel(ErrClosed) })
	w = &sight{h: h, arrived: make(map[int][]transport.Incoming)}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range hosts {
		x.holds++
	}
	h.watched[id] = w
	return w, ctx, func() {
		release()
		cancel(nil)
		h.mu.Lock()
		if h.watched[id] == w {
			delete(h.watched, id)
		}
		h.mu.Unlock()
		h.drop(hosts...)
	}
}

// sent is what hosts sent so far, each its part.
func (w *sight) sent(hosts ...*host) []Sent {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]Sent, 0, len(hosts))
	for part, x := range hosts {
		s := Sent{Name: x.name}
		for _, in := range w.arrived[part] {
			s.Bytes += in.Stats().Bytes
		}
		list = append(list, s)
	}
	return list
}

// sums fills a result of a call that failed in with what came, whoever has it.
func (w *sight) sums(r Result) Result {
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	r.Blocks = max(r.Blocks, w.visible)
	r.Bytes = 0
	for _, s := range r.Hosts {
		r.Bytes += s.Bytes
	}
	return r
}

// seen returns an offer that is watched, if its transfer is.
func (h *Hosts) seen(offer transport.Offer) transport.Offer {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.watched[offer.Request().ID]; w != nil {
		return watchedOffer{offer, w}
	}
	return offer
}

// watchedOffer is an offer that is watched when it is admitted.
type watchedOffer struct {
	transport.Offer
	w *sight
}

// Admit implements transport.Offer.
func (o watchedOffer) Admit(answer []byte) (transport.Incoming, error) {
	in, err := o.Offer.Admit(answer)
	if err == nil {
		o.w.mu.Lock()
		defer o.w.mu.Unlock()
		if part := o.Request().Part; len(o.w.arrived[part]) < maxRejoins {
			o.w.arrived[part] = append(o.w.arrived[part], in)
		}
	}
	return in, err
}
