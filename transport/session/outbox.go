package session

import (
	"sync"

	"pdlink/transport/wire"
)

// outbox is what waits to be said to the peer. Adding never blocks. Messages
// that must not merge are a queue; grants and acknowledgements are state of the
// incoming transfers, collected when they are written.
type outbox struct {
	wake chan struct{} // capacity 1: there may be something

	mu      sync.Mutex // guards the fields below, and incoming.dirty
	msgs    [][]byte
	bytes   int // of msgs
	answers int // refusals among msgs that the engine made itself
	dirty   []*incoming
	spare   []*incoming // the dirty list that is not in use
	ending  bool        // nothing is added any more
}

// add queues an encoded message, which then belongs to the outbox.
func (b *outbox) add(msg []byte) { b.put(msg, false) }

// put is add; answer says that the engine made the message without asking the
// application. It returns how many of those wait.
func (b *outbox) put(msg []byte, answer bool) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending {
		return b.answers
	}
	b.msgs = append(b.msgs, msg)
	b.bytes += len(msg)
	if answer {
		b.answers++
	}
	signal(b.wake)
	return b.answers
}

// mark asks for the grants and acknowledgements of in to be written. They go
// out before every message that is added later.
func (b *outbox) mark(in *incoming) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if in.dirty || b.ending {
		return
	}
	in.dirty = true
	b.dirty = append(b.dirty, in)
	signal(b.wake)
}

// last adds the final message; the writer returns after it.
func (b *outbox) last(msg []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if msg != nil && !b.ending {
		b.msgs = append(b.msgs, msg)
	}
	b.ending = true
	signal(b.wake)
}

// backlog is how many bytes wait.
func (b *outbox) backlog() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}

// take removes all that waits. done says that nothing more will come. The dirty
// list is valid until the next take.
func (b *outbox) take() (msgs [][]byte, dirty []*incoming, done bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	msgs, dirty, done = b.msgs, b.dirty, b.ending
	for _, in := range dirty {
		in.dirty = false
	}
	b.msgs, b.bytes, b.answers = nil, 0, 0
	b.dirty, b.spare = b.spare[:0], dirty
	return msgs, dirty, done
}

// writeControl writes what the outbox has until the connection ends.
func (c *conn) writeControl() {
	defer close(c.written)
	var buf []byte
	var ranges []wire.BlockRange
	for {
		msgs, dirty, done := c.out.take()
		for i, in := range dirty {
			var err error
			if buf, ranges, err = c.writeState(in, buf, ranges); err != nil {
				c.lose("write control message", err)
				return
			}
			dirty[i] = nil
		}
		for i, msg := range msgs {
			if err := c.d.WriteControl(msg); err != nil {
				c.lose("write control message", err)
				return
			}
			msgs[i] = nil
		}
		if done {
			return
		}
		select {
		case <-c.out.wake:
		case <-c.quit:
			return
		}
	}
}

// writeState writes the acknowledgements and the grant that in has pending. buf
// and ranges are memory to use; both are returned for the next call.
func (c *conn) writeState(in *incoming, buf []byte, ranges []wire.BlockRange) ([]byte, []wire.BlockRange, error) {
	ranges, total := in.pending(ranges[:0])
	for rest := ranges; len(rest) > 0; {
		n := min(len(rest), ackBatch)
		msg, err := wire.AppendAck(buf[:0], &wire.Ack{Handle: in.handle, Ranges: rest[:n]})
		if err != nil {
			return buf, ranges, err
		}
		buf = msg
		if err := c.d.WriteControl(buf); err != nil {
			return buf, ranges, err
		}
		rest = rest[n:]
	}
	if total == 0 {
		return buf, ranges, nil
	}
	buf, err := wire.AppendGrant(buf[:0], &wire.Grant{Handle: in.handle, Epoch: c.terms.Epoch, Total: total})
	if err != nil {
		return buf, ranges, err
	}
	return buf, ranges, c.d.WriteControl(buf)
}
