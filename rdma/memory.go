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
// (slots): where a part is refused, in parts of half the size. limit is the largest part
// to try, 0 for no limit. With an error it returns the parts that the device did not let
// go of: mem stays mapped while there are any. Errors: transport.ErrUnavailable where the
// system's limit of locked memory forbids it.
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
		if size == unit || len(parts) > 0 || errors.Is(err, transport.ErrUnavailable) || errors.Is(err, verbs.ErrUnsupported) {
			return parts, fmt.Errorf("register %d bytes: %w", len(mem), errors.Join(errs...))
		}
		if size > smallRegion && size/2 < smallRegion {
			size = smallRegion
		} else {
			size /= 2
		}
	}
}

// registerParts registers mem in parts of size bytes. With an error it returns the parts
// that did not go again.
func registerParts(pd verbs.PD, mem []byte, size int, access verbs.Access) (parts []part, err error) {
	for at := 0; at < len(mem); at += size {
		b := mem[at:min(at+size, len(mem))]
		mr, err := pd.Register(b, access)
		if err == nil {
			parts = append(parts, part{mr, mr.Info(), at})
			if n := mr.Info().Length; n != len(b) {
				err = fmt.Errorf("the provider registered %d of %d bytes", n, len(b))
			}
		}
		if err == nil {
			continue
		}
		if busy := persist(func() error { return deregister(parts) }); busy != nil {
			return parts, errors.Join(err, busy)
		}
		return nil, err
	}
	return parts, nil
}

// deregister deregisters all parts that go. It may be called again.
func deregister(parts []part) error {
	errs := make([]error, 0, len(parts))
	for _, p := range parts {
		errs = append(errs, p.mr.Deregister()) // idempotent
	}
	return errors.Join(errs...)
}

// persist calls f, which frees objects of the device and may be called again, until it
// succeeds or destroyTime is over. What does not go is the last error. Errors:
// verbs.ErrLeft where all goes and memory of this end is left.
func persist(f func() error) error {
	deadline := time.Now().Add(destroyTime)
	var beside error
	for pause := destroyPause; ; pause *= 2 {
		err := f()
		rest := time.Until(deadline)
		switch {
		case err == nil:
			return beside
		case errors.Is(err, verbs.ErrLeft): // each object says it once
			beside = err
			continue
		case rest <= 0:
			return err
		}
		time.Sleep(min(pause, rest))
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
	unmap func() error // nil: it was given back
}

// pageSize is what memory is mapped in, at least.
const pageSize = 4 << 10

// newArena maps and registers slots of unit bytes, rounded up to pages where they are
// larger than one. With an error it returns an arena where the device did not let go of
// all that it had taken: it is of no use, and to be closed.
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
	if err != nil && len(parts) == 0 {
		return nil, errors.Join(err, unmap())
	}
	return &arena{mem: mem, unit: unit, parts: parts, unmap: unmap}, err
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
// go of stays mapped. It may be called again.
func (a *arena) close() error {
	if a == nil || a.unmap == nil {
		return nil
	}
	if err := deregister(a.parts); err != nil {
		return err
	}
	unmap := a.unmap
	a.unmap = nil
	if err := unmap(); err != nil {
		return fmt.Errorf("%w: of %d bytes: %w", verbs.ErrLeft, len(a.mem), err)
	}
	return nil
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
