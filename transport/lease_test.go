package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"pdlink/transport"
)

func newLease(t *testing.T, limit int) (*transport.Lease, *transport.Ring) {
	t.Helper()
	r := newRing(t, 2)
	l := transport.NewLease(limit, "", nil)
	l.Held().Reset(take(t, r))
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
	if !l.Held().End() || l.Held().End() {
		t.Error("End does not report the first end only")
	}
	var summed [][]byte
	slot, pieces, payload := l.Held().Frame("", func(p []byte) uint64 { summed = append(summed, p); return uint64(len(p)) })
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
	l.Held().Reset(take(t, r))
	if !l.Empty() || l.Room() != 100 {
		t.Errorf("after Reset: empty %v, room %d", l.Empty(), l.Room())
	}
	if !l.Held().End() {
		t.Error("a lease that was reset is not live")
	}
	mustPanic(t, "Release after End", l.Release)
	slot, _, _ := l.Held().Frame("", func([]byte) uint64 { return 0 })
	slot.Put()
}

// TestLeaseReleased gives a lease that is not sent to whoever made it.
func TestLeaseReleased(t *testing.T) {
	r := newRing(t, 2)
	var back []*transport.Lease
	l := transport.NewLease(100, "", func(l *transport.Lease) {
		back = append(back, l)
		l.Held().Slot().Put()
	})
	s := take(t, r)
	l.Held().Reset(s)
	if l.Held().Slot() != s {
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

// TestSalvageClosed: what is added before and after is given back, once.
func TestSalvageClosed(t *testing.T) {
	r := newRing(t, 3)
	var saved transport.Salvage
	lease := func() *transport.Lease {
		l := transport.NewLease(10, "", func(l *transport.Lease) { l.Held().Slot().Put() })
		l.Held().Reset(take(t, r))
		return l
	}
	saved.Add(lease(), lease())
	saved.Close()
	saved.Add(lease())
	saved.Close()
	if n := r.InUse(); n != 0 || len(saved.Take()) != 0 {
		t.Errorf("%d slots are in use", n)
	}
}

func TestLeaseAllocations(t *testing.T) {
	l, r := newLease(t, 1000)
	l.Release()
	data := make([]byte, 10)
	sum := func(p []byte) uint64 { return uint64(len(p)) }
	if n := testing.AllocsPerRun(100, func() {
		l.Held().Reset(take(t, r))
		for i := range 50 {
			l.Append(uint32(i), 0, data)
		}
		l.Held().End()
		slot, _, _ := l.Held().Frame("", sum)
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

// TestLeaseSplit: the parts of a lease have its bytes in order, in its slot, which
// comes back once.
func TestLeaseSplit(t *testing.T) {
	type p struct {
		block  uint32
		offset uint64
		length int
	}
	tests := []struct {
		name   string
		pieces []p
		limit  int
		narrow []int // lo, hi; none: all
		want   [][]p
		wanted [][2]int
	}{
		{"fits", []p{{0, 0, 10}}, 10, nil, [][]p{{{0, 0, 10}}}, [][2]int{{0, 1}}},
		{"between pieces", []p{{0, 0, 6}, {1, 9, 4}, {2, 0, 10}}, 10, nil,
			[][]p{{{0, 0, 6}, {1, 9, 4}}, {{2, 0, 10}}}, [][2]int{{0, 2}, {0, 1}}},
		{"within pieces", []p{{0, 5, 25}, {1, 0, 6}}, 10, nil,
			[][]p{{{0, 5, 10}}, {{0, 15, 10}}, {{0, 25, 5}, {1, 0, 5}}, {{1, 5, 1}}}, [][2]int{{0, 1}, {0, 1}, {0, 2}, {0, 1}}},
		{"narrow", []p{{0, 0, 8}, {1, 0, 8}, {2, 0, 8}}, 10, []int{1, 2},
			[][]p{{{0, 0, 8}, {1, 0, 2}}, {{1, 2, 6}, {2, 0, 4}}, {{2, 4, 4}}}, [][2]int{{1, 2}, {0, 1}, {0, 0}}},
		{"nothing wanted", []p{{0, 0, 12}}, 10, []int{0, 0}, [][]p{{{0, 0, 10}}, {{0, 10, 2}}}, [][2]int{{0, 0}, {0, 0}}},
		{"a byte each", []p{{3, 0, 2}, {4, 0, 1}}, 1, nil, [][]p{{{3, 0, 1}}, {{3, 1, 1}}, {{4, 0, 1}}}, [][2]int{{0, 1}, {0, 1}, {0, 1}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, r := newLease(t, 100)
			at := byte(0)
			for _, x := range tt.pieces {
				mem, err := l.Reserve(x.block, x.offset, x.length)
				if err != nil {
					t.Fatal(err)
				}
				for i := range mem {
					mem[i] = at
					at++
				}
			}
			l.SetSum(77)
			if tt.narrow != nil {
				l.Narrow(tt.narrow[0], tt.narrow[1])
			}
			l.Held().End()
			parts := l.Held().Split(tt.limit)
			if len(parts) != len(tt.want) {
				t.Fatalf("%d parts, want %d", len(parts), len(tt.want))
			}
			at = 0
			for i, part := range parts {
				var got []p
				for k, x := range part.Pieces() {
					got = append(got, p{x.Block, x.Offset, int(x.Length)})
					for _, b := range part.Data(k) {
						if b != at {
							t.Fatalf("part %d: byte %d is %d", i, at, b)
						}
						at++
					}
				}
				lo, hi := part.Wanted()
				if fmt.Sprint(got) != fmt.Sprint(tt.want[i]) || [2]int{lo, hi} != tt.wanted[i] || part.Room() != 0 {
					t.Errorf("part %d: %v, %d to %d wanted, room %d; want %v, %v", i, got, lo, hi, part.Room(), tt.want[i], tt.wanted[i])
				}
			}
			for i, part := range parts {
				if r.InUse() != 1 {
					t.Fatalf("the slot came back with part %d of %d still there", i, len(parts))
				}
				if part.Held().End(); i%2 == 0 { // saved, and sent elsewhere
					part = part.Held().Revive()
					if part.Room() != 0 {
						t.Errorf("a part that was saved has room for %d bytes of the next", part.Room())
					}
					part.Release()
				} else {
					part.Held().Free()
				}
			}
			if r.InUse() != 0 {
				t.Error("the slot never came back")
			}
		})
	}
}

// TestLeaseSplitSums: a sum that was given goes with its piece as long as that is
// whole, and parts are summed where they are not.
func TestLeaseSplitSums(t *testing.T) {
	l, _ := newLease(t, 100)
	for i := range 2 {
		if _, err := l.Reserve(uint32(i), 0, 8); err != nil {
			t.Fatal(err)
		}
		l.SetSum(uint64(100 + i))
	}
	l.Held().End()
	var sums []uint64
	for _, part := range l.Held().Split(10) {
		part.Held().End()
		_, pieces, payload := part.Held().Frame("", func(p []byte) uint64 { return uint64(len(p)) })
		for _, x := range pieces {
			sums = append(sums, x.Sum)
		}
		if len(payload) > 10 {
			t.Errorf("payload of %d bytes", len(payload))
		}
		part.Held().Free()
	}
	if want := []uint64{100, 2, 6}; !slices.Equal(sums, want) {
		t.Errorf("sums %v, want %v", sums, want)
	}
}

// TestReviveUnframed: a lease that was never framed keeps the sums that it was given,
// and no others.
func TestReviveUnframed(t *testing.T) {
	l, _ := newLease(t, 100)
	l.Append(0, 0, []byte("abc"))
	l.SetSum(9)
	l.Append(1, 0, []byte("defg"))
	sum := func(p []byte) uint64 { return uint64(len(p)) }
	for round, want := range [][2]uint64{{9, 4}, {9, 4}, {103, 104}} {
		l.Held().End()
		l = l.Held().Revive()
		l.Held().End()
		sums, by := "", sum
		if round == 2 {
			sums, by = "other", func(p []byte) uint64 { return uint64(100 + len(p)) }
		}
		_, pieces, _ := l.Held().Frame(sums, by)
		if got := [2]uint64{pieces[0].Sum, pieces[1].Sum}; got != want {
			t.Errorf("round %d: sums %v, want %v", round, got, want)
		}
		l = l.Held().Revive()
	}
	l.Release()
}

// TestPartsHaveHeadersOfTheirOwn: parts of one slot may be sent at the same time.
func TestPartsHaveHeadersOfTheirOwn(t *testing.T) {
	l, _ := newLease(t, 100)
	if _, err := l.Reserve(0, 0, 30); err != nil {
		t.Fatal(err)
	}
	slots := l.Held().Slot().Header()
	if &l.Held().Header()[0] != &slots[0] {
		t.Error("a whole lease does not use the slot's header room")
	}
	l.Held().End()
	seen := map[*byte]bool{&slots[0]: true}
	for _, part := range l.Held().Split(10) {
		part.Held().End()
		h := part.Held().Header()
		if len(h) != transport.HeaderRoom || seen[&h[0]] {
			t.Errorf("header of %d bytes, shared %v", len(h), seen[&h[0]])
		}
		seen[&h[0]] = true
		saved := part.Held().Revive() // goes over another connection
		if saved.Held().End(); &saved.Held().Header()[0] != &h[0] {
			t.Error("a part that was saved has another header")
		}
		saved.Held().Free()
	}
}
