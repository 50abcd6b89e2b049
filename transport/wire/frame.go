package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"pdlink/transport"
)

// Constants of the frame header (section 2.1).
const (
	frameMagic   = 0x464c4450 // "PDLF" in memory order
	frameVersion = 1
	frameData    = 1 // the only frame type

	flagRepeat = 1 << 0

	offList = 48 // checksum of the piece list
	offSum  = 56 // checksum of the fixed part, its last field
)

// FrameHeader is what precedes a frame's payload. The bytes of Pieces follow
// each other in the payload, in list order, without gaps.
type FrameHeader struct {
	Handle  uint32            // the transfer, by the number that its opener chose in Open
	Epoch   uint32            // the connection's agreed epoch
	Seq     uint64            // counts the frames of one transfer on one connection, from 0
	Payload uint32            // bytes, the sum of the pieces' lengths
	Repeat  bool              // the frame carries pieces that were sent before
	Pieces  []transport.Piece // 1 to MaxPieces
}

// AppendFrame appends the encoded header to dst: FixedHeader bytes and the piece
// list, at most MaxHeader. It allocates only when dst has no room. h is not
// kept. Errors: transport.ErrTooLarge (too many pieces, payload above
// MaxPayload), transport.ErrInvalid (no piece, an empty piece, a piece past the
// end of the offset space, lengths that do not add up to Payload). On an error
// dst is returned as it was.
func AppendFrame(dst []byte, h *FrameHeader) ([]byte, error) {
	if f := h.check(); f != nil {
		return dst, f.unencodable("frame")
	}
	start := len(dst)
	le := binary.LittleEndian
	var flags uint16
	if h.Repeat {
		flags |= flagRepeat
	}
	dst = le.AppendUint32(dst, frameMagic)
	dst = append(dst, frameVersion, frameData)
	dst = le.AppendUint16(dst, flags)
	dst = le.AppendUint32(dst, h.Handle)
	dst = le.AppendUint32(dst, h.Epoch)
	dst = le.AppendUint64(dst, h.Seq)
	dst = le.AppendUint32(dst, h.Payload)
	dst = le.AppendUint16(dst, uint16(len(h.Pieces)))
	dst = append(dst, make([]byte, FixedHeader-30)...) // reserved, and the sums' places
	for i := range h.Pieces {
		dst = appendPiece(dst, &h.Pieces[i])
	}
	header := dst[start:]
	le.PutUint64(header[offList:], xxh3.Hash(header[FixedHeader:]))
	le.PutUint64(header[offSum:], xxh3.Hash(header[:offSum]))
	return dst, nil
}

// FrameLength looks at the fixed part of a header and returns the length of the
// whole header, and of the payload after it. It checks what a driver needs
// before it reads on: the form is known, both lengths are within the limits
// (maxPayload is the connection's agreed limit, in bytes), and the fixed part's
// checksum is right, so that a damaged length never makes a driver wait for
// bytes that nobody sent. Errors Is ErrProtocol.
func FrameLength(fixed []byte, maxPayload int) (headerLen, payloadLen int, err error) {
	if len(fixed) < FixedHeader {
		return 0, 0, Violation("frame header of %d bytes, want at least %d", len(fixed), FixedHeader)
	}
	le := binary.LittleEndian
	if m := le.Uint32(fixed); m != frameMagic {
		return 0, 0, Violation("frame magic %#08x", m)
	}
	if v, t := fixed[4], fixed[5]; v != frameVersion || t != frameData {
		return 0, 0, Violation("frame version %d type %d, this end speaks version %d type %d", v, t, frameVersion, frameData)
	}
	if flags := le.Uint16(fixed[6:]); flags&^flagRepeat != 0 {
		return 0, 0, Violation("frame flags %#04x", flags)
	}
	if reserved := le.Uint16(fixed[30:]); reserved != 0 || le.Uint64(fixed[32:])|le.Uint64(fixed[40:]) != 0 {
		return 0, 0, Violation("reserved bytes of the frame header are not zero")
	}
	payload, pieces := le.Uint32(fixed[24:]), int(le.Uint16(fixed[28:]))
	if pieces < 1 || pieces > transport.MaxPieces {
		return 0, 0, Violation("frame of %d pieces, limit %d", pieces, transport.MaxPieces)
	}
	if limit := min(maxPayload, MaxPayload); payload < 1 || int64(payload) > int64(limit) {
		return 0, 0, Violation("frame payload of %d bytes, agreed limit %d", payload, limit)
	}
	if got, want := xxh3.Hash(fixed[:offSum]), le.Uint64(fixed[offSum:]); got != want {
		return 0, 0, Violation("checksum of the frame header's fixed part: %016x, header says %016x", got, want)
	}
	return FixedHeader + pieces*PieceSize, int(payload), nil
}

