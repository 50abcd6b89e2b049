package trace

import "container/heap"

// lines shares out the lines of a row among its spans, which come in the order of
// their beginnings: each gets the first line whose last span has ended. Its work is
// the logarithm of how many there are. The zero value is ready.
type lines struct {
	n    int    // that were made
	busy byTime // whose last span may go on
	free byLine // whose last span has ended
}

// taken is a line and when its last span ends.
type taken struct {
	end  int64
	line int
}

// take takes a line for a span; made says that it is a new one.
func (l *lines) take(begin, end int64) (line int, made bool) {
	for len(l.busy) > 0 && l.busy[0].end <= begin {
		if t, ok := heap.Pop(&l.busy).(taken); ok {
			heap.Push(&l.free, t.line)
		}
	}
	line, reused := l.n, false
	if len(l.free) > 0 {
		line, reused = heap.Pop(&l.free).(int)
	}
	if !reused {
		line = l.n
		l.n++
	}
	heap.Push(&l.busy, taken{end, line})
	return line, !reused
}

// clear begins another row.
func (l *lines) clear() { l.n, l.busy, l.free = 0, l.busy[:0], l.free[:0] }

// byTime is a heap of lines, that which ends first on top.
type byTime []taken

// Len implements heap.Interface.
func (h byTime) Len() int { return len(h) }

// Less implements heap.Interface.
func (h byTime) Less(i, j int) bool { return h[i].end < h[j].end }

// Swap implements heap.Interface.
func (h byTime) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *byTime) Push(x any) {
	if t, ok := x.(taken); ok { // it is nothing else
		*h = append(*h, t)
	}
}

// Pop implements heap.Interface.
func (h *byTime) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// byLine is a heap of lines, the first one on top.
type byLine []int

// Len implements heap.Interface.
func (h byLine) Len() int { return len(h) }

// Less implements heap.Interface.
func (h byLine) Less(i, j int) bool { return h[i] < h[j] }

// Swap implements heap.Interface.
func (h byLine) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *byLine) Push(x any) {
	if n, ok := x.(int); ok { // it is nothing else
		*h = append(*h, n)
	}
}

// Pop implements heap.Interface.
func (h *byLine) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}
