package safetensors

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// headerAlign is the multiple to which the header is padded, so that the data
// region of the usual writers starts aligned for every element type.
const headerAlign = 8

// EncodeHeader returns the length field and the header for tensors in the given
// order, which must be their data order from offset 0 without holes, followed by
// the metadata in the given order (none if meta is nil). The text is what
// Python's json module writes with compact separators: non-ASCII escaped,
// __metadata__ last, padded with spaces to a multiple of 8.
//
// It fails with ErrHeader for an unknown dtype, a repeated or reserved name, text
// that is not UTF-8 and more than ParseHeader takes, and with ErrLayout for offsets
// that do not fit.
func EncodeHeader(tensors []Tensor, meta []KV) ([]byte, error) {
	check := Header{Tensors: append([]Tensor(nil), tensors...)}
	if n := len(tensors); n > 0 {
		check.DataLen = tensors[n-1].End
	}
	if err := checkNames(tensors, meta); err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	if err := check.verify(); err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	for i := range tensors {
		if tensors[i].Begin != check.Tensors[i].Begin || tensors[i].End != check.Tensors[i].End {
			return nil, fmt.Errorf("encode header: %w: tensor %q is not in data order", ErrLayout, tensors[i].Name)
		}
	}
	out := make([]byte, lengthSize, lengthSize+128*len(tensors)+64*len(meta)+64)
	out = append(out, '{')
	for i := range tensors {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendTensor(out, &tensors[i])
	}
	if meta != nil {
		if len(tensors) > 0 {
			out = append(out, ',')
		}
		out = appendMetadata(out, meta)
	}
	out = append(out, '}')
	for (len(out)-lengthSize)%headerAlign != 0 {
		out = append(out, ' ')
	}
	n := len(out) - lengthSize
	if n > MaxHeader {
		return nil, fmt.Errorf("encode header: %w: %d bytes, limit %d", ErrHeader, n, MaxHeader)
	}
	binary.LittleEndian.PutUint64(out, uint64(n))
	return out, nil
}

func checkNames(tensors []Tensor, meta []KV) error {
	if len(tensors) > maxTensors || len(meta) > maxMetadata {
		return fmt.Errorf("%w: %d tensors and %d metadata entries, limits %d and %d", ErrHeader, len(tensors), len(meta), maxTensors, maxMetadata)
	}
	seen := make(map[string]struct{}, max(len(tensors), len(meta)))
	for i := range tensors {
		name := tensors[i].Name
		if n := len(tensors[i].Shape); n > maxDims {
			return fmt.Errorf("%w: tensor %q has %d dimensions, limit %d", ErrHeader, name, n, maxDims)
		}
		if _, dup := seen[name]; dup || name == metadataKey {
			return fmt.Errorf("%w: tensor name %q is repeated or reserved", ErrHeader, name)
		}
		if !utf8.ValidString(name) {
			return fmt.Errorf("%w: tensor name %q is not UTF-8", ErrHeader, name)
		}
		seen[name] = struct{}{}
	}
	clear(seen)
	for _, kv := range meta {
		if _, dup := seen[kv.Key]; dup {
			return fmt.Errorf("%w: metadata key %q is repeated", ErrHeader, kv.Key)
		}
		if !utf8.ValidString(kv.Key) || !utf8.ValidString(kv.Value) {
			return fmt.Errorf("%w: metadata %q is not UTF-8", ErrHeader, kv.Key)
		}
		seen[kv.Key] = struct{}{}
	}
	return nil
}

func appendTensor(out []byte, t *Tensor) []byte {
	out = AppendQuoted(out, t.Name)
	out = append(out, `:{"dtype":"`...)
	out = append(out, t.DType...)
	out = append(out, `","shape":[`...)
	for i, dim := range t.Shape {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, dim, 10)
	}
	out = append(out, `],"data_offsets":[`...)
	out = strconv.AppendInt(out, t.Begin, 10)
	out = append(out, ',')
	out = strconv.AppendInt(out, t.End, 10)
	return append(out, `]}`...)
}

func appendMetadata(out []byte, meta []KV) []byte {
	out = AppendQuoted(out, metadataKey)
	out = append(out, ':', '{')
	for i, kv := range meta {
		if i > 0 {
			out = append(out, ',')
		}
		out = AppendQuoted(out, kv.Key)
		out = append(out, ':')
		out = AppendQuoted(out, kv.Value)
	}
	return append(out, '}')
}

// AppendQuoted appends s as a JSON string the way Python's json module writes it
// by default: everything outside printable ASCII escaped, characters above the
// basic plane as a surrogate pair. Bytes that are not UTF-8 become U+FFFD.
func AppendQuoted(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	unit := func(u uint16) {
		dst = append(dst, '\\', 'u', hex[u>>12], hex[u>>8&15], hex[u>>4&15], hex[u&15])
	}
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r >= ' ' && r <= '~':
			dst = append(dst, byte(r))
		case r == '\n':
			dst = append(dst, '\\', 'n')
		case r == '\r':
			dst = append(dst, '\\', 'r')
		case r == '\t':
			dst = append(dst, '\\', 't')
		case r == '\b':
			dst = append(dst, '\\', 'b')
		case r == '\f':
			dst = append(dst, '\\', 'f')
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			unit(uint16(hi))
			unit(uint16(lo))
		default:
			unit(uint16(r))
		}
	}
	return append(dst, '"')
}
