package bridge

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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
	part int
	via  via
	left chan struct{} // closed when it sends no more

	// Guarded by assembly.mu. in is set once, by the goroutine that serves the
	// member, which reads it without the lock.
	in      transport.Incoming // nil until admitted
	ended   bool               // finished in order
	gone    bool               // does not wait for the verdict any more
	counted bool               // its bytes are in the verdict
}

// via is a connection that senders come over.
type via struct {
	facts  transport.Facts
	number uint64 // counts the connections that a receiver serves
}

// replaces reports whether the process at the other end of v has given w up: it is
// the same one, and it came again. Nobody takes the place of a peer that has proven
// who it is without proving to be the same one.
func (v via) replaces(w via) bool {
	boot, v0, w0 := transport.ID{}, v.facts, w.facts
	return v.number > w.number && v0.PeerBoot == w0.PeerBoot && v0.PeerBoot != boot &&
		(!w0.Proven || v0.Proven && v0.Peer == w0.Peer)
}

// assembly is one transfer: the union of what its senders send.
type assembly struct {
	r       *Receiver
	id      transport.ID
	digest  [sha256.Size]byte
	parts   int
	via     via    // of the sender that opened it
	age     uint64 // the number of transfers opened before it, and it
	started time.Time
	ready   chan struct{} // closed when it was opened, or openErr says why not
	done    chan struct{} // closed when verdict is fixed

	// Set before ready is closed.
	openErr error
	target  Target
	size    int64 // bytes of a block
	ordered bool

	isVisible func(block int) bool // see Opened.Visible
	ports     func() []PortUse     // see Opened.Ports
	blocks    []block
	present   int // blocks that were visible at the start

	// stopped is set and halt closed before the target closes; with a block's io
	// lock that keeps late writers away from it.
	stopped atomic.Bool
	halt    chan struct{}

	closing atomic.Bool  // the receiver is ending
	stuck   atomic.Int64 // since when the target takes no further block, by Receiver.clock; 0: it does
	needs   atomic.Int64 // until when no other transfer is opened for the sake of this one; by the same clock
	arrived atomic.Int64 // when the last frame arrived or was written, in ns from started
	pace    pace
	ranges  atomic.Int64 // of all blocks' coverage; Receiver.ranges has the sum of all transfers
	end     cutting

	mu         sync.Mutex // guards the rest
	cond       sync.Cond
	members    map[int]*member // by part: live or finished
	sealing    int             // Target.Seal calls that run
	publishing bool            // a group of blocks is being published
	visible    int             // contiguous prefix of published blocks
	lastAt     time.Duration   // when the last block became visible, from started; 0: none did
	failed     error           // the first failure; no more bytes are worth sending
	timer      *time.Timer     // wakes the finisher when patience may be at its end
	expired    bool            // it is
	joined     bool            // somebody was a member
	joinedAt   time.Duration   // the last who became one, from started
	lostAt     time.Duration   // the last who did not finish, from started
	losses     map[int]error   // by part: why its last sender that did not finish was lost
	admitted   bool            // a sender was told that it may send
	over       bool            // nobody can join any more
	decided    bool            // verdict is final; done is closed soon
	verdict    Verdict
}

func newAssembly(r *Receiver, req transport.Request, digest [sha256.Size]byte, v via) *assembly {
	a := &assembly{
		r: r, id: req.ID, digest: digest, parts: max(req.Parts, 1), via: v, started: time.Now(),
		ready: make(chan struct{}), done: make(chan struct{}), halt: make(chan struct{}), members: make(map[int]*member), losses: make(map[int]error),
	}
	a.cond.L = &a.mu
	a.timer = time.AfterFunc(time.Hour, func() { // the finisher sets the time
		a.mu.Lock()
		defer a.mu.Unlock()
		a.cond.Broadcast()
	})
	return a
}

