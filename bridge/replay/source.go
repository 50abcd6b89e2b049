package replay

import (
	"context"
	"errors"
	"fmt"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/kernels"
	"pdlink/kernels/safetensors"
)

// DefaultChunk is how many tokens are taken at a time when nothing is said: what
// engines prefill in one step, so four blocks of DeepSeek-V4 are open at once.
const DefaultChunk = 8192

// OneShot as a chunk means the whole prompt at once.
const OneShot = -1

// Options of a source. The zero value is one sender with the case's own numerics.
type Options struct {
	Share    Share
	Chunk    int    // tokens at a time; 0: DefaultChunk, OneShot: all
	Numerics string // "": the case's
	Workers  int    // goroutines of the kernels; 0: GOMAXPROCS

	// Progress is called after each layer of each chunk, with the layers times
	// tokens that are done and that there are. Nil: nobody is told.
	Progress func(done, total int64)
}

// NewSource returns the source of a case's pieces for a layout of Spec. It looks
// at the headers of the files that the pieces are made of, so that a case that
// cannot be sent is known before a transfer begins: ErrCase. A case without
// blocks needs none. The source holds no files open between runs.
func NewSource(c *Case, layout *omlx.Layout, o Options) (bridge.Source, error) {
	end := c.Blocks() * layout.Spec().BlockTokens // what is behind the last whole block is not needed
	s := cursor{c: c, layout: layout, layers: c.Layers(o.Share), end: end, progress: o.Progress}
	switch {
	case o.Chunk == 0:
		s.chunk = DefaultChunk
	case o.Chunk == OneShot:
		s.chunk = max(end, 1)
	case o.Chunk < 0:
		return nil, fmt.Errorf("replay: chunk of %d tokens: want 1 or more", o.Chunk)
	default:
		s.chunk = o.Chunk
	}
	numerics := o.Numerics
	if numerics == "" {
		numerics = c.Numerics
	}
	if c.Kind == omlx.KindKV {
		if o.Numerics != "" && o.Numerics != exact {
			return nil, fmt.Errorf("replay: numerics %q: plain KV is moved as it is, use %q or leave it out", o.Numerics, exact)
		}
		k := &kvSource{cursor: s}
		return k, s.check(k.check)
	}
	profile, err := kernels.ParseNumerics(numerics)
	if err != nil {
		return nil, err
	}
	d := &dsv4Source{cursor: s, profile: profile, workers: o.Workers}
	return d, s.check(d.check)
}

// exact is the numerics of a case whose values are only moved.
const exact = "exact"

// cursor walks a case chunk by chunk, layer by layer, as an engine does.
type cursor struct {
	c        *Case
	layout   *omlx.Layout
	layers   []int
	chunk    int
	end      int // tokens
	progress func(done, total int64)
}

// check opens the capture and has a source look for what it will read of it.
func (s *cursor) check(needs func(*safetensors.File) error) error {
	if s.end == 0 {
		return nil
	}
	f, err := s.c.openCapture()
	if err != nil {
		return err
	}
	return errors.Join(needs(f), f.Close())
}

// walk calls do for every layer of every chunk, in an engine's order.
func (s *cursor) walk(ctx context.Context, to bridge.Sink, do func(layer, at, n int) error) error {
	total := int64(s.end) * int64(len(s.layers))
	var done int64
	for at := 0; at < s.end; at += s.chunk {
		n := min(s.chunk, s.end-at)
		for _, layer := range s.layers {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := do(layer, at, n); err != nil {
				return err
			}
			done += int64(n)
			if s.progress != nil {
				s.progress(done, total)
			}
		}
		if err := to.Push(ctx); err != nil {
			return err
		}
	}
	return nil
}

// wanted reports whether any block is.
func (s *cursor) wanted(to bridge.Sink) bool {
	for b := range s.c.Blocks() {
		if to.Wants(b) {
			return true
		}
	}
	return false
}
