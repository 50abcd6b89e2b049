package transporttest

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"pdlink/transport"
	"pdlink/transport/session"
)

func partChecks() []check {
	return []check{
		{name: "parts/two senders, overlapping pieces", run: partsOverlap},
		{name: "parts/one sender is lost, the other goes on", run: partsLost},
	}
}

// union puts the pieces of several senders together: of each byte the first
// that arrived counts.
type union struct {
	mu     sync.Mutex // guards what follows
	blocks [][]byte
	have   []transport.Coverage
	twice  uint64 // bytes that arrived again
}

func newUnion(blocks, size int) *union {
	u := &union{have: make([]transport.Coverage, blocks)}
	for range blocks {
		u.blocks = append(u.blocks, make([]byte, size))
	}
	return u
}

func (u *union) take(d *transport.Delivery) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, p := range d.Pieces() {
		mem, cover := d.Data(i), &u.have[p.Block]
		whole := transport.Range{Begin: p.Offset, End: p.End()}
		for r := range cover.Uncovered(whole) {
			copy(u.blocks[p.Block][r.Begin:r.End], mem[r.Begin-p.Offset:])
		}
		u.twice += uint64(p.Length) - cover.Add(whole)
	}
}

// receive takes one sender's part into the union.
func (u *union) receive(e *env, in transport.Incoming) error {
	for {
		d, err := in.Recv(e.ctx)
		if errors.Is(err, io.EOF) {
			return in.Finish(nil)
		}
		if err != nil {
			return err
		}
		if d.Mark() {
			if err := d.Flushed(nil); err != nil {
				return err
			}
			continue
		}
		u.take(d)
		d.Release()
	}
}

// whole checks that every byte is there and right.
func (u *union) whole(e *env) {
	e.Helper()
	for b, block := range u.blocks {
		if n := u.have[b].Bytes(); n != uint64(len(block)) {
			e.Errorf("block %d: %d of %d bytes arrived", b, n, len(block))
		}
		want := make([]byte, len(block))
		e.data.fill(want, uint32(b), 0)
		if !bytes.Equal(block, want) {
			e.Errorf("block %d differs", b)
		}
	}
}

// halves divides blocks between two senders, with pieces in the middle that
// both send.
func halves(e *env, blocks, size int) (first, second []piece) {
	for _, p := range cut(e.rng, blocks, size, 9000) {
		if int(p.offset) < size*6/10 {
			first = append(first, p)
		}
		if int(p.offset)+p.length > size*4/10 {
			second = append(second, p)
		}
	}
	return first, second
}

// parts opens the same transfer from two hosts to one, which shares its
// receive ring between them.
func (e *env) parts() (pairs [2]Pair, outs [2]transport.Outgoing, ins [2]transport.Incoming) {
	e.Helper()
	ring, id := e.ring(testSlots, testPayload), transport.NewID()
	for i := range pairs {
		pairs[i] = e.pair(session.Options{}, session.Options{RecvRing: ring})
		outs[i], ins[i] = e.open(pairs[i].A, pairs[i].B, transport.Request{ID: id, Part: i, Parts: 2, Replayable: true})
	}
	return pairs, outs, ins
}

// partsOverlap: two senders' pieces overlap, and their union is right.
func partsOverlap(e *env) {
	const blocks, size = 3, 150_000
	_, outs, ins := e.parts()
	u := newUnion(blocks, size)
	var mine [2][]piece
	mine[0], mine[1] = halves(e, blocks, size)
	var group sync.WaitGroup
	for i := range outs {
		rng := newRand(e.seed + uint64(i))
		if r := ins[i].Request(); r.Part != i || r.Parts != 2 || r.ID != ins[0].Request().ID {
			e.Errorf("part %d arrived as %d of %d", i, r.Part, r.Parts)
		}
		group.Go(func() { e.is(u.receive(e, ins[i]), nil, "receive") })
		group.Go(func() {
			_, err := deliver(e.ctx, e.data, rng, outs[i], mine[i])
			e.is(err, nil, "deliver")
		})
	}
	group.Wait()
	u.whole(e)
	if u.twice == 0 {
		e.Errorf("no byte arrived twice: the check shows nothing")
	}
}

// partsLost: when one sender's connection ends, the other's transfer does not
// notice, and what is missing can be sent by it.
func partsLost(e *env) {
	const blocks, size = 2, 100_000
	pairs, outs, ins := e.parts()
	u := newUnion(blocks, size)
	first, second := halves(e, blocks, size)
	broken := call(func() error { return u.receive(e, ins[0]) })
	whole := call(func() error { return u.receive(e, ins[1]) })
	e.must(sendAll(e.ctx, e.data, e.rng, outs[0], first[:len(first)/2]), "send a part of the first part")
	e.must(pairs[0].A.Close(), "close the first sender")
	e.closed(broken, false, "receive from the first sender")
	e.must(sendAll(e.ctx, e.data, e.rng, outs[1], second), "send the second part")
	var rest []piece
	u.mu.Lock()
	for b := range u.have {
		for r := range u.have[b].Missing(size) {
			rest = append(rest, piece{uint32(b), r.Begin, int(r.End - r.Begin)})
		}
	}
	u.mu.Unlock()
	_, err := deliver(e.ctx, e.data, e.rng, outs[1], rest)
	e.must(err, "send what the first sender left")
	e.ends(whole, nil, "receive from the second sender")
	u.whole(e)
}
