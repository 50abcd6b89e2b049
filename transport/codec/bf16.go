package codec

import (
	"encoding/binary"
	"errors"

	"github.com/klauspost/compress/huff0"
)

// Forms of a coded block, its first byte (section 12.1). A block that is not split is
// there as it is.
const (
	blockSplit = 1 << 0 // planes follow
	blockOdd   = 1 << 1 // numbers begin at the second byte
	blockRest  = 1 << 2 // signs and mantissas are coded too
	blockForms = blockSplit | blockOdd | blockRest
)

// Forms of a coded plane, its first byte: its length follows in 3 bytes.
const (
	planeHuff = 0 // a Huffman table and four streams
	planeOne  = 1 // the one value that all bytes have
	planeHead = 4
)

// bf16Encoder codes blocks of bf16 numbers.
type bf16Encoder struct {
	exps, rests []byte
	huff        huff0.Scratch
	even, odd   sample // exponents, by where numbers begin
	rest        sample
}

func (e *bf16Encoder) encode(dst, src []byte) int {
	if e.exps == nil {
		e.exps, e.rests = make([]byte, blockBytes/2), make([]byte, blockBytes/2)
		e.huff.Reuse = huff0.ReusePolicyNone
	}
	at := 0
	for len(src) > 0 {
		b := src[:min(blockBytes, len(src))]
		n := e.block(dst[at:], b)
		if n == 0 {
			n = 1 + len(b)
			if n > len(dst)-at {
				return 0
			}
			dst[at] = 0
			copy(dst[at+1:], b)
		}
		at += n
		src = src[len(b):]
	}
	return at
}

// block codes one block; 0: it does not get smaller, or dst is too short.
func (e *bf16Encoder) block(dst, b []byte) int {
	odd, rest, ok := e.look(b)
	if dst = dst[:min(len(dst), len(b))]; !ok || len(dst) < 3+len(b)/2 {
		return 0
	}
	form, body := byte(blockSplit), b
	at := 1
	if odd {
		form |= blockOdd
		dst[at] = b[0]
		body = b[1:]
		at++
	}
	n := len(body) / 2
	if len(body)%2 != 0 {
		dst[at] = body[2*n]
		at++
	}
	exps := e.exps[:n]
	if rest {
		form |= blockRest
		split(exps, e.rests, body[:2*n])
		coded := e.plane(dst[at:], e.rests[:n])
		if coded == 0 {
			form &^= blockRest
			coded = copy(dst[at:], e.rests[:n])
		}
		at += coded
	} else {
		split(exps, dst[at:at+n], body[:2*n])
		at += n
	}
	coded := e.plane(dst[at:], exps)
	if coded == 0 {
		return 0
	}
	dst[0] = form
	return at + coded
}

// plane codes a plane; 0: it does not fit in dst, which is as long as a plane that
// saves something may be.
func (e *bf16Encoder) plane(dst, p []byte) int {
	if len(dst) < planeHead+1 {
		return 0
	}
	out, _, err := huff0.Compress4X(p, &e.huff)
	form := byte(planeHuff)
	switch {
	case errors.Is(err, huff0.ErrUseRLE):
		form, out = planeOne, p[:1]
	case err != nil || planeHead+len(out) > len(dst):
		return 0
	}
	binary.LittleEndian.PutUint32(dst, uint32(len(out))<<8|uint32(form))
	return planeHead + copy(dst[planeHead:], out)
}

// look samples a block: where its numbers begin, if coding their exponents may pay,
// and whether coding the rest may.
func (e *bf16Encoder) look(b []byte) (odd, rest, ok bool) {
	const group = 16
	if len(b) < group+1 {
		return false, false, false
	}
	e.even, e.odd, e.rest = sample{}, sample{}, sample{}
	step := max(group, (len(b)-1)/sampleGroups&^1)
	for at := 0; at+group < len(b); at += step {
		g := b[at : at+group+1]
		for i := 0; i < group; i += 2 {
			e.even.count[g[i]>>7|g[i+1]<<1]++
			e.odd.count[g[i+1]>>7|g[i+2]<<1]++
		}
	}
	even, n := e.even.squares()
	other, _ := e.odd.squares()
	if odd = other > even; odd {
		even = other
	}
	if !worth(even, n) {
		return false, false, false
	}
	first := 0
	if odd {
		first = 1
	}
	for at := first; at+group < len(b); at += step {
		g := b[at : at+group]
		for i := 0; i < group; i += 2 {
			e.rest.count[g[i]&0x7f|g[i+1]&0x80]++
		}
	}
	return odd, worth(e.rest.squares()), true
}

