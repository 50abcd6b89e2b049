package rdma

import (
	"errors"
	"fmt"
	"sync"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
	"pdlink/transport/seal"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// inbound is the receiving direction of a lane. Numbers count frames, or messages in
// stride mode. The pump takes what arrives; one goroutine reads.
type inbound struct {
	opener *seal.Opener // nil: frames in clear
	heads  *arena       // that the peer writes to, or that this end reads into
	bodies *arena
	notes  *arena // posted receives; messages in stride mode

	arrivals  chan notice // room for every slot
	immediate bool        // the peer announces by immediates

	// Of the pump.
	next  uint64   // number of the next frame that is announced
	ready []notice // announced by completions whose receives are not posted again yet
	pulls []notice // in pull mode, by slot: announced and not read to its end
	all   bool     // the provider wants every request to complete

	// Of the reader.
	using     sync.Mutex // held by read, and by whoever frees the memory
	seen      [seal.MaxHead]byte
	left      []byte // of the message at hand, in stride mode
	message   notice // the message at hand
	held      bool   // there is one
	consumed  uint64 // frames that were copied out
	announced uint64 // as the peer was told; guarded by using

	mu      sync.Mutex // guards what follows
	granted uint64     // frames that the peer may have announced
	arrived uint64     // next, for the watch
	sent    uint64     // how many the peer says to have sent, in stride mode
	asked   uint64     // frames that are or were read, in pull mode; the pump alone sets it and got
	got     uint64     // frames that have been read
	lost    stall      // of arrived
	unread  stall      // of got
}

// completed takes a receive that has ended, in the pump. What it announces waits until
// the receive is posted again: as soon as the reader has it, the peer may be told to
// send the frame that needs that receive.
func (in *inbound) completed(l *lane, c *verbs.Completion) error {
	if l.c.t.mode == stride {
		return in.messaged(l, c)
	}
	n := notice{epoch: l.c.t.epoch, number: in.next}
	b := in.notes.slot(int(c.ID))
	switch {
	case c.HasImm:
		if !in.immediate || uint64(c.Imm) != in.next&0xffffffff {
			return wire.Violation("rdma: frame announced by immediate %d, %d was due", c.Imm, in.next)
		}
		n.head, n.body = headRoom, c.Length
		n.slot = uint32(in.next % uint64(l.c.t.slots))
	case c.Length != noticeSize:
		return wire.Violation("rdma: notice of %d bytes", c.Length)
	default:
		n.get(b)
	}
	if err := in.judge(l, &n); err != nil {
		return err
	}
	l.repost = append(l.repost, verbs.RecvWR{ID: c.ID, Local: in.notes.segment(b)})
	in.ready = append(in.ready, n)
	return in.advance()
}

// pass hands on what was announced, after the receives were posted again.
func (in *inbound) pass(l *lane) error {
	for _, n := range in.ready {
		if l.c.t.mode == pull {
			in.pulls[n.slot] = n
		} else if err := in.deliver(n); err != nil {
			return err
		}
	}
	in.ready = in.ready[:0]
	if l.c.t.mode == pull {
		return in.fetch(l)
	}
	return nil
}

// judge says what is wrong with an announcement.
func (in *inbound) judge(l *lane, n *notice) error {
	switch {
	case n.epoch != l.c.t.epoch:
		return wire.Violation("rdma: notice of epoch %d, this is %d", n.epoch, l.c.t.epoch)
	case n.number != in.next || uint64(n.slot) != n.number%uint64(l.c.t.slots):
		return wire.Violation("rdma: notice of frame %d in slot %d, frame %d was due", n.number, n.slot, in.next)
	case n.head > headRoom || int(n.body) > in.bodies.unit || n.head == 0 || n.body == 0:
		return wire.Violation("rdma: notice of a frame of %d+%d bytes", n.head, n.body)
	}
	return nil
}

// advance counts an arrival. One that was not granted is refused: its slot may be that
// of a frame which the reader still copies out.
func (in *inbound) advance() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.next >= in.granted {
		return wire.Violation("rdma: frame %d beyond the %d granted", in.next, in.granted)
	}
	in.next++
	in.arrived = in.next
	return nil
}

// deliver hands a frame to the reader.
func (in *inbound) deliver(n notice) error {
	select {
	case in.arrivals <- n:
		return nil
	default:
		return wire.Violation("rdma: frame %d beyond the %d granted", n.number, cap(in.arrivals))
	}
}

