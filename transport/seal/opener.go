package seal

import (
	"encoding/binary"

	"pdlink/transport/wire"
)

// Opener opens the frames of one direction of a lane, in order. A frame takes
// OpenHead, OpenRest, and OpenPayload until everything is open. After an error
// that Is ErrForged every call fails with it. One goroutine at a time.
type Opener struct {
	d          direction
	maxPayload int
	length     func(fixed []byte, maxPayload int) (headerLen, payloadLen int, err error) // judges a header's fixed part
	failed     error

	stage   stage
	header  int // bytes of the frame's header
	payload int // bytes of its payload
	record  int // bytes of its records
	opened  int // bytes of its payload that are open

	plain [wire.MaxHeader]byte    // of the header, so that the caller's memory may overlap
	tags  [maxTags * tagSize]byte // of the payload's records
	tail  []byte                  // the last record with its tag; grows to the largest that came
}

// stage is the call that a frame needs next.
type stage uint8

const (
	atHead stage = iota
	atRest
	atPayload
)

// Opener returns the opener of direction d of a lane, for the end that receives
// in it. Its memory is bounded by MaxRecord and 10 KiB.
func (s *Secret) Opener(lane int, d Direction, o Options) (*Opener, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	x := &Opener{maxPayload: o.MaxPayload, length: wire.FrameLength}
	if o.Packed {
		x.length = wire.PackedLength
	}
	if err := x.d.start(s, o.Suite, lane, d); err != nil {
		return nil, err
	}
	return x, nil
}

// OpenHead opens the first HeadSize bytes of a sealed frame and writes the fixed
// part of the frame's header to the first wire.FixedHeader bytes of header. It
// returns the lengths of the whole header and of the payload; both are
// authentic and were checked against wire's rules and the agreed limit. header
// and sealed may overlap. Errors: ErrForged, transport.ErrProtocol (the peer
// sealed something that is no frame header), ErrInvalid, ErrExhausted.
func (x *Opener) OpenHead(header, sealed []byte) (headerLen, payloadLen int, err error) {
	if err := x.expect(atHead); err != nil {
		return 0, 0, err
	}
	if len(header) < wire.FixedHeader || len(sealed) != HeadSize {
		return 0, 0, invalid("sealed head of %d bytes, want %d; room for %d", len(sealed), HeadSize, len(header))
	}
	recordLog, err := x.prelude(sealed)
	if err != nil {
		return 0, 0, x.fail(err)
	}
	if err := x.d.begin(recordLog); err != nil {
		return 0, 0, x.fail(err)
	}
	fixed, ok := x.open(x.plain[:0], recordFixed, sealed[preludeSize:])
	if !ok {
		return 0, 0, x.fail(forged("head of frame %d", x.d.frame))
	}
	headerLen, payloadLen, err = x.length(fixed, x.maxPayload)
	if err != nil {
		return 0, 0, x.fail(err)
	}
	copy(header, fixed)
	x.header, x.payload, x.record, x.opened = headerLen, payloadLen, 1<<recordLog, 0
	x.stage = atRest
	return headerLen, payloadLen, nil
}

// prelude looks at the part of a head that is in clear. What it says is believed
// only when the rest of the head turns out authentic.
func (x *Opener) prelude(sealed []byte) (recordLog byte, err error) {
	le := binary.LittleEndian
	if m := le.Uint32(sealed); m != preludeMagic {
		return 0, forged("magic %#08x: a frame in clear, or no frame", m)
	}
	if v := sealed[4]; v != preludeVersion {
		return 0, forged("version %d, this end speaks %d", v, preludeVersion)
	}
	recordLog = sealed[5]
	if recordLog < minRecordLog || recordLog > maxRecordLog || le.Uint16(sealed[6:]) != 0 {
		return 0, forged("records of 2^%d bytes, reserved bytes %#04x", recordLog, le.Uint16(sealed[6:]))
	}
	if n := le.Uint64(sealed[8:]); n != x.d.frame {
		return 0, forged("frame %d where %d was due: replayed, reordered or lost", n, x.d.frame)
	}
	return recordLog, nil
}

