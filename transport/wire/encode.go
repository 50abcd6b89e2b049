package wire

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"pdlink/transport"
)

// helloMagic starts the messages that come first on a stream, so that a peer
// that speaks something else is told from one that speaks badly ("PDLK").
const helloMagic = 0x4b4c4450

// Places in the prefix of a control message (section 3.1).
const (
	offFlags     = 5
	offBodySum   = 8
	offPrefixSum = 12 // its last field; the sum is of all before it
)

const (
	openReplayable = 1 << 0
	flushedMore    = 1 << 0
	cancelOpener   = 1 << 0
)

// begin appends a prefix whose length and checksums are not known yet.
func begin(dst []byte, t Type) []byte {
	return append(dst, 0, 0, 0, 0, byte(t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

// end writes the length and the checksums of the message that begins at start.
func end(dst []byte, start int) []byte {
	le, msg := binary.LittleEndian, dst[start:]
	body := msg[ControlPrefix:]
	le.PutUint32(msg, uint32(len(body)))
	le.PutUint32(msg[offBodySum:], controlSum(body))
	le.PutUint32(msg[offPrefixSum:], controlSum(msg[:offPrefixSum]))
	return dst
}

// controlSum is the checksum of control messages (section 2.3).
func controlSum(b []byte) uint32 { return uint32(xxh3.Hash(b)) }

func appendText8(dst []byte, s string) []byte {
	return append(append(dst, byte(len(s))), s...)
}

func appendText16(dst []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint16(dst, uint16(len(s))), s...)
}

func appendMeta(dst, meta []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(dst, uint32(len(meta))), meta...)
}

func appendNames(dst []byte, names []string) []byte {
	dst = append(dst, byte(len(names)))
	for _, s := range names {
		dst = appendText8(dst, s)
	}
	return dst
}

func appendPieces(dst []byte, pieces []transport.Piece) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(pieces)))
	for i := range pieces {
		dst = appendPiece(dst, &pieces[i])
	}
	return dst
}

func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}

// The functions below append one encoded message to dst and allocate only when
// dst has no room. The message is not kept. They fail with transport.ErrTooLarge
// or transport.ErrInvalid where a rule of the message's type is broken, and then
// return dst as it was.

// AppendHello appends a Hello (section 3.3).
func AppendHello(dst []byte, m *Hello) ([]byte, error) {
	if f := m.check(); f != nil {
		return dst, f.unencodable("hello")
	}
	le, start := binary.LittleEndian, len(dst)
	dst = begin(dst, TypeHello)
	dst = le.AppendUint32(dst, helloMagic)
	dst = le.AppendUint16(dst, m.Major)
	dst = le.AppendUint16(dst, m.Minor)
	dst = append(dst, m.Boot[:]...)
	dst = le.AppendUint32(dst, m.Epoch)
	dst = le.AppendUint32(dst, m.MaxPayload)
	dst = le.AppendUint32(dst, m.MaxMeta)
	dst = le.AppendUint16(dst, m.Lanes)
	dst = append(dst, m.Token[:]...)
	dst = appendText8(dst, m.Name)
	dst = appendNames(dst, m.Sums)
	dst = appendNames(dst, m.Features)
	return end(dst, start), nil
}

// appendProof appends a proof, which is not there when it is zero.
func appendProof(dst []byte, proof *[ProofSize]byte) []byte {
	if *proof == [ProofSize]byte{} {
		return dst
	}
	return append(dst, proof[:]...)
}

// AppendLaneHello appends a LaneHello.
func AppendLaneHello(dst []byte, m *LaneHello) ([]byte, error) {
	if f := m.check(); f != nil {
		return dst, f.unencodable("lane hello")
	}
	le, start := binary.LittleEndian, len(dst)
	dst = begin(dst, TypeLaneHello)
	dst = le.AppendUint32(dst, helloMagic)
	dst = append(dst, m.Token[:]...)
	dst = le.AppendUint16(dst, m.Lane)
	dst = appendProof(dst, &m.Proof)
	return end(dst, start), nil
}

// AppendLaneOK appends a LaneOK.
func AppendLaneOK(dst []byte, m *LaneOK) ([]byte, error) {
	if f := m.check(); f != nil {
		return dst, f.unencodable("lane ok")
	}
	start := len(dst)
	dst = begin(dst, TypeLaneOK)
	dst = binary.LittleEndian.AppendUint32(dst, helloMagic)
	dst = binary.LittleEndian.AppendUint16(dst, m.Lane)
	dst = appendProof(dst, &m.Proof)
	return end(dst, start), nil
}

// AppendBye appends a Bye. It never fails.
func AppendBye(dst []byte, m *Bye) ([]byte, error) {
	start := len(dst)
	dst = begin(dst, TypeBye)
	dst = appendText16(dst, Printable(m.Reason, transport.MaxReason))
	return end(dst, start), nil
}

// AppendPing appends a Ping.
func AppendPing(dst []byte, m *Ping) ([]byte, error) {
	if f := m.check(); f != nil {
		return dst, f.unencodable("ping")
	}
	start := len(dst)
	dst = begin(dst, TypePing)
	dst = binary.LittleEndian.AppendUint64(dst, m.Token)
	return end(dst, start), nil
}

// AppendPong appends a Pong.
func AppendPong(dst []byte, m *Pong) ([]byte, error) {
	if f := m.check(); f != nil {
		return dst, f.unencodable("pong")
	}
	start := len(dst)
	dst = begin(dst, TypePong)
	dst = binary.LittleEndian.AppendUint64(dst, m.Token)
	return end(dst, start), nil
}

