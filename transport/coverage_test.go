package transport_test

import (
	"encoding/binary"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"

	"pdlink/transport"
)

func ranges(v ...uint64) (rs []transport.Range) {
	for i := 0; i+1 < len(v); i += 2 {
		rs = append(rs, transport.Range{Begin: v[i], End: v[i+1]})
	}
	return rs
}

func TestCoverageAdd(t *testing.T) {
	const last = 1<<64 - 1
	tests := []struct {
		name  string
		add   []transport.Range
		fresh uint64 // of the last one
		want  []transport.Range
	}{
		{"nothing", nil, 0, nil},
		{"one", ranges(3, 5), 2, ranges(3, 5)},
		{"empty", ranges(3, 3), 0, nil},
		{"backwards", ranges(5, 3), 0, nil},
		{"apart", ranges(3, 5, 7, 9), 2, ranges(3, 5, 7, 9)},
		{"apart in front", ranges(7, 9, 3, 5), 2, ranges(3, 5, 7, 9)},
		{"adjacent behind", ranges(3, 5, 5, 9), 4, ranges(3, 9)},
		{"adjacent in front", ranges(5, 9, 3, 5), 2, ranges(3, 9)},
		{"fills a gap", ranges(0, 3, 5, 9, 3, 5), 2, ranges(0, 9)},
		{"twice", ranges(3, 5, 3, 5), 0, ranges(3, 5)},
		{"inside", ranges(3, 9, 4, 5), 0, ranges(3, 9)},
		{"around", ranges(4, 5, 3, 9), 5, ranges(3, 9)},
		{"overlaps two", ranges(0, 4, 8, 12, 2, 10), 4, ranges(0, 12)},
		{"swallows three", ranges(2, 3, 5, 6, 8, 9, 0, 20), 17, ranges(0, 20)},
		{"swallows the middle", ranges(0, 1, 3, 4, 5, 6, 9, 10, 2, 7), 3, ranges(0, 1, 2, 7, 9, 10)},
		{"to the end of the space", ranges(0, 1, last-1, last), 1, ranges(0, 1, last-1, last)},
		{"the whole space", ranges(5, 6, 0, last), last - 1, ranges(0, last)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c transport.Coverage
			var fresh, total uint64
			for _, r := range tt.add {
				fresh = c.Add(r)
				total += fresh
			}
			if fresh != tt.fresh || c.Bytes() != total || !slices.Equal(c.Ranges(), tt.want) {
				t.Errorf("fresh %d, bytes %d of %d, ranges %v; want fresh %d, ranges %v", fresh, c.Bytes(), total, c.Ranges(), tt.fresh, tt.want)
			}
		})
	}
}

func TestCoverageGaps(t *testing.T) {
	var c transport.Coverage
	for _, r := range ranges(2, 4, 6, 9, 12, 20) {
		c.Add(r)
	}
	tests := []struct {
		name string
		of   iter.Seq[transport.Range]
		want []transport.Range
	}{
		{"missing below 0", c.Missing(0), nil},
		{"missing below 1", c.Missing(1), ranges(0, 1)},
		{"missing below 8", c.Missing(8), ranges(0, 2, 4, 6)},
		{"missing below 20", c.Missing(20), ranges(0, 2, 4, 6, 9, 12)},
		{"missing below 25", c.Missing(25), ranges(0, 2, 4, 6, 9, 12, 20, 25)},
		{"uncovered empty", c.Uncovered(transport.Range{Begin: 5, End: 5}), nil},
		{"uncovered backwards", c.Uncovered(transport.Range{Begin: 11, End: 5}), nil},
		{"uncovered inside", c.Uncovered(transport.Range{Begin: 13, End: 15}), nil},
		{"uncovered over two", c.Uncovered(transport.Range{Begin: 3, End: 13}), ranges(4, 6, 9, 12)},
		{"uncovered in a gap", c.Uncovered(transport.Range{Begin: 10, End: 11}), ranges(10, 11)},
		{"uncovered behind", c.Uncovered(transport.Range{Begin: 19, End: 30}), ranges(20, 30)},
	}
	for _, tt := range tests {
		if got := slices.Collect(tt.of); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	for r := range c.Missing(25) { // may be left in the middle
		if r != (transport.Range{End: 2}) {
			t.Errorf("first gap %v", r)
		}
		break
	}
}

// FuzzCoverage compares with a bitmap: each 4 bytes of input are one range.
func FuzzCoverage(f *testing.F) {
	f.Add([]byte{0, 0, 5, 0, 5, 0, 5, 0, 3, 0, 200, 0})
	f.Add([]byte{10, 0, 1, 0, 12, 0, 1, 0, 11, 0, 1, 0, 0, 0, 0, 1})
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(rnd.Uint32()) & 0x1f
		}
		f.Add(b)
	}
	const space = 1 << 10
	f.Fuzz(func(t *testing.T, b []byte) {
		var c transport.Coverage
		var bits [space]bool
		var bytes uint64
		for ; len(b) >= 4; b = b[4:] {
			begin := uint64(binary.LittleEndian.Uint16(b)) % space
			r := transport.Range{Begin: begin, End: min(begin+uint64(binary.LittleEndian.Uint16(b[2:])), space)}
			checkGaps(t, "uncovered", r, &bits, c.Uncovered(r))
			fresh := uint64(0)
			for i := r.Begin; i < r.End; i++ {
				if !bits[i] {
					bits[i] = true
					fresh++
				}
			}
			bytes += fresh
			if got := c.Add(r); got != fresh || c.Bytes() != bytes {
				t.Fatalf("Add(%v) = %d with %d bytes, want %d with %d", r, got, c.Bytes(), fresh, bytes)
			}
			checkRanges(t, c.Ranges(), &bits)
			size := r.End
			checkGaps(t, "missing", transport.Range{End: size}, &bits, c.Missing(size))
		}
	})
}

