package rdma

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
	"pdlink/transport/carrier"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// Carry implements carrier.Carrier.
func (l *Link) Carry(ctx context.Context, b carrier.Base) (carrier.Lanes, error) {
	if !slices.Contains(b.Agreed.Features, feature) {
		return nil, fmt.Errorf("rdma: %w: the other end's link has no RDMA: use %s:// at both ends, or tcp:// at both", transport.ErrIncompatible, Scheme)
	}
	s := &setUp{b: b, c: &conn{link: l, dead: make(chan struct{})}}
	s.c.ctx, s.c.stop = context.WithCancel(context.Background())
	err := s.run(ctx)
	if err == nil {
		l.worked.Store(true)
		return s.c, nil
	}
	if ctx.Err() == nil && !s.refused {
		s.refuse(err)
	}
	return nil, errors.Join(err, s.endTrial(), s.c.Close())
}

// setUp makes the lanes of one connection, step by step with its like at the other
// end.
type setUp struct {
	b       carrier.Base
	c       *conn
	mine    offer
	peer    offer
	there   place // the peer's
	path    path
	trial   *pair // for immediates; nil: they are not tried
	tried   bool  // the peer's immediate came
	refused bool  // the peer said that there will be no lanes, or is gone
}

// able is how many steps it takes until both ends have shown that their devices can do
// what is needed: what fails later may not fail again.
const able = 4

// run is all steps. The caller closes what there is when it fails.
func (s *setUp) run(ctx context.Context) error {
	steps := []func(context.Context) error{
		s.open, s.offers, s.memory, s.places, s.connect, s.ready, s.test, s.immediates, s.results,
	}
	for i, step := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step(ctx); err != nil {
			return s.worded(err, i >= able)
		}
	}
	s.c.link.o.OnChoice(s.choice())
	return nil
}

// open chooses the device and makes queue pairs.
func (s *setUp) open(context.Context) error {
	c := s.c
	var err error
	if c.dev, c.seat, err = c.link.choose(s.b.Local); err != nil {
		return err
	}
	if c.pd, err = c.dev.NewPD(); err != nil {
		return err
	}
	attr, err := c.dev.Attr()
	if err != nil {
		return err
	}
	lanes := min(s.b.Agreed.Lanes, maxLanes)
	for i := range lanes {
		c.lanes = append(c.lanes, &lane{c: c, index: i, nudge: make(chan struct{}, 1)})
	}
	s.mine = offer{
		modes: push | pull | stride, mtu: c.seat.attr.ActiveMTU, lanes: uint8(lanes), class: string(c.seat.info.Class),
		readsIn: uint8(min(attr.MaxRead, 255)), readsOut: uint8(min(attr.MaxReadOut, 255)),
		linkLocal: c.seat.entry.GID.Addr().IsLinkLocalUnicast(),
	}
	if c.link.o.NoRemoteWrite {
		s.mine.modes = pull | stride
	}
	if err = s.pairs(verbs.RC, attr); errors.Is(err, errNoKind) {
		s.mine.modes = stride
		if err = s.unpair(err); err == nil {
			err = s.pairs(verbs.UC, attr)
		}
		s.mine.uc = true
	} else {
		s.mine.rc = true
	}
	if err != nil {
		return err
	}
	s.mine.immediate = s.mine.rc && !c.link.o.NoImmediate && traitsOf(c.seat.info.Class).immediates
	return nil
}

// pairs makes the queue pair of each lane and settles how much it has room for.
func (s *setUp) pairs(kind verbs.QPKind, attr verbs.DeviceAttr) error {
	c := s.c
	slots := c.link.o.Slots
	w := wish{kind: kind, sends: slots*frameWRs + 2*readAhead, recvs: slots, inline: noticeSize, leastRecvs: min(slots, leastDepth)}
	if kind == verbs.UC {
		w = wish{kind: kind, sends: strides, recvs: strides, leastRecvs: leastDepth}
	}
	if attr.MaxQPWR > 0 {
		w.sends, w.recvs = min(w.sends, attr.MaxQPWR), min(w.recvs, attr.MaxQPWR)
	}
	for _, l := range c.lanes {
		p, err := newPair(c.pd, w, rand.Uint32()>>8)
		l.pair = p
		if err != nil {
			return fmt.Errorf("lane %d: %w", l.index, err)
		}
		if w.recvs = min(w.recvs, p.info.MaxRecv); w.recvs < leastSlots {
			return fmt.Errorf("lane %d: %w: the device gives queues of %d receives, %d are needed", l.index, transport.ErrUnavailable, w.recvs, leastSlots)
		}
	}
	s.mine.slots, s.mine.strides = uint8(min(w.recvs, slots)), uint8(min(w.recvs, strides))
	return nil
}

