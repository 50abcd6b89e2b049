package bridge_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pdlink/bridge"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a target that keeps blocks in memory and checks how it is used.
type recorder struct {
	mu        sync.Mutex
	blocks    [][]byte
	written   []transport.Coverage
	sealed    []bool
	published []int
	synced    int
	closed    bool
	faults    []string
	fail      func(op string, block int) error
	before    func(op string) // called without the lock
	room      int             // blocks that may be open, 0: any number
}

func newRecorder(blocks int, size int64) *recorder {
	r := &recorder{blocks: make([][]byte, blocks), written: make([]transport.Coverage, blocks), sealed: make([]bool, blocks)}
	for i := range r.blocks {
		r.blocks[i] = make([]byte, size)
	}
	return r
}

func (r *recorder) begin(op string, block int) error {
	if r.closed {
		r.faults = append(r.faults, fmt.Sprintf("%s of block %d after Close", op, block))
	}
	if r.fail != nil {
		return r.fail(op, block)
	}
	return nil
}

func (r *recorder) Write(block int, off int64, p []byte) error {
	if r.before != nil {
		r.before("write")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.begin("write", block); err != nil {
		return err
	}
	open := 0
	for i := range r.written {
		if r.written[i].Bytes() > 0 && !slices.Contains(r.published, i) {
			open++
		}
	}
	if r.room > 0 && open >= r.room && r.written[block].Bytes() == 0 {
		return fmt.Errorf("%w: %d", bridge.ErrFull, open)
	}
	if n := r.written[block].Add(transport.Range{Begin: uint64(off), End: uint64(off) + uint64(len(p))}); n != uint64(len(p)) {
		r.faults = append(r.faults, fmt.Sprintf("block %d: %d bytes at %d written twice", block, len(p)-int(n), off))
	}
	copy(r.blocks[block][off:], p)
	return nil
}

func (r *recorder) Sync(block int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced++
	return r.begin("sync", block)
}

func (r *recorder) Seal(block int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.begin("seal", block); err != nil {
		return err
	}
	if r.sealed[block] || r.written[block].Bytes() != uint64(len(r.blocks[block])) {
		r.faults = append(r.faults, fmt.Sprintf("block %d sealed twice or too early", block))
	}
	r.sealed[block] = true
	return nil
}

func (r *recorder) Publish(block int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.begin("publish", block); err != nil {
		return err
	}
	if !r.sealed[block] {
		r.faults = append(r.faults, fmt.Sprintf("block %d published unsealed", block))
	}
	r.published = append(r.published, block)
	return nil
}

func (r *recorder) Settle(first, n int) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range n {
		if err := r.begin("settle", first+i); err != nil {
			return i, err
		}
		if !slices.Contains(r.published, first+i) {
			r.faults = append(r.faults, fmt.Sprintf("block %d settled without a name", first+i))
		}
	}
	return n, nil
}

func (r *recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

// blockData is what a block of the tests holds.
func blockData(block int, size int64) []byte {
	b := make([]byte, size)
	rng := rand.New(rand.NewPCG(7, uint64(block)))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// bench is a receiver and the way to reach it.
type bench struct {
	t        *testing.T
	link     *mem.Link
	receiver *bridge.Receiver
	target   *recorder
	present  []bool
	visible  func(int) bool
	ordered  bool
	verdicts chan bridge.Verdict
	blocks   int
	size     int64
}

func newBench(t *testing.T, blocks int, size int64, set func(*bench, *bridge.Options, *session.Options)) *bench {
	t.Helper()
	b := &bench{t: t, target: newRecorder(blocks, size), verdicts: make(chan bridge.Verdict, 8), blocks: blocks, size: size}
	var so session.Options
	o := bridge.Options{
		PartWait:  -1,
		OnVerdict: func(v bridge.Verdict) { b.verdicts <- v },
		Open: func(kind string, meta []byte) (bridge.Opened, error) {
			if kind != "test" {
				return bridge.Opened{}, fmt.Errorf("kind %q", kind)
			}
			return bridge.Opened{Target: b.target, Blocks: blocks, BlockBytes: size, Present: b.present, Ordered: b.ordered, Visible: b.visible}, nil
		},
	}
	if set != nil {
		set(b, &o, &so)
	}
	b.receiver = bridge.NewReceiver(o)
	b.link = mem.New(mem.Options{Session: so})
	ctx, cancel := context.WithCancel(t.Context())
	l, err := b.link.Listen(ctx, "decoder")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() {
				b.receiver.Serve(ctx, conn)
				conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		b.receiver.Close()
		wg.Wait()
		for _, f := range b.target.faults {
			t.Error(f)
		}
	})
	return b
}

func (b *bench) dial() transport.Conn {
	b.t.Helper()
	conn, err := b.link.Dial(b.t.Context(), "decoder")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	return conn
}

// stranger is dial from another process.
func (b *bench) stranger() transport.Conn {
	b.t.Helper()
	conn, err := b.link.With(mem.Options{}).Dial(b.t.Context(), "decoder")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	return conn
}

// single is a dialler of one connection, which stays its owner's.
type single struct{ conn transport.Conn }

var errSingle = errors.New("there is no other connection")

func (d *single) Dial(context.Context) (transport.Conn, error) {
	conn := d.conn
	d.conn = nil
	if conn == nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrUnreachable, errSingle)
	}
	return lent{conn}, nil
}

