package front

import (
	"context"
	"errors"
	"fmt"

	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
)

// callOn makes one call on a connection. A lost connection's error Is
// transport.ErrLost or transport.ErrClosed.
func callOn(ctx context.Context, conn transport.Conn, j Job) (Result, error) {
	c := calls.Call{
		Transfer: j.Transfer, Model: j.Plan.Model, Kind: j.Plan.Kind, Plan: j.Plan.Meta, Tokens: len(j.Plan.IDs), IDs: j.Plan.IDs,
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
		err = sendIDs(ctx, out, j.Plan.IDs)
	}
	var o transport.Outcome
	if err == nil || errors.Is(err, transport.ErrCancelled) { // it may have given its result already
		o, err = out.Finish(ctx)
	}
	if err != nil {
		out.Cancel("nobody waits for it any more")
		return Result{}, fmt.Errorf("%w: call: %w", ErrHost, err)
	}
	r, err := calls.ParseResult(o.Result)
	if err != nil {
		return Result{}, fmt.Errorf("%w: call: %w", ErrHost, err)
	}
	res := Result{Blocks: r.Blocks, Bytes: r.Bytes, State: r.State, Reason: r.Reason, Sealed: !r.Clear && r.Bytes > 0}
	if r.State == calls.Failed {
		return res, fmt.Errorf("%w: %s", ErrHost, r.Reason)
	}
	return res, nil
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
