package prefill

import (
	"context"
	"errors"
	"fmt"
	"io"

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
	in, err := offer.Admit(nil)
	if err != nil {
		return // the opener was told, or is gone
	}
	if c.IDs == nil {
		if c.IDs, err = collect(s.ctx, in, &c); err != nil {
			in.Cancel(err.Error())
			return
		}
	}
	j := s.join(&c, facts.Peer)
	if j == nil {
		answer(in, fault(calls.Declined, "another call has transfer %v", c.Transfer)) //nolint:errcheck // a caller that is gone needs none
		return
	}
	left := s.await(in, j)
	if left == nil {
		left = answer(in, j.result)
	}
	lost := errors.Is(left, transport.ErrLost) || errors.Is(left, transport.ErrClosed)
	if left != nil && !lost {
		in.Cancel(left.Error()) // it may have ended
	}
	s.leave(c.Transfer, j, lost)
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
// missing is told which; one that does not is left open, as CALLS.md says.
func collect(ctx context.Context, in transport.Incoming, c *calls.Call) ([]int32, error) {
	ids := calls.NewCollector(c)
	for {
		d, err := in.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: it ended without all ids", calls.ErrCall)
		}
		if err != nil {
			return nil, err
		}
		if d.Mark() {
			missing := ids.Missing()
			if len(missing) == 0 {
				return ids.IDs()
			}
			err = d.Flushed(missing)
		} else {
			err = ids.Add(d)
			d.Release()
		}
		if err != nil {
			return nil, err
		}
	}
}

// await returns nil when the job is done, or why its caller does not wait for it any
// more.
func (s *Service) await(in transport.Incoming, j *job) error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	gone := make(chan error, 1)
	go func() {
		for {
			d, err := in.Recv(ctx)
			if err != nil {
				gone <- err
				return
			}
			if !d.Mark() { // a call has nothing more to say
				d.Release()
			}
		}
	}()
	select {
	case <-j.done:
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) && !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	case err := <-gone:
		if errors.Is(err, io.EOF) { // it said Finish behind a flush that was answered
			<-j.done
			return nil
		}
		return err
	}
}
