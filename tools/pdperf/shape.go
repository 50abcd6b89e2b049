package main

import (
	"fmt"
	"math/bits"
	"strings"

	"pdlink/bridge/omlx"
	"pdlink/bridge/replay"
)

// segment is bytes of a block that lie in one frame.
type segment struct {
	block  uint32 // of the group
	offset uint64
	n      int
}

// shape is what a sender sends again and again: a group of blocks, frame by frame.
type shape struct {
	model       string // "": blocks of one size, each by itself
	blockBytes  uint64
	blockTokens int // 0 without a model
	group       int // blocks that are made together
	frames      [][]segment
}

// plainShape is a block of so many bytes in frames of at most so many.
func plainShape(block, frame int64) shape {
	s := shape{blockBytes: uint64(block), group: 1, frames: make([][]segment, 0, (block+frame-1)/frame)}
	for at := int64(0); at < block; at += frame {
		s.frames = append(s.frames, []segment{{0, uint64(at), int(min(frame, block-at))}})
	}
	return s
}

// What is sent together: the blocks of so many tokens, which an engine reads at a time by
// default, but no more than so many bytes of them, since what is under way has to fit a
// ring several times.
const (
	chunkTokens = 8192
	chunkBytes  = 128 << 20
)

// modelShape is the blocks of a chunk of a model's prompt as the decoder's store has
// them: layer by layer, in each layer block by block, pieces of one layer together in a
// frame as far as they fit, as an engine commits them.
func modelShape(model string, frame int64) (shape, error) {
	p, err := replay.Synthetic{Model: model, Tokens: chunkTokens + 1}.Plan() // the last token is never of a block
	if err != nil {
		return shape{}, fmt.Errorf("--model %q: want one of %s", model, strings.Join(replay.SyntheticModels(), ", "))
	}
	layout, err := omlx.NewLayout(p.Spec)
	if err != nil {
		return shape{}, fmt.Errorf("--model %s: %w", model, err)
	}
	s := shape{model: model, blockBytes: uint64(layout.WireSize()), blockTokens: p.Spec.BlockTokens, group: len(p.Hashes)}
	s.group = max(1, min(s.group, int(chunkBytes/s.blockBytes)))
	for layer := range p.Spec.Layers {
		off, n := layout.LayerRange(layer)
		s.layer(uint64(off), n, frame)
	}
	return s, nil
}

// layer adds a layer's piece of each block.
func (s *shape) layer(off uint64, n, frame int64) {
	var open []segment
	room := frame
	flush := func() {
		if len(open) > 0 {
			s.frames = append(s.frames, open)
		}
		open, room = nil, frame
	}
	for b := range s.group {
		for at := int64(0); at < n; {
			if left := n - at; left > room && room < frame {
				flush()
			}
			k := min(n-at, room)
			open = append(open, segment{uint32(b), off + uint64(at), int(k)})
			at, room = at+k, room-k
			if room == 0 {
				flush()
			}
		}
	}
	flush()
}

// bytes is the payload of a group.
func (s *shape) bytes() uint64 {
	hi, n := bits.Mul64(s.blockBytes, uint64(s.group))
	if hi != 0 {
		return 1<<64 - 1
	}
	return n
}

// text is the shape for people.
func (s *shape) text() string {
	if s.model != "" {
		return s.model
	}
	return sizeText(int64(s.blockBytes))
}
