package prefill

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/bridge/front"
	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// TestCall: a host announces itself, reads a prompt, and what is there is not asked
// for again.
func TestCall(t *testing.T) {
	p := newPair(t, session.Options{}, ServiceOptions{Name: "spark"})
	c := connect(t, p.socket, helloOf(0, 1, 1))
	x, job := p.ask(5)
	p.engine.read = p.reads(c, x, 0, nil)
	host := p.host()
	if host.Name() != "spark" || !host.Serves("m") || host.Serves("n") {
		t.Errorf("host %q", host.Name())
	}
	r, err := host.Prefill(t.Context(), job)
	if err != nil || r.Blocks != 5 || r.State != calls.Complete || r.Bytes != 5*uint64(x.layout.WireSize()) || r.Sealed {
		t.Fatalf("%+v, %v", r, err)
	}
	x.stock.equal(t, x.blocks, 5)
	if e := p.last(); e.Transfer != x.id || e.Tokens != 80 || e.Total != 5 || len(e.Workers) != 1 || e.Workers[0].Tokens != 80 || e.Seconds <= 0 {
		t.Errorf("%+v", e)
	}
	p.idle()
	p.present = []bool{true, true, true, true, true}
	if r, err := host.Prefill(t.Context(), job); err != nil || r.Blocks != 5 || r.Bytes != 0 || p.engine.asked() != 1 {
		t.Errorf("%+v, %v after %d prompts", r, err, p.engine.asked())
	}
	p.idle()
}

// TestCallWithIDsInFrames: more ids than the connection's Meta takes.
func TestCallWithIDsInFrames(t *testing.T) {
	const blocks = 64 // 4,096 bytes of ids, 2,048 of hashes
	p := newPair(t, session.Options{MaxMeta: 3500}, ServiceOptions{})
	c := connect(t, p.socket, helloOf(0, 1, 1))
	x, job := p.ask(blocks)
	p.engine.read = p.reads(c, x, 0, nil)
	r, err := p.host().Prefill(t.Context(), job)
	if err != nil || r.Blocks != blocks {
		t.Fatalf("%+v, %v", r, err)
	}
	x.stock.equal(t, x.blocks, blocks)
	p.idle()
}

// TestCallIsCancelled: down to the engine, and nothing is left.
func TestCallIsCancelled(t *testing.T) {
	p := newPair(t, session.Options{}, ServiceOptions{})
	connect(t, p.socket, helloOf(0, 1, 1))
	_, job := p.ask(3)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	p.engine.read = func(ctx context.Context, _ Prompt) error {
		cancel()
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	if r, err := p.host().Prefill(ctx, job); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", r, err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the engine was not told")
	}
	p.idle()
}

// TestCallSurvivesALostConnection: the engine reads on, the transfer and the call go on
// over the next connection.
func TestCallSurvivesALostConnection(t *testing.T) {
	p := newPair(t, session.Options{}, ServiceOptions{})
	c := connect(t, p.socket, helloOf(0, 1, 1))
	x, job := p.ask(6)
	p.engine.read = p.reads(c, x, 0, func(b int) {
		if b == 2 || b == 4 {
			eventually(t, "a block is visible", func() bool { return x.stock.visible() > 0 })
			eventually(t, "there is a connection", p.connected)
			p.cut()
		}
	})
	r, err := p.host().Prefill(t.Context(), job)
	if err != nil || r.Blocks != 6 || r.State != calls.Complete {
		t.Fatalf("%+v, %v", r, err)
	}
	x.stock.equal(t, x.blocks, 6)
	if p.engine.asked() != 1 {
		t.Errorf("the engine was asked %d times", p.engine.asked())
	}
	p.dialler.mu.Lock()
	if p.dialler.lost < 2 {
		t.Errorf("%d connections were lost", p.dialler.lost)
	}
	p.dialler.mu.Unlock()
	p.idle()
}

