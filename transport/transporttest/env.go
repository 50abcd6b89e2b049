package transporttest

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
)

// env is what one check works with.
type env struct {
	testing.TB
	ctx  context.Context // ends before the watchdog bites
	h    Harness
	data content
	rng  *rand.Rand // for the check's own goroutine
	seed uint64

	printed uint64 // what SeedVariable has to be to get seed again
}

// newEnv makes the environment of one check, which prints the seed when it
// failed.
func newEnv(tb testing.TB, h Harness, seed uint64) *env {
	ctx, cancel := context.WithTimeout(tb.Context(), h.deadline())
	tb.Cleanup(cancel)
	e := &env{TB: tb, ctx: ctx, h: h, data: content(seed), rng: newRand(seed), seed: seed, printed: seed}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("set %s=%d to repeat the random choices", SeedVariable, e.printed)
		}
	})
	return e
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed^0x5851f42d4c957f2d)) }

// Seed is the value of SeedVariable, or a random one.
func Seed(tb testing.TB) uint64 {
	tb.Helper()
	s := os.Getenv(SeedVariable)
	if s == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		tb.Fatalf("%s=%q: want a decimal number: %v", SeedVariable, s, err)
	}
	return seed
}

// ring makes a ring whose slots must all be free and unpromised when the check
// ends.
func (e *env) ring(slots, payload int) *transport.Ring {
	e.Helper()
	r, err := transport.NewRing(slots, payload+transport.HeaderRoom)
	e.must(err, "make ring")
	e.Cleanup(func() {
		if e.Failed() {
			return // what a check leaves that gave up halfway says nothing
		}
		idle(e, r)
		if err := r.Close(); err != nil {
			e.Errorf("close ring: %v", err)
		}
	})
	return r
}

// idle checks that nothing of r is taken or promised any more.
func idle(e *env, r *transport.Ring) {
	e.Helper()
	if !within(e.h.soon(), func() bool { return r.InUse() == 0 }) {
		e.Errorf("%d of %d slots never came back", r.InUse(), r.Slots())
	}
	var free int
	if !within(e.h.soon(), func() bool {
		free = r.Promise(r.Slots())
		r.Unpromise(free)
		return free == r.Slots()
	}) {
		e.Errorf("%d of %d promises never came back", r.Slots()-free, r.Slots())
	}
}

// pair connects two ends with rings and a window of the suite's own where the
// options leave them open, and closes them when the check ends.
func (e *env) pair(a, b session.Options) Pair {
	e.Helper()
	p := e.h.Pair(e, e.fill(a), e.fill(b))
	e.Cleanup(p.Close)
	return p
}

// fill sets the suite's defaults in options.
func (e *env) fill(o session.Options) session.Options {
	if o.SendRing == nil {
		o.SendRing = e.ring(testSlots, testPayload)
	}
	if o.RecvRing == nil {
		o.RecvRing = e.ring(testSlots, testPayload)
	}
	if o.Window == 0 {
		o.Window = testWindow
	}
	return o
}

// open opens a transfer from one end and admits it at the other.
func (e *env) open(from, to transport.Conn, r transport.Request) (transport.Outgoing, transport.Incoming) {
	e.Helper()
	opened := start(func() (transport.Outgoing, error) { return from.Open(e.ctx, r) })
	offer, err := to.Accept(e.ctx)
	e.must(err, "accept an offer")
	in, err := offer.Admit(nil)
	e.must(err, "admit")
	o := <-opened
	e.must(o.err, "open")
	return o.v, in
}

// usable runs one small transfer to show that a connection still works.
func (e *env) usable(from, to transport.Conn) {
	e.Helper()
	out, in := e.open(from, to, transport.Request{Replayable: true})
	s := e.sink(in)
	done := call(func() error { return s.run(e.ctx) })
	e.must(e.send(out, piece{block: 0, length: 1000}), "send on a connection that has to work")
	e.finish(out)
	e.ends(done, nil, "receive on a connection that has to work")
	s.covers(map[uint32]uint64{0: 1000})
}

// finish finishes a transfer that has nothing missing.
func (e *env) finish(out transport.Outgoing) transport.Outcome {
	e.Helper()
	o, err := out.Finish(e.ctx)
	e.must(err, "finish")
	return o
}

// must ends the check on an error.
func (e *env) must(err error, what string) {
	if err != nil {
		e.Helper()
		e.Fatalf("%s: %v", what, err)
	}
}

// is checks that err Is want; a nil want means no error.
func (e *env) is(err, want error, what string) {
	e.Helper()
	switch {
	case want == nil && err != nil:
		e.Errorf("%s: %v", what, err)
	case want != nil && err == nil:
		e.Errorf("%s: no error, want one that is %q", what, want)
	case !errors.Is(err, want):
		e.Errorf("%s: error %q, want one that is %q", what, err, want)
	}
}

// ends waits for a call's end and checks its error.
func (e *env) ends(c <-chan outcome[struct{}], want error, what string) {
	e.Helper()
	select {
	case r := <-c:
		e.is(r.err, want, what)
	case <-time.After(e.h.soon()):
		e.Fatalf("%s: still going on after %v", what, e.h.soon())
	}
}

// blocks checks that a call does not end on its own.
func (e *env) blocks(c <-chan outcome[struct{}], what string) {
	e.Helper()
	select {
	case r := <-c:
		e.Fatalf("%s: ended (error %v), has to wait", what, r.err)
	case <-time.After(quiet):
	}
}

// eventually ends the check unless f becomes true.
func (e *env) eventually(f func() bool, what string) {
	e.Helper()
	if !within(e.h.soon(), f) {
		e.Fatalf("%s: did not happen within %v", what, e.h.soon())
	}
}

func within(limit time.Duration, f func() bool) bool {
	for deadline := time.Now().Add(limit); ; time.Sleep(poll) {
		if f() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// deadline is a context that ends soon, for a call that is to run into it.
func (e *env) deadline() context.Context {
	ctx, cancel := context.WithTimeout(e.ctx, brief)
	e.Cleanup(cancel)
	return ctx
}
