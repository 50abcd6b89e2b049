package codec

import (
	"errors"
	"fmt"

	"github.com/pierrec/lz4/v4"
)

// ID names a codec. The numbers are part of the protocol.
type ID uint8

// The codecs.
const (
	None ID = 0 // bytes as they are
	LZ4  ID = 1 // one LZ4 block
	BF16 ID = 2 // blocks of bf16 numbers, see section 12.1
)

// All returns every codec but None, in the order in which they are tried.
func All() []ID { return []ID{BF16, LZ4} }

// String returns the codec's name: "none", "lz4", "bf16".
func (id ID) String() string {
	switch id {
	case None:
		return "none"
	case LZ4:
		return "lz4"
	case BF16:
		return "bf16"
	}
	return fmt.Sprintf("codec %d", uint8(id))
}

// Name is String, but empty for None.
func (id ID) Name() string {
	if id == None {
		return ""
	}
	return id.String()
}

// ErrMalformed is what Decode returns for bytes that no encoder made.
var ErrMalformed = errors.New("codec: malformed")

// Encoder codes payloads. It keeps the memory that it needs, less than 1 MiB, and
// allocates nothing once it has it. One goroutine at a time. The zero value works.
type Encoder struct {
	lz lz4.Compressor
	bf bf16Encoder
}

// Room is how long the coded form of a payload of n bytes may be at the most: more
// memory than that Encode does not use.
func Room(n int) int { return max(0, n-n/minGain-1) }

// Encode writes the coded form of src to dst, which must not overlap it, and
// returns its length. It returns 0 where that would not be smaller than src by a
// part of minGain, or not fit in dst: src then travels as it is. What is in dst
// behind the returned length means nothing.
func (e *Encoder) Encode(id ID, dst, src []byte) int {
	limit := min(len(dst), Room(len(src)))
	if limit < 1 {
		return 0
	}
	dst = dst[:limit:limit]
	switch id {
	case LZ4:
		n, err := e.lz.CompressBlock(src, dst)
		if err != nil { // dst is too short
			return 0
		}
		return n
	case BF16:
		return e.bf.encode(dst, src)
	default:
		return 0
	}
}

// Decoder is the way back, under the rules of Encoder.
type Decoder struct {
	bf bf16Decoder
}

// Decode writes what src is the coded form of to dst, which must be exactly as long
// and must not overlap it. Nothing is written outside dst[:len(dst)], whatever src
// is. Errors: ErrMalformed (also when the length is another, or nobody knows the
// codec); dst then holds anything.
func (d *Decoder) Decode(id ID, dst, src []byte) error {
	dst = dst[:len(dst):len(dst)]
	switch id {
	case LZ4:
		n, err := lz4.UncompressBlock(src, dst)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		if n != len(dst) {
			return malformed("%d bytes for a payload of %d", n, len(dst))
		}
		return nil
	case BF16:
		return d.bf.decode(dst, src)
	default:
		return malformed("nobody knows %v", id)
	}
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}
