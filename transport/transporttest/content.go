package transporttest

import (
	"encoding/binary"
	"fmt"

	"pdlink/transport"
)

// content is the bytes of every block of a test, as a function of the seed,
// the block and the offset: any piece can be made and checked alone.
type content uint64

// word is the 8 bytes of a block that start at 8*i: four numbers of 16 bits whose
// exponents take 32 values, so that a link which codes payloads has something to do.
func (c content) word(block uint32, i uint64) uint64 {
	x := uint64(c) + (uint64(block)+1)*0x9e3779b97f4a7c15 + i*0xd1342543de82ef95
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 29
	return x&0x8fff8fff8fff8fff | 0x3000300030003000
}

// fill writes the block's bytes from offset on into p.
func (c content) fill(p []byte, block uint32, offset uint64) {
	for len(p) > 0 {
		w, skip := c.word(block, offset/8), offset%8
		if skip == 0 && len(p) >= 8 {
			binary.LittleEndian.PutUint64(p, w)
			p, offset = p[8:], offset+8
			continue
		}
		p[0] = byte(w >> (8 * skip))
		p, offset = p[1:], offset+1
	}
}

// check reports the first byte of p that is not the block's.
func (c content) check(p []byte, block uint32, offset uint64) error {
	for len(p) > 0 {
		w, skip := c.word(block, offset/8), offset%8
		if skip == 0 && len(p) >= 8 && binary.LittleEndian.Uint64(p) == w {
			p, offset = p[8:], offset+8
			continue
		}
		if want := byte(w >> (8 * skip)); p[0] != want {
			return fmt.Errorf("wrong byte: block %d offset %d: have %#x, want %#x", block, offset, p[0], want)
		}
		p, offset = p[1:], offset+1
	}
	return nil
}

// counted is s without what a codec of the link kept off the wire: behind a fault
// wrapper an end does not know that.
func counted(s transport.Stats) transport.Stats {
	s.Saved, s.Codec = 0, ""
	return s
}
