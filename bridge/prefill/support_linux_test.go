package prefill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// TestMain runs the tests, or a worker or sidecar of theirs.
func TestMain(m *testing.M) {
	if role := os.Getenv("PREFILL_TEST_ROLE"); role != "" {
		os.Exit(play(role))
	}
	goleak.VerifyTestMain(m)
}

// eventually waits for something that other goroutines or processes bring about.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("never: %s", what)
		}
	}
}

// stock is a target that keeps blocks in memory.
type stock struct {
	mu        sync.Mutex
	blocks    [][]byte
	published int
	gate      chan struct{} // closed: blocks may be sealed; nil: always
}

func newStock(blocks int, size int64) *stock {
	s := &stock{blocks: make([][]byte, blocks)}
	for i := range s.blocks {
		s.blocks[i] = make([]byte, size)
	}
	return s
}

func (s *stock) Write(block int, off int64, p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	copy(s.blocks[block][off:], p)
	return nil
}

func (s *stock) Sync(int) error { return nil }

func (s *stock) Seal(int) error {
	if s.gate != nil {
		<-s.gate
	}
	return nil
}

func (s *stock) Publish(int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published++
	return nil
}

func (s *stock) Settle(_, n int) (int, error) { return n, nil }

func (s *stock) Close() error { return nil }

func (s *stock) visible() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.published
}

// equal demands the first n blocks.
func (s *stock) equal(tb testing.TB, want [][]byte, n int) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.published != n {
		tb.Errorf("%d blocks became visible, want %d", s.published, n)
	}
	for i := range n {
		if !bytes.Equal(s.blocks[i], want[i]) {
			tb.Errorf("block %d differs", i)
		}
	}
}

// decoder is a receiver in memory.
type decoder struct {
	tb       testing.TB
	link     *mem.Link
	receiver *bridge.Receiver
	mu       sync.Mutex
	stocks   map[string]*stock // by the transfer's meta
	present  []bool
	conns    []transport.Conn                    // accepted
	attend   func(transport.Conn) transport.Conn // nil: as they are
}

func newDecoder(tb testing.TB) *decoder {
	return newDecoderWith(tb, bridge.Options{PartWait: -1}, session.Options{})
}

// newDecoderWith is newDecoder for a receiver and connections with options.
func newDecoderWith(tb testing.TB, o bridge.Options, so session.Options) *decoder {
	d := &decoder{tb: tb, link: mem.New(mem.Options{Session: so}), stocks: make(map[string]*stock)}
	o.Open = func(_ string, meta []byte) (bridge.Opened, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		s := d.stocks[string(meta)]
		if s == nil {
			return bridge.Opened{}, errors.New("unknown plan")
		}
		return bridge.Opened{Target: s, Blocks: len(s.blocks), BlockBytes: int64(len(s.blocks[0])), Present: d.present}, nil
	}
	d.receiver = bridge.NewReceiver(o)
	ctx, cancel := context.WithCancel(context.Background())
	l, err := d.link.Listen(ctx, "decoder")
	must(tb, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			d.mu.Lock()
			d.conns = append(d.conns, c)
			seen := c
			if d.attend != nil {
				seen = d.attend(c)
			}
			d.mu.Unlock()
			wg.Go(func() {
				d.receiver.Serve(ctx, seen)
				c.Close()
			})
		}
	})
	tb.Cleanup(func() {
		cancel()
		l.Close()
		d.receiver.Close()
		wg.Wait()
	})
	return d
}

// host is a sidecar and its way to a decoder.
type host struct {
	*Server
	tb     testing.TB
	d      *decoder
	conn   transport.Conn
	socket string
	faults *faults
}

// faults are what a server told.
type faults struct {
	mu   sync.Mutex
	list []error
}

func (f *faults) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, err)
}

