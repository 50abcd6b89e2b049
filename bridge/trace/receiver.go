package trace

import (
	"pdlink/bridge"
	"pdlink/transport"
)

// Opener records what the targets that open makes do: writes, synchronisation, and
// the publishing of blocks.
func (r *Recorder) Opener(open bridge.Opener) bridge.Opener {
	if r == nil {
		return open
	}
	return func(kind string, meta []byte) (bridge.Opened, error) {
		o, err := open(kind, meta)
		if err == nil {
			o.Target = &target{o.Target, r}
		}
		return o, err
	}
}

type target struct {
	bridge.Target
	r *Recorder
}

// Write implements bridge.Target.
func (t *target) Write(block int, off int64, p []byte) error {
	s := t.r.Begin(Write, "write")
	err := t.Target.Write(block, off, p)
	s.End(block, int64(len(p)))
	return err
}

// Sync implements bridge.Target.
func (t *target) Sync(block int) error {
	s := t.r.Begin(Sync, "sync")
	err := t.Target.Sync(block)
	s.End(block, 0)
	return err
}

// Seal implements bridge.Target.
func (t *target) Seal(block int) error {
	s := t.r.Begin(Sync, "seal")
	err := t.Target.Seal(block)
	s.End(block, 0)
	return err
}

// Publish implements bridge.Target.
func (t *target) Publish(block int) error {
	s := t.r.Begin(Adopt, "publish")
	err := t.Target.Publish(block)
	s.End(block, 0)
	return err
}

// Settle implements bridge.Target.
func (t *target) Settle(first, n int) (int, error) {
	s := t.r.Begin(Sync, "settle")
	done, err := t.Target.Settle(first, n)
	s.End(first, 0)
	return done, err
}

// OnBlock records when blocks became visible, for bridge.Options.OnBlock, and calls
// next, which may be nil.
func (r *Recorder) OnBlock(next func(id transport.ID, visible, total int)) func(id transport.ID, visible, total int) {
	if r == nil {
		return next
	}
	return func(id transport.ID, visible, total int) {
		r.Begin(Adopt, "visible").End(visible-1, 0)
		if next != nil {
			next(id, visible, total)
		}
	}
}
