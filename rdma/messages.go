package rdma

import (
	"encoding/binary"
	"fmt"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
	"pdlink/transport/wire"
)

// Types of the link's messages. Section 11 of PROTOCOL.md has their bodies.
const (
	typeOffer  = wire.FirstLink + 0 // what an end can do
	typePlace  = wire.FirstLink + 1 // its queue pairs and memory
	typeReady  = wire.FirstLink + 2 // it can receive
	typeTested = wire.FirstLink + 3 // the peer's frames came as they should
	typeGrant  = wire.FirstLink + 4 // frames that may have been sent on a lane
	typeSent   = wire.FirstLink + 5 // messages that were sent on a lane
	typeRefuse = wire.FirstLink + 6 // why there will be no lanes
)

// known reports whether t is one of them.
func known(t wire.Type) bool { return typeOffer <= t && t <= typeRefuse }

// mode is how frames move.
type mode uint8

// Modes, as the bits of an offer; the first that both ends have counts.
const (
	push mode = 1 << iota
	pull
	stride
)

// String names the mode in words.
func (m mode) String() string {
	switch m {
	case push:
		return "write"
	case pull:
		return "read"
	case stride:
		return "send"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// offer is what an end can do.
type offer struct {
	modes     mode // set of bits
	rc, uc    bool
	immediate bool // it may send and receive immediates, if they turn out to work
	mtu       verbs.MTU
	readsIn   uint8 // READs of the peer that it takes at a time
	readsOut  uint8
	lanes     uint8
	slots     uint8 // of frames, on each lane
	strides   uint8 // messages that it has room for in stride mode, on each lane
	linkLocal bool  // its address is link-local: it has no other
	class     string
}

const (
	offerRC = 1 << iota
	offerUC
	offerImmediate
	offerLinkLocal
	offerFlags = 1<<iota - 1
)

func (o *offer) append(b []byte) []byte {
	flags := byte(0)
	for i, set := range []bool{o.rc, o.uc, o.immediate, o.linkLocal} {
		if set {
			flags |= 1 << i
		}
	}
	b = append(b, byte(o.modes), flags, byte(o.mtu), o.readsIn, o.readsOut, o.lanes, o.slots, o.strides, byte(len(o.class)))
	return append(b, o.class...)
}

func (o *offer) parse(r *reader) {
	o.modes = mode(r.u8())
	flags := r.u8()
	o.rc, o.uc = flags&offerRC != 0, flags&offerUC != 0
	o.immediate, o.linkLocal = flags&offerImmediate != 0, flags&offerLinkLocal != 0
	o.mtu = verbs.MTU(r.u8())
	o.readsIn, o.readsOut, o.lanes = r.u8(), r.u8(), r.u8()
	o.slots, o.strides = r.u8(), r.u8()
	o.class = wire.Printable(string(r.take(int(r.u8()))), maxClass)
	switch {
	case flags&^offerFlags != 0:
		r.fail("reserved flags of an offer are set")
	case o.mtu.Bytes() == 0:
		r.fail("MTU %d", o.mtu)
	case o.slots < leastSlots || o.slots > maxSlots || o.strides < leastSlots || o.strides > strides:
		r.fail("room for %d frames and %d messages", o.slots, o.strides)
	}
}

// maxClass is the longest name of a class of devices, in bytes.
const maxClass = 32

// span is memory of the peer behind one key: slots of equal size.
type span struct {
	addr  uint64
	key   uint32
	slots int
}

// pairPlace is where to reach a queue pair.
type pairPlace struct{ number, psn uint32 }

// lanePlace is a lane at one end.
type lanePlace struct {
	pair   pairPlace
	slots  int    // of frames, or messages in stride mode
	heads  span   // one slot of headRoom for each
	bodies []span // together as many slots; none in stride mode
}

// place is the queue pairs and the memory of an end.
type place struct {
	gid      verbs.GID
	lid      uint16
	bodySize int       // bytes of a slot
	trial    pairPlace // for the trial of immediates; number 0: none
	lanes    []lanePlace
}

func (p *place) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, p.gid[:]...)
	b = le.AppendUint16(b, p.lid)
	b = le.AppendUint32(b, uint32(p.bodySize))
	b = p.trial.append(b)
	b = append(b, byte(len(p.lanes)))
	for i := range p.lanes {
		l := &p.lanes[i]
		b = l.pair.append(b)
		b = append(b, byte(l.slots), byte(len(l.bodies)))
		b = l.heads.append(b)
		for _, s := range l.bodies {
			b = s.append(b)
		}
	}
	return b
}

