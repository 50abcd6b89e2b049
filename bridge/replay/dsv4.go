package replay

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/kernels"
	"pdlink/kernels/safetensors"
)

// dsv4Source projects DeepSeek-V4's attention input into the decoder's cache.
type dsv4Source struct {
	cursor
	profile kernels.Numerics
	workers int

	raw []byte         // scratch: a chunk of a layer's input
	x   []uint16       // the same as bf16 patterns
	out kernels.Output // what the layer made of it
	enc []byte         // scratch: rows as little-endian bytes
}

// Run implements bridge.Source.
func (s *dsv4Source) Run(ctx context.Context, to bridge.Sink) error {
	if !s.wanted(to) {
		return nil
	}
	f, err := s.c.openCapture()
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read only
	engines, err := s.engines()
	if err != nil {
		return err
	}
	return s.walk(ctx, to, func(layer, at, n int) error {
		if err := s.read(f, layer, at, n); err != nil {
			return err
		}
		if err := engines[layer].Feed(s.x, &s.out); err != nil {
			return fmt.Errorf("project layer %d from token %d on: %w", layer, at, err)
		}
		return s.emit(ctx, to, layer)
	})
}

// engines makes a fresh engine for each layer of the share.
func (s *dsv4Source) engines() (map[int]*kernels.Layer, error) {
	w, err := s.openWeights()
	if err != nil {
		return nil, err
	}
	defer w.Close() //nolint:errcheck // read only
	engines := make(map[int]*kernels.Layer, len(s.layers))
	for _, i := range s.layers {
		lw, err := w.Layer(i)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCase, err)
		}
		if engines[i], err = kernels.NewLayer(s.c.geometry, i, lw, s.profile, s.layout.Spec().BlockTokens, s.workers); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return engines, nil
}

// check looks for the inputs of the source's layers and for the weights.
func (s *dsv4Source) check(f *safetensors.File) error {
	for _, layer := range s.layers {
		if _, err := s.input(f, layer); err != nil {
			return err
		}
	}
	w, err := s.openWeights()
	if err != nil {
		return err
	}
	return w.Close()
}

func (s *dsv4Source) openWeights() (*kernels.Weights, error) {
	w, err := kernels.OpenWeights(filepath.Join(s.c.Dir, "weights.safetensors"), s.c.geometry)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCase, err)
	}
	return w, nil
}

// input finds what a layer's attention was given.
func (s *dsv4Source) input(f *safetensors.File, layer int) (safetensors.Tensor, error) {
	return s.c.captured(f, fmt.Sprintf("layer_%d.x", layer), safetensors.BF16, int64(s.c.geometry.Hidden))
}

// read takes the tokens [at, at+n) of a layer's input from the capture.
func (s *dsv4Source) read(f *safetensors.File, layer, at, n int) error {
	hidden := s.c.geometry.Hidden
	t, err := s.input(f, layer)
	if err != nil {
		return err
	}
	s.raw = sized(s.raw, 2*n*hidden)
	if _, err := f.ReadAt(s.raw, t.Begin+int64(at)*int64(2*hidden)); err != nil {
		return fmt.Errorf("%w: read %s: %w", ErrCase, t.Name, err)
	}
	if cap(s.x) < n*hidden {
		s.x = make([]uint16, n*hidden)
	}
	s.x = s.x[:n*hidden]
	for i := range s.x {
		s.x[i] = binary.LittleEndian.Uint16(s.raw[2*i:])
	}
	return nil
}

// emit sends what the last Feed completed.
func (s *dsv4Source) emit(ctx context.Context, to bridge.Sink, layer int) error {
	if err := s.rows(ctx, to, layer, omlx.Pooled, s.out.Pooled); err != nil {
		return err
	}
	if err := s.rows(ctx, to, layer, omlx.IdxPooled, s.out.Index); err != nil {
		return err
	}
	for i := range s.out.Boundaries {
		b := &s.out.Boundaries[i]
		block := b.Pos/s.layout.Spec().BlockTokens - 1
		if !to.Wants(block) {
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
			if err := s.array(ctx, to, block, layer, p.array, p.data); err != nil {
				return err
			}
		}
	}
	return nil
}

// rows sends pooled rows, each to the block whose tokens it pools.
func (s *dsv4Source) rows(ctx context.Context, to bridge.Sink, layer int, a omlx.Array, r kernels.Rows) error {
	t, ok := s.layout.Wire(layer, a)
	if !ok || r.Count() == 0 {
		return nil
	}
	for at := 0; at < r.Count(); {
		row := r.First + at
		block, in := row/t.Rows, row%t.Rows
		n := min(t.Rows-in, r.Count()-at)
		if to.Wants(block) {
			s.encode(r.Data[at*r.Dim : (at+n)*r.Dim])
			if err := to.Put(ctx, block, t.Off+int64(in)*t.RowBytes, s.enc); err != nil {
				return err
			}
		}
		at += n
	}
	return nil
}

// array sends one whole array of a block; layouts with three-element pool states
// have no previous rows.
func (s *dsv4Source) array(ctx context.Context, to bridge.Sink, block, layer int, a omlx.Array, data []uint16) error {
	t, ok := s.layout.Wire(layer, a)
	if !ok {
		return nil
	}
	if int64(2*len(data)) != t.Size {
		return fmt.Errorf("replay: layer %d: array of %d bytes at block %d, the layout has %d", layer, 2*len(data), block, t.Size)
	}
	s.encode(data)
	return to.Put(ctx, block, t.Off, s.enc)
}

// encode writes bf16 patterns to s.enc in the files' byte order.
func (s *dsv4Source) encode(data []uint16) {
	s.enc = sized(s.enc, 2*len(data))
	for i, v := range data {
		binary.LittleEndian.PutUint16(s.enc[2*i:], v)
	}
}
