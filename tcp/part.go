package tcp

import (
	"context"
	"errors"

	"pdlink/transport"
)

// part is an outgoing transfer that other hosts send parts of. It tells the codec's
// governor when it has ended: by Finish, by Cancel, or as a call finds out.
type part struct {
	transport.Outgoing
	end func()
}

// Lease implements transport.Outgoing.
func (p *part) Lease(ctx context.Context) (*transport.Lease, error) {
	l, err := p.Outgoing.Lease(ctx)
	return l, p.over(err)
}

// Send implements transport.Outgoing.
func (p *part) Send(ctx context.Context, l *transport.Lease) error {
	return p.over(p.Outgoing.Send(ctx, l))
}

// Flush implements transport.Outgoing.
func (p *part) Flush(ctx context.Context) error {
	return p.over(p.Outgoing.Flush(ctx))
}

// Finish implements transport.Outgoing.
func (p *part) Finish(ctx context.Context) (transport.Outcome, error) {
	out, err := p.Outgoing.Finish(ctx)
	if err == nil {
		p.end()
	}
	return out, p.over(err)
}

// Cancel implements transport.Outgoing.
func (p *part) Cancel(reason string) {
	p.Outgoing.Cancel(reason)
	p.end()
}

// over returns the error of a call, after a look at whether it says that the transfer has
// ended.
func (p *part) over(err error) error {
	if err != nil && (errors.Is(err, transport.ErrCancelled) || errors.Is(err, transport.ErrLost) || errors.Is(err, transport.ErrClosed)) {
		p.end()
	}
	return err
}
