package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"pdlink/rdma"
	"pdlink/tools/pdperf/stats"
	"pdlink/transport"
)

// sendingEnd measures over one connection.
type sendingEnd struct {
	o         sendOptions
	conn      transport.Conn
	source    *source
	processes int             // that the two ends are in
	ports     *rdma.Ports     // that the connection uses; nil: none are followed
	early     <-chan struct{} // closed: no more blocks are started; nil: never
	device    *period         // of links whose device moves frames by itself; nil: nobody looks
	began     func()          // is called when the measured window begins; nil: nobody is
}

// ready does what can be done before anything is measured.
func (e *sendingEnd) ready() error {
	f := e.conn.Facts()
	if int(e.o.frame) > f.MaxPayload {
		return fmt.Errorf("--frame %s: the other end takes frames of up to %s", sizeText(int64(e.o.frame)), sizeText(int64(f.MaxPayload)))
	}
	if !e.o.presummed {
		return nil
	}
	return e.source.prepare(f.Sum, e.o.shape.frames)
}

// measure warms up and then measures. ready comes before it.
func (e *sendingEnd) measure(ctx context.Context) (*result, error) {
	f := e.conn.Facts()
	if e.o.warmup > 0 && !e.stopped() {
		if _, _, err := e.phase(ctx, e.o.warmup); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
	}
	if e.began != nil {
		e.began()
	}
	s, peer, err := e.phase(ctx, e.o.time)
	if err != nil {
		return nil, err
	}
	r := &result{
		Program: "pdperf", Link: f.Link, Local: f.Local, Remote: f.Remote, Direction: push, Processes: e.processes,
		Model: e.o.shape.model, BlockTokens: e.o.shape.blockTokens, BlockBytes: int64(e.o.shape.blockBytes), FrameBytes: int64(e.o.frame), InFlight: e.o.inFlight * e.o.shape.group, Lanes: f.Lanes,
		Sum: f.Sum, Presummed: e.o.presummed, Sealed: f.Sealed, ZeroCopy: f.ZeroCopy, Warmup: e.o.warmup.Seconds(),
	}
	if f.Proven {
		r.Peer = f.Peer
	}
	r.settle(s, peer)
	return r, nil
}

// stopped reports whether no more blocks are to be started.
func (e *sendingEnd) stopped() bool {
	select {
	case <-e.early:
		return true
	default:
		return false
	}
}

// phase is one transfer: blocks are started for so long, then the ones on their
// way are waited for.
func (e *sendingEnd) phase(ctx context.Context, d time.Duration) (sent, report, error) {
	late := fmt.Errorf("blocks are still on their way %v after the end", patience)
	ctx, cancel := context.WithTimeoutCause(ctx, d+patience, late)
	defer cancel()
	meta, err := json.Marshal(ask{askVersion, e.o.shape.blockBytes, nil})
	if err != nil {
		return sent{}, report{}, err
	}
	out, err := e.conn.Open(ctx, transport.Request{Kind: kindPerf, Meta: meta})
	if err != nil {
		return sent{}, report{}, explain(ctx, err)
	}
	p := &phase{sendingEnd: e, out: out, turn: make(chan struct{}, 1), acking: period{least: e.o.inFlight}, leasing: period{least: 1}, granting: period{least: 1}}
	s, err := p.run(ctx, d)
	if err != nil {
		out.Cancel("the sender failed")
		return sent{}, report{}, explain(ctx, err)
	}
	end, err := out.Finish(ctx)
	if err != nil {
		return sent{}, report{}, explain(ctx, err)
	}
	s.resent += end.Stats.RepeatBytes // by the link itself, besides what the flush asked for
	peer, err := parseReport(end.Result)
	return s, peer, err
}

// explain puts the reason of a context's end in the place of its error.
func explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) {
		return cause
	}
	return err
}

// phase is a transfer under way.
type phase struct {
	*sendingEnd
	out    transport.Outgoing
	leases chan *transport.Lease // slots in the order in which they became free
	dry    chan struct{}         // closed when no more slots come; noMore says why
	noMore error
	turn   chan struct{} // capacity 1: held by whoever starts a block
	end    time.Time     // no block starts after it

	acking, leasing, granting period // what frames wait for, see waitFacts

	mu     sync.Mutex // guards what follows
	starts []time.Time
	acks   []time.Time // zero: not acknowledged
	resent uint64
	cut    bool // it was interrupted
}

// run sends until the time is over and every block is acknowledged.
func (p *phase) run(ctx context.Context, d time.Duration) (sent, error) {
	p.leases, p.dry = make(chan *transport.Lease, p.source.ring.Slots()), make(chan struct{})
	leasing, stop := context.WithCancel(ctx)
	var leaser sync.WaitGroup
	leaser.Go(func() { p.lease(leasing) })
	p.source.used()
	f := p.conn.Facts()
	before := beginReading(f.Local, f.Remote, p.ports, false)
	moved := p.device.so()
	p.end = time.Now().Add(d)
	g, sending := errgroup.WithContext(ctx)
	for range p.o.inFlight {
		g.Go(func() error { return p.work(sending) })
	}
	p.turn <- struct{}{}
	err := g.Wait()
	after := readCPU()
	stop()
	leaser.Wait()
	close(p.leases)
	for l := range p.leases {
		l.Release()
	}
	if err != nil {
		return sent{}, err
	}
	s := p.sum()
	s.end = before.end(after, s.bytes)
	s.end.Waits = &waitFacts{(p.device.so() - moved).Seconds(), p.leasing.so().Seconds(), p.granting.so().Seconds(), p.acking.so().Seconds()}
	s.end.Owned, s.end.Buffers, s.end.Buffer = p.source.ring.Slots(), p.source.used(), int64(p.o.frame)
	return s, nil
}

