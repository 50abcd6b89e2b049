package front

import (
	"context"
	"errors"
	"fmt"

	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
)

// share is what a host does of a job: all of it, or its part of an engine that is
// spread over several hosts. The zero value is all of it.
type share struct {
	part, parts int // 0 of 0: there are no parts
	follows     bool

	// opened is told when the host has its part of the transfer open, where it follows.
	// It may be told more than once.
	opened func()

	// read is closed when the engine has read the prompt: by the host that leads, and
	// told to those that follow.
	read *once
}

// callOn makes one call on a connection. A lost connection's error Is
// transport.ErrLost or transport.ErrClosed.
func callOn(ctx context.Context, conn transport.Conn, j Job, s share) (Result, error) {
	c := calls.Call{
		Transfer: j.Transfer, Model: j.Plan.Model, Kind: j.Plan.Kind, Plan: j.Plan.Meta, Tokens: len(j.Plan.IDs),
		Part: s.part, Parts: s.parts, Follows: s.follows,
	}
	if !s.follows {
		c.IDs = j.Plan.IDs
	}
	limit := conn.Facts().MaxMeta
	inline := c.Size(true) <= limit
	if n := c.Size(false); n > limit {
		return Result{State: calls.Declined, Reason: fmt.Sprintf("a plan of %d bytes, the connection takes %d", n, limit)}, nil
	}
	meta, err := c.Append(make([]byte, 0, c.Size(inline)), inline)
	if err != nil { // the plan's fault, not the host's
		return Result{State: calls.Declined, Reason: err.Error()}, nil //nolint:nilerr // the result says it
	}
	out, err := conn.Open(ctx, transport.Request{ID: transport.NewID(), Kind: calls.KindCall, Meta: meta})
	if err != nil {
		return Result{}, fmt.Errorf("%w: call: %w", ErrHost, err)
	}
	if !inline {
		err = sendIDs(ctx, out, c.IDs)
	}
	if err == nil && s.parts > 1 {
		err = s.follow(ctx, out)
	}
	var o transport.Outcome
	if err == nil || errors.Is(err, transport.ErrCancelled) { // it may have given its result already
		o, err = out.Finish(ctx)
	}
	if err != nil {
		out.Cancel("nobody waits for it any more")
		return Result{}, fmt.Errorf("%w: call: %w", ErrHost, err)
	}
	return resultOf(o.Result)
}

// resultOf reads a host's result.
func resultOf(b []byte) (Result, error) {
	r, err := calls.ParseResult(b)
	if err != nil {
		return Result{}, fmt.Errorf("%w: call: %w", ErrHost, err)
	}
	res := Result{Blocks: r.Blocks, Bytes: r.Bytes, State: r.State, Reason: r.Reason, Sealed: !r.Clear && r.Bytes > 0}
	if r.State == calls.Failed {
		return res, fmt.Errorf("%w: %s", ErrHost, r.Reason)
	}
	return res, nil
}

// follow is the middle of a call of one part, as CALLS.md says: the host that leads
// answers a flush when the engine has read the prompt, the others are told so by a frame
// and leave the flush open until they have a result, which ends it.
func (s share) follow(ctx context.Context, out transport.Outgoing) error {
	if !s.follows {
		err := out.Flush(ctx)
		if err == nil {
			s.read.do()
		}
		return err
	}
	s.opened()
	ctx, cancel := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		select {
		case <-s.read.done:
			if l, err := out.Lease(ctx); err == nil {
				l.Append(0, 0, []byte{1})
				out.Send(ctx, l) //nolint:errcheck // the flush hears of what it fails by
			}
		case <-ctx.Done():
		}
	}()
	err := out.Flush(ctx)
	cancel()
	<-told
	return err
}

// sendIDs sends token ids as the bytes of block 0.
func sendIDs(ctx context.Context, out transport.Outgoing, ids []int32) error {
	b := calls.AppendIDs(make([]byte, 0, 4*len(ids)), ids)
	for at := 0; at < len(b); {
		l, err := out.Lease(ctx)
		if err != nil {
			return err
		}
		at += l.Append(0, uint64(at), b[at:])
		if err := out.Send(ctx, l); err != nil {
			return err
		}
	}
	return nil
}
