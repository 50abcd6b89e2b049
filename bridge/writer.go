package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"pdlink/transport"
)

// writing is the stage between the goroutine that takes a member's frames and the
// target. A frame is held until its pieces are written, so the memory is the
// link's receive ring and nothing is copied. Frames are written in the order in
// which they came: with the target's last open block the one that it waits for
// always gets in. Flushes are answered by a goroutine of their own, so frames
// behind one go on while the disk synchronises.
type writing struct {
	a     *assembly
	in    transport.Incoming
	stop  context.CancelFunc // ends the member's wait for frames
	wg    sync.WaitGroup
	queue chan *transport.Delivery // frames and flushes
	marks chan *transport.Delivery // flushes whose frames are written

	failed atomic.Bool
	mu     sync.Mutex // guards err
	err    error      // the first failure: no further byte is written
}

// newWriting starts the stage; close ends it. stop is called when it fails.
func newWriting(a *assembly, in transport.Incoming, stop context.CancelFunc) *writing {
	w := &writing{
		a: a, in: in, stop: stop,
		queue: make(chan *transport.Delivery, heldFrames), marks: make(chan *transport.Delivery, heldMarks),
	}
	w.wg.Go(w.write)
	w.wg.Go(w.answer)
	return w
}

// take hands a delivery over. It waits while the stage is full.
func (w *writing) take(d *transport.Delivery) { w.queue <- d }

// close waits until all frames are written or dropped and all flushes answered or
// left to the verdict, and returns why the stage failed.
func (w *writing) close() error {
	close(w.queue)
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// write writes frames.
func (w *writing) write() {
	for d := range w.queue {
		if d.Mark() {
			w.marks <- d
			continue
		}
		if !w.failed.Load() {
			if err := w.frame(d); err != nil {
				w.fail(err)
			}
		}
		d.Release()
	}
	close(w.marks)
}

// frame writes a frame's pieces.
func (w *writing) frame(d *transport.Delivery) error {
	a := w.a
	for i, p := range d.Pieces() {
		if int64(p.Block) >= int64(len(a.blocks)) || p.End() > uint64(a.size) {
			return fmt.Errorf("%w: piece [%d,%d) of block %d, the plan has %d blocks of %d bytes",
				ErrPlan, p.Offset, p.End(), p.Block, len(a.blocks), a.size)
		}
		b := &a.blocks[p.Block]
		if b.visible.Load() || a.end.over(int(p.Block)) {
			// It was visible, or given up, before the sender knew. If this fails
			// the next Recv says why.
			if b.visible.Load() || !a.closing.Load() { // a sender takes what it keeps along to the next receiver
				w.in.Ack(p.Block) //nolint:errcheck // see above
			}
			continue
		}
		if err := a.piece(int(p.Block), b, p, d.Data(i)); err != nil {
			return err
		}
	}
	// A disk that is slow is no sender that is silent.
	a.arrived.Store(int64(time.Since(a.started)))
	return nil
}

// answer answers flushes in order. After a failure they are left to the verdict,
// since nothing may be called durable any more.
func (w *writing) answer() {
	for d := range w.marks {
		if w.failed.Load() {
			continue
		}
		switch err := w.a.sync(); {
		case err == nil:
			d.Flushed(nil) //nolint:errcheck // a transfer that has ended; the next Recv says why
		case !errors.Is(err, errOver): // else the verdict is about to come
			w.fail(err)
		}
	}
}

// fail records the first failure and ends the member's wait for frames.
func (w *writing) fail(err error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.mu.Unlock()
	w.failed.Store(true)
	if errors.Is(err, ErrPlan) {
		w.in.Cancel(err.Error()) // this sender is wrong, not the others
	} else {
		w.a.fail(err)
	}
	w.stop()
}
