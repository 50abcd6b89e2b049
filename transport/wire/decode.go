package wire

import (
	"encoding/binary"
	"slices"

	"pdlink/transport"
)

// Decoder decodes messages into memory that it uses again, so that the frequent
// ones (Grant, Ack, Flush, Nack, Ping, Pong) cost no allocation. The zero value
// works. It is not safe for concurrent use.
type Decoder struct {
	hello     Hello
	laneHello LaneHello
	laneOK    LaneOK
	bye       Bye
	ping      Ping
	pong      Pong
	open      Open
	admit     Admit
	refuse    Refuse
	grant     Grant
	ack       Ack
	nack      Nack
	flush     Flush
	flushed   Flushed
	finish    Finish
	result    Result
	cancel    Cancel
	link      Link
	unknown   Unknown
}

// Decode decodes one message, prefix included. Both checksums are compared
// before any field is read, so a damaged message yields nothing. The message and
// its lists are valid until the next Decode; a Meta is part of msg and valid as
// long as msg is. Bytes of the body behind the fields of this version count for
// the checksum only. A message of an unknown type that is optional decodes as
// *Unknown. Errors Is ErrProtocol.
func (d *Decoder) Decode(msg []byte) (Message, error) {
	n, t, err := ControlLength(msg)
	if err != nil {
		return nil, err
	}
	if len(msg) != ControlPrefix+n {
		return nil, Violation("%v message of %d bytes, its prefix says %d", t, len(msg), ControlPrefix+n)
	}
	r := reader{b: msg[ControlPrefix:]}
	if got, want := controlSum(r.b), binary.LittleEndian.Uint32(msg[offBodySum:]); got != want {
		return nil, Violation("checksum of the body of the %v message: %08x, its prefix says %08x", t, got, want)
	}
	m, f := d.body(t, msg[offFlags], &r)
	switch {
	case r.f != nil:
		return nil, r.f.violation(t.String())
	case f != nil:
		return nil, f.violation(t.String())
	}
	return m, nil
}

// body decodes the fields of a message of type t, whose prefix has flags.
func (d *Decoder) body(t Type, flags byte, r *reader) (Message, *fault) {
	switch t {
	case TypeHello:
		return &d.hello, d.hello.decode(r)
	case TypeLaneHello:
		return &d.laneHello, d.laneHello.decode(r)
	case TypeLaneOK:
		return &d.laneOK, d.laneOK.decode(r)
	case TypeBye:
		d.bye = Bye{Reason: r.reason()}
		return &d.bye, nil
	case TypePing:
		d.ping = Ping{Token: r.u64()}
		return &d.ping, d.ping.check()
	case TypePong:
		d.pong = Pong{Token: r.u64()}
		return &d.pong, d.pong.check()
	case TypeOpen:
		return &d.open, d.open.decode(r)
	case TypeAdmit:
		d.admit = Admit{Handle: r.u32(), Window: r.u32(), Meta: r.meta()}
		return &d.admit, d.admit.check()
	case TypeRefuse:
		d.refuse = Refuse{Handle: r.u32(), Code: refuseCode(r.u8()), Reason: r.reason()}
		return &d.refuse, nil
	case TypeGrant:
		d.grant = Grant{Handle: r.u32(), Epoch: r.u32(), Total: r.u64()}
		return &d.grant, nil
	case TypeAck:
		return &d.ack, d.ack.decode(r)
	case TypeNack:
		d.nack = Nack{Handle: r.u32(), Seq: r.u64(), Pieces: r.pieces(d.nack.Pieces, transport.MaxPieces)}
		return &d.nack, d.nack.check()
	case TypeFlush:
		d.flush = Flush{Handle: r.u32(), Token: r.u64(), Frames: r.u64()}
		return &d.flush, nil
	case TypeFlushed:
		d.flushed = Flushed{
			Handle: r.u32(), Token: r.u64(), More: r.flags(flushedMore) != 0,
			Missing: r.pieces(d.flushed.Missing, transport.MaxMissing),
		}
		return &d.flushed, d.flushed.check()
	case TypeFinish:
		d.finish = Finish{Handle: r.u32(), Frames: r.u64()}
		return &d.finish, nil
	case TypeResult:
		d.result = Result{Handle: r.u32(), Meta: r.meta()}
		return &d.result, d.result.check()
	case TypeCancel:
		d.cancel = Cancel{Handle: r.u32(), FromOpener: r.flags(cancelOpener) != 0, Reason: r.reason()}
		return &d.cancel, nil
	}
	if t.OfLink() {
		d.link = Link{Of: t, Optional: flags&FlagOptional != 0, Body: r.meta()}
		return &d.link, d.link.check()
	}
	d.unknown = Unknown{Of: t}
	return &d.unknown, nil
}

