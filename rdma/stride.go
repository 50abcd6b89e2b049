package rdma

import (
	"encoding/binary"
	"fmt"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport/seal"
	"pdlink/transport/wire"
)

// A message in stride mode begins with the epoch (4 bytes), how many bytes of a frame
// follow (4) and the number of the message (8). A frame begins with a message.

// cut sends a frame as messages of equal size.
func (o *outbound) cut(l *lane, header, payload []byte, done func()) error {
	head, body := header, payload
	if o.sealer != nil {
		if len(o.scratch) < seal.MaxHead+len(payload) {
			o.scratch = make([]byte, seal.MaxHead+len(payload))
		}
		body = o.scratch[seal.MaxHead:][:len(payload)]
		n, err := o.sealer.Seal(o.scratch[:seal.MaxHead], body, header, payload)
		if err != nil {
			return fmt.Errorf("seal frame of %d+%d bytes: %w", len(header), len(payload), err)
		}
		head = o.scratch[:n]
	}
	if err := o.messages(l, head, body); err != nil {
		return err
	}
	if done != nil {
		done() // all was copied
	}
	return nil
}

// messages sends bytes.
func (o *outbound) messages(l *lane, head, body []byte) error {
	for len(head)+len(body) > 0 {
		n, err := o.turn(l, o.width)
		if err != nil {
			return err
		}
		b := o.bodies.slot(o.index(n, o.bodies))
		used := copy(b[strideHead:], head)
		head = head[used:]
		more := copy(b[strideHead+used:], body)
		body = body[more:]
		binary.LittleEndian.PutUint32(b, l.c.t.epoch)
		binary.LittleEndian.PutUint32(b[4:], uint32(used+more))
		binary.LittleEndian.PutUint64(b[8:], n)
		f := outFrame{number: n, body: b}
		if err := o.send(l, &f, nil); err != nil {
			return err
		}
	}
	return nil
}

// whole is the request that sends a message.
func (o *outbound) whole(f *outFrame) verbs.SendWR {
	return verbs.SendWR{Op: verbs.OpSend, Local: one(o.bodies.segment(f.body))}
}

// messaged takes a message, in the pump. Its receive is posted again when it was read.
func (in *inbound) messaged(l *lane, c *verbs.Completion) error {
	b := in.notes.slot(int(c.ID))
	n := notice{epoch: binary.LittleEndian.Uint32(b), slot: uint32(c.ID), number: binary.LittleEndian.Uint64(b[8:])}
	n.body = binary.LittleEndian.Uint32(b[4:])
	switch {
	case c.Length != strideSize:
		return wire.Violation("rdma: message of %d bytes", c.Length)
	case n.epoch != l.c.t.epoch:
		return wire.Violation("rdma: message of epoch %d, this is %d", n.epoch, l.c.t.epoch)
	case n.number != in.next:
		return fmt.Errorf("message %d came where %d was due: what is between is lost", n.number, in.next)
	case n.body == 0 || n.body > strideSize-strideHead:
		return wire.Violation("rdma: message with %d bytes", n.body)
	}
	if err := in.advance(); err != nil {
		return err
	}
	return in.deliver(n)
}

// messages is a frame in messages.
type messages struct {
	in *inbound
	l  *lane
}

func (m *messages) fromHead(p []byte) error { return m.in.fill(m.l, p) }
func (m *messages) fromBody(p []byte) error { return m.in.fill(m.l, p) }

// fill fills p with what comes next.
func (in *inbound) fill(l *lane, p []byte) error {
	for len(p) > 0 {
		if !in.held {
			n, err := in.arrival(l)
			if err != nil {
				return err
			}
			in.held, in.message = true, n
			in.left = in.notes.slot(int(n.slot))[strideHead : strideHead+n.body]
		}
		n := copy(p, in.left)
		p, in.left = p[n:], in.left[n:]
		if len(in.left) > 0 {
			continue
		}
		in.held = false
		slot := in.notes.slot(int(in.message.slot))
		if err := l.receive([]verbs.RecvWR{{ID: uint64(in.message.slot), Local: in.notes.segment(slot)}}); err != nil {
			return err
		}
		if err := in.release(l); err != nil {
			return err
		}
	}
	return nil
}