func (d *single) Wait(_ context.Context, cause error) error { return cause }
func (d *single) Lost(transport.Conn, error)                {}
func (d *single) Done(transport.Conn)                       {}
func (d *single) Progress()                                 {}

// lent is a connection that others use too.
type lent struct{ transport.Conn }

func (lent) Close() error { return nil }

// courier opens a transfer on one connection.
func (b *bench) courier(conn transport.Conn, req transport.Request, shape bridge.Shape) (*bridge.Courier, error) {
	c, err := bridge.OpenCourier(b.t.Context(), &single{conn}, req, shape)
	if err == nil {
		b.t.Cleanup(c.Close)
	}
	return c, err
}

func (b *bench) open(conn transport.Conn, part, parts int) *bridge.Courier {
	b.t.Helper()
	c, err := b.courier(conn, request(part, parts), b.shape())
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func (b *bench) shape() bridge.Shape { return bridge.Shape{Blocks: b.blocks, BlockBytes: b.size} }

func request(part, parts int) transport.Request {
	return transport.Request{ID: transport.ID{1}, Kind: "test", Part: part, Parts: parts, Replayable: true, Meta: []byte("plan")}
}

func (b *bench) verdict() bridge.Verdict {
	b.t.Helper()
	select {
	case v := <-b.verdicts:
		return v
	case <-time.After(time.Minute):
		b.t.Fatal("no verdict")
		return bridge.Verdict{}
	}
}

// await returns when n bytes of a block have reached the target.
func (b *bench) await(block, n int) {
	b.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		b.target.mu.Lock()
		there := b.target.written[block].Bytes() >= uint64(n)
		b.target.mu.Unlock()
		if there {
			return
		}
	}
	b.t.Errorf("%d bytes of block %d never arrived", n, block)
}

// check demands that exactly the blocks below n were published, in order, and
// hold what was sent.
func (b *bench) check(n int) {
	b.t.Helper()
	b.target.mu.Lock()
	defer b.target.mu.Unlock()
	var want []int
	for i := range n {
		if i >= len(b.present) || !b.present[i] {
			want = append(want, i)
		}
	}
	if !slices.Equal(b.target.published, want) {
		b.t.Fatalf("published %v, want %v", b.target.published, want)
	}
	for _, i := range b.target.published {
		if !bytes.Equal(b.target.blocks[i], blockData(i, b.size)) {
			b.t.Errorf("block %d differs", i)
		}
	}
}

// pieces is a source that sends ranges of blocks.
type pieces struct {
	size  int64
	list  []piece
	after func(i int) error
	runs  int
}

type piece struct {
	block      int
	begin, end int64
}

func (p *pieces) Run(ctx context.Context, to bridge.Sink) error {
	p.runs++
	data := map[int][]byte{}
	for i, x := range p.list {
		if data[x.block] == nil {
			data[x.block] = blockData(x.block, p.size)
		}
		if err := to.Put(ctx, x.block, x.begin, data[x.block][x.begin:x.end]); err != nil {
			return err
		}
		if p.after != nil {
			if err := to.Push(ctx); err != nil {
				return err
			}
			if err := p.after(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// shuffled cuts every block into random pieces in random order.
func shuffled(blocks int, size int64, seed uint64) []piece {
	rng := rand.New(rand.NewPCG(seed, 1))
	var out []piece
	for b := range blocks {
		for at := int64(0); at < size; {
			n := min(1+rng.Int64N(size/3), size-at)
			out = append(out, piece{b, at, at + n})
			at += n
		}
	}
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func whole(size int64, blocks ...int) []piece {
	var out []piece
	for _, b := range blocks {
		out = append(out, piece{b, 0, size})
	}
	return out
}