// RestLen is the length of the sealed head behind HeadSize, of the frame whose
// OpenHead succeeded last, at most MaxHead - HeadSize bytes.
func (x *Opener) RestLen() int { return restLen(x.header, x.payload, x.record) }

// OpenRest opens the rest of the head, RestLen bytes, and writes the piece list
// behind the fixed part in header, which then holds the frame's whole header.
// header and sealed may overlap. Errors: ErrForged, ErrInvalid.
func (x *Opener) OpenRest(header, sealed []byte) error {
	if err := x.expect(atRest); err != nil {
		return err
	}
	if len(sealed) != x.RestLen() || len(header) < x.header {
		return invalid("rest of the head of %d bytes, want %d; room for %d, want %d",
			len(sealed), x.RestLen(), len(header), x.header)
	}
	listEnd := x.header - wire.FixedHeader + tagSize
	list, ok := x.open(x.plain[:0], recordList, sealed[:listEnd])
	if !ok {
		return x.fail(forged("piece list of frame %d", x.d.frame))
	}
	copy(x.tags[:], sealed[listEnd:])
	copy(header[wire.FixedHeader:], list)
	x.stage = atPayload
	return nil
}

// OpenPayload opens, in place, the records of payload that are complete and not
// open yet. payload is the frame's whole payload, the same memory for every call
// of a frame; its first have bytes have arrived. Bytes behind them are not
// changed. It returns how many bytes from the start are open now; when all are,
// the frame is done. It may be called as bytes arrive, while they are in the
// cache. Nothing of a record is readable before all of it is authentic. Errors:
// ErrForged (the record is then zeroed), ErrInvalid.
func (x *Opener) OpenPayload(payload []byte, have int) (opened int, err error) {
	if err := x.expect(atPayload); err != nil {
		return x.opened, err
	}
	if len(payload) != x.payload || have < x.opened || have > len(payload) {
		return x.opened, invalid("%d of %d bytes of a payload of %d", have, len(payload), x.payload)
	}
	for x.opened < len(payload) {
		end := min(x.opened+x.record, len(payload))
		if have < end {
			return x.opened, nil
		}
		index := x.opened / x.record
		tag := x.tags[index*tagSize : (index+1)*tagSize]
		if !x.openRecord(payload, x.opened, end, tag, recordPayload+index) {
			clear(payload[x.opened:end])
			return x.opened, x.fail(forged("record %d of frame %d", index, x.d.frame))
		}
		x.opened = end
	}
	x.d.frame++
	x.stage = atHead
	return x.opened, nil
}

// openRecord opens payload[begin:end]. The cipher wants the tag behind the
// record: where the payload goes on, its bytes make room for that long; at the
// end the record moves.
func (x *Opener) openRecord(payload []byte, begin, end int, tag []byte, index int) bool {
	if end+tagSize <= len(payload) {
		var kept [tagSize]byte
		copy(kept[:], payload[end:])
		copy(payload[end:], tag)
		_, ok := x.open(payload[begin:begin], index, payload[begin:end+tagSize])
		copy(payload[end:], kept[:])
		return ok
	}
	n := end - begin
	if len(x.tail) < n+tagSize {
		x.tail = make([]byte, n+tagSize)
	}
	copy(x.tail, payload[begin:end])
	copy(x.tail[n:], tag)
	_, ok := x.open(payload[begin:begin], index, x.tail[:n+tagSize])
	return ok
}

// open opens one record, tag included, and appends it to dst.
func (x *Opener) open(dst []byte, index int, sealed []byte) ([]byte, bool) {
	x.d.set(index)
	plain, err := x.d.aead.Open(dst, x.d.nonce[:], sealed, x.d.prelude[:])
	return plain, err == nil
}

// expect refuses calls out of turn and after a failure.
func (x *Opener) expect(s stage) error {
	if x.failed != nil {
		return x.failed
	}
	if x.stage != s {
		return invalid("call for stage %d of a frame at stage %d", s, x.stage)
	}
	return nil
}

// fail ends the opener: nothing behind a forgery can be trusted to be in place.
func (x *Opener) fail(err error) error {
	x.failed = err
	return err
}
