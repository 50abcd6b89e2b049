package transport_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"pdlink/transport"
)

const smallSlot = 2 * transport.HeaderRoom

func newRing(t *testing.T, slots int) *transport.Ring {
	t.Helper()
	r, err := transport.NewRing(slots, smallSlot)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close ring: %v", err)
		}
	})
	return r
}

func take(t *testing.T, r *transport.Ring) transport.Slot {
	t.Helper()
	s, err := r.Take(t.Context(), nil)
	if err != nil || !s.Valid() {
		t.Fatalf("no slot free: %v", err)
	}
	return s
}

// empty checks that no slot can be had.
func empty(t *testing.T, r *transport.Ring) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := r.Take(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Take with no slot free: %v", err)
	}
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}

func TestRingShape(t *testing.T) {
	r := newRing(t, 3)
	if r.Slots() != 3 || r.SlotSize() != smallSlot || r.Payload() != smallSlot-transport.HeaderRoom || len(r.Memory()) != 3*smallSlot {
		t.Errorf("ring of %d slots of %d bytes, payload %d, memory %d", r.Slots(), r.SlotSize(), r.Payload(), len(r.Memory()))
	}
	if uintptr(unsafe.Pointer(&r.Memory()[0]))%transport.HeaderRoom != 0 {
		t.Error("memory is not page-aligned")
	}
	seen := map[int]bool{}
	var slots []transport.Slot
	for range 3 {
		s := take(t, r)
		slots = append(slots, s)
		seen[s.Index()] = true
		mem := r.Memory()[s.Index()*smallSlot:]
		if &s.Header()[0] != &mem[0] || len(s.Header()) != transport.HeaderRoom {
			t.Errorf("slot %d: header room is elsewhere", s.Index())
		}
		if &s.Payload()[0] != &mem[transport.HeaderRoom] || len(s.Payload()) != r.Payload() || cap(s.Payload()) != r.Payload() {
			t.Errorf("slot %d: payload is elsewhere or reaches into the next slot", s.Index())
		}
	}
	empty(t, r)
	if len(seen) != 3 || r.InUse() != 3 {
		t.Errorf("%d different slots, %d in use", len(seen), r.InUse())
	}
	for i, s := range slots {
		s.Put()
		if r.InUse() != 2-i {
			t.Errorf("%d in use after %d were put back", r.InUse(), i+1)
		}
	}
	if (transport.Slot{}).Valid() {
		t.Error("the zero slot is valid")
	}
}

