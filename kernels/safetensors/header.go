package safetensors

import (
	"fmt"
	"sort"
	"unicode/utf8"
)

// Header is a parsed and verified header. It is immutable after ParseHeader and
// may be read by any number of goroutines.
type Header struct {
	// Tensors in data order: ascending offset, each beginning where the one
	// before ends.
	Tensors []Tensor
	// Metadata entries in the order of the file; nil if the header has none.
	Metadata []KV
	// DataLen is the number of bytes of the data region.
	DataLen int64
}

// ParseHeader parses the JSON header (without the length field) of a file whose
// data region has dataLen bytes, and verifies it: every key once, known dtypes,
// size equal to element size times shape, and tensors that cover the data region
// from 0 to dataLen without hole or overlap. Only space padding may follow the
// object. More than 16 dimensions, 262,144 tensors or 65,536 metadata entries are
// refused. The result keeps no reference to header.
//
// Errors are ErrHeader or ErrLayout with the reason. What is allocated, garbage
// included, stays below 12 times len(header) plus 32 MB.
func ParseHeader(header []byte, dataLen int64) (Header, error) {
	if len(header) > MaxHeader {
		return Header{}, fmt.Errorf("%w: %d bytes, limit %d", ErrHeader, len(header), MaxHeader)
	}
	if len(header) == 0 || header[0] != '{' {
		return Header{}, fmt.Errorf("%w: does not begin with '{'", ErrHeader)
	}
	if !utf8.Valid(header) {
		return Header{}, fmt.Errorf("%w: not UTF-8", ErrHeader)
	}
	p := parser{buf: header}
	h, err := p.header()
	if err != nil {
		return Header{}, err
	}
	for p.pos < len(header) {
		if header[p.pos] != ' ' {
			return Header{}, fmt.Errorf("%w: byte %#x after the object at %d", ErrHeader, header[p.pos], p.pos)
		}
		p.pos++
	}
	h.DataLen = dataLen
	if err := h.verify(); err != nil {
		return Header{}, err
	}
	return h, nil
}

// verify sorts the tensors by offset and checks that they tile the data region.
func (h *Header) verify() error {
	sort.SliceStable(h.Tensors, func(i, j int) bool {
		a, b := &h.Tensors[i], &h.Tensors[j]
		if a.Begin != b.Begin {
			return a.Begin < b.Begin
		}
		return a.End < b.End
	})
	at := int64(0)
	for i := range h.Tensors {
		t := &h.Tensors[i]
		switch {
		case t.Begin < at:
			return fmt.Errorf("%w: tensor %.100q overlaps at offset %d", ErrLayout, t.Name, t.Begin)
		case t.Begin > at:
			return fmt.Errorf("%w: hole of %d bytes before tensor %.100q", ErrLayout, t.Begin-at, t.Name)
		case t.End < t.Begin:
			return fmt.Errorf("%w: tensor %.100q ends at %d before it begins at %d", ErrLayout, t.Name, t.End, t.Begin)
		}
		size, err := ByteSize(t.DType, t.Shape)
		if err != nil {
			return fmt.Errorf("tensor %.100q: %w", t.Name, err)
		}
		if size != t.End-t.Begin {
			return fmt.Errorf("%w: tensor %.100q spans %d bytes, its shape %v of %s needs %d",
				ErrLayout, t.Name, t.End-t.Begin, t.Shape, t.DType, size)
		}
		at = t.End
	}
	if at != h.DataLen {
		return fmt.Errorf("%w: tensors end at %d, data has %d bytes", ErrLayout, at, h.DataLen)
	}
	return nil
}
