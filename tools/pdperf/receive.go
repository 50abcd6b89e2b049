package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"pdlink/rdma"
	"pdlink/transport"
)

// receivingEnd takes one transfer at a time, of one run at a time.
type receivingEnd struct {
	o      receiveOptions
	busy   chan struct{} // capacity 1: held by the transfer that is measured
	turns  turns         // of connections, and of what else is measured at this end
	ports  *rdma.Ports   // that connections use; nil: none are followed
	sender *sender       // nil: it does not send
	device *period       // of what it sends; nil: nobody looks
}

func newReceivingEnd(o receiveOptions) *receivingEnd {
	return &receivingEnd{o: o, busy: make(chan struct{}, 1)}
}

// served is what a transfer came to at its receiver.
type served struct {
	Event  string `json:"event"`
	Remote string `json:"remote"`
	Peer   string `json:"peer"` // its name by this end's keys, empty without keys
	Sealed bool   `json:"sealed"`
	OK     bool   `json:"ok"`
	Why    string `json:"why"`
	report
}

// serve takes the transfers of a connection until it ends, and tells of each.
// How it ended is in what the last one came to; a connection that ends between
// transfers ends as it should.
func (e *receivingEnd) serve(ctx context.Context, conn transport.Conn, tell func(served)) {
	f := conn.Facts()
	if !f.Proven {
		f.Peer = "" // what it calls itself
	}
	defer e.turns.give(conn)
	var others sync.WaitGroup
	defer others.Wait()
	gone, cancel := context.WithCancel(ctx) // over when the connection is
	defer cancel()
	offers := make(chan transport.Offer)
	others.Go(func() {
		defer close(offers)
		defer cancel()
		accept(gone, conn, offers)
	})
	for offer := range offers {
		if offer.Request().Kind == kindPull {
			others.Go(func() { e.pulled(ctx, gone, conn, offer) })
			continue
		}
		r, err := e.take(ctx, gone, conn, offer)
		if errors.Is(err, errNotTaken) {
			continue // the peer knows why
		}
		s := served{Event: "transfer", Remote: f.Remote, Peer: f.Peer, Sealed: f.Sealed, OK: err == nil, report: r}
		if err != nil {
			s.Why = err.Error()
		}
		tell(s)
	}
}

// accept hands on what a connection offers until that ends: while a transfer goes on, or
// waits for its turn, this is how its end is learned.
func accept(ctx context.Context, conn transport.Conn, offers chan<- transport.Offer) {
	for {
		offer, err := conn.Accept(ctx)
		if err != nil {
			return
		}
		select {
		case offers <- offer:
		case <-ctx.Done():
			return // the connection is being closed, which ends what it offered
		}
	}
}

// errNotTaken is the error of an offer that was refused.
var errNotTaken = errors.New("offer refused")

// take admits an offer and receives it. gone is over when the connection is.
func (e *receivingEnd) take(ctx, gone context.Context, conn transport.Conn, offer transport.Offer) (report, error) {
	refuse := func(code transport.RefuseCode, why string) (report, error) {
		return report{}, errors.Join(errNotTaken, offer.Refuse(code, why))
	}
	q := offer.Request()
	if q.Kind != kindPerf || q.Parts > 1 {
		return refuse(transport.RefuseOther, fmt.Sprintf("only transfers of kind %q from one sender are taken here", kindPerf))
	}
	want, err := parseAsk(q.Meta)
	if err != nil {
		return refuse(transport.RefuseOther, err.Error())
	}
	if !e.turns.take(gone, conn) {
		return refuse(transport.RefuseBusy, otherRun)
	}
	select {
	case e.busy <- struct{}{}:
		defer func() { <-e.busy }()
	default:
		return refuse(transport.RefuseBusy, otherRun)
	}
	f := conn.Facts()
	before := beginReading(f.Local, f.Remote, e.ports, true) // frames come as soon as it is admitted
	defer before.stop()
	in, err := offer.Admit(nil)
	if err != nil {
		return report{}, fmt.Errorf("admit: %w", err)
	}
	t := &taking{o: e.o, conn: conn, in: in, want: want, before: before, open: transport.BlockCoverage{}, seen: map[*byte]struct{}{}}
	r, err := t.run(ctx)
	if err != nil {
		in.Cancel(err.Error())
	}
	return r, err
}

