package transport_test

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"pdlink/transport"
)

func newLease(t *testing.T, limit int) (*transport.Lease, *transport.Ring) {
	t.Helper()
	r := newRing(t, 2)
	l := transport.NewLease(limit, "", nil)
	l.Reset(take(t, r))
	return l, r
}

func TestLeaseFill(t *testing.T) {
	l, r := newLease(t, 100)
	if !l.Empty() || l.Room() != 100 {
		t.Errorf("fresh lease: empty %v, room %d", l.Empty(), l.Room())
	}
	mem, err := l.Reserve(7, 1000, 10)
	if err != nil || len(mem) != 10 || cap(mem) != 10 {
		t.Fatalf("Reserve: %d bytes with capacity %d, %v", len(mem), cap(mem), err)
	}
	copy(mem, "0123456789")
	l.SetSum(99)
	if n := l.Append(8, 2000, []byte("abc")); n != 3 || l.Room() != 87 || l.Empty() {
		t.Errorf("Append = %d, room %d", n, l.Room())
	}
	if n := l.Append(9, 3000, make([]byte, 200)); n != 87 || l.Room() != 0 {
		t.Errorf("Append of too much = %d, room %d", n, l.Room())
	}
	if n := l.Append(9, 3087, []byte("x")); n != 0 {
		t.Errorf("Append to a full lease = %d", n)
	}
	if !l.End() || l.End() {
		t.Error("End does not report the first end only")
	}
	var summed [][]byte
	slot, pieces, payload := l.Frame("", func(p []byte) uint64 { summed = append(summed, p); return uint64(len(p)) })
	want := []transport.Piece{
		{Block: 7, Length: 10, Offset: 1000, Sum: 99}, {Block: 8, Length: 3, Offset: 2000, Sum: 3}, {Block: 9, Length: 87, Offset: 3000, Sum: 87},
	}
	for i := range want {
		if pieces[i] != want[i] {
			t.Errorf("piece %d: %+v, want %+v", i, pieces[i], want[i])
		}
	}
	if len(pieces) != 3 || len(summed) != 2 || string(summed[0]) != "abc" {
		t.Errorf("%d pieces, sums computed of %q", len(pieces), summed)
	}
	if !bytes.HasPrefix(payload, []byte("0123456789abc\x00")) || len(payload) != 100 || &payload[0] != &slot.Payload()[0] {
		t.Errorf("payload of %d bytes %q", len(payload), payload[:14])
	}
	slot.Put()
	if r.InUse() != 0 {
		t.Errorf("%d slots in use", r.InUse())
	}
}

