package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"pdlink/kernels"
)

// deviceRequest is one sequence on the GPU.
type deviceRequest struct {
	owner  *device
	handle uintptr
	layers []progress
	ring   []uint16 // scratch of Carry
	closed bool
}

// progress is what the host knows of a layer.
type progress struct {
	pos  int
	prev bool   // the window before the next one is known
	open []byte // the image of the block that pos lies in, as far as it is computed
}

// enter checks the call and finds the layer. The owner's lock is held.
func (q *deviceRequest) enter(layer int) (int, *progress, *layout, error) {
	if q.closed || q.owner.closed {
		return 0, nil, nil, ErrClosed
	}
	i, ok := q.owner.index[layer]
	if !ok {
		return 0, nil, nil, fmt.Errorf("%w: layer %d is not one of %v", kernels.ErrGeometry, layer, q.owner.o.Layers)
	}
	return i, &q.layers[i], &q.owner.layouts[i], nil
}

// Feed implements Request.
func (q *deviceRequest) Feed(layer int, x []uint16, out *kernels.Output) error {
	d := q.owner
	d.mu.Lock()
	defer d.mu.Unlock()
	i, p, l, err := q.enter(layer)
	if err != nil {
		return err
	}
	hidden := d.g.Hidden
	if out == nil || len(x) == 0 || len(x)%hidden != 0 || len(x)/hidden > d.g.MaxPositions-p.pos {
		return fmt.Errorf("%w: %d elements are not rows of %d within the model's positions, or there is no output", kernels.ErrInput, len(x), hidden)
	}
	out.Pooled, out.Index = kernels.Rows{Data: out.Pooled.Data[:0]}, kernels.Rows{Data: out.Index.Data[:0]}
	out.Boundaries, out.WithPre = out.Boundaries[:0], d.o.WithPre
	for len(x) > 0 {
		n := min(len(x)/hidden, d.o.MaxTokens)
		if err := q.call(i, p, l, x[:n*hidden], out); err != nil {
			return err
		}
		x = x[n*hidden:]
	}
	return nil
}

// call projects rows that fit one call and takes the results apart.
func (q *deviceRequest) call(i int, p *progress, l *layout, x []uint16, out *kernels.Output) error {
	d := q.owner
	n := len(x) / d.g.Hidden
	first := p.pos / d.block
	blocks := (p.pos+n-1)/d.block - first + 1
	image := unsafe.Slice((*byte)(pointer(d.image)), l.span*blocks)
	copy(image, p.open)
	dst := make([]uintptr, blocks)
	for b := range dst {
		dst[b] = d.image + uintptr(b*l.span)
	}
	var e cError
	if err := e.check(d.lib.copyIn(int32(d.o.Device), d.x, unsafe.Pointer(&x[0]), uint64(2*len(x)), &e), "copy input"); err != nil {
		return err
	}
	var ticket uint64
	code := d.lib.project(d.handle, q.handle, int32(i), d.x, int32(n), int64(p.pos), &dst[0], int32(blocks), 0, 0, nil, &ticket, 0, &e)
	if err := e.check(code, "project"); err != nil {
		return err
	}
	if err := e.check(d.lib.wait(d.handle, ticket, &e), "wait for results"); err != nil {
		return err
	}
	for b := range blocks {
		q.collect(l, first+b, image[b*l.span:(b+1)*l.span], p.pos, p.pos+n, out)
	}
	if r := l.ratio; r > 0 && (p.pos+n)/r > p.pos/r {
		p.prev = true
	}
	p.pos += n
	p.open = p.open[:0]
	if p.pos%d.block != 0 {
		p.open = append(p.open, image[(blocks-1)*l.span:]...)
	}
	return nil
}

// collect takes what the tokens [from, to) completed out of a block's image.
func (q *deviceRequest) collect(l *layout, block int, image []byte, from, to int, out *kernels.Output) {
	d := q.owner
	begin, end := block*d.block, (block+1)*d.block
	array := func(dst []uint16, a, elements int) []uint16 {
		b := image[l.offset[a]:]
		dst = slices.Grow(dst, elements)
		for i := range elements {
			dst = append(dst, binary.LittleEndian.Uint16(b[2*i:]))
		}
		return dst
	}
	rows := func(r *kernels.Rows, a, dim int) {
		lo, hi := max(from/l.ratio, begin/l.ratio), min(to/l.ratio, end/l.ratio)
		if r.Dim == 0 {
			r.Dim, r.First = dim, from/l.ratio
		}
		if lo >= hi {
			return
		}
		all := array(nil, a, (hi-begin/l.ratio)*dim)
		r.Data = append(r.Data, all[(lo-begin/l.ratio)*dim:]...)
	}
	if l.ratio > 0 {
		rows(&out.Pooled, aPooled, d.g.HeadDim)
	}
	if l.ratio == 4 {
		rows(&out.Index, aIdxPooled, d.g.IndexDim)
	}
	if to < end || from >= end {
		return
	}
	s := kernels.State{Win: array(nil, aWindow, d.g.Window*d.g.HeadDim)}
	if l.offset[aWindowPre] >= 0 {
		s.WinPre = array(nil, aWindowPre, d.g.Window*d.g.HeadDim)
	}
	if l.ratio == 4 {
		s.Comp.PrevKV, s.Comp.PrevGate = array(nil, aPrevKV, 8*d.g.HeadDim), array(nil, aPrevGate, 8*d.g.HeadDim)
		s.Index.PrevKV, s.Index.PrevGate = array(nil, aIdxPrevKV, 8*d.g.IndexDim), array(nil, aIdxPrevGate, 8*d.g.IndexDim)
	}
	out.Boundaries = append(out.Boundaries, kernels.Boundary{Pos: end, State: s})
}

