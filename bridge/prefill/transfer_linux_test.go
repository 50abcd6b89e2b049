package prefill

import (
	"sync"
	"testing"
	"time"

	"pdlink/bridge"
)

// heads cuts every array of a block into what one of several ranks has.
func headRuns(block int, arrays []array, rank, ranks int) []run {
	var out []run
	for _, a := range arrays {
		part := int64(a.Size) / int64(ranks)
		at := int64(a.Offset) + int64(rank)*part
		out = append(out, run{block, at, at + part})
	}
	return out
}

// TestSeveralWorkersAndRequests: two ranks that send their heads, of two prompts at
// once, each slot with pieces of a block.
func TestSeveralWorkersAndRequests(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	prompts := []*prompt{d.newPrompt(t, "one", 7), d.newPrompt(t, "twelve", 12)}
	var live []*running
	for _, p := range prompts {
		live = append(live, h.run(p))
	}
	var ranks sync.WaitGroup
	for rank := range 2 {
		c := connect(t, h.socket, helloOf(rank, 2, 2))
		ranks.Go(func() {
			var handles [2]uint32
			var arrays []array
			for i, p := range prompts {
				var g begun
				handles[i], g, arrays = c.beginPieces(p)
				if g.Kind != kindKV || int(g.Blocks) != len(p.blocks) || g.BlockTokens != 16 || g.From != 0 || g.Layers != (span{0, 3}) || len(arrays) != 6 {
					t.Errorf("begun %+v with %d arrays", g, len(arrays))
				}
			}
			for b := range 12 {
				for i, p := range prompts {
					if b < len(p.blocks) {
						c.put(p, handles[i], headRuns(b, arrays, rank, 2)...)
					}
				}
			}
			for i, p := range prompts {
				c.end(handles[i], p.tokens())
			}
		})
	}
	ranks.Wait()
	for i, r := range live {
		res := r.result()
		if r.err != nil || res.State != bridge.Complete || res.Sealed != -1 || res.Why != "" {
			t.Errorf("prompt %d: %v, %+v", i, r.err, res)
		}
		if len(res.Reports) != 2 || res.Reports[0].Capture != time.Millisecond || res.Reports[1].Wait != 3*time.Millisecond || res.Reports[0].Tokens != prompts[i].tokens() {
			t.Errorf("reports %+v", res.Reports)
		}
		prompts[i].stock.equal(t, prompts[i].blocks, len(prompts[i].blocks))
	}
}

// TestSlotsAreSentFromWhereTheyAre: a committed slot is the frame; no other slot is
// taken for it.
func TestSlotsAreSentFromWhereTheyAre(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{Slots: 8})
	p := d.newPrompt(t, "p", 2)
	p.stock.gate = make(chan struct{})
	r := h.run(p)
	c := connect(t, h.socket, helloOf(0, 1, 1))
	handle, _, arrays := c.beginPieces(p)
	c.put(p, handle, headRuns(0, arrays, 0, 1)...)
	eventually(t, "block 0 is written", func() bool {
		p.stock.mu.Lock()
		defer p.stock.mu.Unlock()
		return string(p.stock.blocks[0]) == string(p.blocks[0])
	})
	if n := h.Ring().InUse(); n != 1 {
		t.Errorf("%d slots in use for one committed slot that is kept", n)
	}
	close(p.stock.gate)
	eventually(t, "the slot is free once its block is durable", func() bool { return h.Ring().InUse() == 0 })
	c.end(handle, 16)
	if res := r.result(); res.State != bridge.Partial || res.Blocks != 1 || res.Total != 2 {
		t.Errorf("%+v", res)
	}
}

// TestPresentBlocksAreNotWanted: what the decoder has is neither asked for nor
// sent.
func TestPresentBlocksAreNotWanted(t *testing.T) {
	d := newDecoder(t)
	d.present = []bool{true, true, false, false}
	h := newHost(t, d, Options{})
	p := d.newPrompt(t, "p", 4)
	r := h.run(p)
	c := connect(t, h.socket, helloOf(0, 1, 1))
	handle, g, arrays := c.beginPieces(p)
	if g.From != 32 {
		t.Errorf("rows wanted from token %d, want 32", g.From)
	}
	c.say(typeBegin, 2, &begin{Transfer: p.id, PromptTokens: 80, Mode: modePieces, DType: dtypeBF16})
	if m := c.hear(typeBegun); m.code != codeBusy {
		t.Errorf("a request begun twice: %v", m.code)
	}
	for b := range 4 {
		c.put(p, handle, headRuns(b, arrays, 0, 1)...)
	}
	c.end(handle, p.tokens())
	if res := r.result(); res.State != bridge.Complete || res.Present != 2 || res.Bytes != 2*uint64(p.layout.WireSize()) {
		t.Errorf("%+v", res)
	}
}

// TestEverythingPresent: nothing is waited for.
func TestEverythingPresent(t *testing.T) {
	d := newDecoder(t)
	d.present = []bool{true, true}
	h := newHost(t, d, Options{})
	if res := h.run(d.newPrompt(t, "p", 2)).result(); res.State != bridge.Complete || res.Bytes != 0 {
		t.Errorf("%+v", res)
	}
}

// TestLayoutIsToldOnce: a later request names the layout of an earlier one.
func TestLayoutIsToldOnce(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	c := connect(t, h.socket, helloOf(0, 1, 1))
	layout := uint64(0)
	for i, name := range []string{"a", "b"} {
		p := d.newPrompt(t, name, 1)
		r := h.run(p)
		handle, why, g, arrays := c.begin(begin{Transfer: p.id, PromptTokens: 21, Mode: modePieces, DType: dtypeBF16, Layout: layout})
		if want := 6 * (1 - i); why != codeOK || len(arrays) != want || g.Layout == 0 {
			t.Fatalf("%v, %d arrays, want %d", why, len(arrays), want)
		}
		layout = g.Layout
		c.put(p, handle, run{0, 0, int64(len(p.blocks[0]))})
		c.end(handle, 21)
		if res := r.result(); res.State != bridge.Complete {
			t.Errorf("%+v", res)
		}
	}
}