// DecodeFrame decodes and checks a header: all of FrameLength's rules, the
// piece list and its checksum. header may be longer than the encoded header; the
// rest is not looked at. pieces is the memory for the list; with a capacity of
// MaxPieces nothing is allocated. The returned Pieces use that memory and are
// valid as long as the caller leaves it alone. Errors Is ErrProtocol.
func DecodeFrame(header []byte, maxPayload int, pieces []transport.Piece) (FrameHeader, error) {
	n, _, err := FrameLength(header, maxPayload)
	if err != nil {
		return FrameHeader{}, err
	}
	if len(header) < n {
		return FrameHeader{}, Violation("frame header of %d bytes, want %d", len(header), n)
	}
	return DecodeChecked(header[:n], pieces)
}

// DecodeChecked is DecodeFrame for a header whose fixed part FrameLength has
// found right, cut to the length that it returned: what a driver has judged is
// not judged again. For other bytes it returns an error or a header whose
// Payload is under no agreed limit.
func DecodeChecked(header []byte, pieces []transport.Piece) (FrameHeader, error) {
	le := binary.LittleEndian
	if n := len(header); n < FixedHeader || n != FixedHeader+int(le.Uint16(header[28:]))*PieceSize {
		return FrameHeader{}, Violation("frame header of %d bytes", n)
	}
	if got, want := xxh3.Hash(header[FixedHeader:]), le.Uint64(header[offList:]); got != want {
		return FrameHeader{}, Violation("checksum of the frame's piece list: %016x, header says %016x", got, want)
	}
	h := FrameHeader{
		Handle:  le.Uint32(header[8:]),
		Epoch:   le.Uint32(header[12:]),
		Seq:     le.Uint64(header[16:]),
		Payload: le.Uint32(header[24:]),
		Repeat:  le.Uint16(header[6:])&flagRepeat != 0,
		Pieces:  pieces[:0],
	}
	for at := FixedHeader; at < len(header); at += PieceSize {
		p, ok := decodePiece(header[at:])
		if !ok {
			return FrameHeader{}, Violation("frame %d: reserved bytes of a piece are not zero", h.Seq)
		}
		h.Pieces = append(h.Pieces, p)
	}
	if f := h.check(); f != nil {
		return FrameHeader{}, f.violation("frame")
	}
	return h, nil
}

// check applies the rules that both directions share.
func (h *FrameHeader) check() *fault {
	if f := checkPieces(h.Pieces, 1, transport.MaxPieces); f != nil {
		return f
	}
	if h.Payload > MaxPayload {
		return tooMuch("payload bytes", int(h.Payload), MaxPayload)
	}
	total := uint64(0)
	for i := range h.Pieces {
		total += uint64(h.Pieces[i].Length)
	}
	if total != uint64(h.Payload) {
		return wrong(fmt.Sprintf("pieces of %d bytes in a payload of %d", total, h.Payload))
	}
	return nil
}

// appendPiece appends one entry of a piece list (section 2.2).
func appendPiece(dst []byte, p *transport.Piece) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, p.Block)
	dst = le.AppendUint32(dst, p.Length)
	dst = le.AppendUint64(dst, p.Offset)
	dst = le.AppendUint64(dst, p.Sum)
	return le.AppendUint64(dst, 0)
}

// decodePiece reads the first PieceSize bytes of b; ok is false when the
// reserved bytes are not zero.
func decodePiece(b []byte) (p transport.Piece, ok bool) {
	le := binary.LittleEndian
	b = b[:PieceSize]
	p = transport.Piece{Block: le.Uint32(b), Length: le.Uint32(b[4:]), Offset: le.Uint64(b[8:]), Sum: le.Uint64(b[16:])}
	return p, le.Uint64(b[24:]) == 0
}

// checkPieces applies the rules of a piece list.
func checkPieces(pieces []transport.Piece, least, most int) *fault {
	if len(pieces) > most {
		return tooMuch("pieces", len(pieces), most)
	}
	if len(pieces) < least {
		return wrong("no piece")
	}
	for i := range pieces {
		p := &pieces[i]
		if p.Length < 1 {
			return wrong(fmt.Sprintf("piece %d of block %d is empty", i, p.Block))
		}
		if p.End() < p.Offset {
			return wrong(fmt.Sprintf("piece %d of block %d ends past 2^64", i, p.Block))
		}
	}
	return nil
}
