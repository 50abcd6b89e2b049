package kernels

import "fmt"

// PoolState is what a pool carries besides its rows: elements 0, 1, 3 and 4 of
// the decoder's five-element pool state, raw projections in bf16. Width is the row width
// for ratio 128 and twice that for ratio 4.
type PoolState struct {
	// BufKV and BufGate are the remainder, [tokens mod ratio, width]; empty at a block
	// boundary.
	BufKV, BufGate []uint16
	// PrevKV and PrevGate are the rows of the last complete window, [ratio, width],
	// before the bias; empty for ratio 128 and before the first window is complete.
	PrevKV, PrevGate []uint16
}

// State is a layer's carry at one position. Pooled rows are not part of it: they
// are append-only and the caller collects them from Output.
type State struct {
	// Win are the last rows of the sliding window in time order, rotated,
	// bf16 [min(window, position), head_dim].
	Win []uint16
	// WinPre are the same rows before rotation. It is empty where it was not asked for
	// or is not known (a seed without it leaves it unknown until the window is renewed).
	WinPre []uint16
	// Comp is the carry of the layer's pool, Index that of its indexer's.
	Comp, Index PoolState
	// WithoutPrevious lets Seed accept ratio-4 pools without PrevKV and PrevGate, as
	// decoders restore them from three-element pool states: one pooled row per pool, the
	// first after the seed, is then computed without the window before and differs from
	// an unbroken run. Only right if the decoder does the same.
	WithoutPrevious bool
}

// State writes the layer's carry at its present position to dst, whose memory is
// reused and belongs to the caller. It must not run during Feed.
func (l *Layer) State(dst *State) { l.snapshot(dst, true) }

func (l *Layer) snapshot(dst *State, pre bool) {
	rows := min(l.window, l.pos)
	dst.Win = l.unroll(dst.Win[:0], l.ring, rows)
	dst.WinPre = dst.WinPre[:0]
	if pre && l.preFrom <= l.pos-rows {
		dst.WinPre = l.unroll(dst.WinPre, l.ringPre, rows)
	}
	dst.WithoutPrevious = false
	l.comp.state(&dst.Comp)
	l.index.state(&dst.Index)
}

// unroll appends the last rows of a ring in time order.
func (l *Layer) unroll(dst, ring []uint16, rows int) []uint16 {
	start := (l.pos - rows) % l.window
	tail := min(rows, l.window-start)
	dst = append(dst, ring[start*l.dim:(start+tail)*l.dim]...)
	return append(dst, ring[:(rows-tail)*l.dim]...)
}

// state writes the pool's carry; a nil pool has none.
func (p *pool) state(dst *PoolState) {
	dst.BufKV, dst.BufGate = dst.BufKV[:0], dst.BufGate[:0]
	dst.PrevKV, dst.PrevGate = dst.PrevKV[:0], dst.PrevGate[:0]
	if p == nil {
		return
	}
	dst.BufKV = append(dst.BufKV, p.kv[:p.rem*p.width]...)
	dst.BufGate = append(dst.BufGate, p.gate[:p.rem*p.width]...)
	if p.hasPrev {
		dst.PrevKV = append(dst.PrevKV, p.prevKV...)
		dst.PrevGate = append(dst.PrevGate, p.prevGate...)
	}
}

// Seed puts the layer where it would be after the first pos tokens of a sequence,
// pos being a multiple of the block length below the model's positions: s is what a
// Boundary or a decoder's block holds there, and is copied. The next pooled row has index
// pos/ratio. Afterwards all results equal those of an unbroken run. Whatever the
// layer held before is forgotten; Seed(0, State{}) starts a new sequence.
//
// Errors, which leave the layer as it was: ErrState, ErrNoPrevious (a ratio-4 state
// without the previous window, see State.WithoutPrevious), ErrConcurrent.
func (l *Layer) Seed(pos int, s State) error {
	if !l.busy.CompareAndSwap(false, true) {
		return ErrConcurrent
	}
	defer l.busy.Store(false)
	if pos < 0 || pos > l.limit || pos%l.block != 0 {
		return fmt.Errorf("%w: position %d is not a boundary of blocks of %d within %d positions", ErrState, pos, l.block, l.limit)
	}
	rows := min(l.window, pos)
	if len(s.Win) != rows*l.dim || (len(s.WinPre) != 0 && len(s.WinPre) != rows*l.dim) {
		return fmt.Errorf("%w: window of %d elements at position %d, want %d rows of %d", ErrState, len(s.Win), pos, rows, l.dim)
	}
	if err := l.comp.checkSeed("pool", pos, s.Comp, s.WithoutPrevious); err != nil {
		return err
	}
	if err := l.index.checkSeed("indexer pool", pos, s.Index, s.WithoutPrevious); err != nil {
		return err
	}
	for r := range rows {
		at := (pos - rows + r) % l.window * l.dim
		copy(l.ring[at:at+l.dim], s.Win[r*l.dim:])
		if len(s.WinPre) > 0 {
			copy(l.ringPre[at:at+l.dim], s.WinPre[r*l.dim:])
		}
	}
	l.pos, l.preFrom = pos, pos
	if len(s.WinPre) > 0 {
		l.preFrom = pos - rows
	}
	l.comp.seed(s.Comp)
	l.index.seed(s.Index)
	return nil
}

// checkSeed reports a carry that the pool cannot have at a block boundary.
func (p *pool) checkSeed(what string, pos int, s PoolState, withoutPrevious bool) error {
	if len(s.BufKV)+len(s.BufGate) != 0 {
		return fmt.Errorf("%w: %s has remainder rows at a block boundary", ErrState, what)
	}
	previous := 0
	if p != nil && p.overlaps() && pos > 0 {
		previous = p.ratio * p.width
	}
	if len(s.PrevKV) == previous && len(s.PrevGate) == previous {
		return nil
	}
	if len(s.PrevKV)+len(s.PrevGate) != 0 {
		return fmt.Errorf("%w: %s has previous rows of %d and %d elements at position %d, want %d", ErrState, what, len(s.PrevKV), len(s.PrevGate), pos, previous)
	}
	if !withoutPrevious {
		return fmt.Errorf("%w: %s at position %d: its next row would be computed from half its tokens", ErrNoPrevious, what, pos)
	}
	return nil
}

// seed replaces the pool's carry by one that checkSeed accepted.
func (p *pool) seed(s PoolState) {
	if p == nil {
		return
	}
	p.rem = 0
	p.hasPrev = len(s.PrevKV) > 0
	copy(p.prevKV, s.PrevKV)
	copy(p.prevGate, s.PrevGate)
}