// TestCallThatDoesNotEnd: its caller knows what came, and the host ends the work, when
// the caller has waited long enough and when the host is gone.
func TestCallThatDoesNotEnd(t *testing.T) {
	for _, dead := range []bool{false, true} {
		p := newPair(t, session.Options{}, ServiceOptions{grace: 50 * time.Millisecond})
		c := connect(t, p.socket, helloOf(0, 1, 1))
		x, job := p.ask(4)
		ctx, cancel := context.WithCancelCause(t.Context())
		told := make(chan struct{})
		p.engine.read = func(work context.Context, _ Prompt) error {
			h, why, _, arrays := c.begin(begin{Transfer: x.id, PromptTokens: 64, Mode: modePieces, DType: dtypeBF16})
			if why != codeOK {
				t.Errorf("begin: %v", why)
			}
			c.put(x, h, headRuns(0, arrays, 0, 1)...)
			c.put(x, h, headRuns(1, arrays, 0, 1)...)
			eventually(t, "two blocks are visible", func() bool { return x.stock.visible() == 2 })
			if dead {
				p.dialler.die()
				p.cut()
			} else {
				cancel(context.DeadlineExceeded)
			}
			<-work.Done()
			close(told)
			return work.Err()
		}
		want := context.DeadlineExceeded
		if dead {
			want = front.ErrHost
		}
		if r, err := p.host().Prefill(ctx, job); !errors.Is(err, want) || r.Blocks != 2 {
			t.Errorf("dead %v: %+v, %v", dead, r, err)
		}
		<-told
		p.idle()
		cancel(nil)
	}
}

// TestCallsThatFail: each in its state.
func TestCallsThatFail(t *testing.T) {
	p := newPair(t, session.Options{}, ServiceOptions{Models: map[string]string{"other": "tuned"}})
	c := connect(t, p.socket, helloOf(0, 1, 1))
	x, job := p.ask(3)
	host := p.host()
	with := func(change func(*front.Job)) front.Job {
		j := job
		j.Transfer = transport.NewID()
		change(&j)
		return j
	}
	none := func(*front.Job) {}
	for name, f := range map[string]struct {
		read   func(context.Context, Prompt) error
		job    front.Job
		err    error
		reason string
	}{
		"engine down":    {func(context.Context, Prompt) error { return fmt.Errorf("%w: refused", ErrEngine) }, with(none), front.ErrHost, "refused"},
		"prompt refused": {func(context.Context, Prompt) error { return fmt.Errorf("%w: too long", ErrPrompt) }, with(none), nil, "too long"},
		"unknown model":  {nil, with(func(j *front.Job) { j.Plan.Model = "n" }), nil, "--model n="},
		"mapped model":   {nil, with(func(j *front.Job) { j.Plan.Model = "tuned" }), nil, "no model"},
		"unknown kind":   {nil, with(func(j *front.Job) { j.Plan.Kind = "test" }), nil, "kind"},
		"no plan":        {nil, with(func(j *front.Job) { j.Plan.Meta = []byte("x") }), nil, "plan"},
		"other tokens":   {nil, with(func(j *front.Job) { j.Plan.IDs = j.Plan.IDs[16:] }), nil, "32"},
	} {
		p.engine.read = f.read
		began := time.Now()
		r, err := host.Prefill(t.Context(), f.job)
		if text := fmt.Sprint(r.Reason, err); !errors.Is(err, f.err) || r.Blocks != 0 || !strings.Contains(text, f.reason) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%s: took %v", name, took)
		}
		p.idle()
	}
	// The worker ends in the middle: what is whole stays.
	p.engine.read = p.reads(c, x, 2, nil)
	r, err := host.Prefill(t.Context(), job)
	if err != nil || r.State != calls.Partial || r.Blocks != 2 {
		t.Errorf("half: %+v, %v", r, err)
	}
	p.idle()
}

// TestReadiness: a host is announced while its engine answers and a worker is there.
func TestReadiness(t *testing.T) {
	p := newPair(t, session.Options{}, ServiceOptions{Models: map[string]string{"theirs": "m", "gone": "x"}})
	time.Sleep(30 * time.Millisecond)
	if p.count() != 0 {
		t.Error("announced without a worker")
	}
	c := connect(t, p.socket, helloOf(0, 1, 1))
	if h := p.host(); !h.Serves("theirs") || !h.Serves("m") || h.Serves("gone") {
		t.Error("the models are not those that can be read")
	}
	p.engine.set(errors.New("connection refused"))
	eventually(t, "it withdraws", func() bool { return p.count() == 0 })
	p.engine.set(nil)
	p.host()
	c.close()
	eventually(t, "it withdraws", func() bool { return p.count() == 0 })
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.ready); n < 5 || p.ready[0].Workers != 0 || p.ready[0].Err != nil || p.ready[2].Err == nil {
		t.Errorf("told %+v", p.ready)
	}
}

