package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/transport"
)

// openStore returns the opener of a receiver that writes into store.
func openStore(store *omlx.Store) bridge.Opener {
	return func(kind string, meta []byte) (bridge.Opened, error) {
		plan, err := parsePlan(kind, meta)
		if err != nil {
			return bridge.Opened{}, err
		}
		job, err := store.Begin(plan)
		if err != nil {
			return bridge.Opened{}, err
		}
		present := make([]bool, job.Blocks())
		for k := range present {
			if err := job.Conflict(k); err != nil { // it would end the usable prefix there
				return bridge.Opened{}, errors.Join(err, job.Close())
			}
			present[k] = job.Present(k)
		}
		return bridge.Opened{
			Target: target{job}, Blocks: job.Blocks(), BlockBytes: job.WireSize(), Present: present,
			Ordered: job.Layout().Cumulative(),
			Visible: func(k int) bool {
				_, err := os.Lstat(job.Path(k))
				return err == nil
			},
		}, nil
	}
}

// target speaks a job's errors in the bridge's words.
type target struct{ *omlx.Job }

// Write implements bridge.Target.
func (t target) Write(block int, off int64, p []byte) error {
	err := t.Job.Write(block, off, p)
	switch {
	case errors.Is(err, omlx.ErrFull):
		return fmt.Errorf("%w: %w", bridge.ErrFull, err)
	case errors.Is(err, omlx.ErrNoSpace):
		return fmt.Errorf("%w: %w", bridge.ErrNoSpace, err)
	}
	return err
}

// openDiscard returns the opener of a receiver that keeps nothing.
func openDiscard(kind string, meta []byte) (bridge.Opened, error) {
	plan, err := parsePlan(kind, meta)
	if err != nil {
		return bridge.Opened{}, err
	}
	job, err := omlx.NewDiscard().Begin(plan)
	if err != nil {
		return bridge.Opened{}, err
	}
	return bridge.Opened{Target: job, Blocks: job.Blocks(), BlockBytes: job.WireSize()}, nil
}

func parsePlan(kind string, meta []byte) (omlx.Plan, error) {
	var plan omlx.Plan
	if internal(kind) {
		return plan, errors.New("this `pdlink decode` has no front door: start it with --decoder URL")
	}
	if kind != omlx.Kind {
		return plan, fmt.Errorf("transfers of kind %q are not known here, only %q", kind, omlx.Kind)
	}
	return plan, plan.UnmarshalBinary(meta)
}

// receiving is a receiver and the listener that feeds it.
type receiving struct {
	listener transport.Listener
	receiver *bridge.Receiver
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	err      error // why accepting ended; read after wg
}

// startReceiving listens on a link, then calls open, and gives every connection
// to a receiver with the options that it returns. An address that cannot be had
// leaves no trace in a store. The end of ctx does not end the receiver: stop
// does, so that senders hear the verdict.
func startReceiving(ctx context.Context, link transport.Link, u linkURL, open func() (bridge.Options, error)) (*receiving, error) {
	l, err := link.Listen(ctx, u.addr)
	if err != nil {
		if errors.Is(err, transport.ErrUnavailable) {
			err = fmt.Errorf("%w: %s; %s%s", err, rdmaHint, withoutRDMA, linkURL{scheme: schemeTCP, addr: u.addr})
		}
		if !misused(err) {
			err = failed(err)
		}
		return nil, fmt.Errorf("listen on %s: %w", u, err)
	}
	o, err := open()
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &receiving{listener: l, receiver: bridge.NewReceiver(o), cancel: cancel}
	r.wg.Go(func() {
		for {
			conn, err := l.Accept(ctx)
			if err != nil {
				r.err = err
				return
			}
			r.wg.Go(func() {
				r.receiver.Serve(ctx, conn) //nolint:errcheck // it ends as connections do; transfers have verdicts
				conn.Close()                //nolint:errcheck // the same
			})
		}
	})
	return r, nil
}

// wait returns when accepting ended, with the reason.
func (r *receiving) wait() error {
	r.wg.Wait()
	return r.err
}

// stop ends everything and waits for it. Transfers end with what is visible, and
// their senders are told.
func (r *receiving) stop() error {
	err := errors.Join(r.listener.Close(), r.receiver.Close())
	r.cancel()
	r.wg.Wait()
	return err
}
