package prefill

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/bridge/front"
	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
	"pdlink/transport/session"
)

// twins are two prefill hosts of one engine, whose two ranks are workers of the test:
// one on each.
type twins struct {
	*pair // the host that asks the engine
	other *pair
	ranks [2]*client
}

func newTwins(t *testing.T, change func(o *ServiceOptions)) *twins {
	t.Helper()
	var w twins
	const grace = 3 * time.Second // longer than calls wait for their host
	w.pair = newPair(t, session.Options{}, ServiceOptions{Name: "a", Group: &calls.Group{Name: "qwen", Members: 2, Leads: true}, grace: grace})
	o := ServiceOptions{Name: "b", Group: &calls.Group{Name: "qwen", Member: 1, Members: 2}, grace: grace}
	if change != nil {
		change(&o)
	}
	w.other = w.another(o)
	for rank, p := range []*pair{w.pair, w.other} {
		w.ranks[rank] = connect(t, p.socket, helloOf(rank, 2, 1))
	}
	return &w
}

// beginAll has the ranks begin a prompt.
func (w *twins) beginAll(x *prompt) (handles [2]uint32, arrays []array) {
	for rank, c := range w.ranks {
		handles[rank], _, arrays = c.beginPieces(x)
	}
	return handles, arrays
}

// send has both ranks send their halves of a block.
func (w *twins) send(x *prompt, handles [2]uint32, arrays []array, block int) {
	for rank, c := range w.ranks {
		c.put(x, handles[rank], headRuns(block, arrays, rank, 2)...)
	}
}

// endAll has the ranks end a prompt.
func (w *twins) endAll(x *prompt, handles [2]uint32) {
	for rank, c := range w.ranks {
		c.end(handles[rank], x.tokens())
	}
}

// whole is an engine that reads a prompt as it should.
func (w *twins) whole(x *prompt) func(context.Context, Prompt) error {
	return func(_ context.Context, ask Prompt) error {
		if ask.Transfer != x.id || len(ask.IDs) != len(x.blocks)*16 {
			return fmt.Errorf("%w: asked for %+v", ErrEngine, ask)
		}
		handles, arrays := w.beginAll(x)
		for b := range x.blocks {
			w.send(x, handles, arrays, b)
		}
		w.endAll(x, handles)
		return nil
	}
}

func (w *twins) idle() {
	w.pair.idle()
	w.other.idle()
}

// reads demands that the group reads a prompt whole.
func (w *twins) reads(blocks int) (front.Result, *prompt) {
	w.t.Helper()
	x, job := w.ask(blocks)
	w.engine.read = w.whole(x)
	r, err := w.host().Prefill(w.t.Context(), job)
	if err != nil || r.State != calls.Complete || r.Blocks != blocks {
		w.t.Fatalf("%+v, %v", r, err)
	}
	x.stock.equal(w.t, x.blocks, blocks)
	w.idle()
	return r, x
}

// TestGroup: two hosts with a rank each fill one transfer, each with its heads of every
// block.
func TestGroup(t *testing.T) {
	w := newTwins(t, nil)
	r, x := w.reads(5)
	half := uint64(5*x.layout.WireSize()) / 2
	if len(r.Hosts) != 2 || r.Hosts[0] != (front.Sent{Name: "a", Bytes: half}) || r.Hosts[1] != (front.Sent{Name: "b", Bytes: half}) || r.Bytes != 2*half {
		t.Errorf("%+v", r)
	}
	if w.engine.asked() != 1 || w.host().Name() != "qwen" {
		t.Errorf("%d prompts, engine %q", w.engine.asked(), w.host().Name())
	}
	for part, p := range []*pair{w.pair, w.other} {
		if e := p.last(); e.Part != part || e.Parts != 2 || e.State != calls.Complete || len(e.Workers) != 1 || e.Workers[0].Rank != part || e.Workers[0].Tokens != x.tokens() {
			t.Errorf("host %d: %+v", part, e)
		}
	}
	// All of it is there: nobody is asked.
	_, job := w.ask(5)
	w.present = []bool{true, true, true, true, true}
	if r, err := w.host().Prefill(t.Context(), job); err != nil || r.State != calls.Complete || w.engine.asked() != 1 {
		t.Errorf("%+v, %v after %d prompts", r, err, w.engine.asked())
	}
	w.idle()
}

