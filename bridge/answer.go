package bridge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"pdlink/transport"
)

// Span is a run of blocks: First, First+1, … First+Count-1.
type Span struct {
	First uint32 `json:"first"`
	Count uint32 `json:"count"`
}

// Held is what a receiver has of a block that is not visible yet: disjoint ranges
// of the block's data, in order. It travels as an array: the block, then for each
// range how many bytes lie between it and the one before, and its length.
type Held struct {
	Block  uint32
	Ranges []transport.Range
}

// MarshalJSON implements json.Marshaler.
func (h Held) MarshalJSON() ([]byte, error) {
	b := fmt.Appendf(nil, "[%d", h.Block)
	at := uint64(0)
	for _, r := range h.Ranges {
		b = fmt.Appendf(b, ",%d,%d", r.Begin-at, r.End-r.Begin)
		at = r.End
	}
	return append(b, ']'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (h *Held) UnmarshalJSON(b []byte) error {
	var n []uint64
	if err := json.Unmarshal(b, &n); err != nil {
		return err
	}
	if len(n)%2 == 0 || n[0] >= MaxBlocks {
		return fmt.Errorf("held ranges of %d numbers", len(n))
	}
	h.Block, h.Ranges = uint32(n[0]), make([]transport.Range, 0, len(n)/2)
	at := uint64(0)
	for i := 1; i < len(n); i += 2 {
		if n[i] > MaxBlockBytes || n[i+1] < 1 || n[i+1] > MaxBlockBytes {
			return fmt.Errorf("held range of %d bytes after %d others", n[i+1], n[i])
		}
		r := transport.Range{Begin: at + n[i], End: at + n[i] + n[i+1]}
		h.Ranges = append(h.Ranges, r)
		at = r.End
	}
	return nil
}

// Answer is what a receiver tells a sender when it admits a transfer. It
// travels as JSON.
type Answer struct {
	Blocks     int    `json:"blocks"`      // blocks of the plan
	BlockBytes int64  `json:"block_bytes"` // bytes of each block's data
	Present    []Span `json:"present,omitempty"`

	// Held is what need not be sent of blocks that are not visible. It may be
	// less than the receiver has, and each block is in it once.
	Held []Held `json:"held,omitempty"`
}

// encode is the answer in at most limit bytes, if leaving out what is held makes
// that possible: the smallest ranges first, which cost as much as large ones.
func (a Answer) encode(limit int) ([]byte, error) {
	for {
		n := a.heldRanges()
		if n <= maxHeld {
			b, err := json.Marshal(a)
			if err != nil || n == 0 || len(b) <= limit {
				return b, err
			}
		}
		a.Held = coarser(a.Held, min(n/2, maxHeld))
	}
}

func (a Answer) heldRanges() (n int) {
	for _, h := range a.Held {
		n += len(h.Ranges)
	}
	return n
}

// coarser keeps the n largest ranges.
func coarser(held []Held, n int) []Held {
	var sizes []uint64
	for _, h := range held {
		for _, r := range h.Ranges {
			sizes = append(sizes, r.End-r.Begin)
		}
	}
	slices.Sort(sizes)
	if n < 1 || n >= len(sizes) {
		return nil
	}
	least := sizes[len(sizes)-n]
	equal := n // how many of exactly the least size there is room for
	for _, s := range sizes {
		if s > least {
			equal--
		}
	}
	var out []Held
	for _, h := range held {
		kept := Held{Block: h.Block}
		for _, r := range h.Ranges {
			switch size := r.End - r.Begin; {
			case size == least && equal > 0:
				equal--
				kept.Ranges = append(kept.Ranges, r)
			case size > least:
				kept.Ranges = append(kept.Ranges, r)
			}
		}
		if len(kept.Ranges) > 0 {
			out = append(out, kept)
		}
	}
	return out
}

func parseAnswer(b []byte) (Answer, error) {
	var a Answer
	// Every number costs memory that its text does not pay for.
	if n := bytes.Count(b, []byte{','}); n > maxNumbers {
		return a, fmt.Errorf("%w: %d numbers, limit %d", ErrAnswer, n, maxNumbers)
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	if a.Blocks < 0 || a.Blocks > MaxBlocks || a.BlockBytes < 0 {
		return a, fmt.Errorf("%w: %d blocks of %d bytes", ErrAnswer, a.Blocks, a.BlockBytes)
	}
	if len(a.Present) > MaxBlocks || len(a.Held) > a.Blocks {
		return a, fmt.Errorf("%w: %d runs of present blocks, parts of %d blocks held", ErrAnswer, len(a.Present), len(a.Held))
	}
	for _, s := range a.Present {
		if uint64(s.First)+uint64(s.Count) > uint64(a.Blocks) {
			return a, fmt.Errorf("%w: present blocks %d+%d of %d", ErrAnswer, s.First, s.Count, a.Blocks)
		}
	}
	for _, h := range a.Held {
		n := len(h.Ranges)
		if int64(h.Block) >= int64(a.Blocks) || n > 0 && h.Ranges[n-1].End > uint64(a.BlockBytes) {
			return a, fmt.Errorf("%w: ranges of block %d are held, there are %d blocks of %d bytes", ErrAnswer, h.Block, a.Blocks, a.BlockBytes)
		}
	}
	return a, nil
}

// visible is how many bytes are there for good.
func (a Answer) visible() (n uint64) {
	for _, s := range a.Present {
		n += uint64(s.Count) * uint64(a.BlockBytes)
	}
	return n
}

// bytes is how many bytes are there in all.
func (a Answer) bytes() uint64 {
	n := a.visible()
	for _, h := range a.Held {
		for _, r := range h.Ranges {
			n += r.End - r.Begin
		}
	}
	return n
}

func spans(present []bool) []Span {
	var out []Span
	for i, p := range present {
		if !p {
			continue
		}
		if n := len(out); n > 0 && out[n-1].First+out[n-1].Count == uint32(i) {
			out[n-1].Count++
			continue
		}
		out = append(out, Span{First: uint32(i), Count: 1})
	}
	return out
}
