package bridge

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"pdlink/transport"
)

// sender fills the frames of one outgoing transfer on one connection. It belongs
// to one goroutine at a time.
type sender struct {
	out     transport.Outgoing
	keeps   bool // the source cannot be read again: what is not durable is kept
	answer  Answer
	present []bool
	held    transport.BlockCoverage
	sent    *tally
	made    *history // nil: the source is not run again

	lease *transport.Lease
	twice uint64            // bytes of lease that had been sent before
	frame []transport.Piece // of the source's frame that was sent last, where made is set

	// untried is the first piece of the source's frame that the link did not take,
	// after which it was given none.
	untried transport.Piece

	// again, when set, is what the receiver asked for: nothing else is sent.
	again transport.BlockCoverage
}

// Sink takes the pieces that a Source makes; Courier is the real one. It belongs
// to one goroutine at a time.
type Sink interface {
	// Wants reports whether bytes of a block are still needed. A source may
	// skip the work for a block that is not wanted, as far as later blocks do
	// not depend on it.
	Wants(block int) bool

	// Put takes bytes of a block's data from offset off on. p may be reused
	// when it returns. Bytes that are not wanted are left out.
	Put(ctx context.Context, block int, off int64, p []byte) error

	// Push sends what was put, without waiting for a frame to fill. A source
	// calls it when nothing more will come for a while.
	Push(ctx context.Context) error
}

// Source makes the pieces of a transfer. It is run again when pieces were lost
// on the way, and may then make all of them: the sink leaves out what arrived. What
// is sent again is counted right where each run makes the bytes of a block in the
// same order.
type Source interface {
	Run(ctx context.Context, to Sink) error
}

// Shape is what a plan says about the blocks of a transfer.
type Shape struct {
	Blocks     int
	BlockBytes int64 // bytes of each block's data
}

// openSender opens a transfer on conn. A receiver whose answer does not have the
// shape of the sender's plan has understood another plan: ErrAnswer.
func openSender(ctx context.Context, conn transport.Conn, req transport.Request, shape Shape) (*sender, error) {
	out, err := conn.Open(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("open transfer: %w", err)
	}
	s := &sender{out: out, keeps: !req.Replayable}
	if s.answer, err = parseAnswer(out.Answer()); err == nil && (Shape{s.answer.Blocks, s.answer.BlockBytes} != shape) {
		err = fmt.Errorf("%w: the receiver expects %d blocks of %d bytes, the plan has %d of %d",
			ErrAnswer, s.answer.Blocks, s.answer.BlockBytes, shape.Blocks, shape.BlockBytes)
	}
	if err != nil {
		out.Cancel("answer not understood")
		return nil, err
	}
	s.present = make([]bool, s.answer.Blocks)
	for _, sp := range s.answer.Present {
		for i := range sp.Count {
			s.present[sp.First+i] = true
		}
	}
	s.held = make(transport.BlockCoverage, len(s.answer.Held))
	for _, h := range s.answer.Held {
		s.held[h.Block] = cover(h.Ranges)
	}
	return s, nil
}

func cover(ranges []transport.Range) *transport.Coverage {
	c := new(transport.Coverage)
	for _, r := range ranges {
		c.Add(r)
	}
	return c
}

// wants reports whether the receiver still needs bytes of a block. Of a source that
// cannot be read again it needs those that it has and that are not durable yet.
func (s *sender) wants(block int) bool {
	if block < 0 || block >= len(s.present) || s.present[block] {
		return false
	}
	if s.again != nil {
		return s.again[uint32(block)] != nil
	}
	held := s.held[uint32(block)]
	return held == nil || s.keeps || held.Bytes() < uint64(s.answer.BlockBytes)
}

// put sends p as bytes of a block from offset off, in as many pieces as the frames
// ask for. Bytes that the receiver does not need are left out. p may be reused when
// put returns. It returns how many bytes of p, from the front, are taken care of.
func (s *sender) put(ctx context.Context, block int, off int64, p []byte) (int, error) {
	if !s.wants(block) || len(p) == 0 {
		return len(p), nil
	}
	if off < 0 || off+int64(len(p)) > s.answer.BlockBytes {
		return 0, fmt.Errorf("%w: bytes [%d,%d) of block %d, which has %d", ErrPlan, off, off+int64(len(p)), block, s.answer.BlockBytes)
	}
	whole := transport.Range{Begin: uint64(off), End: uint64(off) + uint64(len(p))}
	begin := s.made.at(uint32(block))
	n, err := s.choose(ctx, uint32(block), whole, p, begin)
	if err == nil {
		s.made.reach(uint32(block), begin+uint64(n))
	}
	return n, err
}

// choose puts what is wanted of the bytes of whole, which are p. begin is how many
// bytes of the block the source has made before. It returns how many bytes of p are
// taken care of.
func (s *sender) choose(ctx context.Context, block uint32, whole transport.Range, p []byte, begin uint64) (int, error) {
	var wanted iter.Seq[transport.Range]
	switch held := s.held[block]; {
	case s.again != nil:
		wanted = s.again[block].Covered(whole)
	case held == nil: // nearly always
		return s.fill(ctx, block, whole, p, begin)
	case s.keeps: // all of it, so that the receiver has what is kept in pieces of its own
		wanted = slices.Values(split(held, whole))
	default:
		wanted = held.Uncovered(whole)
	}
	for r := range wanted {
		at := r.Begin - whole.Begin
		if n, err := s.fill(ctx, block, r, p[at:], begin+at); err != nil {
			return int(at) + n, err
		}
	}
	return len(p), nil
}

