package wire

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Constants of a packed frame's header (section 2.6).
const (
	flagPacked = 1 << 1

	offCodec = 30 // 1 byte
	offRaw   = 32 // 4 bytes: what the payload is decoded to
)

// FeatureCodec is the feature of an end that takes frames packed by the codec of that
// name (section 12).
func FeatureCodec(name string) string { return "codec/" + name }

// Pack turns a header that AppendFrame made into that of the same frame with a coded
// payload: codec is not 0, and stored, its length in bytes, is at least 1 and less
// than that of the payload that the header speaks of. The piece list stays, with the
// sums of the bytes before they were coded. Errors: transport.ErrInvalid; the header
// then is as it was.
func Pack(header []byte, codec uint8, stored int) error {
	le := binary.LittleEndian
	if len(header) < FixedHeader || le.Uint16(header[6:])&flagPacked != 0 {
		return wrong("no header of a plain frame").unencodable("packed frame")
	}
	raw := le.Uint32(header[24:])
	if codec == 0 || stored < 1 || int64(stored) >= int64(raw) {
		return wrong("a codec that gains nothing").unencodable("packed frame")
	}
	le.PutUint16(header[6:], le.Uint16(header[6:])|flagPacked)
	le.PutUint32(header[24:], uint32(stored))
	header[offCodec] = codec
	le.PutUint32(header[offRaw:], raw)
	le.PutUint64(header[offSum:], xxh3.Hash(header[:offSum]))
	return nil
}

// Unpack is Pack's way back, for a header whose fixed part PackedLength has found
// right: the header becomes that of the plain frame, whose payload has raw bytes. It
// returns codec 0, and changes nothing, where the frame is not packed.
func Unpack(header []byte) (codec uint8, raw int) {
	le := binary.LittleEndian
	flags := le.Uint16(header[6:])
	if flags&flagPacked == 0 {
		return 0, int(le.Uint32(header[24:]))
	}
	codec, size := header[offCodec], le.Uint32(header[offRaw:])
	le.PutUint16(header[6:], flags&^flagPacked)
	le.PutUint32(header[24:], size)
	header[offCodec] = 0
	le.PutUint32(header[offRaw:], 0)
	le.PutUint64(header[offSum:], xxh3.Hash(header[:offSum]))
	return codec, int(size)
}

// PackedLength is FrameLength for connections that agreed on a codec: packed frames
// pass it too. payloadLen is what follows the header, and what that is decoded to is
// within the same limit.
func PackedLength(fixed []byte, maxPayload int) (headerLen, payloadLen int, err error) {
	le := binary.LittleEndian
	if len(fixed) < FixedHeader || le.Uint16(fixed[6:])&flagPacked == 0 {
		return FrameLength(fixed, maxPayload)
	}
	if got, want := xxh3.Hash(fixed[:offSum]), le.Uint64(fixed[offSum:]); got != want {
		return 0, 0, Violation("checksum of the frame header's fixed part: %016x, header says %016x", got, want)
	}
	stored := le.Uint32(fixed[24:])
	var plain [FixedHeader]byte
	copy(plain[:], fixed)
	codec, raw := Unpack(plain[:])
	if codec == 0 || stored < 1 || int64(stored) >= int64(raw) {
		return 0, 0, Violation("frame packed by codec %d to %d bytes from %d", codec, stored, raw)
	}
	headerLen, _, err = FrameLength(plain[:], maxPayload)
	return headerLen, int(stored), err
}

// Packed reports whether the fixed part of a header is a packed frame's.
func Packed(fixed []byte) bool {
	return len(fixed) >= FixedHeader && binary.LittleEndian.Uint16(fixed[6:])&flagPacked != 0
}
