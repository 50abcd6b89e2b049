package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"pdlink/transport"
	"pdlink/transport/wire"
)

// Directions of the blocks, seen from the end that dials.
const (
	push = "push"
	pull = "pull"
	both = "both"
)

// ways measures in the direction that is asked for.
func (e *sendingEnd) ways(ctx context.Context) (*result, error) {
	switch e.o.direction {
	case pull:
		return e.pull(ctx, func() {})
	case both:
		return e.both(ctx)
	}
	if err := e.ready(); err != nil {
		return nil, err
	}
	return e.measure(ctx)
}

// pull has the other end send, and receives. begun is called when that end is about to.
func (e *sendingEnd) pull(ctx context.Context, begun func()) (*result, error) {
	meta, err := json.Marshal(ask{askVersion, e.o.shape.blockBytes, &pullAsk{
		Model: e.o.shape.model, Frame: int64(e.o.frame), InFlight: e.o.inFlight,
		Seconds: e.o.time.Seconds(), Warmup: e.o.warmup.Seconds(), Presummed: e.o.presummed,
	}})
	if err != nil {
		return nil, err
	}
	limit := e.o.warmup + e.o.time + 3*patience // that end waits so long for its blocks, twice
	ctx, late := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the other end, which sends, has not answered %v after the end", 3*patience))
	defer late()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if e.early != nil {
		go func() { // what the other end has measured so far is lost
			select {
			case <-e.early:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	taker := newReceivingEnd(receiveOptions{slots: defaultSlots, window: transport.DefaultWindow, frame: e.o.frame})
	taker.ports = e.ports
	var serving sync.WaitGroup
	serving.Go(func() { taker.serve(ctx, e.conn, func(served) {}) })
	defer serving.Wait()
	defer cancel()
	out, err := e.conn.Open(ctx, transport.Request{Kind: kindPull, Meta: meta})
	if err != nil {
		return nil, explain(ctx, err)
	}
	begun()
	end, err := out.Finish(ctx)
	if err != nil {
		out.Cancel("the puller failed")
		return nil, explain(ctx, err)
	}
	return e.pulled(end.Result)
}

// pulled is the result of what the other end measured. What follows from the figures is
// concluded here, and what both ends know is this end's.
func (e *sendingEnd) pulled(text []byte) (*result, error) {
	r, err := readPulled(text)
	if err != nil {
		return nil, err
	}
	f := e.conn.Facts()
	r.Processes = e.processes
	r.Link, r.Local, r.Remote, r.Lanes, r.Sum, r.Sealed, r.ZeroCopy = f.Link, f.Remote, f.Local, f.Lanes, f.Sum, f.Sealed, f.ZeroCopy
	if f.Proven {
		r.Peer = f.Peer
	}
	r.Model, r.BlockTokens, r.BlockBytes = e.o.shape.model, e.o.shape.blockTokens, int64(e.o.shape.blockBytes)
	r.conclude()
	return r, nil
}

// readPulled reads what the other end measured, which may be anything, and makes it fit to
// print.
func readPulled(text []byte) (*result, error) {
	var r result
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("read what the other end measured: %w", err)
	}
	if !(r.Seconds >= 0 && r.Seconds <= 2*maxRun.Seconds()) || r.Sender.Cores < 0 || r.Receiver.Cores < 0 {
		return nil, errors.New("the other end measured nonsense")
	}
	r.Schema, r.Version, r.Program, r.Direction, r.Processes = schemaName, buildVersion(), "pdperf", pull, 2
	r.Why, r.Rep, r.Fewer, r.Limited, r.Disturbed, r.Both, r.Watched = wire.Printable(r.Why, 256), 0, 0, nil, nil, nil, nil
	for _, text := range []*string{&r.Link, &r.Local, &r.Remote, &r.Sum, &r.Model} {
		*text = wire.Printable(*text, 64)
	}
	r.Peer = ""
	r.Sender.clean()
	r.Receiver.clean()
	r.conclude()
	return &r, nil
}

// both measures in both directions at the same time.
func (e *sendingEnd) both(ctx context.Context) (*result, error) {
	if err := e.ready(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := make(chan struct{})
	var there *result
	var thereErr error
	var pulling sync.WaitGroup
	pulling.Go(func() {
		if there, thereErr = e.pull(ctx, func() { close(begin) }); thereErr != nil {
			cancel()
		}
	})
	var here *result
	var err error
	select {
	case <-begin:
		if here, err = e.measure(ctx); err != nil {
			cancel()
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	pulling.Wait()
	switch {
	case thereErr != nil && (err == nil || !errors.Is(thereErr, context.Canceled)):
		return nil, thereErr
	case err != nil:
		return nil, err
	}
	return merge(here, there), nil
}

// merge makes one result of two that were measured at the same time. Its ends are those
// of the two senders: the end that dials and the one that listens.
func merge(here, there *result) *result {
	r := *here
	r.Direction, r.Push, r.Pull = both, here.Goodput, there.Goodput
	r.Seconds = max(here.Seconds, there.Seconds)
	r.Blocks, r.Bytes = here.Blocks+there.Blocks, here.Bytes+there.Bytes
	r.Frames, r.Verified = here.Frames+there.Frames, here.Verified+there.Verified
	r.Bad, r.Resent = here.Bad+there.Bad, here.Resent+there.Resent
	r.Interrupted = here.Interrupted || there.Interrupted
	if r.Seconds > 0 {
		r.Goodput = float64(r.Bytes) / r.Seconds / 1e9
	}
	r.times, r.Fewer = nil, min(here.Blocks, there.Blocks)
	a, b := here.BlockMs, there.BlockMs
	r.BlockMs = blockTimes{max(a.P50, b.P50), max(a.P90, b.P90), max(a.P99, b.P99), max(a.P999, b.P999), max(a.Max, b.Max)}
	r.Receiver = there.Sender
	if r.Both != nil {
		r.Both.per(r.Bytes)
	}
	if r.Why == "" {
		r.Why = there.Why
	}
	r.conclude()
	return &r
}

// sender is what a receiving end sends from when it is asked to; nil: it is not.
type sender struct {
	ring *transport.Ring
	busy chan struct{} // capacity 1: held by the transfer that is measured

	fill   sync.Once
	source *source
}

func newSender(ring *transport.Ring) *sender {
	return &sender{ring: ring, busy: make(chan struct{}, 1)}
}

// options are what a peer asks for.
func (s *sender) options(a ask) (sendOptions, error) {
	q := a.Pull
	if q == nil || !(q.Seconds > 0 && q.Seconds <= maxRun.Seconds()) || !(q.Warmup >= 0 && q.Warmup <= maxRun.Seconds()) {
		return sendOptions{}, errors.New("the request does not say what to send, or for how long")
	}
	seconds := func(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }
	o := sendOptions{
		block: size(a.BlockBytes), frame: size(q.Frame), model: q.Model, inFlight: q.InFlight, presummed: q.Presummed,
		time: seconds(q.Seconds), warmup: seconds(q.Warmup), direction: push,
	}
	if err := o.check(); err != nil {
		return o, err
	}
	if room := s.ring.SlotSize() - transport.HeaderRoom; int(o.frame) > room {
		return o, fmt.Errorf("--frame %s: the other end sends frames of up to %s", sizeText(int64(o.frame)), sizeText(int64(room)))
	}
	if need := o.leastSlots(); need > s.ring.Slots() {
		return o, fmt.Errorf("the other end sends from %d frames, this needs %d: start it with --send-ring %d", s.ring.Slots(), need, need)
	}
	return o, nil
}

// pulled answers an offer that asks this end to send. How that ended is told to the peer.
// gone is over when the connection is.
func (e *receivingEnd) pulled(ctx, gone context.Context, conn transport.Conn, offer transport.Offer) {
	refuse := func(code transport.RefuseCode, why string) {
		offer.Refuse(code, why) //nolint:errcheck // the peer is gone then
	}
	if e.sender == nil {
		refuse(transport.RefuseOther, "this end does not send: start it with --send-ring")
		return
	}
	a, err := parseAsk(offer.Request().Meta)
	var o sendOptions
	if err == nil {
		o, err = e.sender.options(a)
	}
	if err != nil {
		refuse(transport.RefuseOther, err.Error())
		return
	}
	if !e.turns.take(gone, conn) {
		refuse(transport.RefuseBusy, otherRun)
		return
	}
	select {
	case e.sender.busy <- struct{}{}:
		defer func() { <-e.sender.busy }()
	default:
		refuse(transport.RefuseBusy, otherRun)
		return
	}
	e.device.reset() // whoever sent before this one is through
	e.sender.fill.Do(func() { e.sender.source = newSource(e.sender.ring) })
	end := &sendingEnd{o: o, conn: conn, source: e.sender.source, processes: 2, ports: e.ports, device: e.device}
	if err := end.ready(); err != nil {
		refuse(transport.RefuseOther, err.Error())
		return
	}
	in, err := offer.Admit(nil)
	if err != nil {
		return // the peer is gone, or has the reason
	}
	if err := end.answer(ctx, in); err != nil {
		in.Cancel(err.Error())
	}
}

// answer sends what was asked for and answers with what it measured.
func (e *sendingEnd) answer(ctx context.Context, in transport.Incoming) error {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		if _, err := in.Recv(ctx); err != nil && !errors.Is(err, io.EOF) {
			cancel() // nobody waits for it any more
		}
	})
	r, err := e.measure(ctx)
	if err != nil {
		return err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return in.Finish(text)
}
