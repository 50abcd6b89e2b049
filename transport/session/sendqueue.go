package session

import "sync"

// sendQueue is the frames that have a sequence number and no lane yet. Whichever
// lane is free takes the next. Transfers take turns, a frame each, so that one
// with a window full of frames delays the first frame of another by no more than
// a frame; the frames of one transfer keep their order. It has no limit of its
// own: every frame has a slot. No operation allocates, and none but remove takes
// longer the more there is.
type sendQueue struct {
	wake chan struct{} // capacity 1: there may be a frame

	mu   sync.Mutex // guards what follows, all sendLines and txFrame.next
	turn *sendLine  // whose turn it is, in a ring of those that have frames; nil: there are none
}

// sendLine is the frames of one transfer in the queue, oldest first.
type sendLine struct {
	head, tail *txFrame
	next, prev *sendLine // in the ring; nil while there are no frames
}

// push adds f behind the frames of its transfer. One that had none has its first
// turn after every other had one.
func (q *sendQueue) push(f *txFrame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.next = nil
	l := &f.o.line
	if l.tail == nil {
		l.head = f
		q.enter(l)
	} else {
		l.tail.next = f
	}
	l.tail = f
	signal(q.wake)
}

// pop takes the first frame of the transfer whose turn it is, nil when there is
// none.
func (q *sendQueue) pop() *txFrame {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.turn
	if l == nil {
		return nil
	}
	f := l.head
	l.head, f.next = f.next, nil
	if l.head == nil {
		l.tail = nil
		q.leave(l)
	} else {
		q.turn = l.next
	}
	if q.turn != nil {
		signal(q.wake)
	}
	return f
}

// remove takes the frames of o out and marks them as not busy.
func (q *sendQueue) remove(o *outgoing) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := &o.line
	if l.head == nil {
		return
	}
	for f := l.head; f != nil; {
		after := f.next
		f.next, f.busy = nil, false
		f = after
	}
	l.head, l.tail = nil, nil
	q.leave(l)
}

// enter puts l into the ring, in front of the line whose turn it is: the last to
// come. The caller holds mu.
func (q *sendQueue) enter(l *sendLine) {
	if q.turn == nil {
		l.next, l.prev = l, l
		q.turn = l
		return
	}
	l.next, l.prev = q.turn, q.turn.prev
	l.prev.next, l.next.prev = l, l
}

// leave takes l out of the ring. The caller holds mu.
func (q *sendQueue) leave(l *sendLine) {
	if q.turn == l {
		q.turn = l.next
	}
	if l.next == l {
		q.turn = nil
	}
	l.prev.next, l.next.prev = l.next, l.prev
	l.next, l.prev = nil, nil
}