// bf16Decoder is the way back.
type bf16Decoder struct {
	exps, rests []byte
	huff        huff0.Scratch
}

func (d *bf16Decoder) decode(dst, src []byte) error {
	if d.exps == nil {
		d.exps, d.rests = make([]byte, blockBytes/2), make([]byte, blockBytes/2)
	}
	for len(dst) > 0 {
		b := dst[:min(blockBytes, len(dst))]
		n, err := d.block(b, src)
		if err != nil {
			return err
		}
		src, dst = src[n:], dst[len(b):]
	}
	if len(src) > 0 {
		return malformed("%d bytes behind the last block", len(src))
	}
	return nil
}

// block decodes one block and returns how long its coded form is.
func (d *bf16Decoder) block(b, src []byte) (int, error) {
	if len(src) < 1 {
		return 0, malformed("a block of %d bytes is missing", len(b))
	}
	form := src[0]
	if form == 0 {
		if len(src) < 1+len(b) {
			return 0, malformed("%d bytes left of a block of %d", len(src)-1, len(b))
		}
		return 1 + copy(b, src[1:]), nil
	}
	if form&^blockForms != 0 || form&blockSplit == 0 {
		return 0, malformed("block of form %#02x", form)
	}
	at, body := 1, b
	if form&blockOdd != 0 {
		if len(src) < 2 {
			return 0, malformed("block without its first byte")
		}
		b[0], body, at = src[1], b[1:], 2
	}
	n := len(body) / 2
	if len(body)%2 != 0 {
		if len(src) <= at {
			return 0, malformed("block without its last byte")
		}
		body[2*n] = src[at]
		at++
	}
	rests := d.rests[:n]
	switch {
	case form&blockRest != 0:
		used, err := d.plane(rests, src[at:])
		if err != nil {
			return 0, err
		}
		at += used
	case len(src)-at < n:
		return 0, malformed("%d bytes left of a plane of %d", len(src)-at, n)
	default:
		rests = src[at : at+n]
		at += n
	}
	used, err := d.plane(d.exps[:n], src[at:])
	if err != nil {
		return 0, err
	}
	join(body[:2*n], d.exps[:n], rests)
	return at + used, nil
}

// plane decodes a plane and returns how long its coded form is.
func (d *bf16Decoder) plane(p, src []byte) (int, error) {
	if len(src) < planeHead {
		return 0, malformed("%d bytes left of a plane's head", len(src))
	}
	head := binary.LittleEndian.Uint32(src)
	n := int(head >> 8)
	if n > len(src)-planeHead {
		return 0, malformed("plane of %d coded bytes, %d left", n, len(src)-planeHead)
	}
	coded := src[planeHead : planeHead+n]
	switch head & 0xff {
	case planeHuff:
		return planeHead + n, d.streams(p, coded)
	case planeOne:
		if n != 1 {
			return 0, malformed("one value of %d bytes", n)
		}
		for i := range p {
			p[i] = coded[0]
		}
		return planeHead + n, nil
	default:
		return 0, malformed("plane of form %#02x", head&0xff)
	}
}

// streams decodes a table and four streams of it.
func (d *bf16Decoder) streams(p, coded []byte) error {
	s, rest, err := huff0.ReadTable(coded, &d.huff)
	if err != nil {
		return malformed("table: %v", err)
	}
	out, err := s.Decoder().Decompress4X(p[:0:len(p)], rest)
	if err != nil {
		return malformed("streams: %v", err)
	}
	if len(out) != len(p) {
		return malformed("streams of %d bytes for a plane of %d", len(out), len(p))
	}
	return nil
}
