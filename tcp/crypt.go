package tcp

import (
	"fmt"

	"pdlink/transport"
	"pdlink/transport/seal"
)

// crypt is the sealed side of a lane. One goroutine seals and one opens.
type crypt struct {
	sealer *seal.Sealer
	opener *seal.Opener

	head [seal.MaxHead]byte // of the frame that is being written
	body []byte             // its payload, sealed; grows to the largest that is written

	seen [seal.MaxHead]byte // of the frame that is being read
}

// newCrypt derives the keys of a lane. packed says that frames may be.
func newCrypt(g *guard, lane, maxPayload int, packed bool) (*crypt, error) {
	sealer, opener, err := g.seals(lane, seal.Options{Suite: g.suite, MaxPayload: maxPayload, Packed: packed})
	if err != nil {
		return nil, err
	}
	return &crypt{sealer: sealer, opener: opener}, nil
}

// seal returns the sealed form of the next frame, valid until the next call. The
// frame's own bytes stay: its slot may be sent again. The tags of all records
// come before the first record, so the whole payload is sealed before anything
// is written; what it is sealed into is used again for each frame and is in the
// cache when the socket copies it.
func (c *crypt) seal(header, payload []byte) (head, body []byte, err error) {
	if len(c.body) < len(payload) {
		c.body = make([]byte, len(payload))
	}
	body = c.body[:len(payload)]
	n, err := c.sealer.Seal(c.head[:], body, header, payload)
	if err != nil {
		return nil, nil, err
	}
	return c.head[:n], body, nil
}

// readHeader reads and opens the head of the next frame and writes its header.
func (c *crypt) readHeader(in *inbound, header []byte) (headerLen, payloadLen int, err error) {
	first := c.seen[:seal.HeadSize]
	if err := in.fill(first, noPayload); err != nil {
		return 0, 0, headError(err)
	}
	headerLen, payloadLen, err = c.opener.OpenHead(header, first)
	if err != nil {
		return 0, 0, err
	}
	if headerLen > len(header) {
		return 0, 0, fmt.Errorf("%w: frame header of %d bytes, room for %d", transport.ErrProtocol, headerLen, len(header))
	}
	rest := c.seen[:c.opener.RestLen()]
	if err := in.fill(rest, noPayload); err != nil {
		return 0, 0, fmt.Errorf("read head: %w", noEOF(err))
	}
	if err := c.opener.OpenRest(header, rest); err != nil {
		return 0, 0, err
	}
	return headerLen, payloadLen, nil
}

// readPayload reads a payload and opens it where it lies, a part at a time, while
// that is in the cache.
func (c *crypt) readPayload(in *inbound, payload []byte) error {
	for have := 0; have < len(payload); {
		n := min(openStep, len(payload)-have)
		if err := in.fill(payload[have:have+n], payloadBytes(len(payload)-have-n)); err != nil {
			return noEOF(err)
		}
		have += n
		if _, err := c.opener.OpenPayload(payload, have); err != nil {
			return err
		}
	}
	return nil
}
