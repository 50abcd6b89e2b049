package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/transport"
)

// kindOMLX names transfers whose plan is an omlx.Plan and whose blocks go into
// an oMLX store.
const kindOMLX = "omlx"

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
			Target: job, Blocks: job.Blocks(), BlockBytes: job.WireSize(), Present: present, Ordered: job.Layout().Cumulative(),
		}, nil
	}
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
	if kind != kindOMLX {
		return plan, fmt.Errorf("transfers of kind %q are not known here, only %q", kind, kindOMLX)
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

// startReceiving listens on a link and gives every connection to a receiver.
func startReceiving(ctx context.Context, link transport.Link, addr string, o bridge.Options) (*receiving, error) {
	l, err := link.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
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

// stop ends everything and waits for it. Transfers end with what is visible.
func (r *receiving) stop() error {
	err := errors.Join(r.listener.Close(), r.receiver.Close())
	r.cancel()
	r.wg.Wait()
	return err
}
