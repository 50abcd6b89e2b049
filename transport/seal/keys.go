package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"fmt"
)

// direction is the state that both ends of one direction of a lane have: which
// frame is next and the key for it. Both ends change keys at the same frames, so
// nothing is said about it. One goroutine at a time.
type direction struct {
	suite Suite
	aead  cipher.AEAD
	iv    [nonceSize]byte
	next  [SecretSize]byte // secret of the key in use; the key cannot be had from its successor
	frame uint64           // number of the next frame
	limit uint64           // first frame that needs another key
	step  uint64           // frames a key

	// Arguments of the cipher. They live here so that no record allocates.
	nonce   [nonceSize]byte
	prelude [preludeSize]byte
}

// start makes the first key.
func (d *direction) start(s *Secret, suite Suite, lane int, to Direction) error {
	if suite.keySize() == 0 {
		return invalid("suite %v has no keys", suite)
	}
	d.suite, d.step, d.limit = suite, keyFrames, keyFrames
	if err := s.derive(d.next[:], infoTraffic, suite, lane, to); err != nil {
		return err
	}
	return d.key()
}

// key makes the cipher from the secret in next.
func (d *direction) key() error {
	var room [32]byte
	key := room[:d.suite.keySize()]
	defer clear(key)
	if err := expand(key, d.next[:], infoKey); err != nil {
		return err
	}
	if err := expand(d.iv[:], d.next[:], infoIV); err != nil {
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return fmt.Errorf("seal: cipher: %w", err)
	}
	if d.aead, err = cipher.NewGCM(block); err != nil {
		return fmt.Errorf("seal: cipher: %w", err)
	}
	return nil
}

// begin prepares the next frame, whose records have 2^recordLog bytes. It changes
// the key where that is due.
func (d *direction) begin(recordLog byte) error {
	if d.frame >= maxFrames {
		return ErrExhausted
	}
	if d.frame >= d.limit {
		var after [SecretSize]byte
		if err := expand(after[:], d.next[:], infoNext); err != nil {
			return err
		}
		d.next = after
		clear(after[:])
		if err := d.key(); err != nil {
			return err
		}
		d.limit += d.step
	}
	putPrelude(&d.prelude, recordLog, d.frame)
	return nil
}

// set makes nonce that of a record of the frame at hand (section 10.3).
func (d *direction) set(index int) {
	d.nonce = d.iv
	le := binary.LittleEndian
	counter := d.frame<<16 | uint64(index)
	le.PutUint64(d.nonce[4:], le.Uint64(d.nonce[4:])^counter)
}

// Records of a frame by their index; the payload's follow.
const (
	recordFixed = iota
	recordList
	recordPayload
)

// The prelude (section 10.4).
const (
	preludeMagic   = 0x534c4450 // "PDLS" in memory order
	preludeVersion = 1

	minRecordLog = 16
	maxRecordLog = 18
)

func putPrelude(p *[preludeSize]byte, recordLog byte, frame uint64) {
	le := binary.LittleEndian
	le.PutUint32(p[0:], preludeMagic)
	p[4], p[5] = preludeVersion, recordLog
	le.PutUint16(p[6:], 0)
	le.PutUint64(p[8:], frame)
}

// tags is how many records a payload of n bytes has.
func tags(n, record int) int { return (n + record - 1) / record }