// TestBeginWaitsForItsTransfer: the engine may be faster than the front.
func TestBeginWaitsForItsTransfer(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{waits: waits{begin: 5 * time.Second}})
	c := connect(t, h.socket, helloOf(0, 1, 1))
	p := d.newPrompt(t, "p", 1)
	c.last++
	c.say(typeBegin, c.last, &begin{Transfer: p.id, PromptTokens: 21, Mode: modePieces, DType: dtypeBF16})
	time.Sleep(20 * time.Millisecond)
	r := h.run(p)
	if m := c.hear(typeBegun); m.code != codeOK {
		t.Fatalf("begun: %v", m.code)
	}
	c.end(c.last, 0)
	if res := r.result(); res.Blocks != 0 {
		t.Errorf("%+v", res)
	}
}

// TestRefusedRequests: what does not fit the plan is known before a row moves.
func TestRefusedRequests(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{waits: waits{begin: 10 * time.Millisecond}})
	p := d.newPrompt(t, "p", 2)
	r := h.run(p)
	good := begin{Transfer: p.id, PromptTokens: 37, Mode: modeRows, DType: dtypeBF16, RowBytes: 4 * 32 * 2}
	for name, x := range map[string]struct {
		change func(*begin, *hello)
		want   code
	}{
		"transfer":  {func(b *begin, _ *hello) { b.Transfer[3]++ }, codeUnknown},
		"dtype":     {func(b *begin, _ *hello) { b.DType = dtypeF32 }, codePlan},
		"row bytes": {func(b *begin, _ *hello) { b.RowBytes++ }, codePlan},
		"short":     {func(b *begin, _ *hello) { b.PromptTokens = 31 }, codePlan},
		"first row": {func(b *begin, _ *hello) { b.From = 1 }, codePlan},
		"pieces":    {func(b *begin, _ *hello) { b.Mode = modePieces }, codePlan}, // with row bytes
		"layers":    {func(_ *begin, h *hello) { h.Layers = span{1, 4} }, codePlan},
		"heads":     {func(_ *begin, h *hello) { h.Heads = span{2, 6} }, codePlan},
		"no heads":  {func(b *begin, h *hello) { h.Heads = span{2, 2}; b.RowBytes = 0 }, codeOK},
		"good":      {func(*begin, *hello) {}, codeOK},
		"half":      {func(b *begin, h *hello) { h.Heads = span{2, 4}; h.Layers = span{0, 1}; b.RowBytes /= 2 }, codeOK},
	} {
		b, who := good, helloOf(0, 1, 1)
		x.change(&b, &who)
		c := connect(t, h.socket, who)
		handle, why, _, _ := c.begin(b)
		if why != x.want {
			t.Errorf("%s: %v, want %v", name, why, x.want)
		}
		if why != codeOK {
			// The request is over, the connection is not.
			if _, why := c.lease(handle, 0, 0); why != codeOver {
				t.Errorf("%s: lease %v", name, why)
			}
		}
	}
	r.Cancel("enough")
	r.result()
}

// TestEnds: how a transfer ends when the engine does not say END.
func TestEnds(t *testing.T) {
	for name, x := range map[string]struct {
		end  func(*client, uint32, *running)
		why  string
		fail bool
	}{
		"abort": {func(c *client, h uint32, _ *running) {
			why := text("preempted for good")
			c.say(typeAbort, h, &why)
		}, "worker 1 of 1 (pid 7): worker gave up: preempted for good", false},
		"engine failed": {func(_ *client, _ uint32, r *running) { r.EngineDone(errTest) }, "engine: out of luck", false},
		"engine done":   {func(_ *client, _ uint32, r *running) { r.EngineDone(nil) }, "not every worker ended in time after the engine had answered", false},
		"gone":          {func(c *client, _ uint32, _ *running) { c.conn.Close() }, "worker 1 of 1 (pid 7): the connection ended", false},
		"cancel":        {func(_ *client, _ uint32, r *running) { r.Cancel("the last client went") }, "the last client went", true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDecoder(t)
			h := newHost(t, d, Options{waits: waits{back: 30 * time.Millisecond, end: 30 * time.Millisecond}})
			p := d.newPrompt(t, "p", 3)
			r := h.run(p)
			who := helloOf(0, 1, 1)
			who.PID = 7
			c := connect(t, h.socket, who)
			handle, _, arrays := c.beginPieces(p)
			c.put(p, handle, headRuns(0, arrays, 0, 1)...)
			eventually(t, "block 0 is visible", func() bool { return p.stock.visible() == 1 })
			x.end(c, handle, r)
			res := r.result()
			if (r.err != nil) != x.fail || res.Why != x.why {
				t.Errorf("%v, %+v", r.err, res)
			}
			if !x.fail && (res.State != bridge.Partial || res.Blocks != 1) {
				t.Errorf("%+v", res)
			}
			p.stock.equal(t, p.blocks, 1)
			if name == "cancel" || name == "engine done" {
				if m := c.hear(typeAbort); m.code != codeOver || m.handle != handle {
					t.Errorf("told %v of request %d", m.code, m.handle)
				}
				// It is over, not a breach to say more.
				if _, why := c.lease(handle, 0, 0); why != codeOver {
					t.Errorf("lease after the end: %v", why)
				}
			}
		})
	}
}
