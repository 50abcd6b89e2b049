package bridge_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// shelf is a store that outlives receivers: what was published stays, the rest of
// a transfer goes with it.
type shelf struct {
	blocks int
	size   int64
	before func(op string, block int) // called without the lock

	mu     sync.Mutex
	there  map[int][]byte
	opened int
	got    int64 // bytes that were written, by all transfers
	faults []string
}

func newShelf(blocks int, size int64) *shelf {
	return &shelf{blocks: blocks, size: size, there: map[int][]byte{}}
}

// open is a receiver's Opener.
func (s *shelf) open(string, []byte) (bridge.Opened, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	present := make([]bool, s.blocks)
	for i := range s.there {
		present[i] = true
	}
	return bridge.Opened{Target: &shelfTarget{recorder: newRecorder(s.blocks, s.size), s: s}, Blocks: s.blocks, BlockBytes: s.size, Present: present}, nil
}

// shelfTarget is one transfer's way to a shelf.
type shelfTarget struct {
	*recorder
	s *shelf
}

func (t *shelfTarget) Write(block int, off int64, p []byte) error {
	if t.s.before != nil {
		t.s.before("write", block)
	}
	err := t.recorder.Write(block, off, p)
	if err == nil {
		t.s.mu.Lock()
		defer t.s.mu.Unlock()
		t.s.got += int64(len(p))
	}
	return err
}

func (t *shelfTarget) Publish(block int) error {
	if err := t.recorder.Publish(block); err != nil {
		return err
	}
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if t.s.there[block] != nil {
		t.s.faults = append(t.s.faults, fmt.Sprintf("block %d published twice", block))
	}
	t.s.there[block] = t.blocks[block]
	return nil
}

func (t *shelfTarget) Close() error {
	t.s.mu.Lock()
	t.s.faults = append(t.s.faults, t.faults...)
	t.s.mu.Unlock()
	return t.recorder.Close()
}

// holds reports whether so many bytes of pieces have been written.
func (s *shelf) holds(ps []piece) bool {
	want := int64(0)
	for _, p := range ps {
		want += p.end - p.begin
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got == want
}

// visible is how many blocks of the chain are there.
func (s *shelf) visible() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for s.there[n] != nil {
		n++
	}
	return n
}

// check demands that exactly the first n blocks are there, with the right bytes.
func (s *shelf) check(tb testing.TB, n int) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		tb.Error(f)
	}
	for i := range maps.Keys(s.there) {
		if i >= n {
			tb.Errorf("block %d is there, want the first %d", i, n)
		}
	}
	for i := range n {
		if !bytes.Equal(s.there[i], blockData(i, s.size)) {
			tb.Errorf("block %d is missing or wrong", i)
		}
	}
}

// decoder is a receiver that can be killed and started again, on one name.
type decoder struct {
	tb       testing.TB
	names    *mem.Link
	o        bridge.Options
	so       session.Options
	verdicts chan bridge.Verdict

	mu       sync.Mutex
	receiver *bridge.Receiver
	conns    map[transport.Conn]bool
	accepted int
	stopAll  func(kill bool)
}

// startDecoder starts one on a shelf.
func startDecoder(tb testing.TB, s *shelf, set func(*bridge.Options, *session.Options)) *decoder {
	tb.Helper()
	d := &decoder{tb: tb, names: mem.New(mem.Options{}), verdicts: make(chan bridge.Verdict, 64)}
	d.o = bridge.Options{Open: s.open, OnVerdict: func(v bridge.Verdict) { d.verdicts <- v }}
	d.so.RecvRing = testRing(tb, 16)
	if set != nil {
		set(&d.o, &d.so)
	}
	d.start()
	tb.Cleanup(func() { d.stop(true) })
	return d
}

// testRing makes a ring of small slots that must be free when the test ends.
func testRing(tb testing.TB, slots int) *transport.Ring {
	tb.Helper()
	r, err := transport.NewRing(slots, 2*transport.HeaderRoom)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		for end := time.Now().Add(time.Minute); r.InUse() > 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
		if n := r.InUse(); n > 0 {
			tb.Errorf("%d of %d slots are in use at the end", n, r.Slots())
		}
		if n := r.Promise(r.Slots()); n != r.Slots() {
			tb.Errorf("%d of %d slots are promised at the end", r.Slots()-n, r.Slots())
		}
		r.Close()
	})
	return r
}

// start begins to listen as a new process.
func (d *decoder) start() {
	d.tb.Helper()
	so := d.so
	so.Boot = transport.NewID()
	l, err := d.names.With(mem.Options{Session: so}).Listen(d.tb.Context(), "decoder")
	if err != nil {
		d.tb.Fatal(err)
	}
	receiver := bridge.NewReceiver(d.o)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	d.mu.Lock()
	d.receiver, d.conns = receiver, map[transport.Conn]bool{}
	d.mu.Unlock()
	wg.Go(func() {
		for {
			conn, err := l.Accept(ctx)
			if err != nil {
				return
			}
			d.mu.Lock()
			d.conns[conn] = true
			d.accepted++
			d.mu.Unlock()
			wg.Go(func() {
				receiver.Serve(ctx, conn)
				conn.Close()
			})
		}
	})
	stop := func(kill bool) {
		l.Close()
		if kill {
			d.cut()
		}
		receiver.Close()
		cancel()
		wg.Wait()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopAll = stop
}

// cut ends all connections from the receiver's side.
func (d *decoder) cut() {
	d.mu.Lock()
	conns := d.conns
	d.conns = map[transport.Conn]bool{}
	d.mu.Unlock()
	for c := range conns {
		c.Close()
	}
}

// stop ends the receiver, as a kill does or in order.
func (d *decoder) stop(kill bool) {
	d.mu.Lock()
	stop := d.stopAll
	d.stopAll = nil
	d.mu.Unlock()
	if stop != nil {
		stop(kill)
	}
}

// connections is how many were accepted so far.
func (d *decoder) connections() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.accepted
}

// last is the verdict that was given last.
func (d *decoder) last() bridge.Verdict {
	d.tb.Helper()
	var v bridge.Verdict
	select {
	case v = <-d.verdicts:
	case <-time.After(time.Minute):
		d.tb.Error("the receiver gave no verdict")
	}
	for len(d.verdicts) > 0 {
		v = <-d.verdicts
	}
	return v
}

// prober dials again at once, so that hundreds of cuts take no time.
type prober struct {
	link  transport.Link
	mu    sync.Mutex
	tries int
	lost  []error
}

func (p *prober) Dial(ctx context.Context) (transport.Conn, error) {
	for {
		p.mu.Lock()
		p.tries++
		n := p.tries
		p.mu.Unlock()
		c, err := p.link.Dial(ctx, "decoder")
		if err == nil || n > 200 || ctx.Err() != nil {
			return c, err
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *prober) Wait(ctx context.Context, cause error) error {
	p.mu.Lock()
	p.tries++
	n := p.tries
	p.mu.Unlock()
	if n > 200 || ctx.Err() != nil {
		return cause
	}
	time.Sleep(5 * time.Millisecond)
	return nil
}

func (p *prober) Lost(_ transport.Conn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = append(p.lost, err)
}

func (p *prober) Done(transport.Conn) {}

func (p *prober) Progress() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tries = 0
}

// live is a source that can be read once.
type live struct {
	pieces
	t *testing.T
}

func (l *live) Run(ctx context.Context, to bridge.Sink) error {
	if l.runs > 0 {
		l.t.Error("a source that cannot be read again was run again")
	}
	return l.pieces.Run(ctx, to)
}
