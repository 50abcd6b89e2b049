package calls

import (
	"encoding/binary"
	"errors"
	"fmt"

	"pdlink/transport"
)

// ErrCall is returned for a call, a description or a result that cannot be
// understood, with the reason: the other end is of another version.
var ErrCall = errors.New("calls: not understood")

// The head of a call.
const (
	magic    = 0x434c4450 // "PDLC"
	headSize = 40
	inFrames = 1 // flag: the ids follow in frames
	follows  = 2 // flag: there are no ids
	idSize   = 4
)

// Call asks for one prompt to be read and its blocks to be sent.
type Call struct {
	Transfer transport.ID // that the blocks are to come by
	Model    string       // the decoder's id, at most 1,024 bytes
	Kind     string       // of that transfer, at most transport.MaxKind bytes
	Plan     []byte       // its Meta
	Tokens   int          // of the prompt: 1 to MaxTokens
	IDs      []int32      // theirs, none negative; nil: they follow in frames, or Follows is set

	// Part and Parts say which part of the transfer this host is to send: 0 <= Part <
	// Parts. Parts 0 means all of it.
	Part, Parts int

	// Follows says that another host of the engine has the prompt read: this one gets
	// no ids, and sends what the engine's workers here make of it.
	Follows bool
}

// Size is the bytes that Append adds, with the ids or without; a call that follows has
// none.
func (c *Call) Size(ids bool) int {
	n := headSize + len(c.Model) + len(c.Kind) + len(c.Plan)
	if ids && !c.Follows {
		n += idSize * c.Tokens
	}
	return n
}

// Append appends the call to b; without ids they have to follow in frames
// (AppendIDs). The error is ErrCall for a call that is not within its limits.
func (c *Call) Append(b []byte, ids bool) ([]byte, error) {
	if err := c.check(); err != nil {
		return b, err
	}
	if len(c.IDs) != c.Tokens && !c.Follows {
		return b, fmt.Errorf("%w: %d ids of %d tokens", ErrCall, len(c.IDs), c.Tokens)
	}
	var h [headSize]byte
	le := binary.LittleEndian
	le.PutUint32(h[0:], magic)
	h[4] = Version
	switch {
	case c.Follows:
		h[5] = follows
	case !ids:
		h[5] = inFrames
	}
	le.PutUint16(h[6:], uint16(len(c.Model)))
	copy(h[8:24], c.Transfer[:])
	le.PutUint32(h[24:], uint32(c.Tokens))
	le.PutUint32(h[28:], uint32(len(c.Plan)))
	h[32], h[33], h[34] = byte(len(c.Kind)), byte(c.Part), byte(c.Parts)
	b = append(b, h[:]...)
	b = append(append(append(b, c.Model...), c.Kind...), c.Plan...)
	if ids && !c.Follows {
		b = AppendIDs(b, c.IDs)
	}
	return b, nil
}

// AppendIDs appends token ids as they travel: 4 bytes each, little-endian.
func AppendIDs(b []byte, ids []int32) []byte {
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	return b
}

// check holds the call against its limits.
func (c *Call) check() error {
	switch {
	case c.Transfer == (transport.ID{}):
		return fmt.Errorf("%w: a call without a transfer", ErrCall)
	case c.Tokens < 1 || c.Tokens > MaxTokens:
		return fmt.Errorf("%w: a prompt of %d tokens, limit %d", ErrCall, c.Tokens, MaxTokens)
	case len(c.Model) > maxName || len(c.Kind) > transport.MaxKind || len(c.Plan) > transport.MaxMeta:
		return fmt.Errorf("%w: model of %d, kind of %d, plan of %d bytes", ErrCall, len(c.Model), len(c.Kind), len(c.Plan))
	case c.Parts < 0 || c.Parts > transport.MaxParts || c.Part < 0 || c.Part >= max(c.Parts, 1):
		return fmt.Errorf("%w: part %d of %d, limit %d", ErrCall, c.Part, c.Parts, transport.MaxParts)
	case c.Follows && c.Parts < 2:
		return fmt.Errorf("%w: a call without ids for all of a transfer", ErrCall)
	}
	return nil
}

