package main

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"pdlink/bridge"
	"pdlink/transport"
)

// transfer moves a job's blocks, to a receiver in this process or elsewhere.
func (f *replayFlags) transfer(ctx context.Context, std streams, j *job) (bridge.Verdict, error) {
	link := f.url.open(linkOptions{})
	if f.to != "" {
		return f.send(ctx, j, link, f.url.addr)
	}
	r, err := startReceiving(ctx, link, f.url, func() (bridge.Options, error) { return f.receiver(std) })
	if err != nil {
		return bridge.Verdict{}, err
	}
	v, err := f.send(ctx, j, link, r.listener.Addr())
	return v, errors.Join(err, r.stop())
}

// receiver is the options of the receiver in this process.
func (f *replayFlags) receiver(std streams) (bridge.Options, error) {
	if f.discard {
		return bridge.Options{Open: openDiscard}, nil
	}
	_, store, err := place{f.store, false}.open(std, f.noSync)
	if err != nil {
		return bridge.Options{}, err
	}
	return bridge.Options{Open: openStore(store)}, nil
}

// send runs the job's senders and returns the receiver's verdict, which is the
// same for all of them. All open before one sends: a transfer that ends early,
// on a full disk for example, has the same verdict for all of them.
func (f *replayFlags) send(ctx context.Context, j *job, link transport.Link, addr string) (bridge.Verdict, error) {
	parts := make([]*part, len(j.parts))
	defer func() {
		for _, p := range parts {
			if p != nil {
				p.conn.Close() //nolint:errcheck // the transfer is over
			}
		}
	}()
	g, opening := errgroup.WithContext(ctx)
	for i, p := range j.parts {
		g.Go(func() (err error) {
			parts[i], err = openPart(opening, link, addr, transport.Request{
				ID: j.id, Kind: kindOMLX, Part: p.share.Part, Parts: p.share.Parts, Replayable: !f.keep, Meta: j.meta,
			}, j.shape, p.source)
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
func openPart(ctx context.Context, link transport.Link, addr string, req transport.Request, shape bridge.Shape, src bridge.Source) (*part, error) {
	conn, err := link.Dial(ctx, addr)
	if err != nil {
		return nil, dialError(ctx, err)
	}
	s, err := bridge.OpenSender(ctx, conn, req, shape)
	return &part{conn: conn, sender: s, source: src}, err
}
