package watch

import (
	"sync/atomic"
	"time"

	"pdlink/bridge"
)

// The phases of a transfer at the receiver, of which Target tells: the sum over all
// blocks, which may be longer than the transfer, since blocks are worked on side by side.
const (
	PhaseWrite   = "write"   // bytes into files
	PhaseSync    = "sync"    // to the device, while blocks are open
	PhaseSeal    = "seal"    // check of a whole block, and its bytes to the device
	PhasePublish = "publish" // under its name
	PhaseSettle  = "settle"  // the names to the device
)

// PhaseEngine is the phase of a transfer at the prefill host of which Ended tells: the
// engine's reading of the prompt.
const PhaseEngine = "engine"

// Phases are all of them.
func Phases() []string {
	return []string{PhaseWrite, PhaseSync, PhaseSeal, PhasePublish, PhaseSettle, PhaseEngine}
}

// Target is a target whose phases are told to the Sink when it closes: those that there were.
func (w *Watch) Target(t bridge.Target) bridge.Target {
	if w.o.Sink == nil {
		return t
	}
	return &target{Target: t, sink: w.o.Sink}
}

// target times the calls of one. It costs two looks at the clock a call.
type target struct {
	bridge.Target
	sink                              Sink
	write, sync, seal, publish, setle atomic.Int64 // nanoseconds
}

// spent adds what a call took: something, also where the clock did not move.
func spent(sum *atomic.Int64, since time.Time) { sum.Add(max(1, int64(time.Since(since)))) }

// Write implements bridge.Target.
func (t *target) Write(block int, off int64, p []byte) error {
	defer spent(&t.write, time.Now())
	return t.Target.Write(block, off, p)
}

// Sync implements bridge.Target.
func (t *target) Sync(block int) error {
	defer spent(&t.sync, time.Now())
	return t.Target.Sync(block)
}

// Seal implements bridge.Target.
func (t *target) Seal(block int) error {
	defer spent(&t.seal, time.Now())
	return t.Target.Seal(block)
}

// Publish implements bridge.Target.
func (t *target) Publish(block int) error {
	defer spent(&t.publish, time.Now())
	return t.Target.Publish(block)
}

// Settle implements bridge.Target.
func (t *target) Settle(first, n int) (int, error) {
	defer spent(&t.setle, time.Now())
	return t.Target.Settle(first, n)
}

// Close implements bridge.Target.
func (t *target) Close() error {
	err := t.Target.Close()
	for _, p := range []struct {
		name string
		sum  *atomic.Int64
	}{{PhaseWrite, &t.write}, {PhaseSync, &t.sync}, {PhaseSeal, &t.seal}, {PhasePublish, &t.publish}, {PhaseSettle, &t.setle}} {
		if took := p.sum.Load(); took > 0 { // else it had none: nothing had to be written, or there was no sync
			t.sink.Phase(p.name, time.Duration(took))
		}
	}
	return err
}
