package prefill

import (
	"context"
	"strings"
	"sync"
	"testing"

	"pdlink/bridge"
	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
	"pdlink/transport/session"
)

// stages are two prefill hosts of one engine whose layers are split: each has the workers
// of a pipeline stage, two that have half of the heads.
type stages struct {
	*twins
	workers [2][2]*client
}

// newStages has a stage for each of two runs of layers.
func newStages(t *testing.T, layers [2]span) *stages {
	t.Helper()
	w := &stages{twins: new(twins)}
	w.pair = newPair(t, session.Options{}, ServiceOptions{Name: "a", Group: &calls.Group{Name: "qwen", Members: 2, Leads: true}})
	w.other = w.another(ServiceOptions{Name: "b", Group: &calls.Group{Name: "qwen", Member: 1, Members: 2}})
	for stage, p := range []*pair{w.pair, w.other} {
		for rank := range 2 {
			h := helloOf(rank, 2, 2)
			h.Layers = layers[stage]
			w.workers[stage][rank] = connect(t, p.socket, h)
		}
	}
	return w
}

// whole is an engine that reads a prompt; before is called before each block of a stage
// and says whether the stage goes on.
func (w *stages) whole(x *prompt, before func(stage, block int) bool) func(context.Context, Prompt) error {
	return func(context.Context, Prompt) error {
		for stage, ranks := range w.workers {
			for rank, c := range ranks {
				handle, _, arrays := c.beginPieces(x)
				for b := range x.blocks {
					if !before(stage, b) {
						break
					}
					c.put(x, handle, headRuns(b, arrays, rank, 2)...)
				}
				c.end(handle, x.tokens())
			}
		}
		return nil
	}
}

// TestStages: each host sends the layers that its stage has, all heads of them, and
// blocks are whole when all stages have sent theirs.
func TestStages(t *testing.T) {
	w := newStages(t, [2]span{{0, 2}, {2, 3}})
	x, job := w.ask(5)
	w.engine.read = w.whole(x, func(stage, block int) bool {
		if stage == 1 && x.stock.visible() > block {
			t.Errorf("block %d is visible without the second stage's layers", block)
		}
		return true
	})
	r, err := w.host().Prefill(t.Context(), job)
	if err != nil || r.State != calls.Complete || r.Blocks != 5 || len(r.Hosts) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	layer := uint64(5*x.layout.WireSize()) / 3
	if r.Hosts[0].Bytes != 2*layer || r.Hosts[1].Bytes != layer {
		t.Errorf("hosts sent %d and %d bytes, layers of %d", r.Hosts[0].Bytes, r.Hosts[1].Bytes, layer)
	}
	x.stock.equal(t, x.blocks, 5)
	for stage, p := range []*pair{w.pair, w.other} {
		if e := p.last(); e.Part != stage || len(e.Workers) != 2 || e.State != calls.Complete {
			t.Errorf("stage %d: %+v", stage, e)
		}
	}
	w.idle()
}

// TestStageEndsEarly: what all stages have sent is visible, in order, and nothing else.
func TestStageEndsEarly(t *testing.T) {
	for name, x := range map[string]struct {
		layers [2]span
		ends   int // block at which the second stage ends
		want   int
	}{
		"in the middle":        {[2]span{{0, 1}, {1, 3}}, 2, 2},
		"at once":              {[2]span{{0, 1}, {1, 3}}, 0, 0},
		"a layer nobody holds": {[2]span{{0, 1}, {2, 3}}, 4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newStages(t, x.layers)
			p, job := w.ask(4)
			w.engine.read = w.whole(p, func(stage, block int) bool { return stage == 0 || block < x.ends })
			r, err := w.host().Prefill(t.Context(), job)
			if err != nil || r.State != calls.Partial || r.Blocks != x.want || r.Reason == "" {
				t.Errorf("%+v, %v", r, err)
			}
			p.stock.equal(t, p.blocks, x.want)
			w.idle()
		})
	}
}