// lease takes every slot as it becomes free. The ring hands out the slot given
// back last, which would keep the sender in a few warm ones; queued up here,
// all of them have their turn, and each is cold by then.
func (p *phase) lease(ctx context.Context) {
	for {
		l, err := p.out.Lease(ctx)
		if err != nil {
			p.noMore = err
			close(p.dry)
			return
		}
		p.leases <- l // room for every slot
	}
}

// take returns the slot that has waited longest.
func (p *phase) take(ctx context.Context) (*transport.Lease, error) {
	select {
	case l := <-p.leases:
		return l, nil
	default:
	}
	p.leasing.add(1)
	defer p.leasing.add(-1)
	select {
	case l := <-p.leases:
		return l, nil
	case <-p.dry:
		return nil, p.noMore
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// work sends one group of blocks after the other, each with its acknowledgement. Groups
// start in turn, so that those of all workers follow each other on the link.
func (p *phase) work(ctx context.Context) error {
	for {
		select {
		case <-p.turn:
		case <-ctx.Done():
			return ctx.Err()
		}
		base, more := p.begin()
		if !more {
			p.turn <- struct{}{}
			return nil
		}
		err := p.send(ctx, base)
		p.turn <- struct{}{}
		if err == nil {
			p.acking.add(1)
			err = p.confirm(ctx, base)
			p.acking.add(-1)
		}
		if err != nil {
			return err
		}
	}
}

// begin numbers the next group, unless the time is over.
func (p *phase) begin() (base uint32, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	n := len(p.starts)
	select {
	case <-p.early:
		p.cut = true
		return 0, false
	default:
	}
	if n+p.o.shape.group > maxBlocks || n > 0 && !now.Before(p.end) {
		return 0, false
	}
	for range p.o.shape.group {
		p.starts, p.acks = append(p.starts, now), append(p.acks, time.Time{})
	}
	return uint32(n), true
}

// send sends a group of blocks, frame by frame.
func (p *phase) send(ctx context.Context, base uint32) error {
	for _, f := range p.o.shape.frames {
		if err := p.frame(ctx, base, f); err != nil {
			return err
		}
	}
	return nil
}

// frame sends one frame.
func (p *phase) frame(ctx context.Context, base uint32, f []segment) error {
	l, err := p.take(ctx)
	if err != nil {
		return err
	}
	if err := p.source.put(l, base, f); err != nil {
		l.Release()
		return err
	}
	p.granting.add(1)
	defer p.granting.add(-1)
	return p.out.Send(ctx, l)
}

// confirm waits until the receiver has acknowledged a group, and sends again
// what arrived damaged. A flush covers what was sent before it, and a missing
// piece is listed by one flush only, which may be another group's: its block is
// then taken back.
func (p *phase) confirm(ctx context.Context, base uint32) error {
	again := make([]uint32, 0, p.o.shape.group)
	for i := range p.o.shape.group {
		again = append(again, base+uint32(i))
	}
	for {
		err := p.out.Flush(ctx)
		now := time.Now()
		var missing *transport.MissingError
		if err == nil {
			p.acked(again, now)
			return nil
		}
		if !errors.As(err, &missing) {
			return err
		}
		if missing.More {
			return fmt.Errorf("more than %d pieces arrived damaged: %w", len(missing.Pieces), err)
		}
		for _, m := range missing.Pieces {
			if err := p.takeBack(m); err != nil {
				return err
			}
			again = append(again, m.Block)
			if err := p.frame(ctx, m.Block, []segment{{0, m.Offset, int(m.Length)}}); err != nil {
				return err
			}
		}
	}
}

func (p *phase) acked(blocks []uint32, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range blocks {
		p.acks[b] = now
	}
}

// takeBack notes that a piece has to be sent again. The peer names it, so it is
// looked at.
func (p *phase) takeBack(m transport.Piece) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if int(m.Block) >= len(p.acks) || m.End() > p.o.shape.blockBytes || m.Length < unit || m.Length > uint32(p.o.frame) {
		return fmt.Errorf("%w: missing piece of %d bytes at %d of block %d was never sent", transport.ErrProtocol, m.Length, m.Offset, m.Block)
	}
	p.acks[m.Block] = time.Time{}
	p.resent += uint64(m.Length)
	return nil
}

// sum counts what was acknowledged.
func (p *phase) sum() sent {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := sent{resent: p.resent, times: stats.NewTimes(), early: p.cut}
	var last time.Time
	for b, ack := range p.acks {
		if ack.IsZero() {
			continue
		}
		s.times.Record(ack.Sub(p.starts[b]))
		if ack.After(last) {
			last = ack
		}
	}
	s.blocks = uint64(s.times.N())
	s.bytes = s.blocks * p.o.shape.blockBytes
	if s.blocks > 0 {
		s.seconds = last.Sub(p.starts[0]).Seconds()
	}
	return s
}
