package prefill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
)

// take sees one offer of a decode host through to its end.
func (s *Service) take(facts transport.Facts, offer transport.Offer) {
	refuse := func(code transport.RefuseCode, reason string) {
		offer.Refuse(code, reason) //nolint:errcheck // it fails when nobody is left to tell
	}
	req := offer.Request()
	if req.Kind != calls.KindCall {
		refuse(transport.RefuseOther, fmt.Sprintf("a prefill host takes transfers of kind %q only", calls.KindCall))
		return
	}
	c, err := calls.ParseCall(req.Meta)
	if err != nil {
		refuse(transport.RefuseOther, err.Error())
		return
	}
	if !s.enter() {
		refuse(transport.RefuseBusy, fmt.Sprintf("%d calls are being served", maxCalls))
		return
	}
	defer s.exit()
	if c.Follows {
		s.follow(facts, offer, &c)
		return
	}
	in, err := offer.Admit(nil)
	if err != nil {
		return // the opener was told, or is gone
	}
	var mark *transport.Delivery
	if c.IDs == nil {
		if c.IDs, mark, err = collect(s.ctx, in, &c); err != nil {
			in.Cancel(err.Error())
			return
		}
	}
	j := s.join(&c, facts.Peer)
	if j == nil {
		answer(in, s.taken(&c)) //nolint:errcheck // a caller that is gone needs none
		return
	}
	s.settleCall(&caller{s: s, c: &c, in: in, j: j, mark: mark})
}

// follow is take for a call to a member of a group that does not lead: it is admitted
// when this host's part of the transfer is open, and refused where it cannot be opened.
func (s *Service) follow(facts transport.Facts, offer transport.Offer, c *calls.Call) {
	refuse := func(reason string) {
		offer.Refuse(transport.RefuseOther, reason) //nolint:errcheck // it fails when nobody is left to tell
	}
	j := s.join(c, facts.Peer)
	if j == nil {
		refuse(s.taken(c).Reason)
		return
	}
	select {
	case <-j.opened:
	case <-j.done:
	}
	select {
	case <-j.opened:
	default:
		refuse(j.result.Reason)
		s.leave(c.Transfer, j, false)
		return
	}
	in, err := offer.Admit(nil)
	if err != nil { // the opener was told, or is gone
		s.leave(c.Transfer, j, isLost(err))
		return
	}
	s.settleCall(&caller{s: s, c: c, in: in, j: j})
}

// taken is the result of a call that has another's transfer.
func (s *Service) taken(c *calls.Call) calls.Result {
	return fault(calls.Declined, "another call has transfer %v", c.Transfer)
}

// settleCall gives a caller its job's result, or ends what it does not wait for any
// more.
func (s *Service) settleCall(x *caller) {
	left := x.await()
	if left == nil {
		left = answer(x.in, x.j.result)
	}
	lost := isLost(left)
	if left != nil && !lost {
		x.in.Cancel(left.Error()) // it may have ended
	}
	s.leave(x.c.Transfer, x.j, lost)
}

// isLost reports whether an error is the end of a connection.
func isLost(err error) bool {
	return errors.Is(err, transport.ErrLost) || errors.Is(err, transport.ErrClosed)
}

// enter counts a call; false when there are too many.
func (s *Service) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving >= maxCalls {
		return false
	}
	s.serving++
	return true
}

func (s *Service) exit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving--
}

// answer ends a call with a result: whole, or where the caller takes less, what counts
// of it.
func answer(in transport.Incoming, r calls.Result) error {
	err := in.Finish(r.Encode())
	if errors.Is(err, transport.ErrTooLarge) {
		r.Workers, r.Reason = nil, ""
		err = in.Finish(r.Encode())
	}
	return err
}

// collect takes the ids of a call that come in frames. A flush that finds some
// missing is told which; one that does not is left open and returned, as CALLS.md says.
func collect(ctx context.Context, in transport.Incoming, c *calls.Call) ([]int32, *transport.Delivery, error) {
	ids := calls.NewCollector(c)
	for {
		d, err := in.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return nil, nil, fmt.Errorf("%w: it ended without all ids", calls.ErrCall)
		}
		if err != nil {
			return nil, nil, err
		}
		if d.Mark() {
			missing := ids.Missing()
			if len(missing) == 0 {
				list, err := ids.IDs()
				return list, d, err
			}
			err = d.Flushed(missing)
		} else {
			err = ids.Add(d)
			d.Release()
		}
		if err != nil {
			return nil, nil, err
		}
	}
}

// caller is a call on a connection that waits for its job.
type caller struct {
	s    *Service
	c    *calls.Call
	in   transport.Incoming
	j    *job
	mark *transport.Delivery // of the first flush, not answered yet; nil: it did not come
}

// await returns nil when the job is done, or why its caller does not wait for it any
// more. Meanwhile it tells the caller that leads that the engine has read the prompt, and
// hears that from one that follows.
func (x *caller) await() error {
	ctx, cancel := context.WithCancel(x.s.ctx)
	gone := make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		flushes := 0
		for d, err := x.mark, error(nil); ; d, err = x.in.Recv(ctx) {
			switch {
			case err != nil:
				gone <- err
				return
			case d == nil: // there was no mark yet
			case !d.Mark():
				d.Release()
				if x.c.Follows {
					x.j.hasRead()
				}
			default: // the first one of a group's is answered, others are left open
				if flushes++; flushes == 1 && x.c.Parts > 1 && !x.c.Follows {
					wg.Go(func() { x.flushed(ctx, d) })
				}
			}
		}
	})
	select {
	case <-x.j.done:
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) && !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	case err := <-gone:
		if errors.Is(err, io.EOF) { // it said Finish behind a flush that was answered
			<-x.j.done
			return nil
		}
		return err
	}
}

// flushed answers a flush when the engine has read the prompt.
func (x *caller) flushed(ctx context.Context, mark *transport.Delivery) {
	select {
	case <-x.j.read:
		mark.Flushed(nil) //nolint:errcheck // what receives hears of it
	case <-ctx.Done():
	}
}
