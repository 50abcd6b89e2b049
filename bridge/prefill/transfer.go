package prefill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/transport"
)

// Carrier takes a transfer's frames to its receiver. It sends from Server.Ring.
type Carrier interface {
	// Wants reports whether bytes of a block are needed.
	Wants(block int) bool

	// Give sends a filled lease, which has ended when it returns, whatever it
	// returns. It is called from the source that Run runs.
	Give(ctx context.Context, l *transport.Lease) error

	// Run has the source make its pieces and returns the receiver's verdict. The
	// source is run once, and does not use the sink.
	Run(ctx context.Context, src bridge.Source) (bridge.Verdict, error)

	// Close ends the transfer early. It may be called concurrently and more
	// than once.
	Close()
}

// Job is one prompt that this host prefills, or a part of it.
type Job struct {
	// ID names the transfer; the engine's request has to carry it.
	ID transport.ID

	// Carrier is open; it is the transfer's from Open on.
	Carrier Carrier

	// Layout of the plan's blocks.
	Layout *omlx.Layout

	// Blocks of the plan.
	Blocks int

	// Tokens of the prompt, where they end in the middle of the last block: the
	// workers fill it up with zeros. Default: those of all blocks.
	Tokens int

	// Room is the payload bytes that a frame may have, where the receiver takes
	// less than a slot of the ring. Default: a slot's.
	Room int

	// Workers is how many workers of this host take part. Default: what the
	// workers say.
	Workers int
}

// Report is what one worker said of its part.
type Report struct {
	Rank                   int           // tensor-parallel rank
	Tokens                 int           // how far it got, from the prompt's start
	Capture, Project, Wait time.Duration // what the request cost the worker
	Fault                  string        // why it ended early; empty: in order
}

// Result is how a transfer ended.
type Result struct {
	bridge.Verdict

	// Sealed is the block at which the transfer was sealed here, -1 if it was not;
	// Why says why it was, or why a worker or the engine failed.
	Sealed int
	Why    string

	// Reports has one entry for each worker that took part, by rank.
	Reports []Report

	// Projected is the time that the Go kernels took (mode rows).
	Projected time.Duration

	// Recovered is the frames of before a restart that were sent.
	Recovered int
}

// Transfer sends what workers commit of one prompt. EngineDone and Cancel may be
// called concurrently with everything.
type Transfer struct {
	s          *Server
	job        Job
	from, to   int    // tokens whose rows are wanted
	wanted     []bool // blocks that the receiver has not
	blockBytes uint64
	recovered  []*holding

	work chan *holding // committed; has room for every slot
	wake chan struct{} // capacity 1: the state below changed
	done chan struct{} // closed at the end

	running bool // guarded by s.mu

	mu      sync.Mutex // guards the fields below
	over    bool       // nothing is taken any more
	dropped bool       // done is closed
	failed  error      // it was cancelled
	sealed  uint32
	seal    code // why
	why     string
	engine  bool // has answered
	answer  time.Time
	expect  int // workers
	parts   map[transport.ID]*part
	share   int64 // bytes of each block that are made of the workers' rows
}

// part is one worker's share of a transfer.
type part struct {
	req    *request // nil while nobody sends it
	ended  bool
	share  int64 // of Transfer.share
	report Report
}

// Open makes a transfer known: workers may begin requests for it from then on.
// Run must be called then. Errors: ErrJob, ErrDuplicate, ErrClosed; the carrier
// is then left to the caller.
func (s *Server) Open(job Job) (*Transfer, error) {
	if job.Carrier == nil || job.Layout == nil || job.Blocks < 1 || job.Blocks > bridge.MaxBlocks ||
		job.Workers < 0 || job.Workers > maxWorkers || job.ID == (transport.ID{}) || job.Room < 0 {
		return nil, fmt.Errorf("%w: id, carrier, layout, 1 to %d blocks and at most %d workers are needed", ErrJob, bridge.MaxBlocks, maxWorkers)
	}
	t := &Transfer{
		s: s, job: job, wanted: make([]bool, job.Blocks), blockBytes: uint64(job.Layout.WireSize()),
		work: make(chan *holding, s.geometry.slots), wake: make(chan struct{}, 1), done: make(chan struct{}),
		sealed: notSealed, expect: job.Workers, parts: make(map[transport.ID]*part),
	}
	if room := s.table.room(); job.Room == 0 || job.Room > room {
		t.job.Room = room
	}
	spec := job.Layout.Spec()
	t.to = job.Blocks * spec.BlockTokens
	if job.Tokens > 0 {
		t.to = min(t.to, job.Tokens)
	}
	t.from = t.to
	for b := range t.wanted {
		if t.wanted[b] = job.Carrier.Wants(b); t.wanted[b] {
			t.from = min(t.from, b*spec.BlockTokens)
		}
	}
	if spec.Kind == omlx.KindDSV4 && t.from < t.to {
		t.from = 0 // what is carried over a block's end is known to who has seen all before
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, ErrClosed
	case s.transfers[job.ID] != nil:
		return nil, fmt.Errorf("%w: %v", ErrDuplicate, job.ID)
	}
	t.recovered = s.recovered[job.ID]
	delete(s.recovered, job.ID)
	s.transfers[job.ID] = t
	close(s.opened)
	s.opened = make(chan struct{})
	return t, nil
}

