package session

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"pdlink/transport"
)

// neverSent is the number of a frame that is kept and was not sent on this
// connection: the peer has its pieces already.
const neverSent = math.MaxUint64

// needless reports whether pieces of which nothing has to be sent need not be kept
// either.
func (o *outgoing) needless(pieces []transport.Piece) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.replay || !slices.ContainsFunc(pieces, func(p transport.Piece) bool { return !o.durable(p.Block) })
}

// hold keeps a frame of which nothing has to be sent until its blocks are
// durable.
func (o *outgoing) hold(f *txFrame) error {
	o.mu.Lock()
	if err := o.shut(); err != nil {
		o.mu.Unlock()
		return err
	}
	o.touch(f)
	free := len(f.blocks) == 0
	if !free {
		f.seq, f.at = neverSent, len(o.kept)
		o.kept = append(o.kept, f)
	}
	o.mu.Unlock()
	if free {
		o.c.drop(f)
	}
	return nil
}

// move copies an ended lease of another ring into one of this connection's, which
// has ended too. Of a transfer that ends meanwhile it returns the lease as it was,
// with the error; otherwise none with an error.
func (o *outgoing) move(ctx context.Context, l *transport.Lease) (*transport.Lease, error) {
	slot, err := o.ring.Take(ctx, o.done)
	if err != nil {
		if why := o.why(); why != nil {
			return l, why
		}
		l.Held().Free()
		return nil, fmt.Errorf("send: take a slot for a frame of another ring: %w", err)
	}
	to := o.c.pool.getLease()
	to.Held().Reset(slot)
	err = l.Held().MoveTo(to)
	to.Held().End()
	l.Held().Free()
	if err != nil {
		to.Held().Free()
		return nil, fmt.Errorf("send: %w", err)
	}
	return to, nil
}

// wreck is what is left of a transfer that ended and whose frames are saved: they go to
// the opener's salvage together, in the order in which they were sent, when no lane
// has one of them any more. The transfer's mutex guards it.
type wreck struct {
	busy   int                // frames that lanes have
	frames []*txFrame         // that they do not have
	late   []*transport.Lease // that came after the end, live
}

// reject is the end of a lease, which has ended, that could not be queued: it is
// saved where those that were kept are.
func (o *outgoing) reject(l *transport.Lease) {
	o.mu.Lock()
	saved := o.rescue
	if saved {
		o.wreck.late = append(o.wreck.late, l.Held().Revive())
	}
	o.mu.Unlock()
	if saved {
		o.recover()
	} else {
		l.Held().Free()
	}
}

// dispose drops the kept frames of a transfer that has ended, or saves them.
func (o *outgoing) dispose(idle []*txFrame) {
	o.mu.Lock()
	saved := o.rescue
	o.mu.Unlock()
	if saved {
		o.recover()
		return
	}
	for _, f := range idle {
		o.c.drop(f)
	}
}

// recover hands the wreck to the opener's salvage, unless lanes still have a part of it.
func (o *outgoing) recover() {
	o.handing.Lock()
	defer o.handing.Unlock()
	o.mu.Lock()
	if o.wreck.busy > 0 {
		o.mu.Unlock()
		return
	}
	w := o.wreck
	o.wreck = wreck{}
	o.mu.Unlock()
	slices.SortFunc(w.frames, func(a, b *txFrame) int { return cmp.Compare(a.seq+1, b.seq+1) }) // neverSent first
	leases := make([]*transport.Lease, 0, len(w.frames)+len(w.late))
	for _, f := range w.frames {
		l := f.lease
		o.c.pool.putTx(f)
		leases = append(leases, l.Held().Revive())
	}
	o.keep.Add(append(leases, w.late...)...)
}
