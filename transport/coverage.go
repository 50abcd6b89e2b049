package transport

import (
	"iter"
	"slices"
)

// Coverage records which bytes of one block have arrived: a sorted list of
// disjoint, non-adjacent ranges. The zero value covers nothing. It is not safe
// for concurrent use.
type Coverage struct {
	ranges []Range
	bytes  uint64
}

// Range is the bytes Begin <= x < End.
type Range struct{ Begin, End uint64 }

// Bytes is the number of bytes covered.
func (c *Coverage) Bytes() uint64 { return c.bytes }

// Ranges is the covered ranges in order, valid until the next Add.
func (c *Coverage) Ranges() []Range { return c.ranges }

// Add covers r and returns how many of its bytes were not covered before. The
// work grows with the logarithm of the number of ranges, and with the ranges
// that r joins.
func (c *Coverage) Add(r Range) uint64 {
	if r.End <= r.Begin {
		return 0
	}
	// First range that r touches or joins, and the one behind the last.
	lo, _ := slices.BinarySearchFunc(c.ranges, r.Begin, func(x Range, b uint64) int {
		if x.End < b {
			return -1
		}
		return 1
	})
	hi, had, joined := lo, uint64(0), r
	for hi < len(c.ranges) && c.ranges[hi].Begin <= r.End {
		x := c.ranges[hi]
		if b, e := max(x.Begin, r.Begin), min(x.End, r.End); b < e {
			had += e - b
		}
		joined.Begin, joined.End = min(joined.Begin, x.Begin), max(joined.End, x.End)
		hi++
	}
	if hi == lo+1 {
		c.ranges[lo] = joined // the usual case: a range grows
	} else {
		c.ranges = slices.Replace(c.ranges, lo, hi, joined)
	}
	fresh := r.End - r.Begin - had
	c.bytes += fresh
	return fresh
}

// Missing is the uncovered ranges below size, in order. The sequence must not
// outlive the next Add.
func (c *Coverage) Missing(size uint64) iter.Seq[Range] {
	return c.Uncovered(Range{0, size})
}

// Uncovered is the parts of r that are not covered, in order: what is left to
// take when two senders sent the same bytes. The sequence must not outlive the
// next Add.
func (c *Coverage) Uncovered(r Range) iter.Seq[Range] {
	return func(yield func(Range) bool) {
		at := r.Begin
		for _, x := range c.ranges[c.first(r.Begin):] {
			if x.Begin >= r.End {
				break
			}
			if x.Begin > at && !yield(Range{at, x.Begin}) {
				return
			}
			at = max(at, x.End)
		}
		if at < r.End {
			yield(Range{at, r.End})
		}
	}
}

// Covered is the parts of r that are covered, in order. The sequence must not outlive
// the next Add.
func (c *Coverage) Covered(r Range) iter.Seq[Range] {
	return func(yield func(Range) bool) {
		for _, x := range c.ranges[c.first(r.Begin):] {
			if x.Begin >= r.End {
				return
			}
			if !yield(Range{max(x.Begin, r.Begin), min(x.End, r.End)}) {
				return
			}
		}
	}
}

// first is the index of the first range that ends behind at.
func (c *Coverage) first(at uint64) int {
	i, _ := slices.BinarySearchFunc(c.ranges, at, func(x Range, at uint64) int {
		if x.End <= at {
			return -1
		}
		return 1
	})
	return i
}

// Covers reports whether every byte of r is covered, which those of an empty range
// are.
func (c *Coverage) Covers(r Range) bool {
	for range c.Uncovered(r) {
		return false
	}
	return true
}

// Touches reports whether any byte of r is covered.
func (c *Coverage) Touches(r Range) bool {
	for range c.Covered(r) {
		return r.Begin < r.End
	}
	return false
}

// BlockCoverage is the Coverage of each block of which anything is covered, by its
// index. It is not safe for concurrent use. Only a map that was made takes Add.
type BlockCoverage map[uint32]*Coverage

// Add covers the bytes of p and returns how many of them were not covered before.
func (b BlockCoverage) Add(p Piece) uint64 {
	c := b[p.Block]
	if c == nil {
		c = new(Coverage)
		b[p.Block] = c
	}
	return c.Add(p.Range())
}

// Covers reports whether every byte of p is covered.
func (b BlockCoverage) Covers(p Piece) bool {
	c := b[p.Block]
	return c != nil && c.Covers(p.Range())
}

// Touches reports whether any byte of p is covered.
func (b BlockCoverage) Touches(p Piece) bool {
	c := b[p.Block]
	return c != nil && c.Touches(p.Range())
}
