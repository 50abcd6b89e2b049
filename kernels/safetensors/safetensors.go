// Package safetensors reads and writes the safetensors container: eight bytes of
// little-endian header length, a JSON header, and the tensors' bytes back to back.
//
// The reader refuses everything that the format's reference library refuses
// (holes, overlaps, trailing bytes, duplicate keys, sizes that do not fit the
// shape), because looser readers accept damaged files in silence. The writer
// keeps the order that it is given and writes the header the way Python's json
// module does, so that files can be made equal to the byte to another writer's.
package safetensors

import (
	"errors"
	"fmt"
	"math"
)

// MaxHeader is the largest accepted header in bytes, without its length field.
// It is the limit of the reference library.
const MaxHeader = 100_000_000

// Limits on what a header may hold. They keep the memory that a parsed header
// takes at a small multiple of its text, whatever the text is, and are far above
// every file known.
const (
	// maxDims bounds a tensor's dimensions; frameworks end at 8 to 32, and models
	// at five.
	maxDims = 16
	// maxTensors bounds a file's tensors; the largest mixture of experts in one
	// piece has 92,000.
	maxTensors = 1 << 18
	// maxMetadata bounds the metadata entries; block files have hundreds.
	maxMetadata = 1 << 16
)

// metadataKey is the one header key that is not a tensor.
const metadataKey = "__metadata__"

var (
	// ErrHeader reports a header that is not well-formed: length, JSON, field
	// names, types, or a dtype that is not known.
	ErrHeader = errors.New("malformed safetensors header")
	// ErrLayout reports a well-formed header whose tensors do not tile the data
	// region exactly: hole, overlap, wrong size, trailing or missing bytes.
	ErrLayout = errors.New("inconsistent safetensors layout")
)

// DType is an element type as the header spells it.
type DType string

// Element types that this package knows. Sub-byte types are not supported and
// are refused as unknown.
const (
	BOOL   DType = "BOOL"
	U8     DType = "U8"
	I8     DType = "I8"
	F8E5M2 DType = "F8_E5M2"
	F8E4M3 DType = "F8_E4M3"
	F8E8M0 DType = "F8_E8M0"
	U16    DType = "U16"
	I16    DType = "I16"
	F16    DType = "F16"
	BF16   DType = "BF16"
	U32    DType = "U32"
	I32    DType = "I32"
	F32    DType = "F32"
	U64    DType = "U64"
	I64    DType = "I64"
	F64    DType = "F64"
	C64    DType = "C64"
)

// Size returns the bytes of one element, or 0 for an unknown type.
func (d DType) Size() int64 {
	switch d {
	case BOOL, U8, I8, F8E5M2, F8E4M3, F8E8M0:
		return 1
	case U16, I16, F16, BF16:
		return 2
	case U32, I32, F32:
		return 4
	case U64, I64, F64, C64:
		return 8
	}
	return 0
}

// Tensor describes one tensor. Begin and End are byte offsets relative to the
// data region (the first byte after the header).
type Tensor struct {
	Name       string
	DType      DType
	Shape      []int64
	Begin, End int64
}

// Size returns the tensor's bytes, End - Begin.
func (t Tensor) Size() int64 { return t.End - t.Begin }

// KV is one metadata entry.
type KV struct{ Key, Value string }

// ByteSize returns element size times the product of shape. It fails with
// ErrHeader for an unknown dtype and with ErrLayout for a negative dimension or
// a product that does not fit int64.
func ByteSize(d DType, shape []int64) (int64, error) {
	n := d.Size()
	if n == 0 {
		return 0, fmt.Errorf("%w: unknown dtype %q", ErrHeader, string(d))
	}
	for _, dim := range shape {
		if dim < 0 {
			return 0, fmt.Errorf("%w: negative dimension %d", ErrLayout, dim)
		}
		if dim != 0 && n > math.MaxInt64/dim {
			return 0, fmt.Errorf("%w: shape %v overflows", ErrLayout, shape)
		}
		n *= dim
	}
	return n, nil
}
