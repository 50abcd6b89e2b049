package transporttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"pdlink/transport"
)

// piece is a byte range of a block that is to be sent.
type piece struct {
	block  uint32
	offset uint64
	length int
}

func (p piece) String() string {
	return fmt.Sprintf("block %d [%d,%d)", p.block, p.offset, p.offset+uint64(p.length))
}

// asPieces is what a missing list says of ps, without sums.
func asPieces(ps ...piece) []transport.Piece {
	out := make([]transport.Piece, 0, len(ps))
	for _, p := range ps {
		out = append(out, transport.Piece{Block: p.block, Offset: p.offset, Length: uint32(p.length)})
	}
	return out
}

// cut divides blocks of size bytes into pieces of up to maxPiece bytes, in
// random order.
func cut(rng *rand.Rand, blocks, size, maxPiece int) []piece {
	var ps []piece
	for b := range blocks {
		for at := 0; at < size; {
			n := min(1+rng.IntN(maxPiece), size-at)
			ps = append(ps, piece{uint32(b), uint64(at), n})
			at += n
		}
	}
	rng.Shuffle(len(ps), func(i, j int) { ps[i], ps[j] = ps[j], ps[i] })
	return ps
}

// send sends one frame of pieces, which have to fit.
func (e *env) send(out transport.Outgoing, ps ...piece) error {
	return sendFrame(e.ctx, e.data, out, ps)
}