// ParseCall reads a call. Plan is a part of b. The error is ErrCall.
func ParseCall(b []byte) (Call, error) {
	le := binary.LittleEndian
	if len(b) < headSize || le.Uint32(b) != magic {
		return Call{}, fmt.Errorf("%w: %d bytes are no call", ErrCall, len(b))
	}
	if b[4] != Version {
		return Call{}, fmt.Errorf("%w: a call of version %d, this program reads %d: both ends need the same version of pdlink", ErrCall, b[4], Version)
	}
	model, kind, plan := int(le.Uint16(b[6:])), int(b[32]), int64(le.Uint32(b[28:]))
	c := Call{
		Transfer: transport.ID(b[8:24]), Tokens: int(le.Uint32(b[24:])), Part: int(b[33]), Parts: int(b[34]), Follows: b[5]&follows != 0,
	}
	rest := b[headSize:]
	if int64(model)+int64(kind)+plan > int64(len(rest)) {
		return Call{}, fmt.Errorf("%w: a call of %d bytes has a model of %d, a kind of %d and a plan of %d", ErrCall, len(b), model, kind, plan)
	}
	c.Model, c.Kind, rest = string(rest[:model]), string(rest[model:model+kind]), rest[model+kind:]
	c.Plan, rest = rest[:plan:plan], rest[plan:]
	if err := c.check(); err != nil {
		return Call{}, err
	}
	if c.Follows && b[5]&inFrames != 0 {
		return Call{}, fmt.Errorf("%w: a call without ids whose ids follow", ErrCall)
	}
	ids := b[5]&inFrames == 0 && !c.Follows
	if want := c.Size(ids) - c.Size(false); len(rest) != want {
		return Call{}, fmt.Errorf("%w: %d bytes of ids for %d tokens", ErrCall, len(rest), c.Tokens)
	}
	if !ids {
		return c, nil
	}
	var err error
	c.IDs, err = parseIDs(rest)
	return c, err
}

func parseIDs(b []byte) ([]int32, error) {
	ids := make([]int32, len(b)/idSize)
	for i := range ids {
		id := binary.LittleEndian.Uint32(b[idSize*i:])
		if id > 1<<31-1 {
			return nil, fmt.Errorf("%w: token %d has id %d", ErrCall, i, id)
		}
		ids[i] = int32(id)
	}
	return ids, nil
}

// Collector puts ids together that come in frames: as bytes of block 0. It belongs
// to one goroutine.
type Collector struct {
	bytes []byte
	have  transport.Coverage
}

// NewCollector collects the ids of a call that ParseCall returned without them.
func NewCollector(c *Call) *Collector { return &Collector{bytes: make([]byte, idSize*c.Tokens)} }

// Add takes the pieces of a frame. The error is ErrCall for one that is none of ids.
func (c *Collector) Add(d *transport.Delivery) error {
	for i, p := range d.Pieces() {
		if p.Block != 0 || p.End() < p.Offset || p.End() > uint64(len(c.bytes)) {
			return fmt.Errorf("%w: piece [%d,%d) of block %d of %d bytes of ids", ErrCall, p.Offset, p.End(), p.Block, len(c.bytes))
		}
		copy(c.bytes[p.Offset:], d.Data(i))
		c.have.Add(transport.Range{Begin: p.Offset, End: p.End()})
		if len(c.have.Ranges()) > maxRanges {
			return fmt.Errorf("%w: ids in more than %d pieces", ErrCall, maxRanges)
		}
	}
	return nil
}

// maxRanges bounds the separate ranges of ids: lanes overtake each other by a few
// frames.
const maxRanges = 1024

// Missing lists what has not come.
func (c *Collector) Missing() []transport.Piece {
	var out []transport.Piece
	for r := range c.have.Uncovered(transport.Range{End: uint64(len(c.bytes))}) {
		out = append(out, transport.Piece{Offset: r.Begin, Length: uint32(r.End - r.Begin)})
	}
	return out
}

// IDs returns the ids, once nothing is missing. The error is ErrCall.
func (c *Collector) IDs() ([]int32, error) { return parseIDs(c.bytes) }