// fetch posts READs for frames that were announced, some at a time.
func (in *inbound) fetch(l *lane) error {
	for in.asked-in.got < readAhead && in.asked < in.next {
		i := int(in.asked % uint64(len(in.pulls)))
		n := in.pulls[i]
		wrs := [2]verbs.SendWR{{Op: verbs.OpRead}, {Op: verbs.OpRead, ID: idRead | n.number}}
		wrs[0].Local = one(in.heads.segment(in.heads.slot(i)[:n.head]))
		wrs[0].RemoteAddr, wrs[0].RemoteKey = l.peer.heads.addr+uint64(i)*headRoom, l.peer.heads.key
		wrs[1].Local = one(in.bodies.segment(in.bodies.slot(i)[:n.body]))
		wrs[1].RemoteAddr, wrs[1].RemoteKey = remote(l.peer.bodies, l.c.peerBody, i)
		if err := l.post(wrs[:], &in.all); err != nil {
			return fmt.Errorf("read frame %d: %w", n.number, err)
		}
		in.mu.Lock()
		in.asked++
		in.mu.Unlock()
	}
	return nil
}

// landed takes the end of the READs of frame number.
func (in *inbound) landed(number uint64) error {
	if in.got == in.asked || number != in.got {
		return fmt.Errorf("frame %d was read out of order", number)
	}
	n := in.pulls[number%uint64(len(in.pulls))]
	in.mu.Lock()
	in.got++
	in.mu.Unlock()
	return in.deliver(n) // pass asks for the next
}

// arrival waits for the next frame or message. Nothing of a lane that is dead is
// delivered.
func (in *inbound) arrival(l *lane) (notice, error) {
	select {
	case <-l.c.dead:
		return notice{}, l.c.why()
	default:
	}
	select {
	case n := <-in.arrivals:
		return n, nil
	case <-l.c.dead:
		return notice{}, l.c.why()
	}
}

// read receives a frame.
func (in *inbound) read(l *lane, header []byte, place session.Placer) (int, error) {
	in.using.Lock()
	defer in.using.Unlock()
	if l.c.t.mode == stride {
		n, err := in.take(l, &messages{in, l}, header, place)
		if err == nil && in.held {
			err = wire.Violation("rdma: message %d goes on after the end of its frame", in.message.number)
		}
		return n, err
	}
	n, err := in.arrival(l)
	if err != nil {
		return 0, err
	}
	i := int(n.slot)
	s := slotBytes{head: in.heads.slot(i)[:n.head], body: in.bodies.slot(i)[:n.body]}
	size, err := in.take(l, &s, header, place)
	if err != nil {
		return 0, fmt.Errorf("frame %d: %w", n.number, err)
	}
	if len(s.body) > 0 || len(s.head) > 0 && !in.immediate {
		return 0, wire.Violation("rdma: frame %d is %d+%d bytes shorter than its notice says", n.number, len(s.head), len(s.body))
	}
	return size, in.release(l)
}

// raw receives a frame that no session made, as try sends it, and copies its first
// bytes.
func (in *inbound) raw(l *lane, head, body []byte) error {
	if l.c.t.mode == stride {
		m := messages{in, l}
		return errors.Join(m.fromHead(head), m.fromBody(body))
	}
	n, err := in.arrival(l)
	if err != nil {
		return err
	}
	i := int(n.slot)
	if int(n.head) != len(head) || int(n.body) != len(body) {
		return wire.Violation("rdma: frame of %d+%d bytes where one of %d+%d was due", n.head, n.body, len(head), len(body))
	}
	copy(head, in.heads.slot(i))
	copy(body, in.bodies.slot(i))
	return in.release(l)
}

// release gives the slot of the oldest frame back.
func (in *inbound) release(l *lane) error {
	in.consumed++
	return in.grant(l, max(1, uint64(l.c.t.slots)/4))
}

// grant tells the peer of slots that are free, if there are least of them.
func (in *inbound) grant(l *lane, least uint64) error {
	if in.consumed-in.announced < least || l.c.say.Load() == nil {
		return nil
	}
	in.announced = in.consumed
	total := in.consumed + uint64(l.c.t.slots)
	in.mu.Lock()
	in.granted = total
	in.mu.Unlock()
	return l.c.tell(typeGrant, count{l.c.t.epoch, uint16(l.index), total})
}