// TestWaitsAreTold: the decode host hears what a host waits for, while that is so, and
// nothing of one that takes calls.
func TestWaitsAreTold(t *testing.T) {
	p := newPair(t, session.Options{}, ServiceOptions{Name: "spark", Waits: func(r Readiness) string {
		return fmt.Sprintf("%d of %d workers, error %v", r.Workers, r.Expected, r.Err)
	}})
	eventually(t, "it waits for a worker", func() bool { return p.waitsFor("spark: 0 of 0 workers, error <nil>") })
	c := connect(t, p.socket, helloOf(0, 1, 1))
	p.host()
	eventually(t, "it waits for nothing", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.halted) == 0 })
	p.engine.set(errors.New("connection refused"))
	eventually(t, "it waits for the engine", func() bool { return p.waitsFor("spark: 1 of 1 workers, error connection refused") })
	p.cut()
	eventually(t, "it says so on the next connection too", func() bool {
		p.dialler.mu.Lock()
		lost := p.dialler.lost
		p.dialler.mu.Unlock()
		return lost > 0 && p.waitsFor("spark: 1 of 1 workers, error connection refused")
	})
	c.close()
}

// TestServiceRefuses what is no call of its own, and calls that take another's transfer.
func TestServiceRefuses(t *testing.T) {
	p := newPair(t, session.Options{}, ServiceOptions{})
	connect(t, p.socket, helloOf(0, 1, 1))
	release := make(chan struct{})
	p.engine.read = func(context.Context, Prompt) error { <-release; return ErrEngine }
	_, job := p.ask(3)
	host := p.host()
	p.decoder.mu.Lock()
	conn := p.conns[len(p.conns)-1]
	p.decoder.mu.Unlock()
	for _, r := range []transport.Request{{Kind: "omlx"}, {Kind: calls.KindCall, Meta: []byte("PDLC")}} {
		if _, err := conn.Open(t.Context(), r); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("%s: %v", r.Kind, err)
		}
	}
	first := make(chan error, 1)
	go func() {
		_, err := host.Prefill(t.Context(), job)
		first <- err
	}()
	eventually(t, "the engine reads", func() bool { return p.engine.asked() == 1 })
	other := job
	other.Plan.Model = "n"
	if r, err := host.Prefill(t.Context(), other); err != nil || r.State != calls.Declined || !strings.Contains(r.Reason, "another call") {
		t.Errorf("%+v, %v", r, err)
	}
	close(release)
	if err := <-first; !errors.Is(err, front.ErrHost) {
		t.Errorf("%v", err)
	}
	p.idle()
}

// TestCloseEndsCalls at either end.
func TestCloseEndsCalls(t *testing.T) {
	for _, end := range []string{"caller", "host"} {
		p := newPair(t, session.Options{}, ServiceOptions{})
		connect(t, p.socket, helloOf(0, 1, 1))
		_, job := p.ask(3)
		p.engine.read = func(ctx context.Context, _ Prompt) error { <-ctx.Done(); return ctx.Err() }
		host := p.host()
		done := make(chan error, 1)
		go func() {
			_, err := host.Prefill(t.Context(), job)
			done <- err
		}()
		eventually(t, "the engine reads", func() bool { return p.engine.asked() == 1 })
		if end == "caller" {
			must(t, p.hosts.Close())
		} else {
			must(t, p.service.Close())
		}
		if err := <-done; err == nil {
			t.Errorf("%s: no error", end)
		}
		p.idle()
	}
}

// TestKeeperGivesUp: transfers wait as long as they were told, and end with the keeper.
func TestKeeperGivesUp(t *testing.T) {
	k := NewKeeper(&redial{link: mem.New(mem.Options{})}, 30*time.Millisecond)
	open := func() error {
		_, _, err := k.Open(t.Context(), transport.Request{Kind: "test"}, bridge.Shape{Blocks: 1, BlockBytes: 1})
		return err
	}
	if err := open(); !errors.Is(err, ErrUnreachable) {
		t.Errorf("nobody there: %v", err)
	}
	if _, _, err := k.Open(t.Context(), transport.Request{Replayable: true}, bridge.Shape{}); !errors.Is(err, ErrJob) {
		t.Errorf("replayable: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Run(ctx, nil); err == nil {
		t.Error("it ran")
	}
	if err := open(); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}
