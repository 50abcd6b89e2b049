package codec

import "encoding/binary"

// A bf16 number is a sign, 8 bits of exponent and 7 of mantissa. Its planes are the
// exponents, a byte each, and the signs with the mantissas, a byte each.

// lanes16 selects the low byte of each 16-bit lane of a word.
const lanes16 = 0x00ff00ff00ff00ff

// split writes the planes of the numbers in src; exps and rests have a byte for
// each. Numbers are little-endian.
func split(exps, rests, src []byte) {
	n := len(src) / 2
	exps, rests = exps[:n], rests[:n]
	le := binary.LittleEndian
	i := 0
	for ; i+8 <= n; i += 8 {
		s := src[2*i : 2*i+16 : 2*i+16]
		x, y := le.Uint64(s), le.Uint64(s[8:])
		ex, ey := x>>7&lanes16, y>>7&lanes16
		rx := x>>8&0x0080008000800080 | x&0x007f007f007f007f
		ry := y>>8&0x0080008000800080 | y&0x007f007f007f007f
		le.PutUint64(exps[i:i+8], narrow(ex)|narrow(ey)<<32)
		le.PutUint64(rests[i:i+8], narrow(rx)|narrow(ry)<<32)
	}
	for ; i < n; i++ {
		v := le.Uint16(src[2*i:])
		exps[i], rests[i] = byte(v>>7), byte(v>>8&0x80|v&0x7f)
	}
}

// join is split's way back; dst has two bytes for each number.
func join(dst, exps, rests []byte) {
	n := len(dst) / 2
	exps, rests = exps[:n], rests[:n]
	le := binary.LittleEndian
	i := 0
	for ; i+8 <= n; i += 8 {
		e, r := le.Uint64(exps[i:i+8]), le.Uint64(rests[i:i+8])
		d := dst[2*i : 2*i+16 : 2*i+16]
		le.PutUint64(d, number(widen(e&0xffffffff), widen(r&0xffffffff)))
		le.PutUint64(d[8:], number(widen(e>>32), widen(r>>32)))
	}
	for ; i < n; i++ {
		e, r := uint16(exps[i]), uint16(rests[i])
		le.PutUint16(dst[2*i:], e<<7|r&0x80<<8|r&0x7f)
	}
}

// number puts four numbers together, each part in the low byte of its lane.
func number(e, r uint64) uint64 {
	return e<<7 | r&0x0080008000800080<<8 | r&0x007f007f007f007f
}

// narrow packs the low bytes of four lanes into 32 bits.
func narrow(v uint64) uint64 {
	v |= v >> 8
	v &= 0x0000ffff0000ffff
	return (v | v>>16) & 0xffffffff
}

// widen is narrow's way back.
func widen(v uint64) uint64 {
	v = (v | v<<16) & 0x0000ffff0000ffff
	return (v | v<<8) & lanes16
}

// sample is how often values were met in a part of a plane.
type sample struct{ count [256]uint16 }

// squares sums up the squares of the counts, and the counts.
func (s *sample) squares() (squares, n int) {
	for _, c := range s.count {
		squares += int(c) * int(c)
		n += int(c)
	}
	return squares, n
}

// worth reports whether coding a plane with such samples may pay: the chance of two
// of them being the same value is above 1 in worthSquares.
func worth(squares, n int) bool { return (squares-n)*worthSquares > n*n }