func sendFrame(ctx context.Context, data content, out transport.Outgoing, ps []piece) error {
	l, err := out.Lease(ctx)
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	for _, p := range ps {
		mem, err := l.Reserve(p.block, p.offset, p.length)
		if err != nil {
			l.Release()
			return fmt.Errorf("reserve %v: %w", p, err)
		}
		data.fill(mem, p.block, p.offset)
	}
	if err := out.Send(ctx, l); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// sendAll sends pieces in frames of random piece counts, splitting what does
// not fit.
func sendAll(ctx context.Context, data content, rng *rand.Rand, out transport.Outgoing, ps []piece) error {
	for len(ps) > 0 {
		l, err := out.Lease(ctx)
		if err != nil {
			return fmt.Errorf("lease: %w", err)
		}
		for n := 1 + rng.IntN(12); n > 0 && len(ps) > 0 && l.Room() > 0; n-- {
			p := &ps[0]
			take := min(p.length, l.Room())
			mem, err := l.Reserve(p.block, p.offset, take)
			if err != nil {
				l.Release()
				return fmt.Errorf("reserve: %w", err)
			}
			data.fill(mem, p.block, p.offset)
			if take == p.length {
				ps = ps[1:]
				continue
			}
			p.offset, p.length = p.offset+uint64(take), p.length-take
		}
		if err := out.Send(ctx, l); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	return nil
}

// deliver sends pieces and finishes, sending again what is missing.
func deliver(ctx context.Context, data content, rng *rand.Rand, out transport.Outgoing, ps []piece) (transport.Outcome, error) {
	for {
		if err := sendAll(ctx, data, rng, out, ps); err != nil {
			return transport.Outcome{}, err
		}
		o, err := out.Finish(ctx)
		var missing *transport.MissingError
		if !errors.As(err, &missing) {
			return o, err
		}
		ps = nil
		for _, p := range missing.Pieces {
			ps = append(ps, piece{p.Block, p.Offset, int(p.Length)})
		}
	}
}

// sink receives a transfer and keeps account of it.
type sink struct {
	e      *env
	in     transport.Incoming
	whole  uint64        // bytes of a block; whole blocks are acknowledged. 0: never
	pause  time.Duration // before each release
	result []byte        // for Finish

	mu     sync.Mutex // guards what follows
	blocks transport.BlockCoverage
	frames int
	marks  int
}

func (e *env) sink(in transport.Incoming) *sink {
	return &sink{e: e, in: in, blocks: transport.BlockCoverage{}}
}

// run receives until the sender has finished, and finishes too.
func (s *sink) run(ctx context.Context) error {
	for {
		d, err := s.in.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return s.in.Finish(s.result)
		}
		if err != nil {
			return err
		}
		if err := s.take(d); err != nil {
			return err
		}
	}
}

// take checks one delivery and ends it.
func (s *sink) take(d *transport.Delivery) error {
	if d.Mark() {
		s.mu.Lock()
		s.marks++
		s.mu.Unlock()
		return d.Flushed(nil)
	}
	defer d.Release()
	done, err := s.add(d)
	if err != nil {
		// Never right, whatever the check is about; the sender need not wait.
		s.e.Errorf("%v", err)
		s.in.Cancel("wrong delivery")
		return err
	}
	time.Sleep(s.pause)
	if len(done) > 0 {
		return s.in.Ack(done...)
	}
	return nil
}

// add checks a frame and returns the blocks that it completed.
func (s *sink) add(d *transport.Delivery) (whole []uint32, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frames++
	if len(d.Pieces()) == 0 {
		return nil, errors.New("delivery without pieces")
	}
	for i, p := range d.Pieces() {
		mem := d.Data(i)
		if len(mem) != int(p.Length) {
			return nil, fmt.Errorf("piece of %d bytes has %d bytes of data", p.Length, len(mem))
		}
		if err := s.e.data.check(mem, p.Block, p.Offset); err != nil {
			return nil, err
		}
		if s.blocks.Add(p) > 0 && s.blocks[p.Block].Bytes() == s.whole {
			whole = append(whole, p.Block)
		}
	}
	return whole, nil
}

// bytes is how many different bytes have arrived.
func (s *sink) bytes() (n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.blocks {
		n += c.Bytes()
	}
	return n
}

// covers checks that exactly the first bytes of the blocks have arrived.
func (s *sink) covers(want map[uint32]uint64) {
	s.e.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for b, c := range s.blocks {
		if r := c.Ranges(); want[b] == 0 || len(r) != 1 || r[0] != (transport.Range{End: want[b]}) {
			s.e.Errorf("block %d: ranges %v arrived, want the first %d bytes", b, r, want[b])
		}
	}
	for b, n := range want {
		if s.blocks[b] == nil {
			s.e.Errorf("block %d: nothing of %d bytes arrived", b, n)
		}
	}
}

// sized is the want of covers for blocks of equal size.
func sized(blocks, size int) map[uint32]uint64 {
	want := map[uint32]uint64{}
	for b := range blocks {
		want[uint32(b)] = uint64(size)
	}
	return want
}

// recv returns the next delivery.
func (e *env) recv(in transport.Incoming) *transport.Delivery {
	e.Helper()
	d, err := in.Recv(e.ctx)
	e.must(err, "receive")
	return d
}

// frame returns the next delivery, which has to be a frame of right bytes.
func (e *env) frame(in transport.Incoming) *transport.Delivery {
	e.Helper()
	d := e.recv(in)
	if d.Mark() {
		e.Fatalf("received a mark, want a frame")
	}
	for i, p := range d.Pieces() {
		if err := e.data.check(d.Data(i), p.Block, p.Offset); err != nil {
			e.Errorf("%v", err)
		}
	}
	return d
}

// mark returns the next delivery, which has to be a mark.
func (e *env) mark(in transport.Incoming) *transport.Delivery {
	e.Helper()
	d := e.recv(in)
	if !d.Mark() {
		e.Fatalf("received a frame of %v, want a mark", d.Pieces())
	}
	return d
}

// nothing checks that no delivery comes.
func (e *env) nothing(in transport.Incoming, what string) {
	e.Helper()
	d, err := in.Recv(e.deadline())
	if err == nil {
		e.Fatalf("%s: received a delivery (mark %v, pieces %v)", what, d.Mark(), d.Pieces())
	}
	e.is(err, context.DeadlineExceeded, what)
}

// eof checks that the sender has finished and nothing is left to receive.
func (e *env) eof(in transport.Incoming) {
	e.Helper()
	d, err := in.Recv(e.ctx)
	if err == nil {
		e.Fatalf("received a delivery (mark %v, pieces %v), want the end", d.Mark(), d.Pieces())
	}
	e.is(err, io.EOF, "receive after the sender finished")
}
