package bridge

import (
	"context"
	"errors"
	"fmt"

	"pdlink/transport"
)

// Sender fills the frames of one outgoing transfer on one connection. It belongs
// to one goroutine at a time.
type Sender struct {
	out     transport.Outgoing
	answer  Answer
	present []bool
	held    map[uint32]*transport.Coverage // nil for most blocks
	lease   *transport.Lease
	sent    *tally // nil: nobody counts

	// again, when set, is what the receiver asked for: nothing else is sent.
	again map[uint32]*transport.Coverage
}

// Sink takes the pieces that a Source makes; Sender is the real one. It belongs
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
// on the way, and may then make all of them: the sink leaves out what arrived.
type Source interface {
	Run(ctx context.Context, to Sink) error
}

// Shape is what a plan says about the blocks of a transfer.
type Shape struct {
	Blocks     int
	BlockBytes int64 // bytes of each block's data
}

// OpenSender opens a transfer on conn. A receiver whose answer does not have the
// shape of the sender's plan has understood another plan: ErrAnswer.
func OpenSender(ctx context.Context, conn transport.Conn, req transport.Request, shape Shape) (*Sender, error) {
	out, err := conn.Open(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("open transfer: %w", err)
	}
	s := &Sender{out: out}
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
	s.held = make(map[uint32]*transport.Coverage, len(s.answer.Held))
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

// Answer is what the receiver said when it admitted the transfer.
func (s *Sender) Answer() Answer { return s.answer }

// Wants reports whether the receiver still needs bytes of a block.
func (s *Sender) Wants(block int) bool {
	if block < 0 || block >= len(s.present) || s.present[block] {
		return false
	}
	if s.again != nil {
		return s.again[uint32(block)] != nil
	}
	held := s.held[uint32(block)]
	return held == nil || held.Bytes() < uint64(s.answer.BlockBytes)
}

// Put sends p as bytes of a block from offset off, in as many pieces as the
// frames ask for. Bytes that the receiver does not need are left out. p may be
// reused when Put returns.
func (s *Sender) Put(ctx context.Context, block int, off int64, p []byte) error {
	_, err := s.put(ctx, block, off, p)
	return err
}

// put is Put; it returns how many bytes of p, from the front, are taken care of.
func (s *Sender) put(ctx context.Context, block int, off int64, p []byte) (int, error) {
	if !s.Wants(block) || len(p) == 0 {
		return len(p), nil
	}
	if off < 0 || off+int64(len(p)) > s.answer.BlockBytes {
		return 0, fmt.Errorf("%w: bytes [%d,%d) of block %d, which has %d", ErrPlan, off, off+int64(len(p)), block, s.answer.BlockBytes)
	}
	whole := transport.Range{Begin: uint64(off), End: uint64(off) + uint64(len(p))}
	index := uint32(block)
	switch {
	case s.again != nil:
		for _, r := range s.again[index].Ranges() {
			if r.Begin, r.End = max(r.Begin, whole.Begin), min(r.End, whole.End); r.Begin < r.End {
				if n, err := s.fill(ctx, index, r, p[r.Begin-whole.Begin:]); err != nil {
					return int(r.Begin-whole.Begin) + n, err
				}
			}
		}
	case s.held[index] != nil:
		for r := range s.held[index].Uncovered(whole) {
			if n, err := s.fill(ctx, index, r, p[r.Begin-whole.Begin:]); err != nil {
				return int(r.Begin-whole.Begin) + n, err
			}
		}
	default:
		return s.fill(ctx, index, whole, p)
	}
	return len(p), nil
}

// fill puts the bytes of r, with which p begins, into the open lease and sends it
// when it is full. It returns how many it put.
func (s *Sender) fill(ctx context.Context, block uint32, r transport.Range, p []byte) (int, error) {
	size := int(r.End - r.Begin)
	for done := 0; done < size; {
		if s.lease == nil {
			l, err := s.out.Lease(ctx)
			if err != nil {
				return done, fmt.Errorf("lease slot for block %d: %w", block, err)
			}
			s.lease = l
		}
		n := s.lease.Append(block, r.Begin+uint64(done), p[done:size])
		if n == 0 {
			if err := s.Push(ctx); err != nil {
				return done, err
			}
		}
		done += n
	}
	return size, nil
}

// Push sends the frame that is being filled, if any.
func (s *Sender) Push(ctx context.Context) error {
	l := s.lease
	if l == nil {
		return nil
	}
	s.lease = nil
	return s.send(ctx, l)
}

// send sends a frame and counts it.
func (s *Sender) send(ctx context.Context, l *transport.Lease) error {
	s.sent.note(l)
	if err := s.out.Send(ctx, l); err != nil {
		return fmt.Errorf("send frame: %w", err)
	}
	s.sent.count()
	return nil
}

// Run has the source make its pieces, sends them, sends again what was lost, and
// returns the receiver's verdict. When the receiver ended the transfer early its
// verdict is returned too. The transfer is over when Run returns.
func (s *Sender) Run(ctx context.Context, src Source) (Verdict, error) {
	var err error
	for range MaxPasses {
		if err = s.pass(ctx, src); err != nil && !errors.Is(err, transport.ErrCancelled) {
			break
		}
		var out transport.Outcome
		if out, err = s.out.Finish(ctx); err == nil {
			return s.verdict(out.Result)
		}
		var missing *transport.MissingError
		if !errors.As(err, &missing) {
			break
		}
		s.ask(missing.Pieces)
		err = fmt.Errorf("%w: after %d passes: %w", ErrIncomplete, MaxPasses, err)
	}
	s.Abort(err.Error())
	return Verdict{}, err
}

// verdict reads the receiver's verdict and holds it against the plan.
func (s *Sender) verdict(result []byte) (Verdict, error) {
	v, err := ParseVerdict(result)
	if err == nil && v.Total != s.answer.Blocks {
		err = fmt.Errorf("%w: the verdict is about %d blocks, the plan has %d", ErrAnswer, v.Total, s.answer.Blocks)
	}
	return v, err
}

func (s *Sender) pass(ctx context.Context, src Source) error {
	if err := src.Run(ctx, s); err != nil {
		return err
	}
	return s.Push(ctx)
}

// ask restricts what is sent to pieces.
func (s *Sender) ask(pieces []transport.Piece) {
	s.again = make(map[uint32]*transport.Coverage)
	for _, p := range pieces {
		c := s.again[p.Block]
		if c == nil {
			c = new(transport.Coverage)
			s.again[p.Block] = c
		}
		c.Add(transport.Range{Begin: p.Offset, End: p.End()})
	}
}

// Abort ends the transfer early. What is visible at the receiver stays.
func (s *Sender) Abort(reason string) {
	if s.lease != nil {
		s.lease.Release()
		s.lease = nil
	}
	s.out.Cancel(reason)
}

// narrow leaves out of a saved frame what the receiver has. It reports false when
// all of the frame's blocks are visible there, so that the frame is needed no more.
func (s *Sender) narrow(l *transport.Lease) bool {
	needed, lo, hi := false, 0, 0
	for i, p := range l.Pieces() {
		if s.present[p.Block] {
			continue
		}
		needed = true
		if held := s.held[p.Block]; held != nil && covers(held, transport.Range{Begin: p.Offset, End: p.End()}) {
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

// covers reports whether all of r is in c.
func covers(c *transport.Coverage, r transport.Range) bool {
	for range c.Uncovered(r) {
		return false
	}
	return true
}

// wantsAny reports whether any block is wanted.
func (s *Sender) wantsAny() bool {
	for i := range s.present {
		if s.Wants(i) {
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