// unpair frees the queue pairs of lanes that were made before one was refused for that
// reason. Errors: what does not go, with the reason.
func (s *setUp) unpair(reason error) error {
	err := persist(func() error {
		errs := make([]error, 0, len(s.c.lanes))
		for _, l := range s.c.lanes {
			errs = append(errs, l.close())
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return errors.Join(reason, err)
	}
	for _, l := range s.c.lanes {
		l.pair = nil
	}
	return nil
}

// offers tells each end what the other can do, and draws the terms.
func (s *setUp) offers(context.Context) error {
	r, err := s.swap(typeOffer, &s.mine)
	if err != nil {
		return err
	}
	if s.peer.parse(r); r.err != nil {
		return r.err
	}
	c := s.c
	if c.t, err = agree(&s.mine, &s.peer); err != nil {
		return err
	}
	if c.t.lanes != len(c.lanes) {
		return wire.Violation("rdma: %d lanes, %d were agreed", c.t.lanes, len(c.lanes))
	}
	c.t.epoch, c.t.maxPayload = s.b.Agreed.Epoch, s.b.Agreed.MaxPayload
	if c.t.linkLocal && !s.mine.linkLocal {
		c.seat = c.seat.linkLocal(c.dev)
	}
	if c.t.immediate {
		w := wish{kind: verbs.RC, sends: leastDepth, recvs: leastDepth, leastRecvs: 1, noChannel: true}
		// There may be no queue pair to spare: immediates are not tried then.
		if s.trial, err = newPair(c.pd, w, rand.Uint32()>>8); err != nil && s.trial != nil {
			return fmt.Errorf("try immediates: %w", err)
		}
	}
	return nil
}

// memory maps and registers what the mode needs, and posts nothing yet.
func (s *setUp) memory(context.Context) error {
	c := s.c
	limit := 0
	attr, err := c.dev.Attr()
	if err != nil {
		return err
	}
	if attr.MaxMRSize < 1<<31 {
		limit = int(attr.MaxMRSize)
	}
	unit := (c.t.maxPayload + pageSize - 1) / pageSize * pageSize
	for _, l := range c.lanes {
		if s.b.Seals != nil {
			if l.out.sealer, l.in.opener, err = s.b.Seals(l.index); err != nil {
				return err
			}
		}
		if err := l.room(unit, limit); err != nil {
			return fmt.Errorf("lane %d: %w", l.index, err)
		}
	}
	// Last, since regions may be few: what cannot be registered is copied.
	if ring := s.b.Options.SendRing; c.t.mode == push && s.b.Seals == nil && ring != nil {
		if c.parts, err = register(c.pd, ring.Memory(), ring.SlotSize(), limit, 0); err == nil {
			c.ring = ring.Memory()
		} else {
			c.copies = fmt.Errorf("the send ring cannot be registered: %w", err)
		}
	}
	return nil
}

// room maps and registers a lane's memory, unit bytes for each payload.
func (l *lane) room(unit, limit int) (err error) {
	t, pd := &l.c.t, l.c.pd
	in, out := &l.in, &l.out
	if out.width, err = t.width(l.info.MaxSend); err != nil {
		return err
	}
	out.signalAll = !traitsOf(l.c.seat.info.Class).unsignalled
	in.all = out.signalAll
	out.inline = l.info.MaxInline >= noticeSize
	out.room, in.arrivals = make(chan struct{}, 1), make(chan notice, t.slots)
	out.granted, in.granted = uint64(t.slots), uint64(t.slots)
	arenas := []struct {
		to          **arena
		slots, unit int
		access      verbs.Access
	}{
		{&in.notes, t.slots, noticeRoom, verbs.AccessLocalWrite},
		{&out.notes, t.slots, noticeRoom, 0},
	}
	add := func(to **arena, slots, unit int, access verbs.Access) {
		arenas = append(arenas, struct {
			to          **arena
			slots, unit int
			access      verbs.Access
		}{to, slots, unit, access})
	}
	remotely := t.access() | verbs.AccessLocalWrite
	switch t.mode {
	case push:
		add(&in.heads, t.slots, headRoom, remotely)
		add(&in.bodies, t.slots, unit, remotely)
		add(&out.heads, t.slots, headRoom, 0)
		add(&out.bodies, stages, unit, 0)
	case pull:
		in.pulls = make([]notice, t.slots)
		add(&in.heads, t.slots, headRoom, verbs.AccessLocalWrite)
		add(&in.bodies, t.slots, unit, verbs.AccessLocalWrite)
		add(&out.heads, t.slots, headRoom, t.access())
		add(&out.bodies, t.slots, unit, t.access())
	case stride:
		arenas[0].unit = strideSize
		arenas = arenas[:1]
		add(&out.bodies, t.slots, strideSize, 0)
	}
	out.done = make([]func(), out.width)
	for _, a := range arenas {
		if *a.to, err = newArena(pd, a.slots, a.unit, limit, a.access); err != nil {
			return err
		}
	}
	return l.whole()
}

// whole returns nil where the heads that the peer uses are one region: it is told of
// one. Errors: transport.ErrUnavailable.
func (l *lane) whole() error {
	a := l.heads()
	if a == nil || len(a.parts) == 1 {
		return nil
	}
	return fmt.Errorf("%w: the heads of %d frames want one region of %d bytes of memory, the device registers %d at a time: fewer slots need less",
		transport.ErrUnavailable, l.c.t.slots, len(a.mem), a.parts[0].info.Length)
}

// heads is the memory of heads that the peer uses; nil in stride mode.
func (l *lane) heads() *arena {
	switch l.c.t.mode {
	case push:
		return l.in.heads
	case pull:
		return l.out.heads
	}
	return nil
}

// places tells each end where the other's queue pairs and memory are.
func (s *setUp) places(context.Context) error {
	c := s.c
	here := place{gid: c.seat.entry.GID, lid: c.seat.attr.LID}
	if s.trial != nil {
		here.trial = pairPlace{s.trial.info.Number, s.trial.psn}
	}
	for _, l := range c.lanes {
		p := lanePlace{pair: pairPlace{l.info.Number, l.psn}, slots: c.t.slots}
		switch c.t.mode {
		case push:
			p.heads, p.bodies, here.bodySize = l.in.heads.spans()[0], l.in.bodies.spans(), l.in.bodies.unit
		case pull:
			p.heads, p.bodies, here.bodySize = l.out.heads.spans()[0], l.out.bodies.spans(), l.out.bodies.unit
		}
		here.lanes = append(here.lanes, p)
	}
	r, err := s.swap(typePlace, &here)
	if err != nil {
		return err
	}
	if s.there.parse(r, &c.t); r.err != nil {
		return r.err
	}
	c.peerBody = s.there.bodySize
	for i, l := range c.lanes {
		l.peer = s.there.lanes[i]
	}
	if s.there.trial.number == 0 {
		return s.endTrial()
	}
	return nil
}

// connect moves the queue pairs to where they receive.
func (s *setUp) connect(context.Context) error {
	c := s.c
	s.path = path{
		port: c.seat.port, attr: c.seat.attr, index: c.seat.entry.Index, gid: s.there.gid, lid: s.there.lid,
		mtu: c.t.mtu, hops: hopLimit, reads: c.t.reads,
	}
	for _, l := range c.lanes {
		if err := l.initialise(c.seat.port, c.t.access()); err != nil {
			return fmt.Errorf("lane %d: %w", l.index, err)
		}
		list := make([]verbs.RecvWR, c.t.slots)
		for i := range list {
			list[i] = verbs.RecvWR{ID: uint64(i), Local: l.in.notes.segment(l.in.notes.slot(i)[:l.in.notice(c.t.mode)])}
		}
		if err := l.receive(list); err != nil {
			return fmt.Errorf("lane %d: %w", l.index, err)
		}
		if err := l.pair.receive(&s.path, l.peer.pair); err != nil {
			return fmt.Errorf("lane %d: connect to queue pair %d at %v: %w", l.index, l.peer.pair.number, s.there.gid, err)
		}
	}
	if s.trial != nil {
		return s.trialReceives()
	}
	return nil
}

// notice is how many bytes a posted receive has.
func (in *inbound) notice(m mode) int {
	if m == stride {
		return strideSize
	}
	return noticeRoom
}

// ready waits until both ends can receive, and begins to send.
func (s *setUp) ready(context.Context) error {
	if _, err := s.swap(typeReady, empty{}); err != nil {
		return err
	}
	for _, l := range s.c.lanes {
		if err := l.transmit(&s.path); err != nil {
			return fmt.Errorf("lane %d: %w", l.index, err)
		}
		s.c.workers.Go(l.pump)
	}
	return nil
}

// test tries every lane with a frame in each direction.
func (s *setUp) test(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, testTime)
	defer cancel()
	stop := context.AfterFunc(limited, func() {
		if err := ctx.Err(); err != nil { // the caller's end, which says nothing of the lane
			s.c.fail(err)
			return
		}
		s.c.fail(fmt.Errorf("%w: a lane that is set up carries nothing: is the peer's address %v reachable from %v, and are the MTUs of both networks equal?",
			transport.ErrLost, s.there.gid, s.c.seat.entry.GID))
	})
	defer stop()
	for _, l := range s.c.lanes {
		head, body := pattern(s.c.t.epoch, l.index, s.b.Role)
		if err := l.out.try(l, head, body); err != nil {
			return fmt.Errorf("lane %d: try to send: %w", l.index, err)
		}
	}
	for _, l := range s.c.lanes {
		head, body := make([]byte, noticeSize), make([]byte, testBody)
		if err := l.in.raw(l, head, body); err != nil {
			return fmt.Errorf("lane %d: try to receive: %w", l.index, err)
		}
		wantHead, wantBody := pattern(s.c.t.epoch, l.index, 1-s.b.Role)
		if !slices.Equal(head, wantHead) || !slices.Equal(body, wantBody) {
			return fmt.Errorf("lane %d: %w: the frame that tries it arrived changed", l.index, transport.ErrProtocol)
		}
	}
	return nil
}

// pattern is the frame that tries a lane, of an end of a role.
func pattern(epoch uint32, lane int, role session.Role) (head, body []byte) {
	rng := rand.New(rand.NewPCG(uint64(epoch), uint64(lane)<<1|uint64(role)))
	all := make([]byte, noticeSize+testBody)
	for i := range all {
		all[i] = byte(rng.Uint32())
	}
	return all[:noticeSize], all[noticeSize:]
}

// results tells each end how the trial went at the other, and settles how frames are
// announced.
func (s *setUp) results(context.Context) error {
	r, err := s.swap(typeTested, &tested{s.tried})
	if err != nil {
		return err
	}
	var t tested
	if t.parse(r); r.err != nil {
		return r.err
	}
	if t.immediate && s.trial == nil {
		return wire.Violation("rdma: an immediate came that was not tried")
	}
	for _, l := range s.c.lanes {
		l.out.immediate, l.in.immediate = t.immediate, s.tried
	}
	return s.endTrial()
}

// choice is what the connection uses, for people.
func (s *setUp) choice() Choice {
	c := s.c.seat.choice()
	c.Mode = s.c.t.mode.String()
	if s.c.t.mode == push {
		c.Mode += "+send"
		if s.c.lanes[0].out.immediate {
			c.Mode = push.String() + "+immediate"
		}
	}
	if s.c.copies != nil {
		c.Copies = s.c.copies.Error()
	}
	return c
}
