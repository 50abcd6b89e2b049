package main

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/bridge/replay"
	"pdlink/transport"
)

// transfer moves a job's blocks, to a receiver in this process or elsewhere.
func (f *replayFlags) transfer(ctx context.Context, std streams, j *job) (bridge.Verdict, error) {
	if f.to != "" {
		link, addr, err := openLink(f.to, linkOptions{})
		if err != nil {
			return bridge.Verdict{}, err
		}
		return f.send(ctx, std, j, link, addr)
	}
	open := bridge.Opener(openDiscard)
	if !f.discard {
		store, err := omlx.Open(f.store, omlx.StoreOptions{NoSync: f.noSync})
		if err != nil {
			return bridge.Verdict{}, err
		}
		open = openStore(store)
	}
	link, addr, err := openLink(f.link, linkOptions{})
	if err != nil {
		return bridge.Verdict{}, err
	}
	r, err := startReceiving(ctx, link, addr, bridge.Options{Open: open})
	if err != nil {
		return bridge.Verdict{}, err
	}
	v, err := f.send(ctx, std, j, link, r.listener.Addr())
	return v, errors.Join(err, r.stop())
}

// send runs the job's senders and returns the receiver's verdict, which is the
// same for all of them.
func (f *replayFlags) send(ctx context.Context, std streams, j *job, link transport.Link, addr string) (bridge.Verdict, error) {
	meta, err := j.plan.MarshalBinary()
	if err != nil {
		return bridge.Verdict{}, err
	}
	id, err := f.transferID(meta)
	if err != nil {
		return bridge.Verdict{}, err
	}
	if err := f.checkKeep(j); err != nil {
		return bridge.Verdict{}, err
	}
	step, end := std.progress("send")
	defer end()
	shares := []replay.Share{f.share}
	if f.senders > 1 {
		shares = shares[:0]
		for i := range f.senders {
			shares = append(shares, replay.Share{Part: i, Parts: f.senders})
		}
	}
	parts := make([]*part, len(shares))
	defer func() {
		for _, p := range parts {
			if p != nil {
				p.conn.Close() //nolint:errcheck // the transfer is over
			}
		}
	}()
	// All open before one sends: a transfer that ends early, on a full disk for
	// example, has the same verdict for all of them.
	g, opening := errgroup.WithContext(ctx)
	for i, share := range shares {
		g.Go(func() error {
			o := replay.Options{Share: share, Chunk: f.chunk, Numerics: f.numerics, Workers: f.workers}
			if i == 0 {
				o.Progress = step
			}
			src, err := j.source(o)
			if err != nil {
				return err
			}
			req := transport.Request{
				ID: id, Kind: kindOMLX, Part: share.Part, Parts: share.Parts, Replayable: !f.keep, Meta: meta,
			}
			parts[i], err = openPart(opening, link, addr, req, src)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return bridge.Verdict{}, err
	}
	return runParts(ctx, parts)
}

// runParts sends all parts and returns the verdict.
func runParts(ctx context.Context, parts []*part) (bridge.Verdict, error) {
	verdicts := make([]bridge.Verdict, len(parts))
	g, ctx := errgroup.WithContext(ctx)
	for i, p := range parts {
		g.Go(func() (err error) {
			verdicts[i], err = p.sender.Run(ctx, p.source)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return bridge.Verdict{}, err
	}
	return verdicts[0], nil
}

// part is one sender, on a connection of its own.
type part struct {
	conn   transport.Conn
	sender *bridge.Sender
	source bridge.Source
}

// openPart dials and opens the transfer. The caller closes the connection, also
// of a part that comes with an error.
func openPart(ctx context.Context, link transport.Link, addr string, req transport.Request, src bridge.Source) (*part, error) {
	conn, err := link.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	s, err := bridge.OpenSender(ctx, conn, req)
	if errors.Is(err, transport.ErrRefused) {
		err = fmt.Errorf("declined: %w", err)
	}
	return &part{conn: conn, sender: s, source: src}, err
}

// checkKeep makes sure that keeping frames cannot wait for ever.
func (f *replayFlags) checkKeep(j *job) error {
	if !f.keep {
		return nil
	}
	layout, err := omlx.NewLayout(j.plan.Spec)
	if err != nil {
		return err
	}
	chunk := f.chunk
	if chunk == 0 {
		chunk = replay.DefaultChunk
	}
	blocks := len(j.plan.Hashes)
	if chunk > 0 { // a chunk that starts inside a block touches one more
		blocks = min(blocks, (chunk+j.plan.Spec.BlockTokens-1)/j.plan.Spec.BlockTokens+1)
	}
	const payload = transport.DefaultSlot - transport.HeaderRoom
	if err := bridge.CheckRing(transport.DefaultSlots*payload, int64(blocks)*layout.WireSize()); err != nil {
		return fmt.Errorf("--keep: %w", err)
	}
	if chunk < 0 {
		return nil
	}
	// Every chunk ends with a frame of its own, full or not, and a block's last
	// chunk may begin inside it.
	perBlock := j.plan.Spec.BlockTokens/chunk + 2
	if perBlock > transport.DefaultSlots {
		return fmt.Errorf("--keep: %w: a block of %d tokens takes %d frames, the ring has %d: make chunks of at least %d tokens",
			bridge.ErrRing, j.plan.Spec.BlockTokens, perBlock, transport.DefaultSlots,
			j.plan.Spec.BlockTokens/(transport.DefaultSlots-2)+1)
	}
	return nil
}