// Seed implements Request.
func (q *deviceRequest) Seed(layer, pos int, s kernels.State) error {
	d := q.owner
	d.mu.Lock()
	defer d.mu.Unlock()
	i, p, l, err := q.enter(layer)
	if err != nil {
		return err
	}
	if pos < 0 || pos > d.g.MaxPositions || pos%d.block != 0 {
		return fmt.Errorf("%w: position %d is not a boundary of blocks of %d", kernels.ErrState, pos, d.block)
	}
	given, err := d.checkSeed(l, pos, &s)
	if err != nil {
		return err
	}
	if err := q.seed(i, l, pos, given, &s); err != nil {
		return err
	}
	*p = progress{pos: pos, prev: given, open: p.open[:0]}
	return nil
}

// seed gives the library the previous window, if there is one. The stream reads it
// where it lies, so it is pinned until a call that waits for the stream has returned.
func (q *deviceRequest) seed(i int, l *layout, pos int, given bool, s *kernels.State) error {
	d := q.owner
	var e cError
	if !given {
		return e.check(d.lib.seed(d.handle, q.handle, int32(i), int64(pos), nil, nil, nil, nil, 0, &e), "seed")
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	at := [...]*uint16{&s.Comp.PrevKV[0], &s.Comp.PrevGate[0], &s.Index.PrevKV[0], &s.Index.PrevGate[0]}
	for _, p := range at {
		pin.Pin(p)
	}
	err := e.check(d.lib.seed(d.handle, q.handle, int32(i), int64(pos), at[0], at[1], at[2], at[3], 0, &e), "seed")
	// Also after a failure, which may have come with half of the copies under way.
	return errors.Join(err, q.readRing(i, l))
}

// readRing reads a layer's carry into ring, and waits for the stream.
func (q *deviceRequest) readRing(i int, l *layout) error {
	d := q.owner
	q.ring = slices.Grow(q.ring[:0], l.slots*l.width)[:l.slots*l.width]
	var e cError
	return e.check(d.lib.carry(d.handle, q.handle, int32(i), &q.ring[0], uint64(2*len(q.ring)), 0, &e), "read a carry")
}

// checkSeed reports whether the state has the previous windows, or why it cannot
// be one.
func (d *device) checkSeed(l *layout, pos int, s *kernels.State) (bool, error) {
	if rows := min(d.g.Window, pos); len(s.Win) != rows*d.g.HeadDim {
		return false, fmt.Errorf("%w: window of %d elements at position %d", kernels.ErrState, len(s.Win), pos)
	}
	if len(s.Comp.BufKV)+len(s.Comp.BufGate)+len(s.Index.BufKV)+len(s.Index.BufGate) != 0 {
		return false, fmt.Errorf("%w: remainder rows at a block boundary", kernels.ErrState)
	}
	have := []int{len(s.Comp.PrevKV), len(s.Comp.PrevGate), len(s.Index.PrevKV), len(s.Index.PrevGate)}
	if !slices.ContainsFunc(have, func(n int) bool { return n != 0 }) {
		if l.ratio == 4 && pos > 0 && !s.WithoutPrevious {
			return false, fmt.Errorf("%w: at position %d", kernels.ErrNoPrevious, pos)
		}
		return false, nil
	}
	if want := []int{8 * d.g.HeadDim, 8 * d.g.HeadDim, 8 * d.g.IndexDim, 8 * d.g.IndexDim}; l.ratio != 4 || pos == 0 || !slices.Equal(have, want) {
		return false, fmt.Errorf("%w: previous rows of %v elements for ratio %d at position %d", kernels.ErrState, have, l.ratio, pos)
	}
	return true, nil
}

// Carry implements Request.
func (q *deviceRequest) Carry(layer int, dst *kernels.State) error {
	d := q.owner
	d.mu.Lock()
	defer d.mu.Unlock()
	i, p, l, err := q.enter(layer)
	if err != nil {
		return err
	}
	*dst = kernels.State{Win: dst.Win[:0], WinPre: dst.WinPre[:0]}
	if l.ratio == 0 {
		return nil
	}
	if err := q.readRing(i, l); err != nil {
		return err
	}
	rows := func(from, to, column, width int) []uint16 {
		var out []uint16
		for t := from; t < to; t++ {
			row := q.ring[t%l.slots*l.width:]
			out = append(out, row[column:column+width]...)
		}
		return out
	}
	whole := p.pos / l.ratio * l.ratio
	pool := func(s *kernels.PoolState, column, width int) {
		s.BufKV, s.BufGate = rows(whole, p.pos, column, width), rows(whole, p.pos, column+width, width)
		if l.ratio == 4 && p.prev {
			s.PrevKV, s.PrevGate = rows(whole-4, whole, column, width), rows(whole-4, whole, column+width, width)
		}
	}
	if l.ratio == 128 {
		pool(&dst.Comp, 0, d.g.HeadDim)
		return nil
	}
	pool(&dst.Comp, 0, 2*d.g.HeadDim)
	pool(&dst.Index, 4*d.g.HeadDim, 2*d.g.IndexDim)
	return nil
}

// Close implements Request.
func (q *deviceRequest) Close() error {
	q.owner.mu.Lock()
	defer q.owner.mu.Unlock()
	if !q.closed {
		q.closed = true
		if !q.owner.closed {
			q.owner.lib.requestFree(q.owner.handle, q.handle)
		}
	}
	return nil
}

// pointer makes an address that C gave usable; the memory is not Go's.
func pointer(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }
