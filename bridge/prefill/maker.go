package prefill

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"pdlink/bridge"
	"pdlink/bridge/facts"
	"pdlink/bridge/omlx"
	"pdlink/kernels"
)

// weights are the projection's, by layer, read when they are first needed. A layer that
// is read again has to be what it was: what was told of it, and what made earlier blocks,
// is the hash of these bytes. It may be used concurrently.
type weights struct {
	p      *Projection
	facts  func() (*facts.Projection, error) // computed once, of all layers
	mu     sync.Mutex                        // guards layers and hashes
	layers map[int]kernels.LayerWeights      // that are in use
	hashes map[int]string                    // of those that were read once
}

// newWeights returns nil for no projection.
func newWeights(p *Projection) *weights {
	if p == nil || p.Weights == nil {
		return nil
	}
	w := &weights{p: p, layers: make(map[int]kernels.LayerWeights), hashes: make(map[int]string)}
	w.facts = sync.OnceValues(func() (*facts.Projection, error) { return factsOf(p.Geometry, w.hash) })
	return w
}

// hash fingerprints a layer: what is in use of it, else what the file has, which is not
// kept, for a host that serves some of the layers holds only those.
func (w *weights) hash(layer int) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h, ok := w.hashes[layer]; ok {
		return h, nil
	}
	_, h, err := w.read(layer)
	return h, err
}

// read reads a layer. It is called with w.mu held.
func (w *weights) read(layer int) (kernels.LayerWeights, string, error) {
	lw, err := w.p.Weights.Layer(layer)
	if err != nil {
		return lw, "", err
	}
	h := layerHash(w.p.Geometry, layer, lw)
	if was, ok := w.hashes[layer]; ok && was != h {
		return lw, "", fmt.Errorf("%w: layer %d is %s and was %s: the file was written to while it was in use: put the weights back as they were, or start pdlink prefill again with them", errChanged, layer, h, was)
	}
	w.hashes[layer] = h
	return lw, h, nil
}

// fits reports whether the weights are for blocks of a spec.
func (w *weights) fits(s omlx.Spec) bool {
	g := &w.p.Geometry
	return slices.Equal(g.Ratios, s.Ratios) && g.HeadDim == s.HeadDim && g.Window == s.Window &&
		(g.IndexDim == s.IndexHeadDim || !slices.Contains(s.Ratios, 4))
}

// engine makes the kernels of a layer for one transfer.
func (w *weights) engine(layer, blockTokens int) (*kernels.Layer, error) {
	w.mu.Lock()
	lw, ok := w.layers[layer]
	if !ok {
		var err error
		if lw, _, err = w.read(layer); err != nil {
			w.mu.Unlock()
			return nil, err
		}
		w.layers[layer] = lw
	}
	w.mu.Unlock()
	return kernels.NewLayer(w.p.Geometry, layer, lw, w.p.Numerics, blockTokens, w.p.Workers)
}

// maker makes pieces of blocks of an engine's rows. It belongs to one goroutine.
type maker struct {
	t    *Transfer
	to   bridge.Sink
	spec omlx.Spec

	engines map[uint32]*kernels.Layer // of DeepSeek-V4
	x       []uint16                  // scratch: a run of rows as bf16 patterns
	out     kernels.Output
	enc     []byte // scratch: pieces in the files' order
}

func newMaker(t *Transfer, to bridge.Sink) *maker {
	return &maker{t: t, to: to, spec: t.job.Layout.Spec(), engines: make(map[uint32]*kernels.Layer)}
}

// rows takes consecutive tokens of one layer.
func (m *maker) rows(ctx context.Context, x rows, data []byte) error {
	if m.spec.Kind == omlx.KindDSV4 {
		return m.project(ctx, x, data)
	}
	return m.gather(ctx, x, data)
}

// gather moves keys or values to where their heads lie in the blocks.
func (m *maker) gather(ctx context.Context, x rows, data []byte) error {
	a := omlx.K
	if x.What == whatV {
		a = omlx.V
	}
	w, ok := m.t.job.Layout.Wire(int(x.Layer), a)
	if !ok {
		return fmt.Errorf("%w: layout has no %v", ErrJob, a)
	}
	heads := int(x.Heads.End - x.Heads.First)
	run := int(w.RowBytes)
	kv := kernels.KVLayout{Heads: heads, HeadDim: m.spec.HeadDim, ElemSize: run / m.spec.HeadDim}
	first, end := int(x.First), min(int(x.First+x.Tokens), m.t.to)
	for at := first; at < end; {
		b := at / m.spec.BlockTokens
		n := min((b+1)*m.spec.BlockTokens, end) - at
		if m.to.Wants(b) {
			m.enc = sized(m.enc, heads*n*run)
			if err := kernels.GatherKV(m.enc, data, kv, at-first, n); err != nil {
				return err
			}
			if err := m.heads(ctx, b, w.Off, x.Heads, at-b*m.spec.BlockTokens, n, run); err != nil {
				return err
			}
		}
		at += n
	}
	return nil
}

// heads sends n gathered tokens of a block from token skip of it on: all heads at
// once when the tokens are all of the block's, else the part of each.
func (m *maker) heads(ctx context.Context, block int, tensor int64, heads span, skip, n, run int) error {
	head := int64(m.spec.BlockTokens) * int64(run)
	off := tensor + int64(heads.First)*head
	if n == m.spec.BlockTokens {
		return m.to.Put(ctx, block, off, m.enc)
	}
	for h := range int(heads.End - heads.First) {
		at := off + int64(h)*head + int64(skip)*int64(run)
		if err := m.to.Put(ctx, block, at, m.enc[h*n*run:(h+1)*n*run]); err != nil {
			return err
		}
	}
	return nil
}

// project feeds attention inputs to a layer's kernels and sends what they
// complete. Rows that came before are left out; behind a gap nothing can be made.
func (m *maker) project(ctx context.Context, x rows, data []byte) error {
	e := m.engines[x.Layer]
	if e == nil {
		var err error
		if e, err = m.t.s.weights.engine(int(x.Layer), m.spec.BlockTokens); err != nil {
			return err
		}
		m.engines[x.Layer] = e
	}
	first, end := int(x.First), min(int(x.First+x.Tokens), m.t.to)
	pos := e.Pos()
	switch {
	case end <= pos:
		return nil
	case first > pos:
		m.t.sealAt(uint32(pos/m.spec.BlockTokens), codePlan)
		return nil
	}
	row := len(data) / int(x.Tokens)
	data = data[(pos-first)*row : (end-first)*row]
	if cap(m.x) < len(data)/2 {
		m.x = make([]uint16, len(data)/2)
	}
	m.x = m.x[:len(data)/2]
	for i := range m.x {
		m.x[i] = binary.LittleEndian.Uint16(data[2*i:])
	}
	if err := e.Feed(m.x, &m.out); err != nil {
		return err
	}
	return m.emit(ctx, int(x.Layer))
}

// emit sends what the last Feed completed.
func (m *maker) emit(ctx context.Context, layer int) error {
	if err := m.pooled(ctx, layer, omlx.Pooled, m.out.Pooled); err != nil {
		return err
	}
	if err := m.pooled(ctx, layer, omlx.IdxPooled, m.out.Index); err != nil {
		return err
	}
	for i := range m.out.Boundaries {
		b := &m.out.Boundaries[i]
		block := b.Pos/m.spec.BlockTokens - 1
		if !m.to.Wants(block) {
			continue
		}
		for _, p := range [...]struct {
			array omlx.Array
			data  []uint16
		}{
			{omlx.Window, b.Win},
			{omlx.PrevKV, b.Comp.PrevKV}, {omlx.PrevGate, b.Comp.PrevGate},
			{omlx.IdxPrevKV, b.Index.PrevKV}, {omlx.IdxPrevGate, b.Index.PrevGate},
		} {
			w, ok := m.t.job.Layout.Wire(layer, p.array)
			if !ok {
				continue
			}
			if int64(2*len(p.data)) != w.Size {
				return fmt.Errorf("%w: %v of %d bytes at block %d, the layout has %d", ErrJob, p.array, 2*len(p.data), block, w.Size)
			}
			if err := m.to.Put(ctx, block, w.Off, m.encode(p.data)); err != nil {
				return err
			}
		}
	}
	return nil
}

// pooled sends pooled rows, each to the block whose tokens it pools.
func (m *maker) pooled(ctx context.Context, layer int, a omlx.Array, r kernels.Rows) error {
	w, ok := m.t.job.Layout.Wire(layer, a)
	if !ok {
		return nil
	}
	for at := 0; at < r.Count(); {
		row := r.First + at
		block, in := row/w.Rows, row%w.Rows
		n := min(w.Rows-in, r.Count()-at)
		if m.to.Wants(block) {
			if err := m.to.Put(ctx, block, w.Off+int64(in)*w.RowBytes, m.encode(r.Data[at*r.Dim:(at+n)*r.Dim])); err != nil {
				return err
			}
		}
		at += n
	}
	return nil
}

// encode returns bf16 patterns in the files' byte order, valid until the next call.
func (m *maker) encode(data []uint16) []byte {
	m.enc = sized(m.enc, 2*len(data))
	for i, v := range data {
		binary.LittleEndian.PutUint16(m.enc[2*i:], v)
	}
	return m.enc
}

// sized returns a slice of n bytes, reusing b where it is large enough.
func sized(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
