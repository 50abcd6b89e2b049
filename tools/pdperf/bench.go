package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// measurer measures points. early, when it is closed, is to end a measurement that is
// under way at once, with what it has.
type measurer interface {
	measure(ctx context.Context, early <-chan struct{}, p point) (*result, error)
}

// interruptGrace is how long after an interrupt blocks that are on their way are waited
// for.
const interruptGrace = 5 * time.Second

// graceful returns a context that ends so long after ctx, and what is closed when ctx
// ends.
func graceful(ctx context.Context) (late context.Context, early <-chan struct{}, cancel context.CancelFunc) {
	late, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	cancelAfter := context.AfterFunc(ctx, func() {
		time.AfterFunc(interruptGrace, func() { stop(context.Cause(ctx)) })
	})
	return late, ctx.Done(), func() {
		cancelAfter()
		stop(context.Canceled)
	}
}

// run measures all points and prints what came of it. Of one measurement the error is
// the command's; of several each has a row.
func (s *sweep) run(ctx context.Context, io streams, m measurer, list []point) error {
	if err := s.out.open(); err != nil {
		return err
	}
	return errors.Join(s.measure(ctx, io, m, list), s.out.close())
}

// measure is run with its file open.
func (s *sweep) measure(ctx context.Context, io streams, m measurer, list []point) error {
	late, early, cancel := graceful(ctx)
	defer cancel()
	bar := newProgress(io, list, s.reps, s.multi)
	if !s.multi {
		stop := bar.begin(list[0])
		r, err := m.measure(late, early, list[0])
		stop()
		if err != nil {
			return errors.Join(err, ctx.Err())
		}
		if err := s.out.one(io, r); err != nil {
			return err
		}
		return ctx.Err()
	}
	s.out.begin(io)
	var all []*result
	for rep := range s.reps {
		order := slices.Clone(list)
		if rep%2 == 1 {
			slices.Reverse(order)
		}
		for _, p := range order {
			if ctx.Err() != nil {
				break
			}
			stop := bar.begin(p)
			r, err := m.measure(late, early, p)
			stop()
			if err != nil && ctx.Err() != nil {
				break // it has nothing to show
			}
			if err != nil {
				r = failedResult(p, err)
			}
			r.Rep = rep
			all = append(all, r)
			bar.end(p, r)
			if err := s.out.add(io, r); err != nil {
				return err
			}
		}
	}
	return s.finish(ctx, io, all, len(list)*s.reps)
}

// finish prints the table and says how it went.
func (s *sweep) finish(ctx context.Context, io streams, all []*result, wanted int) error {
	s.out.end(io, all)
	bad := 0
	for _, r := range all {
		if !r.OK {
			bad++
		}
	}
	switch {
	case ctx.Err() != nil:
		io.notef("pdperf: interrupted: %d of %d measurements are above\n", len(all), wanted)
		return ctx.Err()
	case bad > 0:
		return failed(fmt.Errorf("%d of %d measurements failed", bad, wanted))
	}
	return nil
}

// failedResult is the row of a point that could not be measured.
func failedResult(p point, err error) *result {
	link, sealed := strings.CutSuffix(p.link, sealedLink)
	r := &result{
		Schema: schemaName, Program: "pdperf", Version: buildVersion(), Link: link, Sealed: sealed, Direction: p.o.direction, Processes: 2,
		Model: p.o.model, BlockTokens: p.o.shape.blockTokens, BlockBytes: int64(p.o.shape.blockBytes), FrameBytes: int64(p.o.frame),
		InFlight: p.o.inFlight * p.o.shape.group, Lanes: p.o.lanes, Warmup: p.o.warmup.Seconds(), Why: plain(err),
	}
	switch link {
	case floorLink:
		r.Program, r.Link = "floor", "tcp"
	case "mem":
		r.Processes = 1
	}
	return r
}
