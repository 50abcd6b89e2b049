package bridge

import (
	"context"
	"errors"
	"fmt"

	"pdlink/transport"
)

// Run has the source make its pieces and returns the receiver's verdict, also when
// the receiver ended the transfer early. It returns when the transfer is over.
// Errors: ErrIncomplete, those of Put, and the source's.
func (c *Courier) Run(ctx context.Context, src Source) (Verdict, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	release := context.AfterFunc(c.life, func() { cancel(ErrClosed) })
	defer release()
	v, err := c.run(ctx, src)
	if err != nil && ctx.Err() == nil {
		v, err = c.lastWord(v, err)
	}
	reason := "the sender is done"
	if err != nil {
		reason = err.Error()
	}
	c.close(reason)
	return v, err
}

// lastWord is the verdict of a receiver that stopped, if it did not come back in
// time.
func (c *Courier) lastWord(v Verdict, err error) (Verdict, error) {
	c.use <- struct{}{}
	defer c.unlock()
	if c.word == nil || !errors.Is(err, transport.ErrUnreachable) {
		return v, err
	}
	return *c.word, nil
}

func (c *Courier) run(ctx context.Context, src Source) (v Verdict, err error) {
	for passes := 0; passes < MaxPasses; {
		err = c.pass(ctx, src)
		if c.outdated(ctx) {
			continue
		}
		if err != nil && !errors.Is(err, transport.ErrCancelled) {
			return Verdict{}, err
		}
		v, err = c.finish(ctx)
		var missing *transport.MissingError
		switch {
		case errors.Is(err, errAgain):
		case errors.As(err, &missing):
			passes++
			err = fmt.Errorf("%w: after %d passes: %w", ErrIncomplete, MaxPasses, err)
			if again := c.again(ctx, missing); again != nil {
				return v, errors.Join(err, again)
			}
		default:
			return v, err
		}
	}
	if c.req.Replayable {
		return v, err
	}
	// Nobody can send what is missing, and each piece is named once.
	for n := 0; n < maxLists && errors.Is(err, transport.ErrMissing); n++ {
		if v, err = c.finish(ctx); errors.Is(err, transport.ErrMissing) {
			err = fmt.Errorf("%w: %w", ErrIncomplete, err)
		}
	}
	return v, err
}

// pass runs the source, if it can do something.
func (c *Courier) pass(ctx context.Context, src Source) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	c.stale = false
	s, err := c.sender()
	todo := err == nil && (!c.ran || c.req.Replayable && s.wantsAny())
	if todo && c.ran {
		c.made.rerun()
	}
	c.unlock()
	if !todo {
		return err
	}
	c.ran = true
	if err := src.Run(ctx, c); err != nil {
		return err
	}
	return c.Push(ctx)
}

// outdated reports whether the source has to run again on another connection.
func (c *Courier) outdated(ctx context.Context) bool {
	if c.lock(ctx) != nil {
		return false
	}
	defer c.unlock()
	return c.stale && c.err == nil && !c.over
}

// finish waits for the receiver's verdict. Errors: errAgain, those of
// Outgoing.Finish.
func (c *Courier) finish(ctx context.Context) (Verdict, error) {
	if err := c.lock(ctx); err != nil {
		return Verdict{}, err
	}
	defer c.unlock()
	for {
		s, err := c.sender()
		if err != nil {
			return Verdict{}, err
		}
		var out transport.Outcome
		if err = s.push(ctx); err == nil || errors.Is(err, transport.ErrCancelled) {
			out, err = s.out.Finish(ctx)
		}
		if err == nil {
			c.sent.repeated(out.Stats)
			v, wrong := s.verdict(out.Result)
			if wrong != nil || !v.Stopped {
				return v, wrong
			}
			c.word = &v
			err = c.replace(ctx, errStopped)
		} else {
			err = c.mend(ctx, err)
		}
		if err != nil {
			return Verdict{}, err
		}
	}
}

// again makes ready for sending pieces that the receiver lacks although they were
// sent as often as a link does that. Kept frames go over another connection.
func (c *Courier) again(ctx context.Context, missing *transport.MissingError) error {
	if !c.req.Replayable {
		return c.renew(ctx)
	}
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	if !c.stale {
		c.now.Load().ask(missing.Pieces)
	}
	return nil
}

// renew replaces a connection that works.
func (c *Courier) renew(ctx context.Context) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	if _, err := c.sender(); err != nil && !errors.Is(err, errAgain) {
		return err
	}
	return c.replace(ctx, nil)
}
