package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// ErrRingInUse is returned by Ring.Close while slots are taken.
var ErrRingInUse = errors.New("transport: ring has slots in use")

// Ring is a fixed region of memory cut into slots of equal size. It bounds what
// a process spends on transfers; several connections may share one. All methods
// may be called concurrently.
type Ring struct {
	mem      []byte
	slotSize int
	slots    []slot
	free     chan struct{} // one token for each slot on the stack
	unmap    func() error  // nil when the memory belongs to somebody else

	stackMu sync.Mutex // guards stack
	stack   []*slot    // free slots, the one given back last on top

	promised atomic.Int64  // slots reserved by Promise
	mu       sync.Mutex    // held by Close
	closed   atomic.Bool   // set under mu
	gone     chan struct{} // closed with the ring
}

const (
	// pageSize is the smallest page of the platforms in use.
	pageSize = 4 << 10

	// hugePage is the size of a huge page on amd64 and on arm64 with pages of
	// 4 KiB. Less memory than that has no use for one.
	hugePage = 2 << 20
)

type slot struct {
	index int
	mem   []byte
	taken atomic.Bool
}

// NewRing makes a ring in memory of its own, outside the Go heap and
// page-aligned. Zero values mean DefaultSlots and DefaultSlot. Memory is taken
// from the system as slots are first used, on Linux in huge pages where it has
// them; the slot given back last is handed out first, so a light load stays in
// few warm slots. Touch takes all of it.
func NewRing(slots, slotSize int) (*Ring, error) {
	if slots == 0 {
		slots = DefaultSlots
	}
	if slotSize == 0 {
		slotSize = DefaultSlot
	}
	if err := checkRing(slots, slotSize); err != nil {
		return nil, err
	}
	mem, unmap, err := mapMemory(slots * slotSize)
	if err != nil {
		return nil, fmt.Errorf("map ring of %d slots of %d bytes: %w", slots, slotSize, err)
	}
	preferHugePages(mem)
	r := cutRing(mem, slotSize)
	r.unmap = unmap
	return r, nil
}

// WrapRing makes a ring of memory that somebody else made, for example shared
// with an engine's process. The memory must stay mapped until Close returned. Its
// alignment is not checked: slots are aligned to a page where mem is, which is
// what devices and the like want.
func WrapRing(mem []byte, slotSize int) (*Ring, error) {
	if slotSize <= 0 || len(mem)%slotSize != 0 {
		return nil, fmt.Errorf("transport: ring of %d bytes is no multiple of slot size %d", len(mem), slotSize)
	}
	if err := checkRing(len(mem)/slotSize, slotSize); err != nil {
		return nil, err
	}
	return cutRing(mem, slotSize), nil
}

func checkRing(slots, slotSize int) error {
	switch {
	case slotSize <= HeaderRoom || slotSize > MaxSlot || slotSize%HeaderRoom != 0:
		return fmt.Errorf("transport: slot size %d: want a multiple of %d, at least %d, at most %d",
			slotSize, HeaderRoom, 2*HeaderRoom, MaxSlot)
	case slots < 2 || slots > 1<<16:
		return fmt.Errorf("transport: ring of %d slots: want 2 to %d", slots, 1<<16)
	}
	return nil
}

func cutRing(mem []byte, slotSize int) *Ring {
	n := len(mem) / slotSize
	r := &Ring{
		mem: mem, slotSize: slotSize, slots: make([]slot, n), stack: make([]*slot, 0, n),
		free: make(chan struct{}, n), gone: make(chan struct{}),
	}
	for i := n - 1; i >= 0; i-- {
		s := &r.slots[i]
		s.index, s.mem = i, mem[i*slotSize:(i+1)*slotSize:(i+1)*slotSize]
		r.push(s)
	}
	return r
}

// Touch takes all of the ring's memory from the system now: the first touch of
// a page costs more than the copy that it would delay. It must be called before
// any slot is used.
func (r *Ring) Touch() {
	for i := 0; i < len(r.mem); i += pageSize {
		r.mem[i] = 0
	}
}

func (r *Ring) push(s *slot) {
	r.stackMu.Lock()
	r.stack = append(r.stack, s)
	r.stackMu.Unlock()
	r.free <- struct{}{}
}

// Slots is the number of slots.
func (r *Ring) Slots() int { return len(r.slots) }

// SlotSize is the size of a slot in bytes, header room included.
func (r *Ring) SlotSize() int { return r.slotSize }