// checkRanges wants sorted, disjoint, non-adjacent ranges that are the bitmap.
func checkRanges(t *testing.T, rs []transport.Range, bits *[1 << 10]bool) {
	t.Helper()
	at := uint64(0)
	for i, r := range rs {
		if r.Begin >= r.End || i > 0 && r.Begin <= rs[i-1].End {
			t.Fatalf("ranges %v are not sorted and apart", rs)
		}
		for ; at < r.Begin; at++ {
			if bits[at] {
				t.Fatalf("byte %d is not in %v", at, rs)
			}
		}
		for ; at < r.End; at++ {
			if !bits[at] {
				t.Fatalf("byte %d is in %v", at, rs)
			}
		}
	}
	if i := slices.Index(bits[at:], true); i >= 0 {
		t.Fatalf("byte %d is not in %v", at+uint64(i), rs)
	}
}

// checkGaps wants exactly the bytes of r that are not in the bitmap, as few
// ranges in order.
func checkGaps(t *testing.T, what string, r transport.Range, bits *[1 << 10]bool, of iter.Seq[transport.Range]) {
	t.Helper()
	at, last := r.Begin, r.Begin
	for g := range of {
		if g.Begin >= g.End || g.End > r.End || g.Begin < at || at > r.Begin && g.Begin == last {
			t.Fatalf("%s of %v: gap %v after %d", what, r, g, at)
		}
		for ; at < g.Begin; at++ {
			if !bits[at] {
				t.Fatalf("%s of %v: byte %d left out", what, r, at)
			}
		}
		for ; at < g.End; at++ {
			if bits[at] {
				t.Fatalf("%s of %v: byte %d is covered", what, r, at)
			}
		}
		last = g.End
	}
	for ; at < r.End; at++ {
		if !bits[at] {
			t.Fatalf("%s of %v: byte %d left out at the end", what, r, at)
		}
	}
}

// TestCoverageGrowsWithoutAllocating has the usual case, pieces in order.
func TestCoverageGrowsWithoutAllocating(t *testing.T) {
	var c transport.Coverage
	c.Add(transport.Range{Begin: 0, End: 10})
	at := uint64(10)
	if n := testing.AllocsPerRun(1000, func() {
		c.Add(transport.Range{Begin: at, End: at + 10})
		at += 10
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if len(c.Ranges()) != 1 {
		t.Errorf("%d ranges, want 1", len(c.Ranges()))
	}
}

// TestCoversAndTouches holds both against a plain map of bytes.
func TestCoversAndTouches(t *testing.T) {
	var c transport.Coverage
	var have [40]bool
	for _, r := range []transport.Range{{3, 7}, {7, 9}, {15, 16}, {20, 30}} {
		c.Add(r)
		for i := r.Begin; i < r.End; i++ {
			have[i] = true
		}
	}
	blocks := transport.BlockCoverage{4: &c}
	for begin := range uint64(40) {
		for end := begin; end < 40; end++ {
			covers, touches := true, false
			for _, h := range have[begin:end] {
				covers, touches = covers && h, touches || h
			}
			r := transport.Range{Begin: begin, End: end}
			if c.Covers(r) != covers || c.Touches(r) != touches {
				t.Errorf("%v: covers %v, touches %v; want %v, %v", r, c.Covers(r), c.Touches(r), covers, touches)
			}
			p := transport.Piece{Block: 4, Offset: begin, Length: uint32(end - begin)}
			if blocks.Covers(p) != covers || blocks.Touches(p) != touches {
				t.Errorf("block 4, %v: covers %v, touches %v", r, blocks.Covers(p), blocks.Touches(p))
			}
			if p.Block = 5; blocks.Covers(p) || blocks.Touches(p) {
				t.Errorf("a block of which nothing is there: %v", r)
			}
		}
	}
	if n := blocks.Add(transport.Piece{Block: 5, Offset: 1, Length: 3}); n != 3 || blocks.Add(transport.Piece{Block: 5, Offset: 2, Length: 4}) != 2 {
		t.Errorf("added %d bytes", n)
	}
	if !blocks.Covers(transport.Piece{Block: 5, Offset: 1, Length: 5}) || len(blocks) != 2 {
		t.Errorf("blocks %v", blocks)
	}
}
