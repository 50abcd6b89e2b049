package safetensors

import (
	"bytes"
	"fmt"
	"math"
	"unicode/utf16"
	"unicode/utf8"
)

// parser reads the subset of JSON that a header may be: an object of tensor
// objects and one flat string object. A general decoder would hide duplicate
// keys, lone surrogates and key order, which all matter here.
type parser struct {
	buf []byte
	pos int
}

func (p *parser) fail(format string, args ...any) error {
	return fmt.Errorf("%w: %s at byte %d", ErrHeader, fmt.Sprintf(format, args...), p.pos)
}

// space skips JSON white space.
func (p *parser) space() {
	for p.pos < len(p.buf) {
		switch p.buf[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// accept skips white space and takes c if it is next.
func (p *parser) accept(c byte) bool {
	p.space()
	if p.pos < len(p.buf) && p.buf[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

func (p *parser) expect(c byte) error {
	if !p.accept(c) {
		return p.fail("expected %q", string(c))
	}
	return nil
}

// object reads an object and calls field for each key, positioned at the value.
// Refusing duplicate keys is up to field.
func (p *parser) object(field func(key string) error) error {
	if err := p.expect('{'); err != nil {
		return err
	}
	if p.accept('}') {
		return nil
	}
	for {
		key, err := p.text()
		if err != nil {
			return err
		}
		if err := p.expect(':'); err != nil {
			return err
		}
		if err := field(key); err != nil {
			return err
		}
		if p.accept(',') {
			continue
		}
		return p.expect('}')
	}
}

// names are the keys of one object, at most limit.
type names struct {
	seen  map[string]struct{}
	limit int
}

// add refuses a key that was there before, and one too many.
func (n *names) add(p *parser, key string) error {
	if n.seen == nil {
		n.seen = make(map[string]struct{})
	}
	if _, dup := n.seen[key]; dup {
		return p.fail("duplicate key %.100q", key)
	}
	if len(n.seen) >= n.limit {
		return p.fail("more than %d keys in one object", n.limit)
	}
	n.seen[key] = struct{}{}
	return nil
}

func (p *parser) header() (Header, error) {
	var h Header
	top, meta := names{limit: maxTensors + 1}, names{limit: maxMetadata}
	err := p.object(func(key string) error {
		if err := top.add(p, key); err != nil {
			return err
		}
		if key == metadataKey {
			if p.null() {
				return nil // written by MLX for a file without metadata
			}
			h.Metadata = []KV{}
			return p.object(func(k string) error {
				if err := meta.add(p, k); err != nil {
					return err
				}
				v, err := p.text()
				h.Metadata = append(h.Metadata, KV{Key: k, Value: v})
				return err
			})
		}
		t, err := p.tensor(key)
		h.Tensors = append(h.Tensors, t)
		return err
	})
	return h, err
}

// null takes the literal if it is next.
func (p *parser) null() bool {
	p.space()
	if !bytes.HasPrefix(p.buf[p.pos:], []byte("null")) {
		return false
	}
	p.pos += len("null")
	return true
}

func (p *parser) tensor(name string) (Tensor, error) {
	t := Tensor{Name: name}
	var offsets [maxDims]int64
	var dtype, shape, span bool
	once := func(seen *bool, key string) error {
		if *seen {
			return p.fail("duplicate key %q", key)
		}
		*seen = true
		return nil
	}
	err := p.object(func(key string) (err error) {
		switch key {
		case "dtype":
			if err = once(&dtype, key); err == nil {
				t.DType, err = p.dtype(name)
			}
		case "shape":
			if err = once(&shape, key); err == nil {
				var dims [maxDims]int64
				var n int
				n, err = p.integers(&dims)
				t.Shape = append(make([]int64, 0, n), dims[:n]...)
			}
		case "data_offsets":
			if err = once(&span, key); err == nil {
				var n int
				if n, err = p.integers(&offsets); err == nil && n != 2 {
					err = p.fail("tensor %.100q has %d data offsets", name, n)
				}
			}
		default:
			err = p.fail("tensor %.100q has unknown field %.100q", name, key)
		}
		return err
	})
	if err != nil {
		return t, err
	}
	if !dtype || !shape || !span {
		return t, p.fail("tensor %.100q lacks one of the fields dtype, shape, data_offsets", name)
	}
	t.Begin, t.End = offsets[0], offsets[1]
	return t, nil
}

func (p *parser) dtype(name string) (DType, error) {
	s, err := p.text()
	if err == nil && DType(s).Size() == 0 {
		err = p.fail("tensor %.100q has unknown dtype %.100q", name, s)
	}
	return DType(s), err
}

// integers reads an array of non-negative integers that fit int64 and returns
// how many there are.
func (p *parser) integers(out *[maxDims]int64) (int, error) {
	if err := p.expect('['); err != nil {
		return 0, err
	}
	if p.accept(']') {
		return 0, nil
	}
	for n := 0; ; {
		if n == maxDims {
			return 0, p.fail("more than %d numbers in an array", maxDims)
		}
		v, err := p.integer()
		if err != nil {
			return 0, err
		}
		out[n] = v
		n++
		if p.accept(',') {
			continue
		}
		return n, p.expect(']')
	}
}

func (p *parser) integer() (int64, error) {
	p.space()
	start := p.pos
	v := int64(0)
	for p.pos < len(p.buf) && p.buf[p.pos] >= '0' && p.buf[p.pos] <= '9' {
		d := int64(p.buf[p.pos] - '0')
		if v > (math.MaxInt64-d)/10 {
			return 0, p.fail("integer too large")
		}
		v = v*10 + d
		p.pos++
	}
	switch {
	case p.pos == start:
		return 0, p.fail("expected a non-negative integer")
	case p.buf[start] == '0' && p.pos-start > 1:
		return 0, p.fail("integer with a leading zero")
	}
	return v, nil
}

// text reads a JSON string.
func (p *parser) text() (string, error) {
	if err := p.expect('"'); err != nil {
		return "", err
	}
	start := p.pos
	for p.pos < len(p.buf) {
		switch c := p.buf[p.pos]; {
		case c == '"':
			p.pos++
			return string(p.buf[start : p.pos-1]), nil
		case c == '\\':
			return p.escaped(append([]byte(nil), p.buf[start:p.pos]...))
		case c < ' ':
			return "", p.fail("control character in a string")
		default:
			p.pos++
		}
	}
	return "", p.fail("unterminated string")
}

// escaped reads the rest of a string that has at least one escape; out holds
// what came before.
func (p *parser) escaped(out []byte) (string, error) {
	for p.pos < len(p.buf) {
		c := p.buf[p.pos]
		p.pos++
		switch {
		case c == '"':
			return string(out), nil
		case c < ' ':
			return "", p.fail("control character in a string")
		case c != '\\':
			out = append(out, c)
			continue
		}
		r, err := p.escape()
		if err != nil {
			return "", err
		}
		out = utf8.AppendRune(out, r)
	}
	return "", p.fail("unterminated string")
}

// escape reads what follows a backslash.
func (p *parser) escape() (rune, error) {
	if p.pos >= len(p.buf) {
		return 0, p.fail("unterminated escape")
	}
	c := p.buf[p.pos]
	p.pos++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		return p.unicode()
	}
	return 0, p.fail("unknown escape %q", string(rune(c)))
}

// unicode reads the digits of \uXXXX and, for a high surrogate, its partner.
func (p *parser) unicode() (rune, error) {
	r, err := p.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if p.pos+2 > len(p.buf) || p.buf[p.pos] != '\\' || p.buf[p.pos+1] != 'u' {
		return 0, p.fail("lone surrogate")
	}
	p.pos += 2
	low, err := p.hex4()
	if err != nil {
		return 0, err
	}
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return 0, p.fail("invalid surrogate pair")
	}
	return r, nil
}

func (p *parser) hex4() (rune, error) {
	if p.pos+4 > len(p.buf) {
		return 0, p.fail("short \\u escape")
	}
	var r rune
	for _, c := range p.buf[p.pos : p.pos+4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, p.fail("bad hexadecimal digit")
		}
	}
	p.pos += 4
	return r, nil
}
