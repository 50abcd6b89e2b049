package bridge

import (
	"context"
	"fmt"

	"pdlink/transport"
)

// Give sends a filled lease of the ring that the connections send from. The lease
// has ended when Give returns, whatever it returns. What the receiver has of it is
// left out. It is for sources that cannot be read again: what a lost connection had
// of it goes along to the next one. Errors: those of Put.
func (c *Courier) Give(ctx context.Context, l *transport.Lease) error {
	if err := c.lock(ctx); err != nil {
		l.Release()
		return err
	}
	defer c.unlock()
	s, err := c.sender()
	if err == nil && !s.fits(l) {
		err = fmt.Errorf("%w: a frame has bytes of none of its %d blocks of %d bytes", ErrPlan, len(s.present), s.answer.BlockBytes)
	}
	if err != nil || !s.narrow(l) {
		l.Release()
		return err
	}
	if err = s.first(ctx, l, 0); err != nil {
		if err := c.mend(ctx, err); err != nil { // then the frame is among those that were saved
			return err
		}
	}
	return nil
}