func (m *Hello) decode(r *reader) *fault {
	r.magic()
	*m = Hello{Major: r.u16(), Minor: r.u16(), Boot: r.id()}
	if r.f == nil && m.Major != Major {
		// Another major may have another form from here on: what counts is
		// that Negotiate can say so.
		return nil
	}
	m.Epoch, m.MaxPayload, m.MaxMeta, m.Lanes = r.u32(), r.u32(), r.u32(), r.u16()
	m.Token = r.id()
	m.Name = r.text8()
	m.Sums = r.names()
	m.Features = r.names()
	if r.f != nil {
		return r.f
	}
	return m.check()
}

func (m *LaneHello) decode(r *reader) *fault {
	r.magic()
	*m = LaneHello{Token: r.id(), Lane: r.u16(), Proof: r.proof()}
	return m.check()
}

func (m *LaneOK) decode(r *reader) *fault {
	r.magic()
	*m = LaneOK{Lane: r.u16(), Proof: r.proof()}
	return m.check()
}

func (m *Open) decode(r *reader) *fault {
	*m = Open{
		Handle: r.u32(), ID: r.id(), Part: r.u16(), Parts: r.u16(),
		Replayable: r.flags(openReplayable) != 0, Kind: r.text8(), Meta: r.meta(),
	}
	return m.check()
}

func (m *Ack) decode(r *reader) *fault {
	m.Handle = r.u32()
	n := int(r.u16())
	m.Ranges = m.Ranges[:0]
	if n > MaxRanges {
		return tooMuch("ranges", n, MaxRanges)
	}
	b := r.take(8 * n)
	m.Ranges = slices.Grow(m.Ranges, len(b)/8)
	for at := 0; at < len(b); at += 8 {
		m.Ranges = append(m.Ranges, BlockRange{binary.LittleEndian.Uint32(b[at:]), binary.LittleEndian.Uint32(b[at+4:])})
	}
	return m.check()
}

// refuseCode reads a code of a newer peer as the one that says least.
func refuseCode(b byte) transport.RefuseCode {
	if c := transport.RefuseCode(b); c <= transport.RefuseBusy {
		return c
	}
	return transport.RefuseOther
}

// reader takes fields off the front of a body. After the first fault it returns
// zero values and keeps the fault.
type reader struct {
	b []byte
	f *fault
}

// fail keeps the first fault and drops the rest of the body.
func (r *reader) fail(f *fault) {
	if r.f == nil {
		r.f = f
	}
	r.b = nil
}

// take returns the next n bytes, which stay part of the message, or nil.
func (r *reader) take(n int) []byte {
	if r.f != nil || n > len(r.b) {
		r.fail(wrong("ends inside a field"))
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) id() (id [16]byte) {
	copy(id[:], r.take(len(id)))
	return id
}

// proof reads a proof where there is one: a body that ends before has none.
func (r *reader) proof() (proof [ProofSize]byte) {
	if len(r.b) >= len(proof) {
		copy(proof[:], r.take(len(proof)))
	}
	return proof
}

func (r *reader) magic() {
	if m := r.u32(); r.f == nil && m != helloMagic {
		r.fail(wrong("magic number is not pdlink's"))
	}
}

// flags reads a byte of which only known bits may be set.
func (r *reader) flags(known byte) byte {
	b := r.u8()
	if b&^known != 0 {
		r.fail(wrong("reserved bits of the flags are not zero"))
	}
	return b
}

// text8 reads a text with a length of one byte.
func (r *reader) text8() string { return r.text(int(r.u8()), MaxName) }

// reason reads a text with a length of two bytes.
func (r *reader) reason() string { return r.text(int(r.u16()), transport.MaxReason) }

func (r *reader) text(n, limit int) string {
	if n > limit {
		r.fail(tooMuch("bytes of text", n, limit))
		return ""
	}
	s := string(r.take(n))
	if !isPrintable(s) {
		r.fail(wrong("text is not printable UTF-8"))
		return ""
	}
	return s
}

func (r *reader) names() []string {
	n := int(r.u8())
	if n > MaxNames {
		r.fail(tooMuch("names", n, MaxNames))
		return nil
	}
	var names []string
	for range n {
		s := r.text8()
		if r.f != nil {
			return nil
		}
		names = append(names, s)
	}
	return names
}

// meta reads opaque bytes with a length of four bytes.
func (r *reader) meta() []byte {
	n := r.u32()
	if n > transport.MaxMeta {
		r.fail(&fault{what: "meta exceeds its limit", large: true})
		return nil
	}
	return r.take(int(n))
}

// pieces reads a piece list into the memory of reuse.
func (r *reader) pieces(reuse []transport.Piece, limit int) []transport.Piece {
	reuse = reuse[:0]
	n := int(r.u16())
	if n > limit {
		r.fail(tooMuch("pieces", n, limit))
		return reuse
	}
	b := r.take(n * PieceSize)
	reuse = slices.Grow(reuse, len(b)/PieceSize)
	for at := 0; at < len(b); at += PieceSize {
		p, ok := decodePiece(b[at:])
		if !ok {
			r.fail(wrong("reserved bytes of a piece are not zero"))
			return reuse
		}
		reuse = append(reuse, p)
	}
	return reuse
}