// bytes is where a frame is copied from, part by part.
type bytes interface {
	// fromHead and fromBody fill p with what comes next of the head or the body.
	fromHead(p []byte) error
	fromBody(p []byte) error
}

// slotBytes is a frame in a slot.
type slotBytes struct{ head, body []byte }

func (s *slotBytes) fromHead(p []byte) error { return chop(&s.head, p, "head") }
func (s *slotBytes) fromBody(p []byte) error { return chop(&s.body, p, "payload") }

// chop moves the front of from to p.
func chop(from *[]byte, p []byte, what string) error {
	if len(p) > len(*from) {
		return wire.Violation("rdma: the %s of the frame is longer than its notice says", what)
	}
	*from = (*from)[copy(p, *from):]
	return nil
}

// take copies a frame out: header into header, payload into what place returns. What
// it looks at is its own copy: the peer may still write to the slot.
func (in *inbound) take(l *lane, b bytes, header []byte, place session.Placer) (int, error) {
	var headerLen, payloadLen int
	var err error
	if in.opener != nil {
		headerLen, payloadLen, err = in.openHeader(b, header)
	} else {
		headerLen, payloadLen, err = readHeader(b, header, l.c.t.maxPayload)
	}
	if err != nil {
		return 0, err
	}
	payload, err := place(header[:headerLen])
	if err != nil {
		return 0, err
	}
	if len(payload) != payloadLen {
		return 0, fmt.Errorf("rdma: placed %d bytes for a payload of %d", len(payload), payloadLen)
	}
	if in.opener == nil {
		return headerLen, b.fromBody(payload)
	}
	for have := 0; have < len(payload); {
		n := min(openStep, len(payload)-have)
		if err := b.fromBody(payload[have : have+n]); err != nil {
			return 0, err
		}
		have += n
		if _, err := in.opener.OpenPayload(payload, have); err != nil {
			return 0, err
		}
	}
	return headerLen, nil
}

// readHeader copies and judges a header in clear.
func readHeader(b bytes, header []byte, maxPayload int) (headerLen, payloadLen int, err error) {
	if err := b.fromHead(header[:wire.FixedHeader]); err != nil {
		return 0, 0, err
	}
	headerLen, payloadLen, err = wire.FrameLength(header[:wire.FixedHeader], maxPayload)
	if err != nil {
		return 0, 0, fmt.Errorf("frame header: %w", err)
	}
	if headerLen > len(header) {
		return 0, 0, fmt.Errorf("%w: frame header of %d bytes, room for %d", transport.ErrProtocol, headerLen, len(header))
	}
	return headerLen, payloadLen, b.fromHead(header[wire.FixedHeader:headerLen])
}

// openHeader copies and opens a sealed one.
func (in *inbound) openHeader(b bytes, header []byte) (headerLen, payloadLen int, err error) {
	first := in.seen[:seal.HeadSize]
	if err := b.fromHead(first); err != nil {
		return 0, 0, err
	}
	headerLen, payloadLen, err = in.opener.OpenHead(header, first)
	if err != nil {
		return 0, 0, err
	}
	if headerLen > len(header) {
		return 0, 0, fmt.Errorf("%w: frame header of %d bytes, room for %d", transport.ErrProtocol, headerLen, len(header))
	}
	rest := in.seen[:in.opener.RestLen()]
	if err := b.fromHead(rest); err != nil {
		return 0, 0, err
	}
	return headerLen, payloadLen, in.opener.OpenRest(header, rest)
}

// promised takes the number of messages that the peer says to have sent.
func (in *inbound) promised(l *lane, total uint64) error {
	if l.c.t.mode != stride {
		return wire.Violation("rdma: count of messages in %v mode", l.c.t.mode)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.sent = max(in.sent, total)
	return nil
}

// look is the watch's: an error when messages were sent that do not arrive, or READs
// do not end.
func (in *inbound) look() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.lost.look(in.arrived, in.arrived < in.sent) {
		return fmt.Errorf("%d messages were sent and %d have arrived: the rest is lost", in.sent, in.arrived)
	}
	if in.unread.look(in.got, in.got < in.asked) {
		return fmt.Errorf("%d frames are to be read and %d were: the peer is gone", in.asked, in.got)
	}
	return nil
}

// close frees the memory.
func (in *inbound) close() error {
	in.using.Lock()
	defer in.using.Unlock()
	return errors.Join(in.heads.close(), in.bodies.close(), in.notes.close())
}
