package trace

import "pdlink/transport/session"

// Intercept records frames on their way out and in, for session.Options.Intercept;
// next is what was there, or nil. On lanes that a link moves without calls of its own,
// as RDMA, it sees when frames were queued and when they were done.
func (r *Recorder) Intercept(next session.Interceptor) session.Interceptor {
	if r == nil {
		return next
	}
	return func(d session.Driver) session.Driver {
		if next != nil {
			d = next(d)
		}
		t := &driver{Driver: d, r: r, lanes: make([]lane, d.Lanes())}
		for i := range t.lanes {
			l := &t.lanes[i]
			l.timed = func(header []byte) ([]byte, error) {
				p, err := l.place(header)
				l.begin, l.bytes = r.now(), len(p)
				return p, err
			}
		}
		if q, ok := d.(session.Queuer); ok {
			return &queuer{t, q}
		}
		return t
	}
}

type driver struct {
	session.Driver
	r     *Recorder
	lanes []lane
}

// lane is the reading side of a lane, which has one caller at a time.
type lane struct {
	place session.Placer // of the call at hand
	timed session.Placer // calls it
	begin int64          // when the payload's memory was there
	read  int64          // when the last payload had come
	bytes int            // of the payload; 0: none
}

// WriteFrame implements session.Driver.
func (d *driver) WriteFrame(lane int, header, payload []byte) error {
	s := d.r.Begin(Send, "frame")
	err := d.Driver.WriteFrame(lane, header, payload)
	s.End(NoBlock, int64(len(payload)))
	return err
}

// ReadFrame implements session.Driver. What its caller does with a frame before it
// reads the next is to verify it.
func (d *driver) ReadFrame(lane int, header []byte, place session.Placer) (int, error) {
	l := &d.lanes[lane]
	if l.bytes > 0 {
		d.r.add(span{begin: l.read, end: d.r.now(), name: "frame", bytes: int64(l.bytes), block: NoBlock, row: Verify})
	}
	l.bytes, l.place = 0, place
	n, err := d.Driver.ReadFrame(lane, header, l.timed)
	l.read = d.r.now()
	if err != nil {
		l.bytes = 0
	}
	if l.bytes > 0 {
		d.r.add(span{begin: l.begin, end: l.read, name: "frame", bytes: int64(l.bytes), block: NoBlock, row: Receive})
	}
	return n, err
}

type queuer struct {
	*driver
	q session.Queuer
}

// QueueFrame implements session.Queuer.
func (q *queuer) QueueFrame(lane int, header, payload []byte, done func()) error {
	s, n := q.r.Begin(Send, "frame"), int64(len(payload))
	return q.q.QueueFrame(lane, header, payload, func() {
		s.End(NoBlock, n)
		done()
	})
}
