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
	w := controlWriter{c: c}
	for {
		msgs, dirty, done := c.out.take()
		if err := w.write(msgs, dirty); err != nil {
			c.lose("write control message", err)
			return
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

// controlWriter has the memory of a connection's control writer.
type controlWriter struct {
	c      *conn
	buf    []byte // of the message at hand
	ranges []wire.BlockRange
}

// write writes what take gave, and the ping and the pong that wait, which overtake
// what may be long.
func (w *controlWriter) write(msgs [][]byte, dirty []*incoming) error {
	if err := w.pulse(); err != nil {
		return err
	}
	for i, in := range dirty {
		if err := w.state(in); err != nil {
			return err
		}
		dirty[i] = nil
	}
	for i, msg := range msgs {
		if err := w.pulse(); err != nil {
			return err
		}
		if err := w.c.d.WriteControl(msg); err != nil {
			return err
		}
		msgs[i] = nil
	}
	return nil
}

// state writes the acknowledgements and the grant that in has pending.
func (w *controlWriter) state(in *incoming) error {
	ranges, total := in.pending(w.ranges[:0])
	w.ranges = ranges
	for len(ranges) > 0 {
		n := min(len(ranges), wire.MaxRanges)
		if err := w.send(wire.AppendAck(w.buf[:0], &wire.Ack{Handle: in.handle, Ranges: ranges[:n]})); err != nil {
			return err
		}
		ranges = ranges[n:]
	}
	if total == 0 {
		return nil
	}
	return w.send(wire.AppendGrant(w.buf[:0], &wire.Grant{Handle: in.handle, Epoch: w.c.terms.Epoch, Total: total}))
}

// pulse writes the pong and the ping that wait.
func (w *controlWriter) pulse() error {
	p := &w.c.pulse
	if token := p.answer.Swap(0); token != 0 {
		if err := w.send(wire.AppendPong(w.buf[:0], &wire.Pong{Token: token})); err != nil {
			return err
		}
	}
	if token := p.ask.Swap(0); token != 0 {
		if err := w.send(wire.AppendPing(w.buf[:0], &wire.Ping{Token: token})); err != nil {
			return err
		}
		p.said.Store(token)
	}
	return nil
}

// send writes a message that was encoded into buf.
func (w *controlWriter) send(msg []byte, err error) error {
	if err != nil {
		return err
	}
	w.buf = msg
	return w.c.d.WriteControl(msg)
}