// TestGroupWithIDsInFrames: the first flush settles the ids, and says that the engine has
// read them.
func TestGroupWithIDsInFrames(t *testing.T) {
	const blocks = 64
	w := new(twins)
	p := newPair(t, session.Options{MaxMeta: 3500}, ServiceOptions{Name: "a", Group: &calls.Group{Name: "qwen", Members: 2, Leads: true}})
	q := p.another(ServiceOptions{Name: "b", Group: &calls.Group{Name: "qwen", Member: 1, Members: 2}})
	w.pair, w.other = p, q
	for rank, x := range []*pair{p, q} {
		w.ranks[rank] = connect(t, x.socket, helloOf(rank, 2, 1))
	}
	w.reads(blocks)
}

// TestRankEndsEarly: blocks that both ranks sent stay, and the verdict is honest.
func TestRankEndsEarly(t *testing.T) {
	w := newTwins(t, nil)
	x, job := w.ask(4)
	w.engine.read = func(context.Context, Prompt) error {
		handles, arrays := w.beginAll(x)
		for b := range x.blocks {
			if b == 2 {
				why := text("the device did not deliver")
				w.ranks[1].say(typeAbort, handles[1], &why)
			}
			for rank, c := range w.ranks[:max(1, 2-b/2)] {
				c.put(x, handles[rank], headRuns(b, arrays, rank, 2)...)
			}
		}
		w.ranks[0].end(handles[0], x.tokens())
		return nil
	}
	r, err := w.host().Prefill(t.Context(), job)
	if err != nil || r.State != calls.Partial || r.Blocks != 2 || r.Reason == "" || r.Hosts[0].Bytes != 2*r.Hosts[1].Bytes {
		t.Errorf("%+v, %v", r, err)
	}
	x.stock.equal(t, x.blocks, 2)
	if e := w.other.last(); !strings.Contains(e.Reason, "the device did not deliver") {
		t.Errorf("%+v", e)
	}
	w.idle()
	w.reads(3)
}

// TestHostGoesInTheMiddle: whichever host does, the other one's work ends, blocks that
// are whole stay, the verdict names it, and the group is back when both hosts are.
func TestHostGoesInTheMiddle(t *testing.T) {
	for goes, name := range []string{"a (part 1 of 2 of group qwen)", "b (part 2 of 2 of group qwen)"} {
		w := newTwins(t, nil)
		hosts := []*pair{w.pair, w.other}
		x, job := w.ask(4)
		ended := make(chan error, 1)
		w.engine.read = func(ctx context.Context, _ Prompt) error {
			handles, arrays := w.beginAll(x)
			for b := range 2 {
				w.send(x, handles, arrays, b)
			}
			eventually(t, "two blocks are visible", func() bool { return x.stock.visible() == 2 })
			hosts[goes].cutOff()
			if goes == 1 {
				<-ctx.Done() // the engine's work ends for want of the other host
			} else {
				w.ranks[1].hear(typeAbort) // the other host's rank need send no more
			}
			ended <- nil
			return ErrEngine
		}
		r, err := w.host().Prefill(t.Context(), job)
		if !errors.Is(err, front.ErrHost) || !strings.HasPrefix(err.Error(), name) || r.Blocks != 2 || len(r.Hosts) != 2 || r.Hosts[1-goes].Bytes == 0 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		<-ended
		eventually(t, "the group is no engine", func() bool { return w.count() == 0 })
		hosts[1-goes].idle()
		hosts[goes].dialler.mend()
		w.host()
		w.reads(3)
	}
}

// TestGroupIsCancelled: both hosts end, down to the engine and the other host's rank.
func TestGroupIsCancelled(t *testing.T) {
	w := newTwins(t, nil)
	x, job := w.ask(3)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	w.engine.read = func(ctx context.Context, _ Prompt) error {
		w.beginAll(x)
		cancel()
		<-ctx.Done()
		w.ranks[1].hear(typeAbort)
		ended <- ctx.Err()
		return ctx.Err()
	}
	if r, err := w.host().Prefill(ctx, job); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", r, err)
	}
	<-ended
	w.idle()
	w.reads(3)
}

// TestLateMember: the engine is not asked before the transfer is open on every host, and
// not at all where one does not open it.
func TestLateMember(t *testing.T) {
	release := make(chan error)
	w := newTwins(t, nil)
	w.other.mu.Lock()
	w.other.late = release
	w.other.mu.Unlock()
	x, job := w.ask(3)
	w.engine.read = w.whole(x)
	host := w.host()
	type end struct {
		r   front.Result
		err error
	}
	done := make(chan end, 1)
	prefill := func() {
		r, err := host.Prefill(t.Context(), job)
		done <- end{r, err}
	}
	go prefill()
	eventually(t, "the other host is asked", func() bool {
		w.other.service.mu.Lock()
		defer w.other.service.mu.Unlock()
		return len(w.other.service.jobs) == 1
	})
	if n := w.engine.asked(); n != 0 {
		t.Errorf("%d prompts before the transfer is open", n)
	}
	release <- nil
	if e := <-done; e.err != nil || e.r.State != calls.Complete {
		t.Errorf("%+v", e)
	}
	w.idle()
	w.engine.read = func(context.Context, Prompt) error { return ErrEngine }
	go prefill()
	release <- errors.New("no way to the decode host")
	if e := <-done; !errors.Is(e.err, front.ErrHost) || !strings.Contains(e.err.Error(), "b (part 2 of 2 of group qwen)") || !strings.Contains(e.err.Error(), "no way") {
		t.Errorf("%+v", e)
	}
	if n := w.engine.asked(); n != 1 {
		t.Errorf("%d prompts", n)
	}
	w.idle()
}