// newHost starts a sidecar with a small ring.
func newHost(tb testing.TB, d *decoder, o Options) *host {
	tb.Helper()
	h := &host{tb: tb, d: d, faults: &faults{}}
	if o.Socket == "" {
		o.Socket = filepath.Join(tb.TempDir(), "engine.sock")
	}
	h.socket = o.Socket
	if o.Slots == 0 {
		o.Slots = 32
	}
	if o.SlotSize == 0 {
		o.SlotSize = 64<<10 + transport.HeaderRoom
	}
	if o.MemFloor == 0 {
		o.MemFloor = -1
	}
	if o.LeaseWait == 0 {
		o.LeaseWait = maxLeaseWait // a busy host must not cut transfers
	}
	o.OnFault = h.faults.add
	var err error
	h.Server, err = Listen(tb.Context(), o)
	must(tb, err)
	h.conn = h.dial(session.Options{})
	tb.Cleanup(func() {
		h.conn.Close()
		if err := h.Close(); err != nil {
			tb.Error(err)
		}
		if n := h.Ring().InUse(); n != 0 {
			tb.Errorf("%d slots are still in use", n)
		}
	})
	return h
}

// count is how many workers are connected.
func (h *host) count() int {
	n, _ := h.Present()
	return n
}

// dial connects to the decoder with the host's ring.
func (h *host) dial(o session.Options) transport.Conn {
	h.tb.Helper()
	o.SendRing = h.Ring()
	c, err := h.d.link.With(mem.Options{Session: o}).Dial(h.tb.Context(), "decoder")
	must(h.tb, err)
	return c
}

// prompt is a transfer of the tests and what its blocks have to hold.
type prompt struct {
	layout *omlx.Layout
	name   string
	id     transport.ID
	blocks [][]byte
	stock  *stock
}

// kvSpec is a small model with plain keys and values.
func kvSpec() omlx.Spec {
	return omlx.Spec{Kind: omlx.KindKV, Model: "m", BlockTokens: 16, Format: omlx.Format5, Layers: 3, KVHeads: 4, HeadDim: 32}
}

// newPrompt makes a plan of random blocks that the decoder will take.
func (d *decoder) newPrompt(tb testing.TB, name string, blocks int) *prompt {
	tb.Helper()
	l, err := omlx.NewLayout(kvSpec())
	must(tb, err)
	p := &prompt{layout: l, name: name, id: transport.NewID(), stock: newStock(blocks, l.WireSize())}
	rng := rand.New(rand.NewPCG(3, uint64(len(name))+uint64(name[0])))
	for range blocks {
		b := make([]byte, l.WireSize())
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		p.blocks = append(p.blocks, b)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stocks[name] = p.stock
	return p
}

func (p *prompt) tokens() int { return len(p.blocks)*p.layout.Spec().BlockTokens + 5 }

func (p *prompt) job(tb testing.TB, conn transport.Conn) Job {
	tb.Helper()
	c, err := bridge.OpenCourier(tb.Context(), &single{conn}, transport.Request{ID: p.id, Kind: "test", Meta: []byte(p.name)},
		bridge.Shape{Blocks: len(p.blocks), BlockBytes: p.layout.WireSize()})
	must(tb, err)
	return Job{ID: p.id, Carrier: c, Layout: p.layout, Blocks: len(p.blocks), Room: conn.Facts().MaxPayload}
}

// single is a dialler of one connection, which stays its owner's.
type single struct{ conn transport.Conn }

func (d *single) Dial(context.Context) (transport.Conn, error) {
	conn := d.conn
	d.conn = nil
	if conn == nil {
		return nil, fmt.Errorf("%w: there is no other connection", transport.ErrUnreachable)
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

// running is a transfer that runs.
type running struct {
	*Transfer
	tb   testing.TB
	res  Result
	err  error
	over chan struct{}
}

func (h *host) run(p *prompt) *running {
	h.tb.Helper()
	return h.runJob(p.job(h.tb, h.conn))
}

func (h *host) runJob(j Job) *running {
	h.tb.Helper()
	t, err := h.Open(j)
	must(h.tb, err)
	r := &running{Transfer: t, tb: h.tb, over: make(chan struct{})}
	go func() {
		defer close(r.over)
		r.res, r.err = t.Run(context.Background())
	}()
	return r
}

func (r *running) result() Result {
	r.tb.Helper()
	select {
	case <-r.over:
	case <-time.After(time.Minute):
		r.tb.Fatal("the transfer did not end")
	}
	return r.res
}