// TestStageOfAnotherModel: one that says layers that the plan has not is refused, and the
// other stages' blocks are not whole.
func TestStageOfAnotherModel(t *testing.T) {
	w := newStages(t, [2]span{{0, 2}, {2, 4}})
	x, job := w.ask(2)
	w.engine.read = func(context.Context, Prompt) error {
		for _, c := range w.workers[1] {
			if _, why, _, _ := c.begin(begin{Transfer: x.id, PromptTokens: uint32(x.tokens()), Mode: modePieces, DType: dtypeBF16}); why != codePlan {
				t.Errorf("begun: %v", why)
			}
		}
		for rank, c := range w.workers[0] {
			handle, _, arrays := c.beginPieces(x)
			for b := range x.blocks {
				c.put(x, handle, headRuns(b, arrays, rank, 2)...)
			}
			c.end(handle, x.tokens())
		}
		return nil
	}
	r, err := w.host().Prefill(t.Context(), job)
	if err != nil || r.State != calls.Partial || r.Blocks != 0 || r.Hosts[1].Bytes != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if e := w.other.last(); e.State != calls.Partial || !strings.Contains(e.Reason, "does not fit the plan: layers 2 to 4") {
		t.Errorf("%+v", e)
	}
	w.idle()
}

// TestRowsOfDeepSeekInStages: ranks of a stage see the same, and share the layers of the
// stage.
func TestRowsOfDeepSeekInStages(t *testing.T) {
	d := newDecoder(t)
	p := d.recorded(t, "dsv4-a")
	layers := uint32(p.layout.Spec().Layers)
	var work sync.WaitGroup
	var mu sync.Mutex
	seen := make(map[uint32]int) // how many ranks a layer has
	var live [2]*running
	for stage, held := range []span{{0, 3}, {3, layers}} {
		h := newHost(t, d, Options{Projection: p.projection(t), LeaseWait: maxLeaseWait, Slots: 128})
		c, err := bridge.OpenCourier(t.Context(), &single{h.conn}, transport.Request{
			ID: p.id, Kind: "test", Part: stage, Parts: 2, Meta: []byte(p.name),
		}, bridge.Shape{Blocks: len(p.blocks), BlockBytes: p.layout.WireSize()})
		must(t, err)
		live[stage] = h.runJob(Job{ID: p.id, Carrier: c, Layout: p.layout, Blocks: len(p.blocks), Room: h.conn.Facts().MaxPayload})
		for rank := range 2 {
			who := helloOf(rank, 2, 2)
			who.Layers = held
			w := connect(t, h.socket, who)
			work.Go(func() {
				row := uint32(2 * h.o.Projection.Geometry.Hidden)
				handle, why, g, _ := w.begin(begin{Transfer: p.id, PromptTokens: uint32(p.tokens()), Mode: modeRows, DType: dtypeBF16, RowBytes: row})
				if why != codeOK || g.Layers.First < held.First || g.Layers.End > held.End {
					t.Errorf("stage %d is to send %+v: %v", stage, g.Layers, why)
					return
				}
				mu.Lock()
				for i := g.Layers.First; i < g.Layers.End; i++ {
					seen[i]++
				}
				mu.Unlock()
				s := &sender{client: w, handle: handle, tokens: int(g.BlockTokens)}
				p.feed(t, s, g.Layers, 0, 1024, 97)
				w.end(handle, p.tokens())
			})
		}
	}
	work.Wait()
	for i := range layers {
		if seen[i] != 1 {
			t.Errorf("layer %d is sent by %d ranks", i, seen[i])
		}
	}
	for stage, r := range live {
		if res := r.result(); r.err != nil || res.State != bridge.Complete {
			t.Errorf("stage %d: %v, %v", stage, r.err, res.Verdict)
		}
	}
	p.stock.equal(t, p.blocks, len(p.blocks))
}
