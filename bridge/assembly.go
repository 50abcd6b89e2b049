package bridge

import (
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
	part  int
	via   via
	heard atomic.Int64  // when its last frame came, in ns from assembly.started
	left  chan struct{} // closed when it sends no more

	// Guarded by assembly.mu.
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
// the same one, and it came again.
func (v via) replaces(w via) bool {
	return v.number > w.number && v.facts.PeerBoot == w.facts.PeerBoot && v.facts.Peer == w.facts.Peer &&
		v.facts.PeerBoot != transport.ID{}
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

	isVisible func(block int) bool // see Opened.Visible
	blocks    []block
	present   int // blocks that were visible at the start

	// stopped is set before the target closes; with a block's io lock it
	// keeps late writers away from it.
	stopped atomic.Bool

	closing atomic.Bool  // the receiver is ending
	full    atomic.Bool  // the target took no further block
	arrived atomic.Int64 // when the last frame arrived or was written, in ns from started
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
	admitted   bool            // a sender was told that it may send
	over       bool            // nobody can join any more
	decided    bool            // verdict is final; done is closed soon
	verdict    Verdict
}

func newAssembly(r *Receiver, req transport.Request, digest [sha256.Size]byte) *assembly {
	a := &assembly{
		r: r, id: req.ID, digest: digest, parts: max(req.Parts, 1), started: time.Now(),
		done: make(chan struct{}), members: make(map[int]*member),
	}
	a.cond.L = &a.mu
	a.timer = time.AfterFunc(time.Hour, func() { // the finisher sets the time
		a.mu.Lock()
		defer a.mu.Unlock()
		a.cond.Broadcast()
	})
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
	a.target, a.size, a.ordered, a.isVisible = o.Target, o.BlockBytes, o.Ordered, o.Visible
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
}

// join makes the sender of req a member, or says why not: errOver if the
// transfer is ending, and a new one can begin when done is closed. was is the
// member in whose place it came, nil if there was none who may still be writing.
func (a *assembly) join(req transport.Request, digest [sha256.Size]byte, v via) (m, was *member, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	refuse := func(code transport.RefuseCode, format string, args ...any) (*member, *member, error) {
		return nil, nil, &transport.RefusedError{Transfer: a.id, Code: code, Reason: fmt.Sprintf(format, args...)}
	}
	was = a.members[req.Part]
	switch parts := max(req.Parts, 1); {
	case a.over:
		return nil, nil, errOver
	case digest != a.digest:
		return refuse(transport.RefuseOther, "another sender of this transfer has a different plan")
	case parts != a.parts:
		return refuse(transport.RefuseOther, "%d parts, but another sender of this transfer said %d", parts, a.parts)
	case was != nil && !a.replaceable(was, v):
		return refuse(transport.RefuseDuplicate, "part %d of %d is being sent already", req.Part+1, a.parts)
	}
	if was != nil && was.in != nil {
		was.in.Cancel("another connection sends this part now")
		a.count(was)
	}
	m = &member{part: req.Part, via: v, left: make(chan struct{})}
	m.heard.Store(int64(time.Since(a.started)))
	a.members[req.Part] = m
	a.joined, a.joinedAt = true, time.Since(a.started)
	a.cond.Broadcast()
	return m, was, nil
}

// replaceable reports whether the part of m may be opened again over v: its sender
// is gone, came again itself, or has been silent for so long that its host may be
// gone. It is called with a.mu held.
func (a *assembly) replaceable(m *member, v via) bool {
	switch {
	case m.gone:
		return true
	case m.in == nil:
		return false
	case v.replaces(m.via):
		return true
	}
	silent := time.Since(a.started) - time.Duration(m.heard.Load())
	return !m.ended && silent >= silentAfter
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

// leave records that a member sends no more: it finished in order, or was lost
// and its part may be opened again. It is called once for each member.
func (a *assembly) leave(m *member, inOrder bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(m.left)
	if m.in != nil && !a.decided {
		a.count(m)
	}
	if inOrder {
		m.ended = true
	} else if a.members[m.part] == m {
		delete(a.members, m.part)
		a.lostAt = time.Since(a.started)
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
