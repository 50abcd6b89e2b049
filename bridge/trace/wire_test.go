package trace_test

import (
	"errors"
	"io"
	"testing"

	"pdlink/bridge/trace"
	"pdlink/transport/session"
)

// wire is a driver of one lane, whose frames have a payload of so many bytes each.
type wire struct {
	session.Driver
	frames []int
	fails  error
}

func (*wire) Lanes() int { return 1 }

func (w *wire) ReadFrame(_ int, header []byte, place session.Placer) (int, error) {
	if len(w.frames) == 0 {
		return 0, io.EOF
	}
	n := w.frames[0]
	w.frames = w.frames[1:]
	p, err := place(header)
	if err == nil && len(p) != n {
		err = io.ErrShortBuffer
	}
	return len(header), err
}

func (w *wire) WriteFrame(int, []byte, []byte) error { return w.fails }

// queue is one that can have several frames on their way.
type queue struct {
	wire
	done []func()
}

func (q *queue) QueueFrame(_ int, _, _ []byte, done func()) error {
	if q.fails == nil {
		q.done = append(q.done, done)
	}
	return q.fails
}

// TestQueuer says that a driver keeps what it can, and that a queued frame is drawn
// when it is done.
func TestQueuer(t *testing.T) {
	rec := trace.New(trace.Options{})
	if _, is := rec.Intercept(nil)(&wire{}).(session.Queuer); is {
		t.Error("a driver that cannot queue can")
	}
	q := &queue{}
	d, is := rec.Intercept(func(d session.Driver) session.Driver { return d })(q).(session.Queuer)
	if !is {
		t.Fatal("a driver that can queue cannot")
	}
	called := 0
	for range 2 {
		if err := d.QueueFrame(0, nil, make([]byte, 7), func() { called++ }); err != nil {
			t.Fatal(err)
		}
	}
	if rec.Busy(trace.Send) != 0 || called != 0 {
		t.Error("a frame was done before it was")
	}
	for _, done := range q.done {
		done()
	}
	q.fails = io.ErrClosedPipe
	if err := d.QueueFrame(0, nil, make([]byte, 7), func() { called++ }); !errors.Is(err, io.ErrClosedPipe) || called != 2 {
		t.Errorf("%v, %d called", err, called)
	}
	events, _ := read(t, rec)
	var bytes int64
	for _, e := range events {
		bytes += e.Args.Bytes
	}
	if bytes != 14 {
		t.Errorf("%d bytes in the timeline, of %v", bytes, events)
	}
}

// TestReading draws frames that have come, and none of a lane that ends.
func TestReading(t *testing.T) {
	rec := trace.New(trace.Options{})
	w := &wire{frames: []int{5, 0, 6}}
	d := rec.Intercept(nil)(w)
	for _, n := range []int{5, 0, 6} {
		if _, err := d.ReadFrame(0, []byte("header"), func([]byte) ([]byte, error) { return make([]byte, n), nil }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.ReadFrame(0, nil, nil); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	w.frames = []int{9}
	if _, err := d.ReadFrame(0, nil, func([]byte) ([]byte, error) { return make([]byte, 9), io.ErrClosedPipe }); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	w.fails = io.ErrNoProgress
	if err := d.WriteFrame(0, nil, nil); !errors.Is(err, io.ErrNoProgress) {
		t.Error(err)
	}
	events, _ := read(t, rec)
	sum := map[string]int64{}
	for _, e := range events {
		sum[e.Cat] += e.Args.Bytes
	}
	if sum["wire in"] != 11 || sum["verify"] != 11 {
		t.Errorf("%v", sum)
	}
}
