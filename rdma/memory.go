package rdma

import (
	"errors"
	"fmt"
	"time"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
)

// part is a registered piece of memory that begins at byte from of the whole.
type part struct {
	mr   verbs.MR
	info verbs.MRInfo
	from int
}

// register registers mem in as few parts as the provider allows, each of whole units
// (slots); limit is the largest part to try, 0 for no limit. Nothing is registered
// when it fails. Errors: transport.ErrUnavailable where the system's limit of locked
// memory forbids it.
func register(pd verbs.PD, mem []byte, unit, limit int, access verbs.Access) ([]part, error) {
	size := len(mem)
	if limit > 0 {
		size = min(size, limit)
	}
	var errs []error
	for {
		size = max(size/unit, 1) * unit
		parts, err := registerParts(pd, mem, size, access)
		if err == nil {
			return parts, nil
		}
		errs = append(errs, fmt.Errorf("in parts of %d bytes: %w", size, err))
		if size == unit || errors.Is(err, transport.ErrUnavailable) || errors.Is(err, verbs.ErrUnsupported) {
			return nil, fmt.Errorf("register %d bytes: %w", len(mem), errors.Join(errs...))
		}
		size = min(size/2, smallRegion)
	}
}

func registerParts(pd verbs.PD, mem []byte, size int, access verbs.Access) (parts []part, err error) {
	for at := 0; at < len(mem); at += size {
		b := mem[at:min(at+size, len(mem))]
		mr, err := pd.Register(b, access)
		if err == nil && mr.Info().Length != len(b) {
			err = errors.Join(fmt.Errorf("the provider registered %d of %d bytes", mr.Info().Length, len(b)), mr.Deregister())
		}
		if err != nil {
			return nil, errors.Join(err, deregister(parts))
		}
		parts = append(parts, part{mr, mr.Info(), at})
	}
	return parts, nil
}

// deregister deregisters all parts that go, in the time that one object has. It may be
// called again.
func deregister(parts []part) error {
	return persist(func() error {
		errs := make([]error, 0, len(parts))
		for _, p := range parts {
			errs = append(errs, p.mr.Deregister()) // idempotent
		}
		return errors.Join(errs...)
	})
}

// persist calls f, which frees an object of the device, until it succeeds or has
// refused for too long. An object that does not go is the last error.
func persist(f func() error) error {
	var spent time.Duration
	for pause := destroyPause; ; pause *= 2 {
		err := f()
		if err == nil {
			return nil
		}
		if spent >= destroyTime {
			return err
		}
		time.Sleep(pause)
		spent += pause
	}
}

// locate is the segment of memory that is registered in parts and begins at mem; b
// lies in it. Parts have equal sizes but for the last one.
func locate(parts []part, mem, b []byte) verbs.Segment {
	addr := verbs.Addr(b)
	i := int(addr-verbs.Addr(mem)) / parts[0].info.Length
	return verbs.Segment{Addr: addr, Length: uint32(len(b)), Key: parts[i].info.Local}
}

// within reports whether b lies in mem.
func within(mem, b []byte) bool {
	at, begin := verbs.Addr(b), verbs.Addr(mem)
	return len(b) > 0 && at >= begin && at+uint64(len(b)) <= begin+uint64(len(mem))
}

// arena is memory of the link, cut into slots, that a device may use.
type arena struct {
	mem   []byte
	unit  int // bytes of a slot
	parts []part
	unmap func() error
}

// pageSize is what memory is mapped in, at least.
const pageSize = 4 << 10

// newArena maps and registers slots of unit bytes, rounded up to pages where they are
// larger than one.
func newArena(pd verbs.PD, slots, unit, limit int, access verbs.Access) (*arena, error) {
	if unit > pageSize {
		unit = (unit + pageSize - 1) / pageSize * pageSize
	}
	mem, unmap, err := verbs.Map((slots*unit + pageSize - 1) / pageSize * pageSize)
	if err != nil {
		return nil, err
	}
	mem = mem[:slots*unit]
	parts, err := register(pd, mem, unit, limit, access)
	if err != nil {
		return nil, errors.Join(err, unmap())
	}
	return &arena{mem: mem, unit: unit, parts: parts, unmap: unmap}, nil
}

// slot is the memory of slot i.
func (a *arena) slot(i int) []byte { return a.mem[i*a.unit : (i+1)*a.unit] }

// segment is what a work request says of b, which lies in one slot.
func (a *arena) segment(b []byte) verbs.Segment { return locate(a.parts, a.mem, b) }

// spans is what the peer is told of the arena.
func (a *arena) spans() []span {
	list := make([]span, len(a.parts))
	for i, p := range a.parts {
		list[i] = span{addr: p.info.Addr, key: p.info.Remote, slots: p.info.Length / a.unit}
	}
	return list
}

// close deregisters the memory and gives it back. Memory that the device does not let
// go of stays mapped.
func (a *arena) close() error {
	if a == nil {
		return nil
	}
	if err := deregister(a.parts); err != nil {
		return err
	}
	return a.unmap()
}

// remote is the address and the key of slot i of the peer's spans of slots of unit
// bytes.
func remote(spans []span, unit, i int) (addr uint64, key uint32) {
	for _, s := range spans {
		if i < s.slots {
			return s.addr + uint64(i)*uint64(unit), s.key
		}
		i -= s.slots
	}
	return 0, 0 // parse saw to it that the spans have all slots
}
