package seal

import (
	"math/bits"

	"pdlink/transport/wire"
)

// Options of a Sealer and an Opener. The zero value works.
type Options struct {
	// Suite is the one that the connection agreed on. Clear has no sealer and no
	// opener.
	Suite Suite

	// Record is the bytes of payload under one tag: a power of two from
	// MinRecord to MaxRecord; 0 means DefaultRecord. Only the sealer looks at it:
	// a frame says how it was cut.
	Record int

	// MaxPayload is the largest payload of a frame, as the connection agreed, in
	// bytes. 0, and what is above it, means wire.MaxPayload.
	MaxPayload int

	// Packed says that the connection agreed on a codec: an opener lets packed frames
	// pass. A sealer does not look at it.
	Packed bool
}

func (o Options) withDefaults() (Options, error) {
	if o.Record == 0 {
		o.Record = DefaultRecord
	}
	if o.Record < MinRecord || o.Record > MaxRecord || bits.OnesCount(uint(o.Record)) != 1 {
		return o, invalid("records of %d bytes, want a power of two from %d to %d", o.Record, MinRecord, MaxRecord)
	}
	if o.MaxPayload <= 0 || o.MaxPayload > wire.MaxPayload {
		o.MaxPayload = wire.MaxPayload
	}
	return o, nil
}

// Sealer seals the frames of one direction of a lane, in order. One goroutine at
// a time.
type Sealer struct {
	d          direction
	record     int
	recordLog  byte
	maxPayload int
	tail       []byte // the last record with its tag: there is no room for it behind the body
}

// Sealer returns the sealer of direction d of a lane, for the end that sends in
// it. It must be made once for each: a second one would repeat the first one's
// nonces. It keeps a record of memory.
func (s *Secret) Sealer(lane int, d Direction, o Options) (*Sealer, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	x := &Sealer{
		record: o.Record, recordLog: byte(bits.TrailingZeros(uint(o.Record))), maxPayload: o.MaxPayload,
		tail: make([]byte, o.Record+tagSize),
	}
	if err := x.d.start(s, o.Suite, lane, d); err != nil {
		return nil, err
	}
	return x, nil
}

// HeadLen is the length of the sealed head of a frame with a header of headerLen
// and a payload of payloadLen bytes, at most MaxHead.
func (x *Sealer) HeadLen(headerLen, payloadLen int) int {
	return HeadSize + restLen(headerLen, payloadLen, x.record)
}

// Seal seals the next frame: header is what wire.AppendFrame made, payload what
// follows it. head gets the sealed head and must have room for HeadLen bytes,
// body gets the sealed payload and must be as long as it. body may be payload
// itself, which is then overwritten; apart from that the four must not overlap.
// Seal returns the length of the head. What the header says is not looked at: it
// is the caller's to make, and the receiver judges it as it judges one in clear.
// Nothing is allocated, except when the key changes. Errors: ErrInvalid (lengths
// that no frame has, or that do not fit each other; the number is not used up),
// ErrExhausted.
func (x *Sealer) Seal(head, body, header, payload []byte) (int, error) {
	if list := len(header) - wire.FixedHeader; list < wire.PieceSize || list%wire.PieceSize != 0 || len(header) > wire.MaxHeader {
		return 0, invalid("header of %d bytes", len(header))
	}
	if len(payload) < 1 || len(payload) > x.maxPayload {
		return 0, invalid("payload of %d bytes, agreed limit %d", len(payload), x.maxPayload)
	}
	n := x.HeadLen(len(header), len(payload))
	if len(body) != len(payload) || len(head) < n {
		return 0, invalid("room for %d bytes of the head and %d of the body, want %d and %d", len(head), len(body), n, len(payload))
	}
	d := &x.d
	if err := d.begin(x.recordLog); err != nil {
		return 0, err
	}
	copy(head, d.prelude[:])
	x.seal(head[preludeSize:HeadSize], recordFixed, header[:wire.FixedHeader])
	listEnd := HeadSize + len(header) - wire.FixedHeader + tagSize
	x.seal(head[HeadSize:listEnd], recordList, header[wire.FixedHeader:])
	x.body(head[listEnd:n], body, payload)
	d.frame++
	return n, nil
}

// seal seals one record into out, which has the tag's room too.
func (x *Sealer) seal(out []byte, index int, plain []byte) {
	x.d.set(index)
	x.d.aead.Seal(out[:0], x.d.nonce[:], plain, x.d.prelude[:])
}

// body seals the payload's records. The cipher writes a record's tag behind it,
// where the next record is to be, or still is when body is payload: those bytes
// are put back.
func (x *Sealer) body(tags, body, payload []byte) {
	index, r := recordPayload, x.record
	for ; len(payload) > r; index++ {
		var kept [tagSize]byte
		copy(kept[:], body[r:])
		// The last record may be shorter than a tag.
		if len(body) < r+tagSize {
			break
		}
		x.seal(body[:r+tagSize], index, payload[:r])
		copy(tags, body[r:r+tagSize])
		copy(body[r:], kept[:])
		tags, body, payload = tags[tagSize:], body[r:], payload[r:]
	}
	// One record, or one and less than a tag's length.
	for ; len(payload) > 0; index++ {
		n := min(r, len(payload))
		x.seal(x.tail[:n+tagSize], index, payload[:n])
		copy(body, x.tail[:n])
		copy(tags, x.tail[n:n+tagSize])
		tags, body, payload = tags[tagSize:], body[n:], payload[n:]
	}
}

// restLen is the length of a sealed head behind HeadSize.
func restLen(headerLen, payloadLen, record int) int {
	return headerLen - wire.FixedHeader + tagSize + tags(payloadLen, record)*tagSize
}

// SlotPieces is how many pieces a frame can have whose sealed form lies in a
// slot: the head has wire's header room there (section 10.5). maxPayload and
// record are those of the frame, in bytes.
func SlotPieces(maxPayload, record int) int {
	return (wire.MaxHeader - HeadSize - restLen(wire.FixedHeader, maxPayload, record)) / wire.PieceSize
}
