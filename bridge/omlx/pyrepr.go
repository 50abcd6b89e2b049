package omlx

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// appendStringTuple appends the text of a Python tuple of strings; nothing for
// no strings, because the decoder leaves out an empty set of keys.
func appendStringTuple(dst []byte, items []string) []byte {
	if len(items) == 0 {
		return dst
	}
	dst = append(dst, '(')
	for i, s := range items {
		if i > 0 {
			dst = append(dst, ',', ' ')
		}
		dst = appendRepr(dst, s)
	}
	if len(items) == 1 {
		dst = append(dst, ',')
	}
	return append(dst, ')')
}

// appendRepr appends Python's repr of a string: single quotes unless only double
// quotes avoid an escape, and everything that is not printable escaped. What is
// printable is Unicode's business and grows with its versions; both sides
// agree on all assigned characters of older versions.
func appendRepr(dst []byte, s string) []byte {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	dst = append(dst, quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, '\\', 'n')
		case r == '\r':
			dst = append(dst, '\\', 'r')
		case r == '\t':
			dst = append(dst, '\\', 't')
		case unicode.IsPrint(r):
			dst = utf8.AppendRune(dst, r)
		case r < 0x100:
			dst = appendHex(append(dst, '\\', 'x'), uint32(r), 2)
		case r < 0x10000:
			dst = appendHex(append(dst, '\\', 'u'), uint32(r), 4)
		default:
			dst = appendHex(append(dst, '\\', 'U'), uint32(r), 8)
		}
	}
	return append(dst, quote)
}

func appendHex(dst []byte, v uint32, digits int) []byte {
	const hex = "0123456789abcdef"
	for i := digits - 1; i >= 0; i-- {
		dst = append(dst, hex[v>>(4*i)&15])
	}
	return dst
}