func (p pairPlace) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, p.number), p.psn)
}

func (s span) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, s.addr)
	b = binary.LittleEndian.AppendUint32(b, s.key)
	return append(b, byte(s.slots))
}

// parse reads the place of an end that agreed to t.
func (p *place) parse(r *reader, t *terms) {
	copy(p.gid[:], r.take(len(p.gid)))
	p.lid = r.u16()
	p.bodySize = int(r.u32())
	p.trial = r.pair()
	if n := int(r.u8()); n != t.lanes {
		r.fail("%d lanes, %d were agreed", n, t.lanes)
		return
	}
	if t.mode != stride && (p.bodySize < t.maxPayload || p.bodySize > transport.MaxSlot) {
		r.fail("slots of %d bytes for frames of %d", p.bodySize, t.maxPayload)
		return
	}
	for range t.lanes {
		l := lanePlace{pair: r.pair(), slots: int(r.u8())}
		spans := int(r.u8())
		l.heads = r.span()
		if l.slots != t.slots || spans > l.slots {
			r.fail("lane of %d slots in %d parts, %d were agreed", l.slots, spans, t.slots)
			return
		}
		n := 0
		for range spans {
			s := r.span()
			n += s.slots
			l.bodies = append(l.bodies, s)
		}
		if t.mode != stride && (n != l.slots || l.heads.slots != l.slots) {
			r.fail("%d heads and %d bodies for %d slots", l.heads.slots, n, l.slots)
			return
		}
		p.lanes = append(p.lanes, l)
	}
}

// tested says that the peer's frames came as they should.
type tested struct{ immediate bool }

func (t *tested) append(b []byte) []byte {
	if t.immediate {
		return append(b, 1)
	}
	return append(b, 0)
}

func (t *tested) parse(r *reader) {
	v := r.u8()
	if t.immediate = v == 1; v > 1 {
		r.fail("%d where it says whether an immediate came", v)
	}
}

// count is a number about a lane: what may be sent, or was.
type count struct {
	epoch uint32
	lane  uint16
	total uint64
}

func (c *count) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, c.epoch)
	b = binary.LittleEndian.AppendUint16(b, c.lane)
	return binary.LittleEndian.AppendUint64(b, c.total)
}

func (c *count) parse(r *reader) { c.epoch, c.lane, c.total = r.u32(), r.u16(), r.u64() }

// reader takes fields off the front of a body; after the first fault it returns zeros.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = wire.Violation("rdma: "+format, args...)
	}
	r.b = nil
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n > len(r.b) {
		r.fail("message ends inside a field")
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) pair() pairPlace {
	p := pairPlace{r.u32(), r.u32()}
	if p.number>>24 != 0 || p.psn>>24 != 0 {
		r.fail("queue pair %d with packet number %d: more than 24 bits", p.number, p.psn)
	}
	return p
}

func (r *reader) span() span { return span{addr: r.u64(), key: r.u32(), slots: int(r.u8())} }

// notice announces a frame on its queue pair.
type notice struct {
	epoch      uint32
	slot       uint32
	number     uint64 // of the frame on the lane: slot and number say each other's rest
	head, body uint32 // bytes
}

func (n *notice) put(b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b, n.epoch)
	le.PutUint32(b[4:], n.slot)
	le.PutUint64(b[8:], n.number)
	le.PutUint32(b[16:], n.head)
	le.PutUint32(b[20:], n.body)
	clear(b[24:noticeSize])
}

func (n *notice) get(b []byte) {
	le := binary.LittleEndian
	n.epoch, n.slot, n.number = le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:])
	n.head, n.body = le.Uint32(b[16:]), le.Uint32(b[20:])
}