// taking is a transfer that is being received. The link has verified what it
// delivers; here the blocks are put together, counted and acknowledged. Not
// safe for concurrent use.
type taking struct {
	o    receiveOptions
	conn transport.Conn
	in   transport.Incoming
	want ask

	before reading

	open transport.BlockCoverage // blocks that are not whole
	done transport.Coverage      // indices of those that are
	held []*transport.Delivery   // frames whose memory is kept, oldest first
	seen map[*byte]struct{}      // where frames were put: at most one for each slot
	r    report
}

// run receives to the end and answers with the report.
func (t *taking) run(ctx context.Context) (report, error) {
	defer t.release(0)
	f := t.conn.Facts()
	for {
		d, err := t.in.Recv(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return t.r, err
		}
		if d.Mark() {
			if err := d.Flushed(nil); err != nil {
				return t.r, err
			}
			continue
		}
		if err := t.frame(d); err != nil {
			return t.r, err
		}
	}
	after := readCPU()
	t.release(0)
	s := t.in.Stats()
	t.r.Frames, t.r.Bad = s.Frames, s.BadPiece
	if f.Sum != "none" {
		t.r.Verified = s.Bytes
	}
	t.r.End = t.before.end(after, t.r.Bytes)
	t.r.End.Buffers, t.r.End.Owned, t.r.End.Buffer, t.r.End.Window = len(t.seen), t.o.slots, int64(t.o.frame), t.o.window-t.o.hold
	if n := len(t.open); n > 0 {
		return t.r, fmt.Errorf("the sender finished and %d blocks are not whole", n)
	}
	text, err := json.Marshal(t.r)
	if err != nil {
		return t.r, err
	}
	return t.r, t.in.Finish(text)
}

// frame takes a frame's pieces.
func (t *taking) frame(d *transport.Delivery) error {
	t.held = append(t.held, d)
	defer t.release(t.o.hold)
	for i, p := range d.Pieces() {
		if i == 0 { // a slot's payload begins with it
			t.seen[&d.Data(0)[0]] = struct{}{}
		}
		if err := t.piece(p); err != nil {
			return err
		}
	}
	return nil
}

// piece notes that bytes of a block are there, and acknowledges it when it is
// whole.
func (t *taking) piece(p transport.Piece) error {
	if p.End() > t.want.BlockBytes || p.Block >= maxBlocks {
		return fmt.Errorf("%w: %d bytes at %d of block %d", transport.ErrProtocol, p.Length, p.Offset, p.Block)
	}
	index := transport.Range{Begin: uint64(p.Block), End: uint64(p.Block) + 1}
	if t.open[p.Block] == nil {
		if t.done.Covers(index) {
			return nil // sent a second time
		}
		if len(t.open) >= maxOpen {
			return fmt.Errorf("%w: more than %d blocks at a time", transport.ErrProtocol, maxOpen)
		}
	}
	t.open.Add(p)
	if t.open[p.Block].Bytes() < t.want.BlockBytes {
		return nil
	}
	delete(t.open, p.Block)
	t.done.Add(index)
	t.r.Blocks++
	t.r.Bytes += t.want.BlockBytes
	return t.in.Ack(p.Block)
}

// release gives the oldest frames' memory back until so many are kept.
func (t *taking) release(keep int) {
	n := max(0, len(t.held)-keep)
	for _, d := range t.held[:n] {
		d.Release()
	}
	t.held = append(t.held[:0], t.held[n:]...)
}
