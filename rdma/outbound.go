package rdma

import (
	"errors"
	"fmt"
	"sync"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
	"pdlink/transport/seal"
	"pdlink/transport/wire"
)

// outbound is the sending direction of a lane. Numbers count frames, or messages in
// stride mode. One goroutine queues; the pump completes.
type outbound struct {
	sealer *seal.Sealer // nil: frames in clear
	heads  *arena       // of frames on their way
	notes  *arena       // announcements on their way
	bodies *arena       // payloads that are not sent from where they are; messages in stride mode
	width  uint64       // frames that may be on their way

	inline    bool // notices go with their request
	immediate bool // frames are announced by immediates
	signalAll bool // the provider wants every request to complete
	wrs       [frameWRs]verbs.SendWR
	scratch   []byte // a sealed payload, in stride mode

	room  chan struct{} // capacity 1: a grant or a completion came
	using sync.Mutex    // held by queue, and by whoever frees the memory

	mu      sync.Mutex // guards what follows
	next    uint64     // number of the next
	granted uint64     // how many may be sent in all
	ended   uint64     // how many have completed
	done    []func()   // of those on their way, by number modulo width; nil: told already
	stall   stall      // of ended
	told    uint64     // next, as the peer was told last
}

// turn waits until the next frame may be sent with fewer than width others on their
// way, and returns its number.
func (o *outbound) turn(l *lane, width uint64) (uint64, error) {
	for {
		o.mu.Lock()
		n, ok := o.next, o.next < o.granted && o.next-o.ended < width
		o.mu.Unlock()
		select {
		case <-l.c.dead:
			return 0, l.c.why()
		default:
		}
		if ok {
			return n, nil
		}
		select {
		case <-o.room:
		case <-l.c.dead:
			return 0, l.c.why()
		}
	}
}

// signal says that turn may look again.
func (o *outbound) signal() {
	select {
	case o.room <- struct{}{}:
	default:
	}
}

// queue sends a frame. Where done is nil the payload is copied before it returns.
func (o *outbound) queue(l *lane, header, payload []byte, done func()) error {
	o.using.Lock()
	defer o.using.Unlock()
	if l.c.t.mode == stride {
		return o.cut(l, header, payload, done)
	}
	staged := done == nil || l.c.t.mode == pull || o.sealer != nil || !within(l.c.ring, payload)
	width := o.width
	if staged && l.c.t.mode == push {
		width = min(width, uint64(len(o.bodies.mem)/o.bodies.unit))
	}
	n, err := o.turn(l, width)
	if err != nil {
		return err
	}
	head := o.heads.slot(o.index(n, o.heads))
	body := payload
	if staged {
		body = o.bodies.slot(o.index(n, o.bodies))
	}
	f := outFrame{number: n}
	if o.sealer != nil {
		f.body = body[:len(payload)]
		var size int
		if size, err = o.sealer.Seal(head, f.body, header, payload); err != nil {
			return fmt.Errorf("seal frame of %d+%d bytes: %w", len(header), len(payload), err)
		}
		f.head = head[:size]
	} else {
		f.head, f.body = head[:copy(head, header)], payload
		if staged {
			f.body = body[:copy(body, payload)]
		}
	}
	if staged {
		err = o.send(l, &f, nil)
	} else {
		err = o.send(l, &f, done)
	}
	if err == nil && staged && done != nil {
		done()
	}
	return err
}

// index is the slot of an arena that frame n uses.
func (o *outbound) index(n uint64, a *arena) int {
	return int(n % uint64(len(a.mem)/a.unit))
}

// outFrame is a frame whose bytes lie where the device finds them.
type outFrame struct {
	number     uint64
	head, body []byte
}

// try sends a frame of bytes that no session made, in clear.
func (o *outbound) try(l *lane, head, body []byte) error {
	if l.c.t.mode == stride {
		return o.messages(l, head, body)
	}
	n, err := o.turn(l, 1)
	if err != nil {
		return err
	}
	h, b := o.heads.slot(o.index(n, o.heads)), o.bodies.slot(o.index(n, o.bodies))
	f := outFrame{number: n, head: h[:copy(h, head)], body: b[:copy(b, body)]}
	return o.send(l, &f, nil)
}

// send posts a frame whose number has its turn.
func (o *outbound) send(l *lane, f *outFrame, done func()) error {
	o.mu.Lock()
	o.done[f.number%o.width] = done
	o.next++
	o.mu.Unlock()
	var wrs []verbs.SendWR
	switch l.c.t.mode {
	case push:
		wrs = o.writes(l, f)
	case pull:
		wrs = append(o.wrs[:0], o.announce(l, f))
	default:
		wrs = append(o.wrs[:0], o.whole(f))
	}
	wrs[len(wrs)-1].ID = idFrame | f.number
	err := l.post(wrs, &o.signalAll)
	if err == nil {
		if l.ch == nil {
			l.wake()
		}
		return nil
	}
	l.c.fail(fmt.Errorf("%w: lane %d: frame %d: %w", transport.ErrLost, l.index, f.number, err))
	if done != nil {
		return nil // some requests may have been taken: whoever closes the lane tells the owner of the bytes
	}
	return l.c.why()
}

