package main

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"pdlink/bridge"
)

// maxHeld is how many bytes of a case's pieces are kept, so that making them is not
// measured: as much as is sent of a made-up prompt.
const maxHeld = costBytes

// pieces is the source of what the order sends, and whether a case's pieces were made
// before: those of a case that is larger than maxHeld are made while it is measured.
func (e *costEnd) pieces(ctx context.Context, o costOrder, j *job) (s bridge.Source, made bool, err error) {
	if s = j.parts[0].source; o.Case == "" {
		return s, false, nil // making them takes next to nothing
	}
	if int64(j.shape.Blocks)*j.shape.BlockBytes > maxHeld {
		return s, false, nil
	}
	if e.held == nil || e.held.name != o.Case {
		h := &heldPieces{name: o.Case, left: maxHeld}
		if err := s.Run(ctx, h); err != nil {
			return nil, false, err
		}
		e.held = h
	}
	return e.held, true, nil
}

// heldPieces are a source's pieces in memory: a sink that keeps them, and the source that
// they then are. It belongs to one goroutine at a time.
type heldPieces struct {
	name   string
	left   int64 // bytes that may still be kept
	pieces []heldPiece
}

// heldPiece is a call of Put, or of Push where there are no bytes.
type heldPiece struct {
	block int
	off   int64
	bytes []byte
}

// Wants implements bridge.Sink.
func (*heldPieces) Wants(int) bool { return true }

// Put implements bridge.Sink.
func (h *heldPieces) Put(_ context.Context, block int, off int64, p []byte) error {
	if h.left -= int64(len(p)); h.left < 0 {
		return errHeld
	}
	if len(p) > 0 {
		h.pieces = append(h.pieces, heldPiece{block, off, bytes.Clone(p)})
	}
	return nil
}

// Push implements bridge.Sink.
func (h *heldPieces) Push(context.Context) error {
	h.pieces = append(h.pieces, heldPiece{})
	return nil
}

// errHeld is returned for a source that makes more than its blocks have.
var errHeld = errors.New("a case makes more bytes than its blocks have")

// Run implements bridge.Source.
func (h *heldPieces) Run(ctx context.Context, to bridge.Sink) error {
	for _, p := range h.pieces {
		err := ctx.Err()
		switch {
		case err != nil:
		case p.bytes == nil:
			err = to.Push(ctx)
		case to.Wants(p.block):
			err = to.Put(ctx, p.block, p.off, p.bytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pacedSource makes pieces no faster than an engine that computes a layer after the other
// would, and says when the last one was there.
type pacedSource struct {
	bridge.Source
	rate   float64      // bytes/s; 0: as fast as it goes
	blocks int64        // of the plan: all of them are one chunk
	ended  atomic.Int64 // ns
}

// Run implements bridge.Source.
func (s *pacedSource) Run(ctx context.Context, to bridge.Sink) error {
	if s.rate > 0 {
		to = &pacedSink{Sink: to, s: s, began: time.Now(), off: -1}
	}
	err := s.Source.Run(ctx, to)
	s.ended.Store(time.Now().UnixNano())
	return err
}

// pacedSink belongs to one goroutine, as every Sink.
type pacedSink struct {
	bridge.Sink
	s     *pacedSource
	began time.Time
	off   int64 // of the layer at hand
	bytes int64 // of all layers up to it
}

// Put implements bridge.Sink. A piece at another offset is the first one of a layer: it is
// there when that has been computed for the whole chunk.
func (k *pacedSink) Put(ctx context.Context, block int, off int64, p []byte) error {
	if off != k.off {
		k.off = off
		k.bytes += int64(len(p)) * k.s.blocks
		at := k.began.Add(time.Duration(float64(k.bytes) / k.s.rate * float64(time.Second)))
		select {
		case <-time.After(time.Until(at)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return k.Sink.Put(ctx, block, off, p)
}
