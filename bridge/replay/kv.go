package replay

import (
	"context"
	"fmt"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/kernels"
	"pdlink/kernels/safetensors"
)

// kvSource gathers plain keys and values into block order.
type kvSource struct {
	cursor
	rows, block []byte // scratch: a chunk of a layer's capture, a block's tensor
}

// Run implements bridge.Source.
func (s *kvSource) Run(ctx context.Context, to bridge.Sink) error {
	if !s.wanted(to) {
		return nil
	}
	f, err := s.c.openCapture()
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read only
	return s.walk(ctx, to, func(layer, at, n int) error {
		for _, part := range []struct {
			name  string
			array omlx.Array
		}{{"k", omlx.K}, {"v", omlx.V}} {
			if err := s.layer(ctx, to, f, fmt.Sprintf("layer_%d.%s", layer, part.name), layer, part.array, at, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// check looks for the tensors of the source's layers.
func (s *kvSource) check(f *safetensors.File) error {
	for _, layer := range s.layers {
		for _, part := range []string{"k", "v"} {
			if _, err := s.tensor(f, fmt.Sprintf("layer_%d.%s", layer, part)); err != nil {
				return err
			}
		}
	}
	return nil
}

// tensor finds keys or values of a layer.
func (s *kvSource) tensor(f *safetensors.File, name string) (safetensors.Tensor, error) {
	spec := s.layout.Spec()
	return s.c.captured(f, name, safetensors.DType(spec.DType), int64(spec.KVHeads), int64(spec.HeadDim))
}

// layer sends the tokens [at, at+n) of one tensor.
func (s *kvSource) layer(ctx context.Context, to bridge.Sink, f *safetensors.File, name string, layer int, a omlx.Array, at, n int) error {
	spec := s.layout.Spec()
	t, err := s.tensor(f, name)
	if err != nil {
		return err
	}
	wire, ok := s.layout.Wire(layer, a)
	if !ok {
		return fmt.Errorf("%w: layout has no array for %s", ErrCase, name)
	}
	kv := kernels.KVLayout{Heads: spec.KVHeads, HeadDim: spec.HeadDim, ElemSize: int(t.DType.Size())}
	row := kv.Heads * kv.HeadDim * kv.ElemSize
	s.rows = sized(s.rows, n*row)
	if _, err := f.ReadAt(s.rows, t.Begin+int64(at)*int64(row)); err != nil {
		return fmt.Errorf("%w: read %s: %w", ErrCase, name, err)
	}
	for first := at; first < at+n; {
		b := first / spec.BlockTokens
		end := min((b+1)*spec.BlockTokens, at+n)
		if to.Wants(b) {
			if err := s.tokens(ctx, to, kv, wire.Off, b, first, end-first, s.rows[(first-at)*row:(end-at)*row]); err != nil {
				return err
			}
		}
		first = end
	}
	return nil
}

// tokens sends n tokens of one block's tensor, whose rows start with src: all
// heads at once when the block is whole, else the part of each head.
func (s *kvSource) tokens(ctx context.Context, to bridge.Sink, kv kernels.KVLayout, tensor int64, block, first, n int, src []byte) error {
	run := kv.HeadDim * kv.ElemSize
	bs := s.layout.Spec().BlockTokens
	s.block = sized(s.block, kv.Heads*n*run)
	if err := kernels.GatherKV(s.block, src, kv, 0, n); err != nil {
		return err
	}
	if n == bs {
		return to.Put(ctx, block, tensor, s.block)
	}
	skip := int64(first-block*bs) * int64(run)
	for h := range kv.Heads {
		off := tensor + int64(h)*int64(bs)*int64(run) + skip
		if err := to.Put(ctx, block, off, s.block[h*n*run:(h+1)*n*run]); err != nil {
			return err
		}
	}
	return nil
}

// sized returns a slice of n bytes, reusing b where it is large enough.
func sized(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
