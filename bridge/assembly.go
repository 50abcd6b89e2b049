package bridge

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"pdlink/transport"
)

// stage is how far a block has come.
type stage uint8

const (
	stageOpen      stage = iota // some of its bytes are missing
	stageWhole                  // all bytes are written
	stageSealing                // Target.Seal runs
	stageSealed                 // durable, invisible
	stagePublished              // visible and durable
)

// block is one block of a transfer.
type block struct {
	// io is held shared while bytes are claimed and written, and alone while
	// they are synced: so a sender whose bytes were left out because another
	// sender's were first cannot be told that they are durable too early.
	io sync.RWMutex

	mu  sync.Mutex // guards cov
	cov transport.Coverage

	written atomic.Int64
	dirty   atomic.Bool // written since the last sync
	visible atomic.Bool // a copy of stage == stagePublished for the hot path
	stage   stage       // guarded by assembly.mu
}

// member is one sender of a transfer: one part over one connection.
type member struct {
	part  int
	facts transport.Facts

	// Guarded by assembly.mu.
	in      transport.Incoming // nil until admitted
	ended   bool               // finished in order
	gone    bool               // does not wait for the verdict any more
	counted bool               // its bytes are in the verdict
}

// assembly is one transfer: the union of what its senders send.
type assembly struct {
	r       *Receiver
	id      transport.ID
	digest  [sha256.Size]byte
	parts   int
	started time.Time
	done    chan struct{} // closed when verdict is fixed

	once    sync.Once // guards the next group
	openErr error
	target  Target
	size    int64 // bytes of a block
	ordered bool
	answer  []byte
	blocks  []block
	present int // blocks that were visible at the start

	// stopped is set before the target closes; with a block's io lock it
	// keeps late writers away from it.
	stopped atomic.Bool

	arrived atomic.Int64 // frames of all senders

	mu       sync.Mutex // guards the rest
	cond     sync.Cond
	members  map[int]*member // by part: live or finished
	finished map[int]bool    // parts that finished in order
	sealing  int             // Target.Seal calls that run
	visible  int             // contiguous prefix of published blocks
	lastAt   time.Time       // when the last block became visible
	failed   error           // the first failure; no more bytes are worth sending
	broken   bool            // no further block can become visible
	waiting  *time.Timer     // runs while a sender is missing
	expired  bool
	joined   bool // somebody was a member
	over     bool
	verdict  Verdict // final when done is closed
}

func newAssembly(r *Receiver, req transport.Request, digest [sha256.Size]byte) *assembly {
	a := &assembly{
		r: r, id: req.ID, digest: digest, parts: max(req.Parts, 1), started: time.Now(),
		done: make(chan struct{}), members: make(map[int]*member), finished: make(map[int]bool),
	}
	a.cond.L = &a.mu
	a.lastAt = a.started
	return a
}

// open opens the target and prepares the answer. It runs once.
func (a *assembly) open(req transport.Request) {
	o, err := a.r.o.Open(req.Kind, req.Meta)
	if err != nil {
		a.openErr = err
		return
	}
	if o.Blocks < 0 || o.Blocks > MaxBlocks || o.BlockBytes < 1 || o.BlockBytes > MaxBlockBytes {
		a.openErr = errors.Join(
			fmt.Errorf("%w: %d blocks of %d bytes, limits %d and %d", ErrPlan, o.Blocks, o.BlockBytes, MaxBlocks, MaxBlockBytes),
			o.Target.Close())
		return
	}
	a.target, a.size, a.ordered = o.Target, o.BlockBytes, o.Ordered
	a.blocks = make([]block, o.Blocks)
	for i, p := range o.Present {
		if p {
			a.blocks[i].stage = stagePublished
			a.blocks[i].visible.Store(true)
			a.present++
		}
	}
	a.advance()
	a.answer, a.openErr = Answer{Blocks: o.Blocks, BlockBytes: o.BlockBytes, Present: spans(o.Present)}.encode()
}

// join makes the sender of req a member, or says why not: errOver if the
// transfer is ending, and a new one can begin when done is closed.
func (a *assembly) join(req transport.Request, digest [sha256.Size]byte, facts transport.Facts) (*member, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	refuse := func(code transport.RefuseCode, format string, args ...any) (*member, error) {
		return nil, &transport.RefusedError{Transfer: a.id, Code: code, Reason: fmt.Sprintf(format, args...)}
	}
	switch parts := max(req.Parts, 1); {
	case a.over:
		return nil, errOver
	case digest != a.digest:
		return refuse(transport.RefuseOther, "another sender of this transfer has a different plan")
	case parts != a.parts:
		return refuse(transport.RefuseOther, "%d parts, but another sender of this transfer said %d", parts, a.parts)
	case a.members[req.Part] != nil && !a.members[req.Part].gone:
		return refuse(transport.RefuseDuplicate, "part %d of %d is being sent already", req.Part+1, a.parts)
	}
	m := &member{part: req.Part, facts: facts}
	a.members[req.Part] = m
	a.joined = true
	delete(a.finished, req.Part)
	if a.waiting != nil {
		a.waiting.Stop()
		a.waiting = nil
	}
	return m, nil
}

// leave records that a member sends no more: it finished in order, or was lost
// and its part may be opened again.
func (a *assembly) leave(m *member, inOrder bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.in != nil && !a.over {
		a.count(m)
	}
	if inOrder {
		m.ended = true
		a.finished[m.part] = true
	} else if a.members[m.part] == m {
		delete(a.members, m.part)
	}
	a.cond.Broadcast()
}

