package replay

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
)

// Synthetic is a transfer with the real shapes of a model and made-up values:
// for measuring, never for a decoder that answers people.
type Synthetic struct {
	Model  string // a name of SyntheticModels
	Tokens int    // length of the prompt
	Format string // block format; "": the newest that the model's decoder writes
	Seed   uint64 // other seeds give other token ids, hence other blocks
}

// SyntheticModels are the models whose shapes are known by name.
func SyntheticModels() []string { return []string{"deepseek-v4-flash", "qwen3-32b"} }

// syntheticSpec is the layout of a known model.
func syntheticSpec(model string) (omlx.Spec, error) {
	switch strings.ToLower(model) {
	case "deepseek-v4-flash":
		// 43 layers: two with a window only, then pools of 4 and 128 in turn.
		ratios := make([]int, 43)
		for i := 2; i < len(ratios); i++ {
			ratios[i] = 128
			if i%2 == 0 {
				ratios[i] = 4
			}
		}
		return omlx.Spec{
			Kind: omlx.KindDSV4, Model: "DeepSeek-V4-Flash", BlockTokens: 2048, Format: omlx.Format5,
			Layers: len(ratios), Ratios: ratios, HeadDim: 512, IndexHeadDim: 128, Window: 128,
		}, nil
	case "qwen3-32b":
		return omlx.Spec{
			Kind: omlx.KindKV, Model: "Qwen3-32B", BlockTokens: 256, Format: omlx.Format5,
			Layers: 64, KVHeads: 8, HeadDim: 128,
		}, nil
	}
	return omlx.Spec{}, fmt.Errorf("replay: no shapes for model %q: know %s", model, strings.Join(SyntheticModels(), ", "))
}

// Plan is the plan of the synthetic prompt.
func (y Synthetic) Plan() (omlx.Plan, error) {
	s, err := syntheticSpec(y.Model)
	if err != nil {
		return omlx.Plan{}, err
	}
	if y.Format != "" {
		s.Format = y.Format
	}
	n := s.UsableBlocks(y.Tokens)
	if n < 1 {
		return omlx.Plan{}, fmt.Errorf("replay: %d tokens are less than one block of %d", y.Tokens, s.BlockTokens)
	}
	tokens := make([]uint32, n*s.BlockTokens)
	x := y.Seed
	for i := range tokens {
		x = mix(x + 1)
		tokens[i] = uint32(x % 100_000)
	}
	return omlx.Plan{Spec: s, Tokens: tokens, Hashes: omlx.Chain(s.Model, s.BlockTokens, tokens, nil)}, nil
}

// mix is the finaliser of SplitMix64: every bit of x reaches every bit of the
// result.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// syntheticSource makes the pieces of a plan with made-up values.
type syntheticSource struct {
	layout *omlx.Layout
	blocks int
	chunk  int // blocks at a time
	layers []int
	tell   func(done, total int64)
	data   []byte
}

// NewSynthetic returns a source of made-up bytes for a plan, in an engine's
// order: chunk by chunk, in each chunk layer by layer.
func NewSynthetic(p omlx.Plan, o Options) (bridge.Source, error) {
	layout, err := omlx.NewLayout(p.Spec)
	if err != nil {
		return nil, err
	}
	chunk := o.Chunk
	if chunk == 0 {
		chunk = DefaultChunk
	}
	s := &syntheticSource{layout: layout, blocks: len(p.Hashes), tell: o.Progress}
	s.chunk = max(chunk/p.Spec.BlockTokens, 1)
	if chunk == OneShot {
		s.chunk = s.blocks
	}
	parts := max(o.Share.Parts, 1)
	largest := int64(0)
	for i := range layout.Spec().Layers {
		if i%parts == o.Share.Part {
			s.layers = append(s.layers, i)
			_, n := layout.LayerRange(i)
			largest = max(largest, n)
		}
	}
	// Small bf16 numbers, so that the blocks pass a check for finite values.
	s.data = make([]byte, 2*largest+2)
	for i, x := 0, uint64(1); i+8 <= len(s.data); i += 8 {
		x = mix(x + 1)
		binary.LittleEndian.PutUint64(s.data[i:], x&0xbfffbfffbfffbfff)
	}
	return s, nil
}

// Run implements bridge.Source.
func (s *syntheticSource) Run(ctx context.Context, to bridge.Sink) error {
	blocks := make([]int, s.blocks)
	for i := range blocks {
		blocks[i] = i
	}
	var done int64
	total := int64(s.blocks) * int64(len(s.layers))
	for chunk := range slices.Chunk(blocks, s.chunk) {
		for _, layer := range s.layers {
			off, n := s.layout.LayerRange(layer)
			for _, b := range chunk {
				from := 2 * (int64(b+layer) % (n / 2))
				if err := to.Put(ctx, b, off, s.data[from:from+n]); err != nil {
					return err
				}
			}
			done += int64(len(chunk))
			if s.tell != nil {
				s.tell(done, total)
			}
		}
		if err := to.Push(ctx); err != nil {
			return err
		}
	}
	return nil
}