// fill puts the bytes of r, with which p begins, into the open lease and sends it
// when it is full. at is how many bytes of the block the source has made before. It
// returns how many it put.
func (s *sender) fill(ctx context.Context, block uint32, r transport.Range, p []byte, at uint64) (int, error) {
	size := int(r.End - r.Begin)
	for done := 0; done < size; {
		if s.lease == nil {
			l, err := s.out.Lease(ctx)
			if err != nil {
				return done, fmt.Errorf("lease slot for block %d: %w", block, err)
			}
			s.lease, s.twice = l, 0
		}
		n := s.lease.Append(block, r.Begin+uint64(done), p[done:size])
		if n == 0 {
			if err := s.push(ctx); err != nil {
				return done, err
			}
		}
		s.twice += s.made.repeats(block, at+uint64(done), uint64(n))
		done += n
		s.made.reach(block, at+uint64(done))
	}
	return size, nil
}

// push sends the frame that is being filled, if any.
func (s *sender) push(ctx context.Context) error {
	l := s.lease
	if l == nil {
		return nil
	}
	s.lease = nil
	if s.keeps && len(s.held)+len(s.answer.Present) > 0 && !s.narrow(l) {
		l.Release()
		return nil
	}
	return s.first(ctx, l, s.twice)
}

// first is send for a frame that comes from the source.
func (s *sender) first(ctx context.Context, l *transport.Lease, twice uint64) error {
	var begin transport.Piece
	if !l.Empty() {
		begin = l.Pieces()[0]
	}
	if s.made != nil {
		s.frame = append(s.frame[:0], l.Pieces()...)
	}
	err := s.send(ctx, l, twice)
	if err != nil {
		s.untried = begin
		s.made.undo(s.frame)
	}
	return err
}

// send sends a frame and counts it. twice is how many of its bytes had been sent
// before.
func (s *sender) send(ctx context.Context, l *transport.Lease, twice uint64) error {
	bytes := bytesOf(l)
	if err := s.out.Send(ctx, l); err != nil {
		return fmt.Errorf("send frame: %w", err)
	}
	s.sent.count(bytes, twice)
	return nil
}

// bytesOf is how many bytes of a frame go on the wire.
func bytesOf(l *transport.Lease) (n uint64) {
	lo, hi := l.Wanted()
	for _, p := range l.Pieces()[lo:hi] {
		n += uint64(p.Length)
	}
	return n
}

// drop gives up the frame that is being filled, if any.
func (s *sender) drop() {
	if s.lease == nil {
		return
	}
	s.made.undo(s.lease.Pieces())
	s.lease.Release()
	s.lease = nil
}

// verdict reads the receiver's verdict and holds it against the plan.
func (s *sender) verdict(result []byte) (Verdict, error) {
	v, err := ParseVerdict(result)
	if err == nil && v.Total != s.answer.Blocks {
		err = fmt.Errorf("%w: the verdict is about %d blocks, the plan has %d", ErrAnswer, v.Total, s.answer.Blocks)
	}
	return v, err
}

// ask restricts what is sent to pieces.
func (s *sender) ask(pieces []transport.Piece) {
	s.again = make(transport.BlockCoverage)
	for _, p := range pieces {
		s.again.Add(p)
	}
}

// abort ends the transfer early. What is visible at the receiver stays.
func (s *sender) abort(reason string) {
	s.drop()
	s.out.Cancel(reason)
}

// fits reports whether all of a frame's pieces are of the plan.
func (s *sender) fits(l *transport.Lease) bool {
	for _, p := range l.Pieces() {
		if int64(p.Block) >= int64(len(s.present)) || p.End() < p.Offset || p.End() > uint64(s.answer.BlockBytes) {
			return false
		}
	}
	return true
}

// narrow leaves out of a frame that is kept what the receiver has. It reports false
// when all of the frame's blocks are visible there, so that the frame is needed no
// more.
func (s *sender) narrow(l *transport.Lease) bool {
	needed, lo, hi := false, 0, 0
	for i, p := range l.Pieces() {
		if s.present[p.Block] {
			continue
		}
		needed = true
		if s.held.Covers(p) {
			continue
		}
		if lo == hi {
			lo = i
		}
		hi = i + 1
	}
	l.Narrow(lo, hi)
	return needed
}

// split cuts r where what c covers begins and ends.
func split(c *transport.Coverage, r transport.Range) []transport.Range {
	var out []transport.Range
	at := r.Begin
	add := func(end uint64) {
		if at < end {
			out = append(out, transport.Range{Begin: at, End: end})
			at = end
		}
	}
	for u := range c.Uncovered(r) {
		add(u.Begin)
		add(u.End)
	}
	add(r.End)
	return out
}

// wantsAny reports whether any block is wanted.
func (s *sender) wantsAny() bool {
	for i := range s.present {
		if s.wants(i) {
			return true
		}
	}
	return false
}

// CheckRing reports a send ring that is too small for a source that cannot be
// read again: its frames are kept until their blocks are durable, so with less
// than twice the bytes of the blocks that are open at once it would wait for
// ever.
func CheckRing(ringBytes, openBytes int64) error {
	if ringBytes < 2*openBytes {
		return fmt.Errorf("%w: %d bytes for %d bytes of blocks that are open at once: make it at least %d bytes or take smaller chunks",
			ErrRing, ringBytes, openBytes, 2*openBytes)
	}
	return nil
}