// AppendOpen appends an Open.
func AppendOpen(dst []byte, m *Open) ([]byte, error) {
	if f := m.check(); f != nil {
		return dst, f.unencodable("open")
	}
	le, start := binary.LittleEndian, len(dst)
	dst = begin(dst, TypeOpen)
	dst = le.AppendUint32(dst, m.Handle)
	dst = append(dst, m.ID[:]...)
	dst = le.AppendUint16(dst, m.Part)
	dst = le.AppendUint16(dst, m.Parts)
	dst = append(dst, flag(m.Replayable, openReplayable))
	dst = appendText8(dst, m.Kind)
	dst = appendMeta(dst, m.Meta)
	return end(dst, start), nil
}

// AppendAdmit appends an Admit.
func AppendAdmit(dst []byte, m *Admit) ([]byte, error) {
	if f := m.check(); f != nil {
		return dst, f.unencodable("admit")
	}
	le, start := binary.LittleEndian, len(dst)
	dst = begin(dst, TypeAdmit)
	dst = le.AppendUint32(dst, m.Handle)
	dst = le.AppendUint32(dst, m.Window)
	dst = appendMeta(dst, m.Meta)
	return end(dst, start), nil
}

// AppendRefuse appends a Refuse. It never fails.
func AppendRefuse(dst []byte, m *Refuse) ([]byte, error) {
	start := len(dst)
	dst = begin(dst, TypeRefuse)
	dst = binary.LittleEndian.AppendUint32(dst, m.Handle)
	dst = append(dst, byte(m.Code))
	dst = appendText16(dst, Printable(m.Reason, transport.MaxReason))
	return end(dst, start), nil
}

// AppendGrant appends a Grant. It never fails.
func AppendGrant(dst []byte, m *Grant) ([]byte, error) {
	le, start := binary.LittleEndian, len(dst)
	dst = begin(dst, TypeGrant)
	dst = le.AppendUint32(dst, m.Handle)
	dst = le.AppendUint32(dst, m.Epoch)
	dst = le.AppendUint64(dst, m.Total)
	return end(dst, start), nil
}

// AppendAck appends an Ack.
func AppendAck(dst []byte, m *Ack) ([]byte, error) {
	if f := m.check(); f != nil {
		return dst, f.unencodable("ack")
	}
	le, start := binary.LittleEndian, len(dst)
	dst = begin(dst, TypeAck)
	dst = le.AppendUint32(dst, m.Handle)
	dst = le.AppendUint16(dst, uint16(len(m.Ranges)))
	for _, r := range m.Ranges {
		dst = le.AppendUint32(dst, r.First)
		dst = le.AppendUint32(dst, r.Count)
	}
	return end(dst, start), nil
}

// AppendNack appends a Nack.
func AppendNack(dst []byte, m *Nack) ([]byte, error) {
	if f := m.check(); f != nil {
		return dst, f.unencodable("nack")
	}
	le, start := binary.LittleEndian, len(dst)
	dst = begin(dst, TypeNack)
	dst = le.AppendUint32(dst, m.Handle)
	dst = le.AppendUint64(dst, m.Seq)
	dst = appendPieces(dst, m.Pieces)
	return end(dst, start), nil
}

// AppendFlush appends a Flush. It never fails.
func AppendFlush(dst []byte, m *Flush) ([]byte, error) {
	le, start := binary.LittleEndian, len(dst)
	dst = begin(dst, TypeFlush)
	dst = le.AppendUint32(dst, m.Handle)
	dst = le.AppendUint64(dst, m.Token)
	dst = le.AppendUint64(dst, m.Frames)
	return end(dst, start), nil
}

// AppendFlushed appends a Flushed.
func AppendFlushed(dst []byte, m *Flushed) ([]byte, error) {
	if f := m.check(); f != nil {
		return dst, f.unencodable("flushed")
	}
	le, start := binary.LittleEndian, len(dst)
	dst = begin(dst, TypeFlushed)
	dst = le.AppendUint32(dst, m.Handle)
	dst = le.AppendUint64(dst, m.Token)
	dst = append(dst, flag(m.More, flushedMore))
	dst = appendPieces(dst, m.Missing)
	return end(dst, start), nil
}

// AppendFinish appends a Finish. It never fails.
func AppendFinish(dst []byte, m *Finish) ([]byte, error) {
	le, start := binary.LittleEndian, len(dst)
	dst = begin(dst, TypeFinish)
	dst = le.AppendUint32(dst, m.Handle)
	dst = le.AppendUint64(dst, m.Frames)
	return end(dst, start), nil
}

// AppendResult appends a Result.
func AppendResult(dst []byte, m *Result) ([]byte, error) {
	if f := m.check(); f != nil {
		return dst, f.unencodable("result")
	}
	start := len(dst)
	dst = begin(dst, TypeResult)
	dst = binary.LittleEndian.AppendUint32(dst, m.Handle)
	dst = appendMeta(dst, m.Meta)
	return end(dst, start), nil
}

// AppendCancel appends a Cancel. It never fails.
func AppendCancel(dst []byte, m *Cancel) ([]byte, error) {
	start := len(dst)
	dst = begin(dst, TypeCancel)
	dst = binary.LittleEndian.AppendUint32(dst, m.Handle)
	dst = append(dst, flag(m.FromOpener, cancelOpener))
	dst = appendText16(dst, Printable(m.Reason, transport.MaxReason))
	return end(dst, start), nil
}

// AppendLink appends a Link.
func AppendLink(dst []byte, m *Link) ([]byte, error) {
	if f := m.check(); f != nil {
		return dst, f.unencodable("link message")
	}
	start := len(dst)
	dst = begin(dst, m.Of)
	if m.Optional {
		dst[start+offFlags] = FlagOptional
	}
	dst = appendMeta(dst, m.Body)
	return end(dst, start), nil
}
