package omlx

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// Kind names transfers whose meta is a Plan in its binary form and whose blocks go into an
// oMLX store.
const Kind = "omlx"

// Plan names the blocks of one prompt. It is what the two ends of a transfer
// must agree about before any byte of a block moves.
type Plan struct {
	// Spec is the layout of every block.
	Spec Spec
	// Tokens are the prompt's token ids, optional. If given there must be at
	// least one block's worth for each hash; the rest is ignored.
	Tokens []uint32
	// Hashes are the blocks in chain order, from the first block of the prompt.
	Hashes []Hash
	// CreatedAt is the text for created_at; the time of Begin if empty.
	CreatedAt string
}

// planMagic begins a binary plan; its last byte is the version.
const planMagic = "pdplan\x00\x01"

// maxPlanBytes bounds a binary plan: tokens take at most five bytes each, and
// the ids of real vocabularies three.
const maxPlanBytes = len(planMagic) + maxSpecBytes + 64 + maxBlocks*HashSize + 5*maxTokens

// Check verifies the plan: limits, layout, no hash twice and, when tokens are
// given, every hash against its tokens. It returns the layout.
//
// The error is ErrPlan with the reason.
func (p *Plan) Check() (*Layout, error) {
	l, err := NewLayout(p.Spec)
	if err != nil {
		return nil, err
	}
	n := len(p.Hashes)
	switch {
	case n < 1 || n > maxBlocks:
		return nil, fmt.Errorf("%w: %d blocks are not in 1..%d", ErrPlan, n, maxBlocks)
	case len(p.Tokens) > maxTokens:
		return nil, fmt.Errorf("%w: %d tokens, limit %d", ErrPlan, len(p.Tokens), maxTokens)
	case p.CreatedAt != "" && !validCreatedAt(p.CreatedAt):
		return nil, fmt.Errorf("%w: created_at %q is not the text of a float", ErrPlan, p.CreatedAt)
	case l.DataLen(n-1) > maxBlockBytes:
		return nil, fmt.Errorf("%w: cumulative block %d needs %d bytes, limit %d", ErrPlan, n-1, l.DataLen(n-1), int64(maxBlockBytes))
	}
	seen := make(map[Hash]int, n)
	for k, h := range p.Hashes {
		if first, dup := seen[h]; dup {
			return nil, fmt.Errorf("%w: blocks %d and %d have the same hash", ErrPlan, first, k)
		}
		seen[h] = k
	}
	if p.Tokens == nil {
		return l, nil
	}
	need := n * p.Spec.BlockTokens
	if len(p.Tokens) < need {
		return nil, fmt.Errorf("%w: %d tokens for %d blocks of %d", ErrPlan, len(p.Tokens), n, p.Spec.BlockTokens)
	}
	own := Chain(p.Spec.Model, p.Spec.BlockTokens, p.Tokens[:need], p.Spec.Options.ExtraKeys)
	for k := range own {
		if own[k] != p.Hashes[k] {
			return nil, fmt.Errorf("%w: block %d is %s, its tokens hash to %s", ErrPlan, k, p.Hashes[k], own[k])
		}
	}
	return l, nil
}

// MarshalBinary returns the compact form: magic, the spec as JSON, created_at,
// the hashes and the tokens, each with its length in front. One million tokens
// take 2 to 3 MB.
func (p *Plan) MarshalBinary() ([]byte, error) {
	spec, err := json.Marshal(&p.Spec)
	if err != nil {
		return nil, fmt.Errorf("encode plan: %w", err)
	}
	out := make([]byte, 0, len(planMagic)+len(spec)+len(p.CreatedAt)+HashSize*len(p.Hashes)+3*len(p.Tokens)+32)
	out = append(out, planMagic...)
	out = binary.AppendUvarint(out, uint64(len(spec)))
	out = append(out, spec...)
	out = binary.AppendUvarint(out, uint64(len(p.CreatedAt)))
	out = append(out, p.CreatedAt...)
	out = binary.AppendUvarint(out, uint64(len(p.Hashes)))
	for i := range p.Hashes {
		out = append(out, p.Hashes[i][:]...)
	}
	out = binary.AppendUvarint(out, uint64(len(p.Tokens)))
	for _, t := range p.Tokens {
		out = binary.AppendUvarint(out, uint64(t))
	}
	return out, nil
}

// UnmarshalBinary reads what MarshalBinary wrote. It bounds everything by the
// limits of a plan and by the bytes that are there, and refuses trailing bytes,
// unknown fields of the spec and anything else with ErrPlan. It does not Check
// the plan. The plan keeps no reference to data.
func (p *Plan) UnmarshalBinary(data []byte) error {
	d := planDecoder{data: data}
	if len(data) > maxPlanBytes {
		return fmt.Errorf("%w: %d bytes, limit %d", ErrPlan, len(data), maxPlanBytes)
	}
	if string(d.take(len(planMagic))) != planMagic {
		return fmt.Errorf("%w: not a plan of this version", ErrPlan)
	}
	var out Plan
	spec := d.take(d.count("spec", maxSpecBytes, 1))
	out.CreatedAt = string(d.take(d.count("created_at", 32, 1)))
	if n := d.count("hashes", maxBlocks, HashSize); n > 0 {
		out.Hashes = make([]Hash, n)
		for i := range out.Hashes {
			copy(out.Hashes[i][:], d.take(HashSize))
		}
	}
	if n := d.count("tokens", maxTokens, 1); n > 0 {
		out.Tokens = make([]uint32, n)
		for i := range out.Tokens {
			out.Tokens[i] = uint32(d.uvarint(1<<32 - 1))
		}
	}
	if d.err == nil && len(d.data) > 0 {
		d.fail("%d bytes after the end", len(d.data))
	}
	if d.err != nil {
		return d.err
	}
	if err := decodeSpec(spec, &out.Spec); err != nil {
		return fmt.Errorf("%w: spec: %w", ErrPlan, err)
	}
	*p = out
	return nil
}

// decodeSpec reads one JSON object with known fields only.
func decodeSpec(data []byte, s *Spec) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(s); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("text after the object")
	}
	return nil
}

// planDecoder takes fields from a binary plan; after an error it yields zeros.
type planDecoder struct {
	data []byte
	err  error
}

func (d *planDecoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: "+format, slices.Insert(args, 0, any(ErrPlan))...)
	}
	d.data = nil
}

func (d *planDecoder) take(n int) []byte {
	if n > len(d.data) {
		d.fail("cut short")
		return nil
	}
	out := d.data[:n]
	d.data = d.data[n:]
	return out
}

func (d *planDecoder) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(d.data)
	if n <= 0 || v > limit {
		d.fail("bad number")
		return 0
	}
	d.data = d.data[n:]
	return v
}

// count reads a number of items of at least size bytes each.
func (d *planDecoder) count(what string, limit, size int) int {
	n := d.uvarint(uint64(limit))
	if n > uint64(len(d.data)/size) {
		d.fail("%d %s in %d bytes", n, what, len(d.data))
		return 0
	}
	return int(n)
}
