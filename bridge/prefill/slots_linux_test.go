package prefill

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"pdlink/transport"
)

func newTestTable(t *testing.T) *table {
	t.Helper()
	g := geometry{4, 2 * 8192}
	f, err := makeMemory(g.size())
	must(t, err)
	tb, err := newTable(f, g, false)
	must(t, err)
	t.Cleanup(func() { must(t, tb.close()) })
	return tb
}

// reopen maps a ring again, as a restarted sidecar does.
func reopen(t *testing.T, tb *table) *table {
	t.Helper()
	fd, err := unix.Dup(int(tb.file.Fd()))
	must(t, err)
	again, err := newTable(os.NewFile(uintptr(fd), "ring"), tb.geometry, true)
	must(t, err)
	t.Cleanup(func() { must(t, again.close()) })
	return again
}

// TestRecover: what a restarted sidecar finds, whatever the algorithm of the sums
// was, and what of it still is what was committed.
func TestRecover(t *testing.T) {
	tb := newTestTable(t)
	put := func(sums string, damage bool) int {
		h, err := tb.take(t.Context(), nil)
		must(t, err)
		tb.grant(h, seqID(1), seqID(2), modePieces)
		copy(tb.data(h.slot), "0123456789")
		sum, err := transport.SumByName(sums)
		must(t, err)
		var list [2 * entrySize]byte
		putPiece(list[:], transport.Piece{Block: 1, Length: 4, Offset: 8, Sum: sum([]byte("0123"))})
		putPiece(list[entrySize:], transport.Piece{Block: 2, Length: 6, Sum: sum([]byte("456789"))})
		tb.record(h.slot).take(seqID(1), list[:], 10, sumNumber(sums))
		if damage {
			tb.data(h.slot)[7]++
		}
		return h.slot
	}
	crc, xxh, bad := put("crc32c", false), put("xxh3-64", false), put("xxh3-64", true)
	h, err := tb.take(t.Context(), nil)
	must(t, err)
	tb.grant(h, seqID(3), seqID(4), modeRows)

	again := reopen(t, tb)
	leases, taken := again.recover()
	if len(leases) != 1 || leases[0].slot != h.slot || leases[0].instance != seqID(4) || leases[0].transfer != seqID(3) || leases[0].gen != 1 || leases[0].mode != modeRows {
		t.Fatalf("%d leases", len(leases))
	}
	if len(taken) != 1 || len(taken[seqID(1)]) != 3 {
		t.Fatalf("taken %v", taken)
	}
	for _, x := range taken[seqID(1)] {
		l, err := again.frame(x)
		switch x.slot {
		case bad:
			if !errors.Is(err, ErrRing) {
				t.Error(err)
			}
			again.free(x)
		case crc, xxh:
			must(t, err)
			p := l.Pieces()
			if len(p) != 2 || p[0].Block != 1 || p[0].Offset != 8 || string(l.Data(0)) != "0123" || string(l.Data(1)) != "456789" {
				t.Errorf("%+v", p)
			}
			if again.record(x.slot)[33] != sumNumber(again.sumName) {
				t.Error("the sums are not this sidecar's")
			}
			l.Release()
		}
		if again.record(x.slot).state() != stateFree {
			t.Errorf("slot %d is not free", x.slot)
		}
	}
	again.free(leases[0])
	for i := range 4 { // the first mapping's holdings
		tb.free(&tb.held[i])
	}
	if leases, taken := reopen(t, tb).recover(); len(leases) != 0 || len(taken) != 0 {
		t.Errorf("free slots were found: %d, %d", len(leases), len(taken))
	}
}

// TestRecoverWithoutAnOwner: a frame that the sidecar itself was filling is nobody's.
func TestRecoverWithoutAnOwner(t *testing.T) {
	tb := newTestTable(t)
	h, err := tb.take(t.Context(), nil)
	must(t, err)
	tb.grant(h, seqID(1), transport.ID{}, modePieces)
	again := reopen(t, tb)
	leases, taken := again.recover()
	if len(leases) != 0 || len(taken) != 0 || again.ring.InUse() != 0 {
		t.Errorf("%d leases, %d transfers, %d slots", len(leases), len(taken), again.ring.InUse())
	}
	tb.free(h)
}

// TestFrameAllocatesNothing: a slot of many pieces costs what one of one costs.
func TestFrameAllocatesNothing(t *testing.T) {
	tb := newTestTable(t)
	ctx := t.Context()
	n := testing.AllocsPerRun(50, func() {
		h, err := tb.take(ctx, nil)
		must(t, err)
		tb.grant(h, seqID(1), seqID(2), modePieces)
		for i := range maxEntries {
			putPiece(h.list[i*entrySize:], transport.Piece{Block: uint32(i), Length: 64})
		}
		h.entries = maxEntries
		l, err := tb.frame(h)
		must(t, err)
		l.Release()
	})
	if n > 0 {
		t.Errorf("%v allocations a slot", n)
	}
}