func TestRingDefaults(t *testing.T) {
	r, err := transport.NewRing(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if r.Slots() != transport.DefaultSlots || r.SlotSize() != transport.DefaultSlot {
		t.Errorf("%d slots of %d bytes", r.Slots(), r.SlotSize())
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestRingRefusals(t *testing.T) {
	for _, tt := range []struct{ slots, size int }{
		{-1, smallSlot}, {1, smallSlot}, {1<<16 + 1, smallSlot}, {2, transport.HeaderRoom}, {2, smallSlot + 1},
		{2, transport.MaxSlot + transport.HeaderRoom}, {2, -smallSlot},
	} {
		if _, err := transport.NewRing(tt.slots, tt.size); err == nil {
			t.Errorf("ring of %d slots of %d bytes was made", tt.slots, tt.size)
		}
	}
	for _, tt := range []struct{ mem, size int }{
		{0, smallSlot}, {smallSlot, smallSlot}, {3*smallSlot - 1, smallSlot}, {2 * smallSlot, 0}, {2 * smallSlot, -1}, {2 * smallSlot, transport.HeaderRoom},
	} {
		if _, err := transport.WrapRing(make([]byte, tt.mem), tt.size); err == nil {
			t.Errorf("ring of %d bytes with slots of %d was made", tt.mem, tt.size)
		}
	}
}

func TestWrapRing(t *testing.T) {
	mem := make([]byte, 2*smallSlot)
	r, err := transport.WrapRing(mem, smallSlot)
	if err != nil {
		t.Fatal(err)
	}
	s := take(t, r)
	s.Payload()[0] = 42
	if mem[s.Index()*smallSlot+transport.HeaderRoom] != 42 {
		t.Error("the slot is not in the memory that was given")
	}
	s.Put()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	mem[0] = 1 // still the caller's
}

func TestRingDoublePut(t *testing.T) {
	r := newRing(t, 2)
	s := take(t, r)
	s.Put()
	mustPanic(t, "second Put", s.Put)
	if r.InUse() != 0 {
		t.Errorf("%d in use", r.InUse())
	}
}

func TestRingTakeEnds(t *testing.T) {
	r := newRing(t, 2)
	a, b := take(t, r), take(t, r)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	ends := []struct {
		name string
		end  func()
		want error
	}{
		{"context", cancel, context.Canceled},
		{"done", func() { close(done) }, transport.ErrClosed},
	}
	for i, tt := range ends {
		got := make(chan error)
		go func() {
			var err error
			if i == 0 {
				_, err = r.Take(ctx, nil)
			} else {
				_, err = r.Take(context.Background(), done)
			}
			got <- err
		}()
		select {
		case err := <-got:
			t.Fatalf("%s: Take returned %v before its end", tt.name, err)
		case <-time.After(10 * time.Millisecond):
		}
		tt.end()
		if err := <-got; !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	// What has ended before gets nothing, free slots or not.
	a.Put()
	if _, err := r.Take(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Take with an ended context and a free slot: %v", err)
	}
	if _, err := r.Take(context.Background(), done); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("Take that is pointless with a free slot: %v", err)
	}
	a = take(t, r)
	got := make(chan transport.Slot)
	go func() {
		s, err := r.Take(context.Background(), nil)
		if err != nil {
			t.Error(err)
		}
		got <- s
	}()
	a.Put()
	s := <-got
	if s.Index() != a.Index() {
		t.Errorf("got slot %d, the one put back was %d", s.Index(), a.Index())
	}
	s.Put()
	b.Put()
}

func TestRingPromise(t *testing.T) {
	r := newRing(t, 8)
	steps := []struct{ want, got, back int }{
		{5, 5, 0}, {5, 3, 0}, {1, 0, 2}, {0, 0, 0}, {-3, 0, 0}, {9, 2, 8}, {9, 8, 8},
	}
	for i, s := range steps {
		if got := r.Promise(s.want); got != s.got {
			t.Errorf("step %d: Promise(%d) = %d, want %d", i, s.want, got, s.got)
		}
		r.Unpromise(s.back)
	}
	if n := r.Unpromised(); n != 8 {
		t.Errorf("%d slots unpromised, want 8", n)
	}
	r.Promise(3)
	if n := r.Unpromised(); n != 5 {
		t.Errorf("%d slots unpromised, want 5", n)
	}
	mustPanic(t, "Unpromise of more than was promised", func() { r.Unpromise(4) })
	mustPanic(t, "Unpromise of less than nothing", func() { r.Unpromise(-1) })
	if n := r.Unpromised(); n != 5 {
		t.Errorf("%d slots unpromised after faults, want 5", n)
	}
}

func TestRingClose(t *testing.T) {
	r, err := transport.NewRing(4, smallSlot)
	if err != nil {
		t.Fatal(err)
	}
	s := take(t, r)
	if err := r.Close(); !errors.Is(err, transport.ErrRingInUse) {
		t.Errorf("close with a slot in use: %v", err)
	}
	// The failed close took nothing away.
	var rest []transport.Slot
	seen := map[int]bool{s.Index(): true}
	for range 3 {
		x := take(t, r)
		seen[x.Index()] = true
		rest = append(rest, x)
	}
	if len(seen) != 4 {
		t.Errorf("%d different slots after a failed close, want 4", len(seen))
	}
	for _, x := range append(rest, s) {
		x.Put()
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if _, err := r.Take(context.Background(), nil); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("Take from a closed ring: %v", err)
	}
	if r.InUse() != 0 {
		t.Errorf("%d slots of a closed ring in use", r.InUse())
	}
}

// TestRingConcurrent has many goroutines write to the slots that they hold; the
// race detector and the counter see whether two ever hold the same.
func TestRingConcurrent(t *testing.T) {
	const workers, rounds = 8, 500
	r := newRing(t, 5)
	holders := make([]atomic.Int32, r.Slots())
	var promised atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				n := r.Promise(3)
				if p := promised.Add(int64(n)); p > int64(r.Slots()) {
					t.Errorf("%d slots promised of %d", p, r.Slots())
				}
				s, err := r.Take(context.Background(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				if holders[s.Index()].Add(1) != 1 {
					t.Errorf("slot %d has two holders", s.Index())
				}
				s.Payload()[i%100] = byte(w)
				holders[s.Index()].Add(-1)
				s.Put()
				promised.Add(-int64(n))
				r.Unpromise(n)
			}
		})
	}
	wg.Wait()
	if n := r.Promise(1 << 20); n != r.Slots() {
		t.Errorf("%d slots left to promise, want all %d", n, r.Slots())
	}
}

// TestRingCloseRace closes while others take and put: close fails or the ring is
// gone, and nobody holds memory that is.
func TestRingCloseRace(t *testing.T) {
	for range 50 {
		r, err := transport.NewRing(4, smallSlot)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					s, err := r.Take(context.Background(), nil)
					if err != nil {
						if !errors.Is(err, transport.ErrClosed) {
							t.Error(err)
						}
						return
					}
					s.Payload()[0]++
					s.Put()
				}
			})
		}
		for {
			err := r.Close()
			if err == nil {
				break
			}
			if !errors.Is(err, transport.ErrRingInUse) {
				t.Fatal(err)
			}
		}
		wg.Wait()
	}
}