// fail ends the transfer with what is visible.
func (a *assembly) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed == nil {
		a.failed = err
	}
	a.broken = a.broken || errors.Is(err, ErrClosed) // then there is no time for blocks that are whole
	a.cond.Broadcast()
}

// serve receives a member's frames until it ends, and gives it the verdict. One
// that finished and went away before that has done its part all the same, but
// it may come again: it does not know.
func (a *assembly) serve(ctx context.Context, gone <-chan struct{}, m *member, in transport.Incoming) {
	a.mu.Lock()
	m.in = in
	a.mu.Unlock()
	stop := make(chan struct{})
	var end sync.WaitGroup
	end.Go(func() { // a verdict may come before the sender's end
		select {
		case <-a.done:
		case <-stop:
		}
		select {
		case <-a.done:
			in.Finish(a.verdict.encode()) //nolint:errcheck // a sender that is gone needs no verdict
		default:
		}
	})
	err := a.receive(ctx, in)
	a.leave(m, errors.Is(err, io.EOF))
	if errors.Is(err, io.EOF) {
		select {
		case <-a.done:
		case <-gone:
			a.mu.Lock()
			m.gone = true
			a.mu.Unlock()
		case <-ctx.Done():
		}
	}
	close(stop)
	end.Wait()
}

// receive is a member's loop. It returns io.EOF when the sender finished.
func (a *assembly) receive(ctx context.Context, in transport.Incoming) error {
	for {
		d, err := in.Recv(ctx)
		if err != nil {
			return err
		}
		if d.Mark() {
			if err := a.sync(); err != nil {
				a.fail(err)
			}
			if err := d.Flushed(nil); err != nil {
				return err
			}
			continue
		}
		a.arrived.Add(1)
		err = a.frame(in, d)
		d.Release()
		switch {
		case errors.Is(err, ErrPlan):
			in.Cancel(err.Error()) // this sender is wrong, not the others
			return err
		case err != nil:
			a.fail(err)
		}
	}
}

// frame writes a frame's pieces.
func (a *assembly) frame(in transport.Incoming, d *transport.Delivery) error {
	for i, p := range d.Pieces() {
		if int64(p.Block) >= int64(len(a.blocks)) || p.End() > uint64(a.size) {
			return fmt.Errorf("%w: piece [%d,%d) of block %d, the plan has %d blocks of %d bytes",
				ErrPlan, p.Offset, p.End(), p.Block, len(a.blocks), a.size)
		}
		b := &a.blocks[p.Block]
		if b.visible.Load() {
			// It was visible before the sender knew. If this fails the loop's
			// next Recv says why.
			in.Ack(p.Block) //nolint:errcheck // see above
			continue
		}
		if err := a.piece(int(p.Block), b, p, d.Data(i)); err != nil {
			return err
		}
	}
	return nil
}

// piece writes the part of a piece that nobody sent before.
func (a *assembly) piece(index int, b *block, p transport.Piece, data []byte) error {
	b.io.RLock()
	if a.stopped.Load() {
		b.io.RUnlock()
		return nil // the transfer is over, the next Recv says so
	}
	var err error
	var fresh int64
	b.mu.Lock()
	whole := transport.Range{Begin: p.Offset, End: p.End()}
	var todo [1]transport.Range // nearly always the piece as it is
	list := todo[:0]
	b.cov.Uncovered(whole, func(r transport.Range) { list = append(list, r) })
	b.cov.Add(whole)
	b.mu.Unlock()
	for _, r := range list {
		b.dirty.Store(true)
		if err = a.target.Write(index, int64(r.Begin), data[r.Begin-p.Offset:r.End-p.Offset]); err != nil {
			err = fmt.Errorf("%w: write block %d at %d: %w", ErrStore, index, r.Begin, err)
			break
		}
		fresh += int64(r.End - r.Begin)
	}
	b.io.RUnlock()
	if err == nil && fresh > 0 && b.written.Add(fresh) == a.size {
		a.mu.Lock()
		b.stage = stageWhole
		a.cond.Broadcast()
		a.mu.Unlock()
	}
	return err
}

// sync makes durable what was written of blocks that are not sealed.
func (a *assembly) sync() error {
	for i := range a.blocks {
		b := &a.blocks[i]
		if b.visible.Load() || !b.dirty.Load() {
			continue
		}
		b.io.Lock()
		b.dirty.Store(false)
		a.mu.Lock()
		sealed := b.stage >= stageSealed || a.stopped.Load()
		a.mu.Unlock()
		var err error
		if !sealed {
			err = a.target.Sync(i)
		}
		b.io.Unlock()
		if err != nil {
			return fmt.Errorf("%w: sync block %d: %w", ErrStore, i, err)
		}
	}
	return nil
}

// count adds what a member received to the verdict, once. It is called with
// a.mu held.
func (a *assembly) count(m *member) {
	if m.counted {
		return
	}
	m.counted = true
	s := m.in.Stats()
	a.verdict.Bytes += s.Bytes
	a.verdict.Bad += s.BadPiece
	a.verdict.addLink(LinkUse{Link: m.facts.Link, Sealed: m.facts.Sealed, Bytes: s.Bytes})
}