// writes is the requests that put a frame into the peer's slot and announce it.
func (o *outbound) writes(l *lane, f *outFrame) []verbs.SendWR {
	slot := int(f.number % uint64(l.peer.slots))
	head := verbs.SendWR{Op: verbs.OpWrite, Local: one(o.heads.segment(f.head))}
	head.RemoteAddr, head.RemoteKey = l.peer.heads.addr+uint64(slot)*headRoom, l.peer.heads.key
	body := verbs.SendWR{Op: verbs.OpWrite}
	body.RemoteAddr, body.RemoteKey = remote(l.peer.bodies, l.c.peerBody, slot)
	if within(l.c.ring, f.body) {
		body.Local = one(locate(l.c.parts, l.c.ring, f.body))
	} else {
		body.Local = one(o.bodies.segment(f.body))
	}
	if o.immediate {
		body.Op, body.Imm = verbs.OpWriteImm, uint32(f.number)
		return append(o.wrs[:0], head, body)
	}
	return append(o.wrs[:0], body, head, o.announce(l, f))
}

// announce is the request that tells the peer of a frame.
func (o *outbound) announce(l *lane, f *outFrame) verbs.SendWR {
	b := o.notes.slot(o.index(f.number, o.notes))[:noticeSize]
	n := notice{
		epoch: l.c.t.epoch, slot: uint32(f.number % uint64(l.c.t.slots)), number: f.number,
		head: uint32(len(f.head)), body: uint32(len(f.body)),
	}
	n.put(b)
	wr := verbs.SendWR{Op: verbs.OpSend, Local: one(o.notes.segment(b))}
	if o.inline {
		wr.Flags = verbs.FlagInline
	}
	return wr
}

func one(s verbs.Segment) [verbs.MaxSegments]verbs.Segment {
	return [verbs.MaxSegments]verbs.Segment{s}
}

// completed takes the end of frame n and of all before it.
func (o *outbound) completed(n uint64) {
	for {
		o.mu.Lock()
		if n < o.ended || n >= o.next {
			o.mu.Unlock()
			return // twice, or of a queue pair that is being flushed
		}
		i := o.ended % o.width
		done := o.done[i]
		o.done[i] = nil
		o.ended++
		last := o.ended > n
		o.mu.Unlock()
		if done != nil {
			done()
		}
		if last {
			o.signal()
			return
		}
	}
}

// granting takes the peer's grant.
func (o *outbound) granting(l *lane, total uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if total > o.next+uint64(l.c.t.slots) {
		return wire.Violation("rdma: lane %d: grant of %d frames, %d were sent and there are %d slots", l.index, total, o.next, l.c.t.slots)
	}
	if total > o.granted { // grants that are late say nothing
		o.granted = total
		o.signal()
	}
	return nil
}

// outstanding reports whether requests have not completed.
func (o *outbound) outstanding() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended < o.next
}

// look is the watch's: an error when requests make no progress. In stride mode, where
// what is lost is lost without a word, the peer is told how much was sent.
func (o *outbound) look(l *lane) error {
	o.mu.Lock()
	stalled, next := o.stall.look(o.ended, o.ended < o.next), o.next
	tell := l.c.t.mode == stride && next != o.told
	o.told = next
	o.mu.Unlock()
	if stalled {
		return fmt.Errorf("no request has completed for %v: the peer, or the way to it, is gone", stallTime)
	}
	if tell {
		return l.c.tell(typeSent, count{l.c.t.epoch, uint16(l.index), next})
	}
	return nil
}

// held is how many frames have not completed whose bytes lie in the session's ring.
func (o *outbound) held() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, done := range o.done {
		if done != nil {
			n++
		}
	}
	return n
}

// settle waits for the frame that is being queued. The lane is dead: there is no other
// afterwards.
func (o *outbound) settle() {
	o.using.Lock()
	o.using.Unlock() //nolint:staticcheck // nothing is done meanwhile
}

// abandon tells the owners of frames that never completed that their bytes are free: the
// queue pair is gone, or the device has lost the memory.
func (o *outbound) abandon() {
	o.mu.Lock()
	list := o.done
	o.done = make([]func(), len(list))
	o.ended = o.next
	o.mu.Unlock()
	for _, done := range list {
		if done != nil {
			done()
		}
	}
}

// close frees the memory.
func (o *outbound) close() error {
	o.using.Lock()
	defer o.using.Unlock()
	return errors.Join(o.heads.close(), o.notes.close(), o.bodies.close())
}