// TestSilentRank: a rank that never begins does not hold the transfer up for longer than
// the engine takes.
func TestSilentRank(t *testing.T) {
	w := newTwins(t, nil)
	x, job := w.ask(2)
	w.engine.read = func(context.Context, Prompt) error {
		handle, _, arrays := w.ranks[0].beginPieces(x)
		for b := range x.blocks {
			w.ranks[0].put(x, handle, headRuns(b, arrays, 0, 2)...)
		}
		w.ranks[0].end(handle, x.tokens())
		return nil
	}
	began := time.Now()
	r, err := w.host().Prefill(t.Context(), job)
	if err != nil || r.State != calls.Partial || r.Blocks != 0 || r.Hosts[0].Bytes == 0 || r.Hosts[1].Bytes != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if e := w.other.last(); !strings.Contains(e.Reason, "not every worker ended in time") {
		t.Errorf("%+v", e)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	w.idle()
}

// TestMemberSurvivesALostConnection: each of the two, while the engine reads.
func TestMemberSurvivesALostConnection(t *testing.T) {
	w := newTwins(t, nil)
	x, job := w.ask(6)
	w.engine.read = func(context.Context, Prompt) error {
		handles, arrays := w.beginAll(x)
		for b := range x.blocks {
			if b == 2 || b == 4 {
				eventually(t, "a block is visible", func() bool { return x.stock.visible() > 0 })
				p := []*pair{w.pair, w.other}[b/2-1]
				p.cutOff()
				p.dialler.mend()
			}
			w.send(x, handles, arrays, b)
		}
		w.endAll(x, handles)
		return nil
	}
	r, err := w.host().Prefill(t.Context(), job)
	if err != nil || r.State != calls.Complete || r.Blocks != 6 || w.engine.asked() != 1 {
		t.Fatalf("%+v, %v after %d prompts", r, err, w.engine.asked())
	}
	x.stock.equal(t, x.blocks, 6)
	w.idle()
}

// direct makes a call as it is.
func direct(t *testing.T, conn transport.Conn, c calls.Call) calls.Result {
	t.Helper()
	meta, err := c.Append(nil, true)
	must(t, err)
	out, err := conn.Open(t.Context(), transport.Request{Kind: calls.KindCall, Meta: meta})
	if errors.Is(err, transport.ErrRefused) {
		return calls.Result{State: calls.Declined, Reason: err.Error()}
	}
	must(t, err)
	o, err := out.Finish(t.Context())
	must(t, err)
	r, err := calls.ParseResult(o.Result)
	must(t, err)
	return r
}

// TestCallsThatDoNotFitTheGroup are declined with words.
func TestCallsThatDoNotFitTheGroup(t *testing.T) {
	w := newTwins(t, func(o *ServiceOptions) { o.Models = map[string]string{"m": "served"} })
	w.host()
	_, job := w.ask(2)
	var conns [2]transport.Conn
	w.decoder.mu.Lock()
	for _, c := range w.conns {
		conns[map[string]int{"a": 0, "b": 1}[c.Facts().Peer]] = c
	}
	w.decoder.mu.Unlock()
	call := func(change func(*calls.Call)) calls.Call {
		c := calls.Call{Transfer: transport.NewID(), Model: "m", Kind: "omlx", Plan: job.Plan.Meta, Tokens: 32, IDs: job.Plan.IDs, Parts: 2}
		change(&c)
		return c
	}
	for words, c := range map[string]calls.Call{
		"needs the same version of pdlink":     call(func(c *calls.Call) { c.Parts = 0 }),
		"was asked for part 2 of 3":            call(func(c *calls.Call) { c.Part, c.Parts = 1, 3 }),
		"(it is to ask the engine: false)":     call(func(c *calls.Call) { c.Follows = true }),
		"asked for part 2 of 2 (it is to ask":  call(func(c *calls.Call) { c.Part, c.Follows = 1, true }),
		"part 1 of 2 of group qwen (it asks t": call(func(c *calls.Call) { c.Part = 1 }),
	} {
		if r := direct(t, conns[0], c); r.State != calls.Declined || !strings.Contains(r.Reason, words) {
			t.Errorf("%s: %+v", words, r)
		}
	}
	if r := direct(t, conns[1], call(func(c *calls.Call) { c.Part, c.Follows, c.Model = 1, true, "n" })); r.State != calls.Declined || !strings.Contains(r.Reason, `no model "n"`) {
		t.Errorf("another model: %+v", r)
	}
	p := newPair(t, session.Options{}, ServiceOptions{})
	connect(t, p.socket, helloOf(0, 1, 1))
	p.host()
	p.decoder.mu.Lock()
	conns[0] = p.conns[0]
	p.decoder.mu.Unlock()
	if r := direct(t, conns[0], call(func(*calls.Call) {})); r.State != calls.Declined || !strings.Contains(r.Reason, "in no group") {
		t.Errorf("no group: %+v", r)
	}
}

// TestAllWorkersOfAHost: a host is ready when all that there are on it are connected.
func TestAllWorkersOfAHost(t *testing.T) {
	p := newPair(t, session.Options{}, ServiceOptions{})
	connect(t, p.socket, helloOf(0, 2, 2))
	eventually(t, "one worker is seen", func() bool { return p.lastReady().Workers == 1 })
	if r := p.lastReady(); r.Ready || r.Expected != 2 || p.count() != 0 {
		t.Errorf("%+v", r)
	}
	connect(t, p.socket, helloOf(1, 2, 2))
	p.host()
	if r := p.lastReady(); !r.Ready || r.Workers != 2 {
		t.Errorf("%+v", r)
	}
}

// TestServicesThatCannotBe are refused.
func TestServicesThatCannotBe(t *testing.T) {
	open := func(context.Context, transport.Request, bridge.Shape) (Carrier, int, error) { return nil, 0, nil }
	for _, o := range []ServiceOptions{
		{Engine: &script{}, Open: open}, {Server: &Server{}, Open: open}, {Server: &Server{}, Engine: &script{}},
		{Server: &Server{}, Engine: &script{}, Open: open, Group: &calls.Group{Name: "g", Members: 1}},
		{Server: &Server{}, Open: open, Group: &calls.Group{Name: "g", Member: 2, Members: 2}},
		{Server: &Server{}, Engine: &script{}, Open: open, Group: &calls.Group{Name: "g", Members: 2}},
		{Server: &Server{}, Open: open, Group: &calls.Group{Name: "g", Member: 1, Members: 2, Leads: true}},
	} {
		if s, err := NewService(o); !errors.Is(err, ErrJob) {
			t.Errorf("%+v: %v, %v", o, s, err)
		}
	}
}

// TestRowsOfDeepSeekOnTwoHosts: two ranks that see the same, on two hosts, each of which
// projects its own layers.
func TestRowsOfDeepSeekOnTwoHosts(t *testing.T) {
	d := newDecoder(t)
	p := d.recorded(t, "dsv4-a")
	var ranks sync.WaitGroup
	var live [2]*running
	for rank := range live {
		h := newHost(t, d, Options{Projection: p.projection(t), LeaseWait: maxLeaseWait, Slots: 128})
		c, err := bridge.OpenCourier(t.Context(), &single{h.conn}, transport.Request{
			ID: p.id, Kind: "test", Part: rank, Parts: 2, Meta: []byte(p.name),
		}, bridge.Shape{Blocks: len(p.blocks), BlockBytes: p.layout.WireSize()})
		must(t, err)
		live[rank] = h.runJob(Job{ID: p.id, Carrier: c, Layout: p.layout, Blocks: len(p.blocks), Room: h.conn.Facts().MaxPayload})
		w := connect(t, h.socket, helloOf(rank, 2, 1))
		ranks.Go(func() {
			row := uint32(2 * h.o.Projection.Geometry.Hidden)
			handle, why, g, _ := w.begin(begin{Transfer: p.id, PromptTokens: uint32(p.tokens()), Mode: modeRows, DType: dtypeBF16, RowBytes: row})
			if why != codeOK {
				t.Errorf("begin: %v", why)
				return
			}
			s := &sender{client: w, handle: handle, tokens: int(g.BlockTokens)}
			p.feed(t, s, g.Layers, 0, 1024, 97)
			w.end(handle, p.tokens())
		})
	}
	ranks.Wait()
	for rank, r := range live {
		if res := r.result(); r.err != nil || res.State != bridge.Complete {
			t.Errorf("host %d: %v, %v", rank, r.err, res.Verdict)
		}
	}
	p.stock.equal(t, p.blocks, len(p.blocks))
}
