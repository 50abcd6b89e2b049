package omlx

import (
	"fmt"
	"slices"
	"sort"
	"sync"
)

// coverage is which of a block's wire bytes were taken: sorted ranges that
// neither overlap nor touch. The zero value has none. It may be used by several
// goroutines.
type coverage struct {
	mu    sync.Mutex
	spans []wireSpan
	bytes int64
}

// wireSpan is the wire bytes begin <= x < end.
type wireSpan struct{ begin, end int64 }

// claim takes a range that is not empty for the caller, who then writes it. It
// fails with ErrCall and takes nothing if a byte of it was taken before, so of two
// overlapping claims exactly one succeeds, at the same time or not.
func (c *coverage) claim(begin, end int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	lo := sort.Search(len(c.spans), func(i int) bool { return c.spans[i].end >= begin })
	next := lo // the first that begins behind begin
	left := lo < len(c.spans) && c.spans[lo].end == begin
	if left {
		next++
	}
	if next < len(c.spans) && c.spans[next].begin < end {
		s := c.spans[next]
		return fmt.Errorf("%w: bytes %d to %d were written before", ErrCall, max(begin, s.begin), min(end, s.end))
	}
	right := next < len(c.spans) && c.spans[next].begin == end
	switch {
	case left && right:
		c.spans[lo].end = c.spans[next].end
		c.spans = slices.Delete(c.spans, next, next+1)
	case left:
		c.spans[lo].end = end
	case right:
		c.spans[next].begin = begin
	case len(c.spans) >= maxSpans:
		return fmt.Errorf("%w: %d separate ranges were written, limit %d: write the bytes between them first", ErrCall, len(c.spans)+1, maxSpans)
	default:
		c.spans = slices.Insert(c.spans, next, wireSpan{begin, end})
	}
	c.bytes += end - begin
	return nil
}

// unclaim gives back a range that the caller has claimed.
func (c *coverage) unclaim(begin, end int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := sort.Search(len(c.spans), func(i int) bool { return c.spans[i].end > begin })
	s := c.spans[i]
	var rest [2]wireSpan
	left := rest[:0]
	if s.begin < begin {
		left = append(left, wireSpan{s.begin, begin})
	}
	if end < s.end {
		left = append(left, wireSpan{end, s.end})
	}
	c.spans = slices.Replace(c.spans, i, i+1, left...)
	c.bytes -= end - begin
}

// count returns how many bytes are claimed.
func (c *coverage) count() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

// missing returns the first range below size that nobody claimed, and how many
// bytes are missing in all; an empty range and 0 if there are none.
func (c *coverage) missing(size int64) (first wireSpan, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first.end = size
	if len(c.spans) > 0 {
		if c.spans[0].begin > 0 {
			first.end = c.spans[0].begin
		} else if first.begin = c.spans[0].end; len(c.spans) > 1 {
			first.end = c.spans[1].begin
		}
	}
	return first, size - c.bytes
}

// release forgets the ranges of a block that takes no more bytes.
func (c *coverage) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans = nil
}
