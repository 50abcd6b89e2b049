package prefill

import (
	"context"
	"errors"
	"fmt"
	"os"

	"pdlink/transport"
)

// table is the ring and what the sidecar knows of each slot.
type table struct {
	*region
	file  *os.File
	unmap func() error
	ring  *transport.Ring
	// rowRoom has a token for each slot that rows may take: rows wait for
	// slots of what is made of them, so they must not have all.
	rowRoom chan struct{}
	held    []holding
	leases  []*transport.Lease // by slot, for when it is sent

	sumName string // the algorithm of records and leases
	sum     transport.SumFunc
}

// holding is what is known of a slot that is taken. It belongs to whoever has
// the slot: a worker (guarded by its mutex), then a transfer's queue, then
// its pump; the server's orphans in between (guarded by the server's mutex).
type holding struct {
	slot     int
	gen      uint32
	own      transport.Slot
	rowToken bool

	transfer transport.ID
	instance transport.ID // of the worker that leased it
	mode     uint8
	req      *request // that leased or committed it, nil after a restart

	entries int   // of list
	sums    uint8 // algorithm of the list's sums; 0: it has none
	list    [maxList]byte
}

// newTable makes a ring of f, which it then owns; adopted says that f was in use
// before.
func newTable(f *os.File, g geometry, adopted bool) (*table, error) {
	mem, unmap, err := mapMemory(f, g.size())
	if err != nil {
		return nil, fmt.Errorf("map ring: %w", err)
	}
	r := &region{mem: mem, geometry: g, id: transport.NewID()}
	if adopted {
		if r, err = openRegion(mem, g); err != nil {
			return nil, errors.Join(err, unmap())
		}
	} else {
		r.format()
	}
	ring, err := transport.WrapRing(r.payload(), g.slotSize)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrRing, err), unmap())
	}
	tb := &table{region: r, file: f, unmap: unmap, ring: ring, held: make([]holding, g.slots), rowRoom: make(chan struct{}, g.slots/2)}
	tb.sumName = transport.SumsByRate()[0] // what the links prefer too, so that it is computed once
	if tb.sum, err = transport.SumByName(tb.sumName); err != nil {
		return nil, errors.Join(err, unmap())
	}
	for range g.slots / 2 {
		tb.rowRoom <- struct{}{}
	}
	for range g.slots {
		tb.leases = append(tb.leases, transport.NewLease(tb.room(), tb.sumName, tb.returned))
	}
	return tb, nil
}

// room is the payload of a slot in bytes.
func (tb *table) room() int { return tb.slotSize - transport.HeaderRoom }

// close unmaps the ring: transport.ErrRingInUse while somebody sends from it.
func (tb *table) close() error {
	if err := tb.ring.Close(); err != nil {
		return fmt.Errorf("close ring: %w", err)
	}
	return errors.Join(tb.unmap(), tb.file.Close())
}

// take takes a slot. Errors: those of transport.Ring.Take.
func (tb *table) take(ctx context.Context, done <-chan struct{}) (*holding, error) {
	s, err := tb.ring.Take(ctx, done)
	if err != nil {
		return nil, err
	}
	return tb.hold(s), nil
}

// hold returns the holding of a slot that was just taken.
func (tb *table) hold(s transport.Slot) *holding {
	h := &tb.held[s.Index()]
	h.slot, h.own, h.gen, h.rowToken, h.mode, h.req, h.entries, h.sums = s.Index(), s, 0, false, 0, nil, 0, 0
	h.transfer, h.instance = transport.ID{}, transport.ID{}
	return h
}

