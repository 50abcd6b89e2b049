package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// lane moves frames on one socket. One goroutine writes and one reads.
type lane struct {
	conn *net.TCPConn
	in   inbound

	// The two parts of a frame that is being written. WriteTo consumes the
	// slice vec, so it is cut anew from parts for each frame; both live here
	// so that no frame allocates.
	parts [2][]byte
	vec   net.Buffers
}

// write sends header and payload with one vectored write (more only when the
// socket buffer is full).
func (l *lane) write(header, payload []byte) error {
	l.parts[0], l.parts[1] = header, payload
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
// that the peer ended its direction between two frames.
func (l *lane) read(header []byte, maxPayload int, place session.Placer) (int, error) {
	if err := l.in.fill(header[:wire.FixedHeader], false); err != nil {
		if errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		return 0, fmt.Errorf("read frame header: %w", err)
	}
	headerLen, payloadLen, err := wire.FrameLength(header[:wire.FixedHeader], maxPayload)
	if err != nil {
		return 0, fmt.Errorf("frame header: %w", err)
	}
	if headerLen > len(header) {
		return 0, fmt.Errorf("%w: frame header of %d bytes, room for %d", transport.ErrProtocol, headerLen, len(header))
	}
	if err := l.in.fill(header[wire.FixedHeader:headerLen], false); err != nil {
		return 0, fmt.Errorf("read piece list: %w", noEOF(err))
	}
	payload, err := place(header[:headerLen])
	if err != nil {
		return 0, err
	}
	if len(payload) != payloadLen {
		return 0, fmt.Errorf("tcp: placed %d bytes for a payload of %d", len(payload), payloadLen)
	}
	if err := l.in.fill(payload, true); err != nil {
		return 0, fmt.Errorf("read payload of %d bytes: %w", payloadLen, noEOF(err))
	}
	return headerLen, nil
}
