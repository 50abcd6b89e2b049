package prefill

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdlink/transport"
)

func TestGeometry(t *testing.T) {
	for name, x := range map[string]struct {
		g  geometry
		ok bool
	}{
		"default":  {geometry{defaultSlots, transport.DefaultSlot}, true},
		"smallest": {geometry{2, 8192}, true},
		"one slot": {geometry{1, 8192}, false}, "negative": {geometry{-1, 8192}, false}, "no page": {geometry{4, 8193}, false},
		"tiny": {geometry{4, 4096}, false}, "huge slot": {geometry{4, 8 << 20}, false}, "huge": {geometry{1024, 1 << 20}, false},
		"512 MiB": {geometry{127, 4 << 20}, true},
	} {
		if err := x.g.check(); (err == nil) != x.ok || (err != nil && !errors.Is(err, ErrRing)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestForeignRings: memory that is no ring of this size is not used as one.
func TestForeignRings(t *testing.T) {
	g := geometry{4, 8192}
	fresh := func() []byte {
		r := &region{mem: make([]byte, g.size()), geometry: g, id: seqID(1)}
		r.format()
		return r.mem
	}
	r, err := openRegion(fresh(), g)
	must(t, err)
	if r.id != seqID(1) {
		t.Errorf("id %v", r.id)
	}
	for name, change := range map[string]func([]byte) []byte{
		"short":   func(m []byte) []byte { return m[:len(m)-1] },
		"empty":   func(m []byte) []byte { clear(m); return m },
		"version": func(m []byte) []byte { m[4]++; return m },
		"slots":   func(m []byte) []byte { m[8]++; return m },
		"size":    func(m []byte) []byte { m[40]++; return m },
		"no id":   func(m []byte) []byte { clear(m[16:32]); return m },
	} {
		if _, err := openRegion(change(fresh()), g); !errors.Is(err, ErrRing) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTornRecords: a record that was not written to its end is not believed.
func TestTornRecords(t *testing.T) {
	make1 := func() record {
		r := record(make([]byte, recordSize))
		r.lease(seqID(1), seqID(2), modePieces)
		list := make([]byte, entrySize)
		putPiece(list, transport.Piece{Block: 1, Length: 8, Offset: 16, Sum: 5})
		r.take(seqID(1), list, 8, 1)
		return r
	}
	list, sum, ok := make1().taken()
	if !ok || sum != 1 || piece(list) != (transport.Piece{Block: 1, Length: 8, Offset: 16, Sum: 5}) {
		t.Fatalf("%x, %d, %v", list, sum, ok)
	}
	for at := range recordHead + entrySize {
		if at >= 34 && at < 40 { // nobody reads it, the sum covers it all the same
			continue
		}
		r := make1()
		r[at] ^= 1
		if _, _, ok := r.taken(); ok {
			t.Errorf("byte %d changed and the record is still believed", at)
		}
	}
	r := make1()
	put32(r[8:], maxEntries+1)
	if _, _, ok := r.taken(); ok {
		t.Error("127 entries")
	}
}

// FuzzRecord: whatever is in a record, what comes out of it is bounded.
func FuzzRecord(f *testing.F) {
	r := record(make([]byte, recordSize))
	r.lease(seqID(1), seqID(2), modePieces)
	list := make([]byte, 2*entrySize)
	putPiece(list, transport.Piece{Block: 1, Length: 8, Offset: 16})
	putPiece(list[entrySize:], transport.Piece{Block: 2, Length: 1 << 31, Offset: 1 << 63})
	r.take(seqID(1), list, 8, 1)
	f.Add([]byte(r[:256]), uint16(4096))
	f.Add([]byte{}, uint16(0))
	f.Fuzz(func(t *testing.T, p []byte, room uint16) {
		r := record(make([]byte, recordSize))
		copy(r, p)
		put64(r[56:], r.sum(min(int(u32(r[8:])), maxEntries)*entrySize)) // else next to nothing gets further
		list, _, ok := r.taken()
		if !ok {
			return
		}
		if len(list) == 0 || len(list) > maxList || len(list)%entrySize != 0 {
			t.Fatalf("list of %d bytes", len(list))
		}
		n, err := listed(list, int(room))
		if err == nil && (n < len(list)/entrySize || n > int(room)) {
			t.Fatalf("%d entries of %d bytes in %d", len(list)/entrySize, n, room)
		}
		for ; len(list) > 0; list = list[entrySize:] {
			x, err := getRows(list)
			if err != nil {
				continue
			}
			if x.Heads.End < x.Heads.First || x.First+x.Tokens < x.First {
				t.Fatalf("%+v", x)
			}
			var again [entrySize]byte
			x.put(again[:])
			y, err := getRows(again[:])
			if err != nil || y != x {
				t.Fatalf("%+v came back as %+v, %v", x, y, err)
			}
		}
	})
}

func TestMemAvailable(t *testing.T) {
	dir := t.TempDir()
	for name, x := range map[string]struct {
		text string
		want int64
		err  string
	}{
		"usual":    {"MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\nBuffers: 3 kB\n", 2048 << 10, ""},
		"none":     {"MemTotal: 100 kB\n", 0, "has no MemAvailable"},
		"empty":    {"", 0, "has no MemAvailable"},
		"unit":     {"MemAvailable: 2048 MB\n", 0, "MemAvailable is"},
		"negative": {"MemAvailable: -1 kB\n", 0, "MemAvailable is"},
		"text":     {"MemAvailable: much kB\n", 0, "MemAvailable is"},
		"too big":  {"MemAvailable: 9223372036854775807 kB\n", 0, "MemAvailable is"},
		"long":     {strings.Repeat("x", maxMemInfo) + "\nMemAvailable: 1 kB\n", 0, ""},
	} {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(x.text), 0o600))
		got, err := memAvailable(path)
		if got != x.want || (err != nil) != (x.want == 0) || (err != nil && !strings.Contains(err.Error(), x.err)) {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
	if _, err := memAvailable(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestMemGauge: the number is read again after a while, and not for every lease.
func TestMemGauge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meminfo")
	write := func(kb string) { must(t, os.WriteFile(path, []byte("MemAvailable: "+kb+" kB\n"), 0o600)) }
	write("1000")
	g := &memGauge{path: path, floor: 500 << 10}
	if g.low() {
		t.Error("low at twice the floor")
	}
	write("499")
	if g.low() {
		t.Error("read again at once")
	}
	g.at = time.Now().Add(-memInfoAge)
	if !g.low() {
		t.Error("not low below the floor")
	}
	must(t, os.Remove(path))
	g.at = time.Now().Add(-memInfoAge)
	if g.low() {
		t.Error("low although nothing is known")
	}
	if (&memGauge{path: path, floor: -1}).low() {
		t.Error("low without a floor")
	}
}

// TestShareLayers: every layer has one rank, the work is about equal, and a rank's
// layers are neighbours.
func TestShareLayers(t *testing.T) {
	flash := []int{0, 0}
	for i := range 41 {
		flash = append(flash, []int{4, 128}[i%2])
	}
	for _, ratios := range [][]int{flash, {0}, {4, 4}, {0, 4, 128, 4, 128}} {
		for size := 1; size <= 8; size++ {
			for _, all := range []span{{0, uint32(len(ratios))}, {uint32(len(ratios)) / 2, uint32(len(ratios))}} {
				at, total, most := all.First, 0, 0
				for rank := range size {
					s := shareLayers(ratios, all, rank, size)
					if s.First == s.End {
						continue
					}
					if s.First != at {
						t.Fatalf("%v, rank %d of %d: layers %v after %d", all, rank, size, s, at)
					}
					at = s.End
					work := 0
					for _, r := range ratios[s.First:s.End] {
						work += layerWork(r)
					}
					total, most = total+work, max(most, work)
				}
				if at != all.End {
					t.Errorf("%v of %d ranks: layers from %d on have no rank", all, size, at)
				}
				if most > total/size+7 {
					t.Errorf("%v of %d ranks: one has %d of %d", all, size, most, total)
				}
			}
		}
	}
	if got := shareLayers([]int{0, 4}, span{0, 9}, 0, 2); got != (span{0, 9}) {
		t.Errorf("layers that are not there: %v", got)
	}
}

func TestOptions(t *testing.T) {
	o := Options{}.withDefaults()
	if o.LeaseWait != defaultLeaseWait || o.MemFloor != defaultMemFloor || o.MemInfo != "/proc/meminfo" || o.Reclaim != defaultReclaim ||
		o.geometry() != (geometry{defaultSlots, transport.DefaultSlot}) || o.waits.end != endWait || o.Socket != "" {
		t.Errorf("%+v", o)
	}
	if o = (Options{LeaseWait: -1, MemFloor: -1, Reclaim: -1}).withDefaults(); o.LeaseWait != 0 || o.MemFloor != -1 || o.Reclaim != -1 {
		t.Errorf("%+v", o)
	}
	if o = (Options{LeaseWait: time.Hour}).withDefaults(); o.LeaseWait != maxLeaseWait {
		t.Errorf("%+v", o)
	}
	for want, o := range map[error]Options{ErrJob: {}, ErrRing: {Socket: filepath.Join(t.TempDir(), "s"), Slots: 1}} {
		if s, err := Listen(t.Context(), o); !errors.Is(err, want) {
			t.Errorf("%+v: %v, %v", o, s, err)
		}
	}
}

// TestOptionsSay what a server would do, before there is one.
func TestOptionsSay(t *testing.T) {
	o := Options{}
	if n, err := o.RingBytes(); err != nil || n != int64(geometry{defaultSlots, transport.DefaultSlot}.size()) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if _, err := (Options{Slots: 1}).RingBytes(); !errors.Is(err, ErrRing) {
		t.Error(err)
	}
	if o.Floor() != defaultMemFloor || (Options{MemFloor: -1}).Floor() != -1 || (Options{MemFloor: 5}).Floor() != 5 {
		t.Error("another floor than a server's")
	}
	o.MemInfo = filepath.Join(t.TempDir(), "meminfo")
	if _, err := o.Available(); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	must(t, os.WriteFile(o.MemInfo, []byte("MemTotal: 9 kB\nMemAvailable:   3 kB\n"), 0o600))
	if n, err := o.Available(); err != nil || n != 3<<10 {
		t.Errorf("%d, %v", n, err)
	}
}

func TestCodesHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for c := codeOK; c <= codeFailed+1; c++ {
		if s := c.String(); s == "" || seen[s] {
			t.Errorf("code %d is %q", c, s)
		} else {
			seen[s] = true
		}
	}
}

// TestRecordOfALease: a new generation forgets what was there.
func TestRecordOfALease(t *testing.T) {
	r := record(bytes.Repeat([]byte{0xff}, recordSize))
	put32(r[4:], 41)
	if gen := r.lease(seqID(1), seqID(2), modeRows); gen != 42 || r.generation() != 42 || r.state() != stateLeased {
		t.Errorf("%d %d %d", gen, r.generation(), r.state())
	}
	if r.transfer() != seqID(1) || r.instance() != seqID(2) || r.mode() != modeRows || u32(r[8:]) != 0 || u64(r[56:]) != 0 {
		t.Errorf("%x", r[:recordHead])
	}
	if r.free(); r.state() != stateFree {
		t.Error(r.state())
	}
}
