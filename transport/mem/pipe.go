package mem

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"pdlink/transport/session"
	"pdlink/transport/wire"
)

const (
	// controlDepth is how many control messages wait between the two ends, as
	// a socket's buffer would hold some.
	controlDepth = 16

	// spareSize bounds the memory that a control message leaves behind for
	// the next one. Grants and acknowledgements are far below it.
	spareSize = 4 << 10
)

// pipe is one end of a connection within the process. It implements
// session.Driver. Lanes exist once the ends have agreed.
type pipe struct {
	in, out    *channel
	lanes      int
	maxPayload int
	last       []byte // what ReadControl returned last
}

var _ session.Driver = (*pipe)(nil)

// channel is one direction between two ends.
type channel struct {
	control chan []byte
	spare   chan []byte // memory of messages that were read
	lanes   [wire.MaxLanes]lane
	written end // the end that writes is closed
	read    end // the end that reads is closed
}

// lane carries frames. Both channels are handed over in person: bytes are copied
// while both ends are there.
type lane struct {
	offers chan frame
	taken  chan struct{} // capacity 1: the bytes of the offer are not needed any more
}

// frame is an offer of bytes that stay the sender's.
type frame struct{ header, payload []byte }

// end is something that closes once.
type end struct {
	once sync.Once
	done chan struct{}
}

func (e *end) close() { e.once.Do(func() { close(e.done) }) }

func newChannel() *channel {
	c := &channel{
		control: make(chan []byte, controlDepth),
		spare:   make(chan []byte, controlDepth),
		written: end{done: make(chan struct{})},
		read:    end{done: make(chan struct{})},
	}
	for i := range c.lanes {
		c.lanes[i] = lane{offers: make(chan frame), taken: make(chan struct{}, 1)}
	}
	return c
}

// newPipe makes the two ends of a connection.
func newPipe() (a, b *pipe) {
	ab, ba := newChannel(), newChannel()
	return &pipe{in: ba, out: ab}, &pipe{in: ab, out: ba}
}

// agreed sets what the handshake gave, before the session starts.
func (p *pipe) agreed(lanes, maxPayload int) { p.lanes, p.maxPayload = lanes, maxPayload }

// errGone is what a writer gets whose peer closed its end.
var errGone = errors.New("mem: the peer closed its end")

// errShut is what calls get on an end that is closed.
var errShut = fmt.Errorf("mem: %w", net.ErrClosed)

// shut is errShut on an end that is closed.
func shut(e *end) error {
	select {
	case <-e.done:
		return errShut
	default:
		return nil
	}
}

// WriteControl implements session.Driver.
func (p *pipe) WriteControl(msg []byte) error {
	if err := shut(&p.out.written); err != nil {
		return err
	}
	var buf []byte
	select {
	case buf = <-p.out.spare:
	default:
	}
	buf = append(buf[:0], msg...)
	select {
	case p.out.control <- buf:
		return nil
	case <-p.out.read.done:
		return errGone
	case <-p.out.written.done:
		return errShut
	}
}

// ReadControl implements session.Driver. What was written before the peer closed
// its end is read first.
func (p *pipe) ReadControl() ([]byte, error) {
	if err := shut(&p.in.read); err != nil {
		return nil, err
	}
	if cap(p.last) > 0 && cap(p.last) <= spareSize {
		select {
		case p.in.spare <- p.last:
		default:
		}
	}
	p.last = nil
	select {
	case p.last = <-p.in.control:
		return p.last, nil
	case <-p.in.read.done:
		return nil, errShut
	case <-p.in.written.done:
	}
	select {
	case p.last = <-p.in.control:
		return p.last, nil
	default:
		return nil, io.EOF
	}
}

// Lanes implements session.Driver.
func (p *pipe) Lanes() int { return p.lanes }

// WriteFrame implements session.Driver.
func (p *pipe) WriteFrame(n int, header, payload []byte) error {
	if err := shut(&p.out.written); err != nil {
		return err
	}
	l := &p.out.lanes[n]
	select {
	case l.offers <- frame{header, payload}:
	case <-p.out.read.done:
		return errGone
	case <-p.out.written.done:
		return errShut
	}
	// Whoever took the offer reads the bytes now, whatever closes meanwhile.
	<-l.taken
	return nil
}

// ReadFrame implements session.Driver.
func (p *pipe) ReadFrame(n int, header []byte, place session.Placer) (int, error) {
	if err := shut(&p.in.read); err != nil {
		return 0, err
	}
	l := &p.in.lanes[n]
	var f frame
	select {
	case f = <-l.offers:
	case <-p.in.read.done:
		return 0, errShut
	case <-p.in.written.done:
		return 0, io.EOF
	}
	defer func() { l.taken <- struct{}{} }()
	headerLen, payloadLen, err := wire.FrameLength(f.header, p.maxPayload)
	if err != nil {
		return 0, fmt.Errorf("mem: lane %d: %w", n, err)
	}
	// As from a socket, the header is judged first: a damaged length is a
	// damaged header, whatever comes after it.
	copy(header, f.header)
	payload, err := place(header[:headerLen])
	if err != nil {
		return 0, fmt.Errorf("mem: lane %d: %w", n, err)
	}
	if headerLen != len(f.header) || payloadLen != len(f.payload) {
		return 0, fmt.Errorf("mem: lane %d: frame of %d and %d bytes, its header says %d and %d: %w",
			n, len(f.header), len(f.payload), headerLen, payloadLen, io.ErrUnexpectedEOF)
	}
	copy(payload, f.payload)
	return headerLen, nil
}

// Close implements session.Driver.
func (p *pipe) Close() error {
	p.out.written.close()
	p.in.read.close()
	return nil
}