// open opens the target and prepares the answer. The request is that of the sender
// for which the assembly was made: others may have another plan.
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
	a.mu.Lock() // the receiver may be closing
	defer a.mu.Unlock()
	a.target, a.size, a.ordered, a.isVisible = o.Target, o.BlockBytes, o.Ordered, o.Visible
	a.ports = o.Ports
	a.blocks = make([]block, o.Blocks)
	a.end.end.Store(int64(o.Blocks))
	for i, p := range o.Present {
		if p {
			a.blocks[i].stage = stagePublished
			a.blocks[i].visible.Store(true)
			a.present++
		}
	}
	a.advance()
	if a.closing.Load() {
		a.lower(a.visible)
	}
}

// opened waits until another sender's request has been opened. One that has another
// plan is told so at once: it would have to wait for nothing.
func (a *assembly) opened(ctx context.Context, digest [sha256.Size]byte) error {
	select {
	case <-a.ready:
		return nil
	default:
	}
	if digest != a.digest {
		return a.refuse(transport.RefuseOther, otherPlan)
	}
	select {
	case <-a.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *assembly) refuse(code transport.RefuseCode, format string, args ...any) error {
	return &transport.RefusedError{Transfer: a.id, Code: code, Reason: fmt.Sprintf(format, args...)}
}

// What senders are told in more than one place.
const (
	otherPlan = "another sender of this transfer has a different plan"
	stopping  = "the receiver is stopping"
)

// join makes the sender of req a member, or says why not: errOver if the
// transfer is ending, and a new one can begin when done is closed. was is the
// member in whose place it came, nil if there was none who may still be writing.
func (a *assembly) join(req transport.Request, digest [sha256.Size]byte, v via) (m, was *member, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was = a.members[req.Part]
	switch parts := max(req.Parts, 1); {
	case a.over:
		return nil, nil, errOver
	case a.closing.Load(): // the next receiver knows what became visible, and nothing else
		return nil, nil, a.refuse(transport.RefuseBusy, stopping)
	case digest != a.digest:
		return nil, nil, a.refuse(transport.RefuseOther, otherPlan)
	case parts != a.parts:
		return nil, nil, a.refuse(transport.RefuseOther, "%d parts, but another sender of this transfer said %d", parts, a.parts)
	case was != nil && !was.replaceable(v):
		return nil, nil, a.refuse(transport.RefuseDuplicate, "part %d of %d is being sent already", req.Part+1, a.parts)
	}
	if was != nil && was.in != nil {
		was.in.Cancel("another connection sends this part now")
		a.count(was)
	}
	m = &member{part: req.Part, via: v, left: make(chan struct{})}
	a.members[req.Part] = m
	a.joined, a.joinedAt = true, time.Since(a.started)
	a.cond.Broadcast()
	return m, was, nil
}

// replaceable reports whether the part of m may be opened again over v: its sender
// is gone, or came again itself. One whose connection lives keeps it, however long
// it is silent: an engine may queue, and links notice a peer that is gone. It is
// called with the assembly's mu held.
func (m *member) replaceable(v via) bool {
	return m.gone || m.in != nil && v.replaces(m.via)
}

// admit lets a member send. One that keeps its frames hears which blocks are
// durable already: none of those need come for it to hear it.
func (a *assembly) admit(m *member, in transport.Incoming) {
	a.mu.Lock()
	m.in, a.admitted = in, true
	var done []uint32
	for i := range a.blocks {
		if !in.Request().Replayable && (a.blocks[i].stage == stagePublished || a.end.over(i) && !a.closing.Load()) {
			done = append(done, uint32(i))
		}
	}
	a.mu.Unlock()
	if len(done) > 0 {
		in.Ack(done...) //nolint:errcheck // a member that is gone is noticed by its own loop
	}
}

// leave records that a member sends no more: it finished in order, or it was lost,
// why, and its part may be opened again. It is called once for each member.
func (a *assembly) leave(m *member, why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(m.left)
	if m.in != nil && !a.decided {
		a.count(m)
	}
	if why == nil {
		m.ended = true
	} else if a.members[m.part] == m {
		delete(a.members, m.part)
		a.lostAt = time.Since(a.started)
		a.losses[m.part] = why
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
	if errors.Is(err, ErrClosed) {
		a.closing.Store(true) // first: what is given up now is not what a cut gives up
		a.lower(a.visible)    // then there is no time for blocks that are whole
	}
	a.cond.Broadcast()
}
