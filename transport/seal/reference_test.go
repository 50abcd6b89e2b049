package seal_test

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"pdlink/transport/wire"
)

// reference seals frames by the letter of PROTOCOL.md, section 10, without any code of
// the package: with a key of the caller's choice for each frame, as no sealer does.
type reference struct {
	tb   testing.TB
	aead cipher.AEAD
	iv   []byte
}

// newReference has key number index of testBytes' lane 0, towards the server, by
// aes-128-gcm.
func newReference(tb testing.TB, index int) reference {
	tb.Helper()
	expand := func(secret []byte, info string, n int) []byte {
		b, err := hkdf.Expand(sha256.New, secret, info, n)
		if err != nil {
			tb.Fatal(err)
		}
		return b
	}
	shared := testBytes()
	secret := expand(shared[:], "pdlink/1 traffic\x00aes-128-gcm\x00\x00\x00\x00", 32)
	for range index {
		secret = expand(secret, "pdlink/1 next", 32)
	}
	block, err := aes.NewCipher(expand(secret, "pdlink/1 key", 16))
	if err != nil {
		tb.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		tb.Fatal(err)
	}
	return reference{tb, aead, expand(secret, "pdlink/1 iv", 12)}
}

// seal seals f, whose payload is one record, as frame number n.
func (r reference) seal(n uint64, f frame) sealed {
	r.tb.Helper()
	le := binary.LittleEndian
	head := le.AppendUint64([]byte("PDLS\x01\x11\x00\x00"), n) // records of 2^17 bytes
	prelude := head[:16:16]
	record := func(index uint64, plain []byte) []byte {
		nonce := append([]byte(nil), r.iv...)
		le.PutUint64(nonce[4:], le.Uint64(nonce[4:])^(n<<16|index))
		return r.aead.Seal(nil, nonce, plain, prelude)
	}
	head = append(head, record(0, f.header[:wire.FixedHeader])...)
	head = append(head, record(1, f.header[wire.FixedHeader:])...)
	body := record(2, f.payload)
	return sealed{append(head, body[len(f.payload):]...), body[:len(f.payload)]}
}