// takeRows is take for rows.
func (tb *table) takeRows(ctx context.Context, done <-chan struct{}) (*holding, error) {
	select {
	case <-tb.rowRoom:
	case <-done:
		return nil, transport.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	h, err := tb.take(ctx, done)
	if err != nil {
		tb.rowRoom <- struct{}{}
		return nil, err
	}
	h.rowToken = true
	return h, nil
}

// grant writes a new generation of h's slot for a worker.
func (tb *table) grant(h *holding, transfer, instance transport.ID, mode uint8) {
	h.transfer, h.instance, h.mode = transfer, instance, mode
	h.gen = tb.record(h.slot).lease(transfer, instance, mode)
}

// free gives the slot back unsent. h is over.
func (tb *table) free(h *holding) {
	tb.record(h.slot).free()
	own, token := h.own, h.rowToken
	h.own, h.rowToken, h.req = transport.Slot{}, false, nil
	own.Put()
	if token {
		tb.rowRoom <- struct{}{}
	}
}

// frame makes the lease that sends the pieces of h, notes what the slot has, so
// that it is found after a restart, and checks the sums that are there from before
// one. h is over unless an error is returned.
func (tb *table) frame(h *holding) (*transport.Lease, error) {
	check := sumFunc(h.sums)
	l := tb.leases[h.slot]
	l.Held().Reset(h.own)
	size := 0
	for list := h.list[:h.entries*entrySize]; len(list) > 0; list = list[entrySize:] {
		x := piece(list)
		mem, err := l.Reserve(x.Block, x.Offset, int(x.Length))
		if err != nil {
			return nil, fmt.Errorf("fill frame: %w", err)
		}
		if check != nil && check(mem) != x.Sum {
			return nil, fmt.Errorf("%w: slot %d does not have what its record says", ErrRing, h.slot)
		}
		x.Sum = tb.sum(mem)
		l.SetSum(x.Sum)
		putPiece(list, x)
		size += len(mem)
	}
	tb.record(h.slot).take(h.transfer, h.list[:h.entries*entrySize], size, sumNumber(tb.sumName))
	h.own, h.req = transport.Slot{}, nil
	return l, nil
}

// returned takes back the slot of a lease that was sent and is needed no more, or
// was released.
func (tb *table) returned(l *transport.Lease) {
	s := l.Held().Slot()
	tb.record(s.Index()).free()
	s.Put()
}

// recover takes the slots of an adopted ring that somebody may still want: those
// that workers may hold, and those that were committed, by transfer. All others
// are free.
func (tb *table) recover() (leases []*holding, taken map[transport.ID][]*holding) {
	taken = make(map[transport.ID][]*holding)
	slots := make([]transport.Slot, 0, tb.slots)
	for range tb.slots {
		s, err := tb.ring.Take(context.Background(), nil)
		if err != nil {
			break // nobody else knows the ring yet, so there are as many as slots
		}
		slots = append(slots, s)
	}
	for _, s := range slots {
		r := tb.record(s.Index())
		if r.state() == stateLeased && r.instance() != (transport.ID{}) { // else it was the sidecar's own
			h := tb.hold(s)
			h.gen, h.transfer, h.instance, h.mode = r.generation(), r.transfer(), r.instance(), r.mode()
			leases = append(leases, h)
			continue
		}
		list, sum, ok := r.taken()
		if _, err := listed(list, tb.room()); !ok || err != nil || sumFunc(sum) == nil {
			r.free()
			s.Put()
			continue
		}
		h := tb.hold(s)
		h.transfer, h.mode, h.entries, h.sums = r.transfer(), modePieces, copy(h.list[:], list)/entrySize, sum
		taken[h.transfer] = append(taken[h.transfer], h)
	}
	return leases, taken
}

// listed adds up the lengths of a list, which both modes have at the same
// place, and demands that they fit into room bytes.
func listed(list []byte, room int) (payload int, err error) {
	for e := list; len(e) >= entrySize; e = e[entrySize:] {
		n := int64(u32(e[4:]))
		if n < 1 || int64(payload)+n > int64(room) {
			return 0, breach("list of a slot: entry of %d bytes after %d, room %d", n, payload, room)
		}
		payload += int(n)
	}
	return payload, nil
}