// Payload is the number of payload bytes that a slot holds.
func (r *Ring) Payload() int { return r.slotSize - HeaderRoom }

// Memory is the whole region, for registration with a device. It must not be
// touched after Close returned without an error: it may not be mapped any more.
func (r *Ring) Memory() []byte { return r.mem }

// InUse is the number of slots that are taken now, 0 after Close.
func (r *Ring) InUse() int {
	if r.closed.Load() {
		return 0
	}
	return len(r.slots) - len(r.free)
}

// Promise reserves up to want slots for one transfer and returns how many, at
// most the number not promised yet and possibly 0. Unpromise gives them back.
// A promise is a count: any free slot honours it.
func (r *Ring) Promise(want int) int {
	for {
		have := r.promised.Load()
		n := min(int64(want), int64(len(r.slots))-have)
		if n <= 0 {
			return 0
		}
		if r.promised.CompareAndSwap(have, have+n) {
			return int(n)
		}
	}
}

// Unpromise gives back n slots of an earlier Promise. Giving back more than was
// promised is a fault of the program that would promise slots twice, so it
// panics.
func (r *Ring) Unpromise(n int) {
	if n < 0 {
		panic("transport: fewer than no slots unpromised")
	}
	if r.promised.Add(-int64(n)) < 0 {
		r.promised.Add(int64(n))
		panic("transport: more slots unpromised than promised")
	}
}

// Unpromised is the number of slots that Promise can still reserve now.
func (r *Ring) Unpromised() int { return len(r.slots) - int(r.promised.Load()) }

// Take waits for a free slot. Errors: the context's; ErrClosed when done, which
// says that waiting is pointless, or the ring is closed. With an ended context or
// a closed done it hands out nothing, free slots or not.
func (r *Ring) Take(ctx context.Context, done <-chan struct{}) (Slot, error) {
	if err := ctx.Err(); err != nil {
		return Slot{}, err
	}
	select {
	case <-done:
		return Slot{}, ErrClosed
	default:
	}
	select {
	case <-r.free:
		return r.pop(), nil
	default:
	}
	select {
	case <-r.free:
		return r.pop(), nil
	case <-ctx.Done():
		return Slot{}, ctx.Err()
	case <-done:
		return Slot{}, ErrClosed
	case <-r.gone:
		return Slot{}, ErrClosed
	}
}

// pop takes the top of the stack; the caller holds a token for it.
func (r *Ring) pop() Slot {
	r.stackMu.Lock()
	n := len(r.stack) - 1
	s := r.stack[n]
	r.stack = r.stack[:n]
	r.stackMu.Unlock()
	s.taken.Store(true)
	return Slot{ring: r, s: s}
}

// Close unmaps the ring's memory if it is its own. While slots are taken it
// does nothing and returns ErrRingInUse, since somebody may still write there.
func (r *Ring) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Load() {
		return nil
	}
	if n := r.InUse(); n > 0 {
		return fmt.Errorf("%w: %d of %d", ErrRingInUse, n, len(r.slots))
	}
	// The tokens are taken out before the memory goes, so that nobody is handed
	// a slot that is no longer there. Somebody may have taken one just now.
	for got := range r.slots {
		select {
		case <-r.free:
		default:
			for range got {
				r.free <- struct{}{}
			}
			return fmt.Errorf("%w: %d of %d", ErrRingInUse, len(r.slots)-got, len(r.slots))
		}
	}
	r.closed.Store(true)
	close(r.gone)
	if r.unmap == nil {
		return nil
	}
	return r.unmap()
}

// Slot is a taken slot of a ring. The zero value is no slot.
type Slot struct {
	ring *Ring
	s    *slot
}

// Valid reports whether there is a slot.
func (s Slot) Valid() bool { return s.s != nil }

// Of reports whether the slot is one of r's.
func (s Slot) Of(r *Ring) bool { return s.ring == r }

// Index is the slot's position in the ring.
func (s Slot) Index() int { return s.s.index }

// Header is the slot's header room.
func (s Slot) Header() []byte { return s.s.mem[:HeaderRoom] }

// Payload is the slot's payload region.
func (s Slot) Payload() []byte { return s.s.mem[HeaderRoom:] }

// Put gives the slot back. Giving one back twice is a fault of the program
// that would hand the same memory to two writers, so it panics.
func (s Slot) Put() {
	if !s.s.taken.CompareAndSwap(true, false) {
		panic("transport: slot given back twice")
	}
	s.ring.push(s.s)
}
