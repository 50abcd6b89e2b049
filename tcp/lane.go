package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"pdlink/transport"
	"pdlink/transport/codec"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// lane moves frames on one socket. One goroutine writes and one reads.
type lane struct {
	conn  socket
	in    inbound
	crypt *crypt // seals and opens; nil: frames in clear

	// Of a connection that agreed on a codec; nil: of no other.
	pack   *packer
	unpack *unpacker

	// The two parts of a frame that is being written. WriteTo consumes the
	// slice vec, so it is cut anew from parts for each frame; both live here
	// so that no frame allocates.
	parts [2][]byte
	vec   net.Buffers
}

// write sends header and payload with one vectored write (more only when the
// socket buffer is full).
func (l *lane) write(header, payload []byte) error {
	if l.pack == nil || l.pack.rests() {
		return l.writeSealed(header, payload)
	}
	begin := time.Now()
	head, body := l.pack.pack(header, payload)
	if err := l.writeSealed(head, body); err != nil {
		return err
	}
	l.pack.wrote(begin)
	return nil
}

// writeSealed is write for what goes on the wire, but for its seal.
func (l *lane) writeSealed(header, payload []byte) error {
	head, body := header, payload
	if l.crypt != nil {
		var err error
		if head, body, err = l.crypt.seal(header, payload); err != nil {
			return fmt.Errorf("seal frame of %d+%d bytes: %w", len(header), len(payload), err)
		}
	}
	l.parts[0], l.parts[1] = head, body
	l.vec = l.parts[:]
	_, err := l.vec.WriteTo(l.conn)
	l.parts = [2][]byte{}
	if err != nil {
		return fmt.Errorf("write frame of %d+%d bytes: %w", len(header), len(payload), err)
	}
	return nil
}

// read receives a frame: header into header, payload into what place returns,
// straight from the socket but for what came along with the header. io.EOF means
// that the peer ended its direction between two frames. On a sealed lane place
// gets a header that is authentic, and what it returned is opened where it lies.
func (l *lane) read(header []byte, maxPayload int, place session.Placer) (int, error) {
	var headerLen, payloadLen int
	var err error
	if l.crypt != nil {
		headerLen, payloadLen, err = l.crypt.readHeader(&l.in, header)
	} else {
		headerLen, payloadLen, err = l.readHeader(header, maxPayload)
	}
	if err != nil {
		return 0, err
	}
	if l.unpack != nil {
		return headerLen, l.readPacked(header[:headerLen], payloadLen, place)
	}
	payload, err := placed(place, header[:headerLen], payloadLen)
	if err != nil {
		return 0, err
	}
	return headerLen, l.readPayload(payload)
}

// readPacked reads the payload of a frame, stored bytes, where frames may be packed.
// place gets the header of the plain frame.
func (l *lane) readPacked(header []byte, stored int, place session.Placer) error {
	u := l.unpack
	id, err := u.plain(header, stored)
	if err != nil {
		return err
	}
	payload, err := placed(place, header, u.raw)
	switch {
	case err != nil:
		return err
	case id == codec.None:
		return l.readPayload(payload)
	}
	packed := u.room(stored)
	if err := l.readPayload(packed); err != nil {
		return err
	}
	return u.unpack(payload, packed)
}

// placed is the memory that place gives for a payload of n bytes.
func placed(place session.Placer, header []byte, n int) ([]byte, error) {
	payload, err := place(header)
	if err == nil && len(payload) != n {
		err = fmt.Errorf("tcp: placed %d bytes for a payload of %d", len(payload), n)
	}
	return payload, err
}

// readPayload reads what follows a header, and opens it.
func (l *lane) readPayload(payload []byte) (err error) {
	if l.crypt != nil {
		err = l.crypt.readPayload(&l.in, payload)
	} else {
		err = l.in.fill(payload, payloadBytes(0))
	}
	if err != nil {
		return fmt.Errorf("read payload of %d bytes: %w", len(payload), noEOF(err))
	}
	return nil
}

// readHeader reads and judges a header in clear.
func (l *lane) readHeader(header []byte, maxPayload int) (headerLen, payloadLen int, err error) {
	if err := l.in.fill(header[:wire.FixedHeader], noPayload); err != nil {
		return 0, 0, headError(err)
	}
	length := wire.FrameLength
	if l.unpack != nil {
		length = wire.PackedLength
	}
	headerLen, payloadLen, err = length(header[:wire.FixedHeader], maxPayload)
	if err != nil {
		return 0, 0, fmt.Errorf("frame header: %w", err)
	}
	if headerLen > len(header) {
		return 0, 0, fmt.Errorf("%w: frame header of %d bytes, room for %d", transport.ErrProtocol, headerLen, len(header))
	}
	if err := l.in.fill(header[wire.FixedHeader:headerLen], noPayload); err != nil {
		return 0, 0, fmt.Errorf("read piece list: %w", noEOF(err))
	}
	return headerLen, payloadLen, nil
}

// headError is the error of reading the first bytes of a frame: io.EOF where
// there was none.
func headError(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return fmt.Errorf("read frame header: %w", err)
}