// Run sends what the workers commit until all of them have ended, and returns the
// receiver's verdict. The context's end cancels the transfer. It is called once.
// Errors: ErrClosed, and those of the carrier's Run; Result then still says what the
// workers reported.
func (t *Transfer) Run(ctx context.Context) (Result, error) {
	s := t.s
	s.mu.Lock()
	if s.closed || t.running {
		s.mu.Unlock()
		return Result{Sealed: -1}, ErrClosed
	}
	t.running = true
	s.runs.Add(1)
	s.mu.Unlock()
	defer s.runs.Done()
	p := &pump{t: t}
	v, err := t.job.Carrier.Run(ctx, p)
	t.drop()
	p.close()
	res := Result{Verdict: v, Sealed: -1, Projected: p.projected, Recovered: p.recovered}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sealed != notSealed {
		res.Sealed = int(t.sealed)
	}
	res.Why = t.why
	for _, p := range t.parts {
		res.Reports = append(res.Reports, p.report)
	}
	slices.SortFunc(res.Reports, func(a, b Report) int { return cmp.Compare(a.Rank, b.Rank) })
	return res, err
}

// EngineDone says that the engine has answered the request, with an error or
// without: workers that do not end soon after will not.
func (t *Transfer) EngineDone(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.engine {
		t.engine, t.answer = true, time.Now()
	}
	if err != nil {
		t.because("engine: " + err.Error())
	}
	signal(t.wake)
}

// Cancel ends the transfer early, here and at the receiver. What is visible there
// stays. It is idempotent.
func (t *Transfer) Cancel(reason string) {
	t.mu.Lock()
	t.because(reason)
	if t.failed == nil {
		t.failed = fmt.Errorf("%w: %s", transport.ErrCancelled, reason)
	}
	t.mu.Unlock()
	t.job.Carrier.Close()
	signal(t.wake)
}

// drop ends the transfer here: workers are told, and what they committed and
// nobody sent is freed.
func (t *Transfer) drop() {
	s := t.s
	s.mu.Lock()
	if s.transfers[t.job.ID] == t {
		delete(s.transfers, t.job.ID)
	}
	s.mu.Unlock()
	t.mu.Lock()
	first := !t.dropped
	t.over, t.dropped = true, true
	why := t.why
	var live []*request
	for _, p := range t.parts {
		if p.req != nil {
			live = append(live, p.req)
		}
	}
	t.mu.Unlock()
	if first {
		close(t.done)
	}
	for _, r := range live {
		r.revoke(codeOver, why)
	}
	for {
		select {
		case h := <-t.work:
			s.table.free(h)
			continue
		default:
		}
		break
	}
	for _, h := range t.recovered {
		s.table.free(h)
	}
	t.recovered = nil
}

// because notes the first reason. The caller holds mu.
func (t *Transfer) because(why string) {
	if t.why == "" {
		t.why = why
	}
}

// push queues a committed slot; false when nothing is taken any more.
func (t *Transfer) push(h *holding) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	t.work <- h // there is room for every slot
	return true
}

// slot takes a slot for data of blocks from block on. Where none is had in time,
// or memory is short, the transfer is sealed there.
func (t *Transfer) slot(ctx context.Context, mode uint8, block uint32, until time.Time) (*holding, code) {
	if t.s.gauge.low() {
		t.sealAt(block, codeMemory)
		return nil, codeMemory
	}
	// A look costs nothing, whatever time is left.
	ctx, cancel := context.WithDeadline(ctx, later(until, time.Now().Add(time.Millisecond)))
	defer cancel()
	take := t.s.table.take
	if mode == modeRows {
		take = t.s.table.takeRows
	}
	h, err := take(ctx, t.done)
	switch {
	case err == nil:
		return h, codeOK
	case errors.Is(err, context.DeadlineExceeded):
		t.sealAt(block, codeLate)
		return nil, codeLate
	}
	return nil, codeOver
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// refusal reports why data of a block is not wanted.
func (t *Transfer) refusal(block uint32) code {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.over:
		return codeOver
	case int64(block) >= int64(t.job.Blocks):
		return codePlan
	case block >= t.sealed:
		return t.seal
	}
	return codeOK
}

// sealedAt is the block from which on nothing is wanted.
func (t *Transfer) sealedAt() uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sealed
}

// sealAt drops data of a block and of later ones, for all workers.
func (t *Transfer) sealAt(block uint32, c code) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if block >= t.sealed || int(block) >= t.job.Blocks {
		return
	}
	t.sealed, t.seal = block, c
	t.because(fmt.Sprintf("sealed at block %d: %s", block, c))
	v := sealed(block)
	for _, p := range t.parts {
		if p.req != nil {
			p.req.w.post(pack(typeSealed, c, p.req.handle, &v))
		}
	}
}

// signal wakes whoever waits for c.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
