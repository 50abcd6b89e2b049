package main

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/bridge/replay"
	"pdlink/transport"
	"pdlink/transport/failover"
)

// job is a replay that is ready to run: a case or a synthetic prompt.
type job struct {
	name     string
	id       transport.ID
	plan     omlx.Plan
	meta     []byte // plan, as it travels
	shape    bridge.Shape
	withheld int
	compare  func(store string) (replay.Comparison, error) // nil: nothing is recorded
	parts    []jobPart
	sent     bridge.Sent      // by all of them; Connects without the first of each
	routes   []failover.Use   // of all of them
	ports    []bridge.PortUse // what this end's ports counted while they sent
	release  func()           // ends what the job holds
}

// count adds what one sender sent, and over which routes.
func (j *job) count(s bridge.Sent, routes []failover.Use) {
	if j.routes == nil {
		j.routes = routes
	} else {
		for i, r := range routes {
			j.routes[i].Add(r)
		}
	}
	j.sent.Connects += max(0, s.Connects-1)
	j.sent.Bytes += s.Bytes
	j.sent.Again += s.Again
	for _, l := range s.Links {
		j.sent.AddLink(l)
	}
}

// jobPart is what one sender sends.
type jobPart struct {
	share  replay.Share
	source bridge.Source
}

// job reads what is to be replayed and makes everything ready that can be wrong
// about it. tell is told of the progress of the first sender.
func (f *replayFlags) job(args []string, tell func(done, total int64)) (*job, error) {
	open := f.caseJob
	switch {
	case f.synthetic != "" && len(args) > 0:
		return nil, errors.New("give a case or --synthetic, not both")
	case f.synthetic != "":
		open = f.syntheticJob
	case len(args) == 0:
		return nil, fmt.Errorf("which case? give a directory, one of %s, or --synthetic MODEL", listText(bundledArgs()))
	}
	j, source, err := open(args)
	if err != nil {
		return nil, err
	}
	if err := f.complete(j, source, tell); err != nil {
		j.release()
		return nil, err
	}
	return j, nil
}

// complete checks the plan and makes the senders' sources.
func (f *replayFlags) complete(j *job, source sources, tell func(done, total int64)) error {
	layout, err := omlx.NewLayout(j.plan.Spec)
	if err != nil {
		return err
	}
	j.shape = bridge.Shape{Blocks: len(j.plan.Hashes), BlockBytes: layout.WireSize()}
	if j.meta, err = j.plan.MarshalBinary(); err != nil {
		return err
	}
	if j.id, err = f.transferID(j.meta); err != nil {
		return err
	}
	if err := f.checkKeep(j); err != nil {
		return err
	}
	shares := []replay.Share{f.share}
	if f.senders > 1 {
		shares = shares[:0]
		for i := range f.senders {
			shares = append(shares, replay.Share{Part: i, Parts: f.senders})
		}
	}
	for i, share := range shares {
		o := replay.Options{Share: share, Chunk: f.chunk, Numerics: f.numerics, Workers: f.workers}
		if i == 0 {
			o.Progress = tell
		}
		src, err := source(o)
		if err != nil {
			return err
		}
		j.parts = append(j.parts, jobPart{share, src})
	}
	return nil
}

// sources makes the source of one sender.
type sources func(replay.Options) (bridge.Source, error)

func (f *replayFlags) syntheticJob([]string) (*job, sources, error) {
	plan, err := replay.Synthetic{Model: f.synthetic, Tokens: f.tokens, Format: f.format, Seed: f.seed}.Plan()
	if err != nil {
		return nil, nil, err
	}
	j := &job{name: "synthetic:" + f.synthetic, plan: plan, release: func() {}}
	return j, func(o replay.Options) (bridge.Source, error) { return replay.NewSynthetic(plan, o) }, nil
}

func (f *replayFlags) caseJob(args []string) (*job, sources, error) {
	c, release, err := loadCase(args[0])
	if err != nil {
		return nil, nil, err
	}
	spec, layout, err := layoutOf(c, f.format, f.poolState)
	if err != nil {
		release()
		return nil, nil, err
	}
	j := &job{name: c.Name, plan: c.Plan(spec), withheld: c.Withheld(), release: release}
	if c.Recorded(spec) {
		j.compare = c.Compare
	}
	return j, func(o replay.Options) (bridge.Source, error) { return replay.NewSource(c, layout, o) }, nil
}

// layoutOf is the layout of a case's blocks, with the changes of a command line.
func layoutOf(c *replay.Case, format string, poolState int) (omlx.Spec, *omlx.Layout, error) {
	spec, err := c.Spec(replay.Overrides{Format: format, PoolState: poolState})
	if err != nil {
		return spec, nil, err
	}
	layout, err := omlx.NewLayout(spec)
	return spec, layout, err
}

// transferID is the same for all parts of one plan.
func (f *replayFlags) transferID(meta []byte) (transport.ID, error) {
	if f.id != "" {
		return transport.ParseID(f.id)
	}
	sum := sha256.Sum256(append([]byte("pdlink replay\n"), meta...))
	return transport.ID(sum[:16]), nil
}

// checkKeep makes sure that keeping frames cannot wait for ever.
func (f *replayFlags) checkKeep(j *job) error {
	if !f.keep {
		return nil
	}
	chunk := f.chunk
	if chunk == 0 {
		chunk = replay.DefaultChunk
	}
	blocks := j.shape.Blocks
	if chunk > 0 { // a chunk that starts inside a block touches one more
		blocks = min(blocks, chunk/j.plan.Spec.BlockTokens+2)
	}
	const payload = transport.DefaultSlot - transport.HeaderRoom
	if err := bridge.CheckRing(transport.DefaultSlots*payload, int64(blocks)*j.shape.BlockBytes); err != nil {
		return fmt.Errorf("--keep: %w", err)
	}
	if chunk < 0 {
		return nil
	}
	if frames := j.framesPerBlock(chunk); frames > transport.DefaultSlots {
		for j.framesPerBlock(chunk) > transport.DefaultSlots && chunk < j.plan.Spec.BlockTokens {
			chunk++
		}
		return fmt.Errorf("--keep: %w: a block of %d tokens takes %d frames, the ring has %d: make chunks of at least %d tokens",
			bridge.ErrRing, j.plan.Spec.BlockTokens, frames, transport.DefaultSlots, chunk)
	}
	return nil
}

// framesPerBlock is how many frames a block takes at the most when chunk tokens
// are taken at a time. A frame is full of bytes or of pieces, every chunk ends
// with one of its own, full or not, and a block's chunks may begin before it and
// end behind it.
func (j *job) framesPerBlock(chunk int) int {
	spec := j.plan.Spec
	const arrays = 7 // of a layer, at the most; plain KV has keys and values
	pieces := arrays * spec.Layers
	if spec.Kind == omlx.KindKV {
		pieces = 2 * spec.Layers * spec.KVHeads // a head's part of the block each
	}
	const payload = transport.DefaultSlot - transport.HeaderRoom
	chunks := spec.BlockTokens/chunk + 2
	return chunks*((pieces+transport.MaxPieces-1)/transport.MaxPieces) + int(j.shape.BlockBytes/payload)
}
