package rdma

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
)

// lane is one queue pair and what both of its directions have. One goroutine, the
// pump, polls its queues; one goroutine queues frames and one reads them.
type lane struct {
	c     *conn
	index int
	*pair
	peer lanePlace

	in  inbound
	out outbound

	nudge  chan struct{} // capacity 1: wakes the pump where there is no channel
	repost []verbs.RecvWR
}

// What a work request is, in the upper byte of its id; the rest is a number.
const (
	idPart  = uint64(iota) << 56 // not the last of a frame
	idFrame                      // the last of a frame that is sent
	idRead                       // the last of a frame that is read
	idMask  = uint64(0xff) << 56
)

// wake wakes the pump.
func (l *lane) wake() {
	if l.pair != nil && l.ch != nil {
		l.ch.Wake()
		return
	}
	select {
	case l.nudge <- struct{}{}:
	default:
	}
}

// pump polls the lane's queues until the lane is dead.
func (l *lane) pump() {
	w := watcher{l: l, spin: spin{rounds: spinRounds}, nap: nap{pause: napLeast}}
	for l.c.ctx.Err() == nil {
		which, n, err := w.poll()
		if err == nil && n > 0 {
			err = l.handle(which == 0, w.buf[:n])
		} else if err == nil {
			err = w.wait()
		}
		if err == nil {
			continue
		}
		if l.c.ctx.Err() == nil {
			l.c.fail(fmt.Errorf("%w: lane %d: %w", transport.ErrLost, l.index, err))
		}
		if which == 0 { // those behind the bad one will not be polled again
			l.ended(w.buf[:n])
		}
		return
	}
}

// ended takes completions of the send queue of a lane that is dead, good or bad: the
// device is done with the bytes. Some may have been taken before.
func (l *lane) ended(list []verbs.Completion) {
	for i := range list {
		if c := &list[i]; c.ID&idMask == idFrame {
			l.out.completed(c.ID &^ idMask)
		}
	}
}

// watcher is how a pump looks for completions.
type watcher struct {
	l     *lane
	buf   [pollBatch]verbs.Completion
	spin  spin
	nap   nap
	fresh bool    // something has come since the last spin
	armed [2]bool // the queue gives an event for what comes next, or has done so for what it holds
}

// poll takes completions of the send queue (0) or the receive queue (1): those that are
// there, or that come while it spins.
func (w *watcher) poll() (which, n int, err error) {
	which, n, err = verbs.Spin(w.buf[:], 1, 0, w.l.send, w.l.recv)
	if n == 0 && err == nil && w.fresh {
		w.fresh = false
		if rounds := w.spin.next(); rounds > 0 {
			which, n, err = verbs.Spin(w.buf[:], rounds, spinTime, w.l.send, w.l.recv)
			w.spin.ended(n > 0)
		}
	}
	if n > 0 {
		w.fresh, w.armed[which] = true, false
		w.nap = nap{pause: napLeast}
	}
	return which, n, err
}

// wait is called when there was nothing: it sleeps, or arms the queues. After that they
// are to be polled again, since what came before gives no event.
func (w *watcher) wait() error {
	l := w.l
	switch {
	case l.ch == nil:
		w.nap.sleep(l.c.ctx, l.nudge)
		return nil
	case w.armed[0] && w.armed[1]:
		return l.ch.Wait(l.c.ctx)
	}
	for i, q := range [2]verbs.CQ{l.send, l.recv} {
		if w.armed[i] {
			continue
		}
		if err := q.Arm(); err != nil {
			return fmt.Errorf("arm: %w", err)
		}
		w.armed[i] = true
	}
	return nil
}

// spin is how long it is worth to poll in vain. Where completions come as quickly as one
// after the other it is long; where a frame takes longer than that, the time goes to
// others.
type spin struct {
	rounds int // of the next one; 0: not worth it
	waits  int // since it was tried
}

// next is how many rounds to poll.
func (s *spin) next() int {
	if s.rounds > 0 {
		return s.rounds
	}
	if s.waits++; s.waits < spinAgain {
		return 0
	}
	s.waits = 0
	return spinRounds
}

// ended learns from how a spin ended.
func (s *spin) ended(found bool) {
	if found {
		s.rounds = spinRounds
	} else {
		s.rounds /= 4
	}
}

// nap is how a pump sleeps without a channel: short at first, longer while nothing
// comes.
type nap struct {
	pause time.Duration
	long  int // naps of napMost in a row
}

func (p *nap) sleep(ctx context.Context, nudge <-chan struct{}) {
	t := time.NewTimer(p.pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-nudge:
		*p = nap{pause: napLeast}
		return
	case <-ctx.Done():
		return
	}
	switch {
	case p.pause < napMost:
		p.pause = min(2*p.pause, napMost)
	case p.long < idleNaps:
		p.long++
	default:
		p.pause = napIdle
	}
}

// handle acts on completions of one queue.
func (l *lane) handle(sends bool, list []verbs.Completion) error {
	l.repost = l.repost[:0]
	for i := range list {
		c := &list[i]
		if err := c.Err(); err != nil {
			return err
		}
		var err error
		switch {
		case !sends:
			err = l.in.completed(l, c)
		case c.ID&idMask == idFrame:
			l.out.completed(c.ID &^ idMask)
		case c.ID&idMask == idRead:
			err = l.in.landed(c.ID &^ idMask)
		}
		if err != nil {
			return err
		}
	}
	if err := l.receive(l.repost); err != nil {
		return err
	}
	return l.in.pass(l)
}

// receive posts receives.
func (l *lane) receive(list []verbs.RecvWR) error {
	if len(list) == 0 {
		return nil
	}
	if n, err := l.qp.PostRecv(list); err != nil {
		return fmt.Errorf("post %d receives, %d were taken: %w", len(list), n, err)
	}
	return nil
}

// post posts the requests of one frame. The last one completes whatever the provider
// wants; where it wants that of all, all do.
func (l *lane) post(wrs []verbs.SendWR, signalAll *bool) error {
	for i := range wrs {
		wrs[i].Flags &^= verbs.FlagSignalled
		if *signalAll || i == len(wrs)-1 {
			wrs[i].Flags |= verbs.FlagSignalled
		}
	}
	n, err := l.qp.PostSend(wrs)
	if errors.Is(err, verbs.ErrUnsupported) && n == 0 && !*signalAll {
		*signalAll = true
		return l.post(wrs, signalAll)
	}
	if err != nil {
		return fmt.Errorf("post %d requests, %d were taken: %w", len(wrs), n, err)
	}
	return nil
}

// flush makes the device end what is outstanding, where the provider does that.
func (l *lane) flush(deadline time.Time) {
	if l.pair == nil || l.qp == nil {
		return
	}
	if l.qp.Modify(verbs.StateError, verbs.QPAttr{}) == nil {
		l.drain(deadline)
	} else {
		l.qp.Modify(verbs.StateReset, verbs.QPAttr{}) //nolint:errcheck // destroying it is what counts
	}
}

// drain takes completions until nothing comes any more of what was outstanding.
func (l *lane) drain(deadline time.Time) {
	buf := make([]verbs.Completion, pollBatch)
	for l.out.outstanding() && time.Now().Before(deadline) {
		n, err := l.send.Poll(buf)
		if err != nil {
			return
		}
		l.ended(buf[:n])
		if n == 0 {
			time.Sleep(destroyPause)
		}
	}
}
