package kernels

import (
	"fmt"
	"runtime"
	"sync/atomic"
)

// Layer computes the cache of one DeepSeek-V4 layer from its attention input,
// token by token from position 0 or from a seed. How the tokens are cut into calls
// does not change a bit of any result.
//
// One goroutine may use a Layer at a time (Feed detects a second one); different
// layers are independent. A Layer owns no goroutine between calls.
type Layer struct {
	numerics            Numerics
	hidden, dim, window int
	ratio, block, limit int
	pos                 int
	preFrom             int // rows of ringPre from this position on are known
	busy                atomic.Bool
	mm                  projector
	products            [5]product
	kvW                 []uint16
	winRaw              []uint16 // bf16 [segmentRows, dim], window projection of a segment
	ring, ringPre       []uint16 // bf16 [window, dim], row of position t at t mod window
	fin                 finisher
	comp, index         *pool // nil where the ratio has none
}

// NewLayer builds layer i of the geometry. blockTokens is the decoder's block
// length, a multiple of the layer's ratio. workers is the number of goroutines
// that a Feed may use, 0 meaning GOMAXPROCS. The weights are kept by reference and
// must not be changed any more.
//
// Errors: ErrGeometry (also for a block length or a worker count that cannot be),
// ErrWeights, ErrNumerics.
func NewLayer(g Geometry, i int, w LayerWeights, p Numerics, blockTokens int, workers int) (*Layer, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	if i < 0 || i >= g.Layers() {
		return nil, fmt.Errorf("%w: layer %d of %d", ErrGeometry, i, g.Layers())
	}
	ratio := g.Ratios[i]
	if blockTokens < 1 || blockTokens > maxBlock || (ratio > 0 && blockTokens%ratio != 0) {
		return nil, fmt.Errorf("%w: block of %d tokens for ratio %d: want a multiple of the ratio up to %d", ErrGeometry, blockTokens, ratio, maxBlock)
	}
	if workers < 0 || workers > maxWorkers {
		return nil, fmt.Errorf("%w: %d workers, want 0 to %d", ErrGeometry, workers, maxWorkers)
	}
	if p > Ideal {
		return nil, fmt.Errorf("%w %d", ErrNumerics, p)
	}
	if err := w.check(g, i); err != nil {
		return nil, err
	}
	if workers == 0 {
		workers = min(runtime.GOMAXPROCS(0), maxWorkers)
	}
	l := &Layer{numerics: p, hidden: g.Hidden, dim: g.HeadDim, window: g.Window, ratio: ratio, block: blockTokens, limit: g.MaxPositions}
	l.mm = newProjector(p, g.Hidden, workers)
	l.kvW, l.fin = w.KV, newFinisher(p, g, w.Norm, ratio != 0)
	l.winRaw = make([]uint16, segmentRows*l.dim)
	l.ring, l.ringPre = make([]uint16, l.window*l.dim), make([]uint16, l.window*l.dim)
	if ratio != 0 {
		l.comp = newPool(p, g, ratio, g.HeadDim, w.Comp)
	}
	if ratio == overlapRatio {
		l.index = newPool(p, g, ratio, g.IndexDim, w.Index)
	}
	return l, nil
}

// Pos returns how many tokens the layer has seen, in tokens from the start of the
// sequence.
func (l *Layer) Pos() int { return l.pos }

// Feed computes the next n ≥ 1 tokens. x holds their attention input, bf16 [n,
// hidden] row-major, and is only read during the call. What was completed is
// written to out, which must not be nil.
//
// Errors, all before anything is computed: ErrInput for a wrong size or for more
// tokens than the model has positions, ErrConcurrent.
func (l *Layer) Feed(x []uint16, out *Output) error {
	if out == nil || len(x) == 0 || len(x)%l.hidden != 0 {
		return fmt.Errorf("%w: %d elements are not one or more rows of %d, or there is no output", ErrInput, len(x), l.hidden)
	}
	if !l.busy.CompareAndSwap(false, true) {
		return ErrConcurrent
	}
	defer l.busy.Store(false)
	n := len(x) / l.hidden
	if n > l.limit-l.pos {
		return fmt.Errorf("%w: %d tokens after %d exceed the model's %d positions", ErrInput, n, l.pos, l.limit)
	}
	out.reset()
	for end := l.pos + n; l.pos < end; {
		// A segment never crosses a boundary, so that the state can be taken there.
		next := (l.pos/l.block + 1) * l.block
		rows := min(segmentRows, end-l.pos, next-l.pos)
		l.segment(x[:rows*l.hidden], min(next, end), out)
		x = x[rows*l.hidden:]
		if l.pos == next {
			b := out.boundary()
			b.Pos = next
			l.snapshot(&b.State, out.WithPre)
		}
	}
	return nil
}

// segment computes up to segmentRows tokens. The window is next looked at when the
// sequence is horizon tokens long, so rows that will have left it by then are not
// projected.
func (l *Layer) segment(x []uint16, horizon int, out *Output) {
	rows := len(x) / l.hidden
	first := max(0, horizon-l.window-l.pos)
	ps := l.products[:0]
	if first < rows {
		ps = append(ps, product{w: l.kvW, cols: l.dim, first: first, dst: l.winRaw})
	}
	if l.comp != nil {
		ps = l.comp.appendProducts(ps)
	}
	if l.index != nil {
		ps = l.index.appendProducts(ps)
	}
	if len(ps) > 0 {
		l.mm.load(x)
		l.mm.run(ps)
	}
	for r := first; r < rows; r++ {
		at := (l.pos + r) % l.window * l.dim
		raw := l.winRaw[(r-first)*l.dim : (r-first+1)*l.dim]
		l.fin.finish(l.ring[at:at+l.dim], l.ringPre[at:at+l.dim], raw, l.pos+r)
	}
	if l.comp != nil {
		l.comp.consume(l.pos, rows, &out.Pooled)
	}
	if l.index != nil {
		l.index.consume(l.pos, rows, &out.Index)
	}
	l.pos += rows
}
