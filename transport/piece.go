package transport

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// ID names a transfer or a process start: 128 bits, never all zero.
type ID [16]byte

// NewID returns a random id.
func NewID() ID {
	var id ID
	for id == (ID{}) {
		rand.Read(id[:]) // never fails since Go 1.24
	}
	return id
}

// ParseID reads the 32 hex digits that String writes.
func ParseID(s string) (ID, error) {
	var id ID
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(id) {
		return id, fmt.Errorf("transport: id %q: want 32 hex digits", s)
	}
	copy(id[:], b)
	if id == (ID{}) {
		return id, fmt.Errorf("transport: id %q: all zero", s)
	}
	return id, nil
}

// String returns 32 hex digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Piece is a byte range of one block's data, relative to the block's data and
// not to any file, and the checksum of its bytes by the connection's algorithm.
type Piece struct {
	Block  uint32 // index in the transfer's plan
	Length uint32 // bytes, at least 1
	Offset uint64 // bytes from the start of the block's data
	Sum    uint64
}

// End is the offset behind the piece's last byte.
func (p Piece) End() uint64 { return p.Offset + uint64(p.Length) }

// Range is the bytes of the block's data that the piece has.
func (p Piece) Range() Range { return Range{p.Offset, p.End()} }

// Request describes a transfer to the end that is to receive it. Kind and Meta
// are opaque to the transport.
type Request struct {
	// ID is shared by all senders of one transfer. Zero: Open draws one.
	ID ID
	// Kind names what Meta and the blocks are, at most MaxKind bytes of
	// printable UTF-8.
	Kind string
	// Part and Parts say which of several senders this is: 0 <= Part < Parts.
	// Parts 0 means 1.
	Part, Parts int
	// Replayable says that the sender can make any piece again, so its slots
	// need not be kept until blocks are durable.
	Replayable bool
	// Meta is the plan, at most Facts.MaxMeta bytes.
	Meta []byte
	// Salvage takes the frames that outlive the connection, at the opener: a
	// transfer that is not Replayable goes on with them on another one. It does
	// not travel. Nil: their slots are free when the connection ends.
	Salvage *Salvage
}

// Validate checks the request's own rules and fills defaults. Errors:
// ErrTooLarge (Kind or Meta above their limits), ErrInvalid (Part and Parts do
// not fit each other or MaxParts). That Kind is printable is checked by Open.
func (r *Request) Validate() error {
	if r.Parts == 0 {
		r.Parts = 1
	}
	switch {
	case len(r.Kind) > MaxKind:
		return fmt.Errorf("%w: kind of %d bytes, limit %d", ErrTooLarge, len(r.Kind), MaxKind)
	case len(r.Meta) > MaxMeta:
		return fmt.Errorf("%w: meta of %d bytes, limit %d", ErrTooLarge, len(r.Meta), MaxMeta)
	case r.Parts < 1 || r.Parts > MaxParts || r.Part < 0 || r.Part >= r.Parts:
		return fmt.Errorf("%w: part %d of %d: parts count from 0, and there are 1 to %d", ErrInvalid, r.Part, r.Parts, MaxParts)
	}
	return nil
}
