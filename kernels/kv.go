package kernels

import "fmt"

// KVLayout describes keys or values in a prefill engine's memory: token-major,
// each token a number of heads, each head a run of elements. Strides let one layout
// describe contiguous tensors as well as slices of larger ones. The bytes are only
// moved, so an element may be of any type.
type KVLayout struct {
	// Heads is the number of heads that the source holds, HeadDim the elements of one
	// head, ElemSize the bytes of one element (1, 2, 4 or 8).
	Heads, HeadDim, ElemSize int
	// TokenStride and HeadStride are the bytes from one token, or one head of a token, to
	// the next; 0 means contiguous. They must not let two runs overlap.
	TokenStride, HeadStride int
	// FirstHead and EndHead select the heads [FirstHead, EndHead) of the source; both 0
	// means all.
	FirstHead, EndHead int
}

// The largest plausible values; they keep every product inside int64.
const (
	maxHeads  = 1 << 14
	maxStride = 1 << 30
	maxTokens = 1 << 27
)

// normal returns the layout with its defaults filled in, or ErrKVLayout.
func (l KVLayout) normal() (KVLayout, error) {
	switch {
	case l.Heads < 1 || l.Heads > maxHeads || l.HeadDim < 1 || l.HeadDim > maxHidden:
		return l, fmt.Errorf("%w: %d heads of %d elements", ErrKVLayout, l.Heads, l.HeadDim)
	case l.ElemSize != 1 && l.ElemSize != 2 && l.ElemSize != 4 && l.ElemSize != 8:
		return l, fmt.Errorf("%w: elements of %d bytes, want 1, 2, 4 or 8", ErrKVLayout, l.ElemSize)
	}
	run := l.HeadDim * l.ElemSize
	if l.HeadStride == 0 {
		l.HeadStride = run
	}
	if l.TokenStride == 0 {
		l.TokenStride = l.Heads * l.HeadStride
	}
	if l.FirstHead == 0 && l.EndHead == 0 {
		l.EndHead = l.Heads
	}
	switch {
	case l.HeadStride < run || l.HeadStride > maxStride || l.TokenStride < run || l.TokenStride > maxStride:
		return l, fmt.Errorf("%w: strides of %d bytes a token and %d a head for runs of %d", ErrKVLayout, l.TokenStride, l.HeadStride, run)
	case l.FirstHead < 0 || l.EndHead > l.Heads || l.FirstHead >= l.EndHead:
		return l, fmt.Errorf("%w: heads [%d, %d) of %d", ErrKVLayout, l.FirstHead, l.EndHead, l.Heads)
	}
	return l, nil
}

// BlockRange returns where the selected heads lie inside a block's tensor [Heads,
// tokens, HeadDim]: byte offset and length. This is what one of several
// tensor-parallel ranks writes if Heads counts the heads of all ranks; a rank whose
// source holds only its own heads adds its share to the offset.
func (l KVLayout) BlockRange(tokens int) (offset, length int, err error) {
	l, err = l.normal()
	if err != nil {
		return 0, 0, err
	}
	if tokens < 0 || tokens > maxTokens {
		return 0, 0, fmt.Errorf("%w: %d tokens", ErrKVLayout, tokens)
	}
	head := tokens * l.HeadDim * l.ElemSize
	return l.FirstHead * head, (l.EndHead - l.FirstHead) * head, nil
}

// GatherKV copies the selected heads of the tokens [firstToken, firstToken+tokens)
// from src, laid out as l says, to dst in the decoder's block order [heads, tokens, HeadDim].
// len(dst) must be exactly that size. src and dst must not overlap. It allocates
// nothing and may run concurrently on different dst.
//
// It fails with ErrKVLayout, before a byte is written, if the layout is not sound or
// the bytes do not lie in src.
func GatherKV(dst, src []byte, layout KVLayout, firstToken, tokens int) error {
	l, err := layout.normal()
	if err != nil {
		return err
	}
	if tokens < 0 || tokens > maxTokens || firstToken < 0 || firstToken > maxTokens {
		return fmt.Errorf("%w: %d tokens from %d on", ErrKVLayout, tokens, firstToken)
	}
	run := l.HeadDim * l.ElemSize
	heads := l.EndHead - l.FirstHead
	if len(dst) != heads*tokens*run {
		return fmt.Errorf("%w: destination has %d bytes, want %d heads × %d tokens × %d", ErrKVLayout, len(dst), heads, tokens, run)
	}
	if tokens == 0 {
		return nil
	}
	if end := (firstToken+tokens-1)*l.TokenStride + (l.EndHead-1)*l.HeadStride + run; end > len(src) {
		return fmt.Errorf("%w: tokens [%d, %d) end at byte %d of a source of %d", ErrKVLayout, firstToken, firstToken+tokens, end, len(src))
	}
	src = src[firstToken*l.TokenStride+l.FirstHead*l.HeadStride:]
	for t := 0; t < tokens; t += gatherTileTokens {
		n := min(gatherTileTokens, tokens-t)
		for h := range heads {
			from := src[t*l.TokenStride+h*l.HeadStride:]
			to := dst[(h*tokens+t)*run : (h*tokens+t+n)*run]
			for i := range n {
				copy(to[i*run:(i+1)*run], from[i*l.TokenStride:])
			}
		}
	}
	return nil
}
