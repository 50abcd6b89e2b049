package session

import "sync"

// sendQueue is the frames that have a sequence number and no lane yet, oldest
// first. Whichever lane is free takes the next. It has no limit of its own: every
// frame has a slot.
type sendQueue struct {
	wake chan struct{} // capacity 1: there may be a frame

	mu         sync.Mutex // guards the fields below, and txFrame.next
	head, tail *txFrame
}

// push adds f at the end.
func (q *sendQueue) push(f *txFrame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.next = nil
	if q.tail == nil {
		q.head = f
	} else {
		q.tail.next = f
	}
	q.tail = f
	signal(q.wake)
}

// pop takes the first frame, nil when there is none.
func (q *sendQueue) pop() *txFrame {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.head
	if f == nil {
		return nil
	}
	q.head, f.next = f.next, nil
	if q.head == nil {
		q.tail = nil
	} else {
		signal(q.wake)
	}
	return f
}

// remove takes the frames of o out and marks them as not busy.
func (q *sendQueue) remove(o *outgoing) {
	q.mu.Lock()
	defer q.mu.Unlock()
	at, last := &q.head, (*txFrame)(nil)
	for f := q.head; f != nil; f = *at {
		if f.o == o {
			*at, f.next, f.busy = f.next, nil, false
			continue
		}
		at, last = &f.next, f
	}
	q.tail = last
}
