package bridge

import "pdlink/transport"

// history is how many bytes of each block a source made, in this run and in
// earlier ones: as long as a run has not come further than one before it, it makes
// what was sent already. It needs no map of what was sent, since a source makes the
// bytes of a block in the same order each time. A nil history knows nothing.
type history struct {
	earlier []uint64 // of each block, the most that an earlier run made and gave to a link
	now     []uint64 // of each block, what this run did
}

func newHistory(blocks int) *history {
	return &history{earlier: make([]uint64, blocks), now: make([]uint64, blocks)}
}

// rerun begins another run.
func (h *history) rerun() {
	for i, n := range h.now {
		h.earlier[i], h.now[i] = max(h.earlier[i], n), 0
	}
}

// at is how many bytes of a block this run has made.
func (h *history) at(block uint32) uint64 {
	if h == nil {
		return 0
	}
	return h.now[block]
}

// repeats is how many of n bytes of a block an earlier run made too; before them
// this one made others, as many as at says.
func (h *history) repeats(block uint32, at, n uint64) uint64 {
	if h == nil {
		return 0
	}
	return min(max(h.earlier[block], at)-at, n)
}

// reach notes that this run has made so many bytes of a block.
func (h *history) reach(block uint32, n uint64) {
	if h != nil {
		h.now[block] = n
	}
}

// undo notes that pieces that were made last went to no link after all.
func (h *history) undo(pieces []transport.Piece) {
	if h == nil {
		return
	}
	for _, p := range pieces {
		h.now[p.Block] -= min(h.now[p.Block], uint64(p.Length))
	}
}
