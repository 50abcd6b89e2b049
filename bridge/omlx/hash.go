// Package omlx knows the block files of the oMLX decoder: the chain hash that
// names a block, the layout of formats 2 to 5, a store that places finished
// blocks so that the decoder sees an ordinary prefix hit, and a strict reader.
// It knows nothing of sockets or transfers.
//
// A block's wire data is what travels: only the tensors that carry computed
// data, in layer order, pools always as this block's own rows. It is the same
// for every file format; headers and constants are written by the receiver.
package omlx

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"strconv"
)

// HashSize is the number of bytes of a block hash.
const HashSize = sha256.Size

// Hash is a block's identity: the chain hash over model id, parent and tokens.
// Its lower-case hexadecimal form is the file name.
type Hash [HashSize]byte

// rootText stands for the parent of a chain's first block.
const rootText = "omlx-root"

// String returns 64 lower-case hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText returns the same text as String.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText accepts exactly what MarshalText returns.
func (h *Hash) UnmarshalText(text []byte) error {
	v, err := ParseHash(string(text))
	if err == nil {
		*h = v
	}
	return err
}

// ParseHash reads 64 lower-case hexadecimal digits; anything else is ErrBlock.
// Upper case is refused because the decoder compares the text.
func ParseHash(s string) (Hash, error) {
	var h Hash
	if len(s) != 2*HashSize {
		return h, fmt.Errorf("%w: hash of %d characters, want %d", ErrBlock, len(s), 2*HashSize)
	}
	for i := range h {
		hi, lo := hexDigit(s[2*i]), hexDigit(s[2*i+1])
		if hi > 15 || lo > 15 {
			return Hash{}, fmt.Errorf("%w: hash %q is not lower-case hexadecimal", ErrBlock, s)
		}
		h[i] = hi<<4 | lo
	}
	return h, nil
}

func hexDigit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

// Chain returns the hashes of all whole blocks of blockTokens tokens, in order.
// Each is the SHA-256 over the model id, the parent's hash ("omlx-root" for the
// first block), the tokens as the text of a Python tuple and, if there are any,
// the extra keys as another. Memory is the result plus a constant, whatever the
// prompt's length. A blockTokens below 1 gives no blocks.
func Chain(model string, blockTokens int, tokens []uint32, extra []string) []Hash {
	if blockTokens < 1 {
		return nil
	}
	c := newChain(model, extra)
	out := make([]Hash, 0, len(tokens)/blockTokens)
	var parent *Hash
	for len(tokens) >= blockTokens {
		out = append(out, c.next(parent, tokens[:blockTokens]))
		parent = &out[len(out)-1]
		tokens = tokens[blockTokens:]
	}
	return out
}

// tailKey is the extra key of a prompt's last, unfinished block: its hash is never
// that of a whole one.
const tailKey = "omlx-tail-v1"

// TailHash is the hash of the tokens behind the last whole block of a prompt, whose
// hash is parent.
func TailHash(model string, parent Hash, tokens []uint32) Hash {
	return newChain(model, []string{tailKey}).next(&parent, tokens)
}

// chain hashes the blocks of one prompt and reuses its buffers.
type chain struct {
	digest hash.Hash
	model  []byte
	extra  []byte
	buf    []byte
	sum    []byte // heap memory for the result: the digest is an interface
}

// chainBuffer is the text gathered before it goes into the digest: long enough
// that the call does not count, short enough to stay in the first-level cache.
const chainBuffer = 16 << 10

func newChain(model string, extra []string) *chain {
	return &chain{
		digest: sha256.New(),
		model:  []byte(model),
		extra:  appendStringTuple(nil, extra),
		buf:    make([]byte, 0, chainBuffer+16),
	}
}

func (c *chain) next(parent *Hash, tokens []uint32) Hash {
	c.digest.Reset()
	buf := append(c.buf[:0], c.model...)
	if parent == nil {
		buf = append(buf, rootText...)
	} else {
		buf = append(buf, parent[:]...)
	}
	buf = append(buf, '(')
	for i, tok := range tokens {
		if i > 0 {
			buf = append(buf, ',', ' ')
		}
		buf = strconv.AppendUint(buf, uint64(tok), 10)
		if len(buf) >= chainBuffer {
			c.digest.Write(buf)
			buf = buf[:0]
		}
	}
	if len(tokens) == 1 {
		buf = append(buf, ',')
	}
	buf = append(buf, ')')
	c.digest.Write(buf)
	c.digest.Write(c.extra)
	c.sum = c.digest.Sum(c.sum[:0])
	return Hash(c.sum)
}
