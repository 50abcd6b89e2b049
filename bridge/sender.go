package bridge

import (
	"context"
	"errors"
	"fmt"

	"pdlink/transport"
)

// Sender fills the frames of one outgoing transfer. It belongs to one goroutine
// at a time.
type Sender struct {
	out     transport.Outgoing
	answer  Answer
	present []bool
	lease   *transport.Lease

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
	return s, nil
}

// Answer is what the receiver said when it admitted the transfer.
func (s *Sender) Answer() Answer { return s.answer }

// Wants reports whether the receiver still needs bytes of a block.
func (s *Sender) Wants(block int) bool {
	if block < 0 || block >= len(s.present) || s.present[block] {
		return false
	}
	return s.again == nil || s.again[uint32(block)] != nil
}

// Put sends p as bytes of a block from offset off, in as many pieces as the
// frames ask for. Bytes that the receiver does not need are left out. p may be
// reused when Put returns.
func (s *Sender) Put(ctx context.Context, block int, off int64, p []byte) error {
	if !s.Wants(block) || len(p) == 0 {
		return nil
	}
	if off < 0 || off+int64(len(p)) > s.answer.BlockBytes {
		return fmt.Errorf("%w: bytes [%d,%d) of block %d, which has %d", ErrPlan, off, off+int64(len(p)), block, s.answer.BlockBytes)
	}
	if s.again == nil {
		return s.put(ctx, uint32(block), uint64(off), p)
	}
	var err error
	asked := s.again[uint32(block)]
	end := uint64(off) + uint64(len(p))
	for _, r := range asked.Ranges() {
		if b, e := max(r.Begin, uint64(off)), min(r.End, end); b < e && err == nil {
			err = s.put(ctx, uint32(block), b, p[b-uint64(off):e-uint64(off)])
		}
	}
	return err
}

// put appends to the open lease and sends it when it is full.
func (s *Sender) put(ctx context.Context, block uint32, off uint64, p []byte) error {
	for len(p) > 0 {
		if s.lease == nil {
			l, err := s.out.Lease(ctx)
			if err != nil {
				return fmt.Errorf("lease slot for block %d: %w", block, err)
			}
			s.lease = l
		}
		n := s.lease.Append(block, off, p)
		if n == 0 {
			if err := s.Push(ctx); err != nil {
				return err
			}
			continue
		}
		off, p = off+uint64(n), p[n:]
	}
	return nil
}

// Push sends the frame that is being filled, if any.
func (s *Sender) Push(ctx context.Context) error {
	l := s.lease
	if l == nil {
		return nil
	}
	s.lease = nil
	if err := s.out.Send(ctx, l); err != nil {
		return fmt.Errorf("send frame: %w", err)
	}
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
	s.again = make(map[uint32]*transport.Coverage, len(pieces))
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