func TestLeaseRefusals(t *testing.T) {
	l, _ := newLease(t, 100)
	for _, tt := range []struct {
		name   string
		offset uint64
		n      int
		want   error
	}{
		{"nothing", 0, 0, transport.ErrInvalid}, {"negative", 0, -1, transport.ErrInvalid},
		{"more than room", 0, 101, transport.ErrTooLarge}, {"most negative", 0, math.MinInt, transport.ErrInvalid},
		{"past the end of the space", math.MaxUint64, 1, transport.ErrInvalid}, {"across it", math.MaxUint64 - 5, 10, transport.ErrInvalid},
	} {
		if _, err := l.Reserve(1, tt.offset, tt.n); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	if n := l.Append(1, math.MaxUint64, []byte("x")); n != 0 {
		t.Errorf("Append past the end of the space = %d", n)
	}
	if n := l.Append(1, 0, nil); n != 0 || !l.Empty() || l.Room() != 100 {
		t.Errorf("after refusals: Append of nothing %d, empty %v, room %d", n, l.Empty(), l.Room())
	}
	l.SetSum(1) // no piece: nothing to give a sum to
	if _, err := l.Reserve(1, math.MaxUint64-10, 10); err != nil {
		t.Errorf("piece up to the end of the space: %v", err)
	}
	l.Release()
}

func TestLeasePieceLimit(t *testing.T) {
	l, _ := newLease(t, smallSlot)
	if l.Room() != smallSlot-transport.HeaderRoom {
		t.Errorf("room %d, the slot has %d", l.Room(), smallSlot-transport.HeaderRoom)
	}
	for i := range transport.MaxPieces {
		if n := l.Append(uint32(i), 0, []byte{1}); n != 1 {
			t.Fatalf("piece %d: Append = %d", i, n)
		}
	}
	if _, err := l.Reserve(0, 0, 1); !errors.Is(err, transport.ErrTooLarge) || l.Room() != 0 {
		t.Errorf("piece %d: %v, room %d", transport.MaxPieces, err, l.Room())
	}
	l.Release()
}

func TestLeaseEndsOnce(t *testing.T) {
	l, r := newLease(t, 100)
	l.Append(1, 0, []byte("x"))
	l.Release()
	if r.InUse() != 0 {
		t.Errorf("%d slots in use after Release", r.InUse())
	}
	mustPanic(t, "second Release", l.Release)
	l.Reset(take(t, r))
	if !l.Empty() || l.Room() != 100 {
		t.Errorf("after Reset: empty %v, room %d", l.Empty(), l.Room())
	}
	if !l.End() {
		t.Error("a lease that was reset is not live")
	}
	mustPanic(t, "Release after End", l.Release)
	slot, _, _ := l.Frame("", func([]byte) uint64 { return 0 })
	slot.Put()
}

// TestLeaseReleased gives a lease that is not sent to whoever made it.
func TestLeaseReleased(t *testing.T) {
	r := newRing(t, 2)
	var back []*transport.Lease
	l := transport.NewLease(100, "", func(l *transport.Lease) {
		back = append(back, l)
		l.Slot().Put()
	})
	s := take(t, r)
	l.Reset(s)
	if l.Slot() != s {
		t.Error("the lease has another slot")
	}
	l.Release()
	if len(back) != 1 || back[0] != l || r.InUse() != 0 {
		t.Errorf("given back to its maker: %v, %d slots in use", back, r.InUse())
	}
	mustPanic(t, "second Release", l.Release)
	if len(back) != 1 {
		t.Error("given back twice")
	}
}

func TestLeaseAllocations(t *testing.T) {
	l, r := newLease(t, 1000)
	l.Release()
	data := make([]byte, 10)
	sum := func(p []byte) uint64 { return uint64(len(p)) }
	if n := testing.AllocsPerRun(100, func() {
		l.Reset(take(t, r))
		for i := range 50 {
			l.Append(uint32(i), 0, data)
		}
		l.End()
		slot, _, _ := l.Frame("", sum)
		slot.Put()
	}); n != 0 {
		t.Errorf("%v allocations for a frame", n)
	}
}

func TestDeliveryFrame(t *testing.T) {
	var d transport.Delivery
	pieces := []transport.Piece{{Block: 1, Length: 2}, {Block: 2, Length: 3, Offset: 9}}
	released := 0
	for range 2 { // deliveries are used again
		d.SetFrame(pieces, []uint32{0, 4}, []byte("ab..cde"), func(got *transport.Delivery) {
			if got != &d {
				t.Error("released another delivery")
			}
			released++
		})
		if d.Mark() || len(d.Pieces()) != 2 || string(d.Data(0)) != "ab" || string(d.Data(1)) != "cde" || cap(d.Data(0)) != 2 {
			t.Errorf("mark %v, pieces %v, data %q %q", d.Mark(), d.Pieces(), d.Data(0), d.Data(1))
		}
		mustPanic(t, "Flushed of a frame", func() { d.Flushed(nil) })
		d.Release()
		mustPanic(t, "second Release", d.Release)
	}
	if released != 2 {
		t.Errorf("released %d times, want 2", released)
	}
}

func TestDeliveryMark(t *testing.T) {
	var d transport.Delivery
	answer := errors.New("answer")
	var missing []transport.Piece
	d.SetMark(func(_ *transport.Delivery, m []transport.Piece) error { missing = m; return answer })
	if !d.Mark() || len(d.Pieces()) != 0 {
		t.Errorf("mark %v with pieces %v", d.Mark(), d.Pieces())
	}
	want := []transport.Piece{{Block: 3, Length: 4}}
	if err := d.Flushed(want); !errors.Is(err, answer) || len(missing) != 1 || missing[0] != want[0] {
		t.Errorf("Flushed: %v, missing %v", err, missing)
	}
	mustPanic(t, "second Flushed", func() { d.Flushed(nil) })
	d.SetMark(func(*transport.Delivery, []transport.Piece) error { return answer })
	mustPanic(t, "Release of a mark", d.Release)
	if err := d.Flushed(nil); !errors.Is(err, answer) {
		t.Errorf("Flushed after a wrong Release: %v", err)
	}
	mustPanic(t, "Release after Flushed", d.Release)
}
