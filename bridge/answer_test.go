package bridge

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"pdlink/transport"
)

func ranges(n ...uint64) (out []transport.Range) {
	for i := 0; i < len(n); i += 2 {
		out = append(out, transport.Range{Begin: n[i], End: n[i+1]})
	}
	return out
}

// TestAnswerTravels: what is held is short on the wire and comes back as it was.
func TestAnswerTravels(t *testing.T) {
	a := Answer{
		Blocks: 9, BlockBytes: 10_000, Present: []Span{{0, 3}},
		Held: []Held{{3, ranges(0, 10_000)}, {5, ranges(7, 100, 200, 300, 9_999, 10_000)}},
	}
	b, err := a.encode(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"blocks":9,"block_bytes":10000,"present":[{"first":0,"count":3}],"held":[[3,0,10000],[5,7,93,100,100,9699,1]]}`
	if string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
	got, err := parseAnswer(b)
	if err != nil || !reflect.DeepEqual(got, a) {
		t.Errorf("%+v, %v", got, err)
	}
	if n := got.bytes(); n != 3*10_000+10_000+194 {
		t.Errorf("%d bytes need not be sent", n)
	}
	if got, err := parseAnswer([]byte(`{"blocks":2,"block_bytes":5}`)); err != nil || got.Held != nil || got.bytes() != 0 {
		t.Errorf("an answer without the field: %+v, %v", got, err)
	}
}

// TestAnswerFits: an answer is never too long. What is named is held, and the
// largest ranges are named first.
func TestAnswerFits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	whole := Answer{Blocks: 64, BlockBytes: 1 << 20}
	for b := range uint32(64) {
		h := Held{Block: b}
		for at := uint64(0); at+3000 < 1<<20; {
			at += 1 + rng.Uint64N(1000)
			n := 1 + rng.Uint64N(2000)
			h.Ranges = append(h.Ranges, transport.Range{Begin: at, End: at + n})
			at += n + 1
		}
		whole.Held = append(whole.Held, h)
	}
	last := uint64(0)
	for _, limit := range []int{0, 30, 60, 100, 1000, 30_000, 300_000, 1 << 24} {
		b, err := whole.encode(limit)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseAnswer(b)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > limit && got.Held != nil {
			t.Errorf("%d bytes for a limit of %d", len(b), limit)
		}
		for _, h := range got.Held {
			c := cover(whole.Held[h.Block].Ranges)
			for _, r := range h.Ranges {
				if !c.Covers(r) {
					t.Fatalf("limit %d: %v of block %d is said to be held and is not", limit, r, h.Block)
				}
			}
		}
		n := got.bytes()
		if n < last || n == 0 && limit >= 1000 {
			t.Errorf("limit %d: %d bytes are named, %d with a smaller limit", limit, n, last)
		}
		last = n
	}
	if last != whole.bytes() {
		t.Errorf("%d of %d bytes named without need to leave any out", last, whole.bytes())
	}
	many := Answer{Blocks: 1, BlockBytes: MaxBlockBytes, Held: make([]Held, 1)}
	for i := range uint64(maxHeld + 1000) {
		many.Held[0].Ranges = append(many.Held[0].Ranges, transport.Range{Begin: 3 * i, End: 3*i + 1}) // all equal
	}
	b, err := many.encode(1 << 24)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := parseAnswer(b); err != nil || got.heldRanges() == 0 || got.heldRanges() > maxHeld {
		t.Errorf("%d ranges, %v", got.heldRanges(), err)
	}
}

// TestAnswerIsChecked refuses what no receiver says.
func TestAnswerIsChecked(t *testing.T) {
	for _, held := range []string{
		`[[2,0,1]]`, `[[0]]`, `[[]]`, `[null]`, `[[0,0,0]]`, `[[0,0,101]]`, `[[0,100,1]]`, `[[0,0,50,0,51]]`, `[[0,1]]`, `[[0,-1,5]]`,
		`[[0,0,18446744073709551615]]`, `[[0,1,1],[0,1,1],[1,1,1]]`, `[["0",1,1]]`, `[[16384,0,1]]`,
	} {
		switch a, err := parseAnswer([]byte(`{"blocks":2,"block_bytes":100,"held":` + held + `}`)); {
		case held == `[[0]]` && err == nil && a.bytes() == 0: // nothing of a block is nothing
		case !errors.Is(err, ErrAnswer):
			t.Errorf("%s: %+v, %v", held, a, err)
		}
	}
	long := `{"blocks":2,"block_bytes":100,"held":[[0` + strings.Repeat(",1,1", maxNumbers) + `]]}`
	if _, err := parseAnswer([]byte(long)); !errors.Is(err, ErrAnswer) || !strings.Contains(err.Error(), "numbers") {
		t.Errorf("an answer of too many numbers: %v", err)
	}
}

// TestSenderLeavesOutWhatIsHeld.
func TestSenderLeavesOutWhatIsHeld(t *testing.T) {
	s := &sender{answer: Answer{Blocks: 3, BlockBytes: 100}, present: make([]bool, 3), held: transport.BlockCoverage{}, sent: new(tally)}
	for _, p := range []transport.Piece{{Block: 0, Length: 100}, {Block: 1, Offset: 10, Length: 10}, {Block: 1, Offset: 50, Length: 50}} {
		s.held.Add(p)
	}
	if s.wants(0) || !s.wants(1) || !s.wants(2) {
		t.Errorf("wants %v %v %v", s.wants(0), s.wants(1), s.wants(2))
	}
	ring, err := transport.NewRing(2, 2*transport.HeaderRoom)
	if err != nil {
		t.Fatal(err)
	}
	out := &drain{ring: ring}
	s.out = out
	data := make([]byte, 100)
	for i := range data {
		data[i] = byte(i)
	}
	for b := range 3 {
		for _, cut := range [][2]int64{{0, 15}, {15, 60}, {60, 100}} {
			if _, err := s.put(t.Context(), b, cut[0], data[cut[0]:cut[1]]); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.ask([]transport.Piece{{Block: 0, Offset: 40, Length: 2}})
	if _, err := s.put(t.Context(), 0, 0, data); err != nil { // what is asked for is sent, held or not
		t.Fatal(err)
	}
	if err := s.push(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []piece3{{1, 0, 10}, {1, 20, 50}, {2, 0, 15}, {2, 15, 60}, {2, 60, 100}, {0, 40, 42}}
	if !reflect.DeepEqual(out.got, want) {
		t.Errorf("sent %v, want %v", out.got, want)
	}
}

type piece3 struct {
	block      uint32
	begin, end uint64
}

// drain takes frames whose bytes are their offsets.
type drain struct {
	transport.Outgoing
	ring *transport.Ring
	got  []piece3
}

func (d *drain) Lease(ctx context.Context) (*transport.Lease, error) {
	slot, err := d.ring.Take(ctx, nil)
	if err != nil {
		return nil, err
	}
	l := transport.NewLease(transport.HeaderRoom, "", nil)
	l.Held().Reset(slot)
	return l, nil
}

func (d *drain) Send(_ context.Context, l *transport.Lease) error {
	for i, p := range l.Pieces() {
		if l.Data(i)[0] != byte(p.Offset) {
			return errors.New("wrong bytes")
		}
		d.got = append(d.got, piece3{p.Block, p.Offset, p.End()})
	}
	l.Release()
	return nil
}

// TestPieceMapsAreBounded: when the maps of all transfers together are too large
// the one that has most of it ends, and its memory is free.
func TestPieceMapsAreBounded(t *testing.T) {
	r := NewReceiver(Options{})
	assemblies := map[string]*assembly{}
	for i, name := range []string{"honest", "hostile"} {
		a := newAssembly(r, transport.Request{ID: transport.ID{byte(1 + i)}}, [32]byte{}, via{number: uint64(i)})
		a.size, a.blocks = 1<<20, make([]block, 128)
		a.timer.Stop()
		r.live[a.id] = a
		assemblies[name] = a
	}
	scatter := func(a *assembly, blocks int) (crowded bool, err error) {
		for b := range blocks {
			for i := range uint64(maxRanges) {
				_, full, err := a.claim(&a.blocks[b], transport.Range{Begin: 2 * i, End: 2*i + 1}, nil)
				if full || err != nil {
					return full, err
				}
			}
		}
		return false, nil
	}
	honest, hostile := assemblies["honest"], assemblies["hostile"]
	if crowded, err := scatter(honest, 4); crowded || err != nil {
		t.Fatal(crowded, err)
	}
	if _, _, err := honest.claim(&honest.blocks[0], transport.Range{Begin: 1 << 19, End: 1<<19 + 1}, nil); !errors.Is(err, ErrPlan) {
		t.Errorf("a block in too many ranges: %v", err)
	}
	if crowded, err := scatter(hostile, 128); !crowded || err != nil {
		t.Fatal(crowded, err)
	}
	r.relieve()
	r.relieve() // the memory is not back yet
	if honest.failed != nil || !errors.Is(hostile.failed, ErrPlan) {
		t.Errorf("the honest transfer failed with %v, the hostile one with %v", honest.failed, hostile.failed)
	}
	r.forget(hostile)
	if n, want := r.ranges.Load(), honest.ranges.Load(); n != want || want != 4*maxRanges+1 {
		t.Errorf("%d ranges are counted, the one transfer left has %d", n, want)
	}
	b := &honest.blocks[0]
	if _, _, err := honest.claim(b, transport.Range{End: 1 << 20}, nil); err != nil {
		t.Fatal(err)
	}
	if c := cap(b.cov.Ranges()); c > 8 {
		t.Errorf("the map of a whole block has room for %d ranges", c)
	}
	r.forget(honest)
	if n := r.ranges.Load(); n != 0 {
		t.Errorf("%d ranges are counted of no transfer", n)
	}
}

// TestManySmallMapsDoNotCostTheLargeOne: room is made by whoever has most in all,
// not by the one long prompt.
func TestManySmallMapsDoNotCostTheLargeOne(t *testing.T) {
	for _, c := range []struct {
		name    string
		honest  via
		hostile func(i int) via
	}{
		{"another host, a connection each",
			via{number: 1, facts: transport.Facts{Remote: "10.0.0.1:5000"}},
			func(i int) via {
				return via{number: uint64(2 + i), facts: transport.Facts{Remote: fmt.Sprintf("10.0.0.2:%d", 5000+i)}}
			}},
		{"another connection of one host",
			via{number: 1, facts: transport.Facts{Remote: "[::1]:5000"}},
			func(int) via { return via{number: 2, facts: transport.Facts{Remote: "[::1]:5001"}} }},
	} {
		r := NewReceiver(Options{})
		add := func(id byte, v via, ranges int64) *assembly {
			a := newAssembly(r, transport.Request{ID: transport.ID{id}}, [32]byte{}, v)
			a.timer.Stop()
			a.ranges.Store(ranges)
			r.live[a.id] = a
			return a
		}
		honest := add(1, c.honest, 1000)
		var hostile []*assembly
		for i := range 20 {
			hostile = append(hostile, add(byte(2+i), c.hostile(i), int64(100+i%2)))
		}
		r.relieve()
		failed := 0
		for _, a := range hostile {
			if errors.Is(a.failed, ErrPlan) {
				failed++
			}
		}
		if honest.failed != nil || failed != 1 {
			t.Errorf("%s: the honest transfer failed with %v, %d of the others failed", c.name, honest.failed, failed)
		}
	}
}
