package prefill

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/bridge/replay"
	"pdlink/kernels"
	"pdlink/kernels/safetensors"
	"pdlink/transport"
)

func (j Job) shape() bridge.Shape {
	return bridge.Shape{Blocks: j.Blocks, BlockBytes: j.Layout.WireSize()}
}

// keeper is a sink that keeps blocks.
type keeper struct{ blocks [][]byte }

func (k keeper) Wants(int) bool { return true }

func (k keeper) Put(_ context.Context, block int, off int64, p []byte) error {
	copy(k.blocks[block][off:], p)
	return nil
}

func (k keeper) Push(context.Context) error { return nil }

// recorded is a recorded prefill: its rows, and the blocks that replay, which is
// held to the decoder's own, makes of them.
type recorded struct {
	*prompt
	dir  string
	c    *replay.Case
	file *safetensors.File
}

func (d *decoder) recorded(t *testing.T, name string) *recorded {
	t.Helper()
	dir := filepath.Join("..", "..", "tools", "pdlink", "testdata", "cases", name)
	c, err := replay.Load(dir)
	must(t, err)
	spec, err := c.Spec(replay.Overrides{})
	must(t, err)
	l, err := omlx.NewLayout(spec)
	must(t, err)
	r := &recorded{prompt: d.newPrompt(t, name, c.Blocks()), dir: dir, c: c}
	r.layout, r.stock = l, newStock(c.Blocks(), l.WireSize())
	d.stocks[name] = r.stock
	k := keeper{newStock(c.Blocks(), l.WireSize()).blocks}
	src, err := replay.NewSource(c, l, replay.Options{})
	must(t, err)
	must(t, src.Run(t.Context(), k))
	r.blocks = k.blocks
	r.file, err = safetensors.Open(filepath.Join(dir, "capture.safetensors"))
	must(t, err)
	t.Cleanup(func() { r.file.Close() })
	return r
}

func (p *recorded) tokens() int { return len(p.c.Tokens) }

// capture reads a tensor.
func (p *recorded) capture(t *testing.T, name string) []byte {
	t.Helper()
	x, ok := p.file.Tensor(name)
	if !ok {
		t.Fatalf("no %s", name)
	}
	b := make([]byte, x.Size())
	_, err := p.file.ReadAt(b, x.Begin)
	must(t, err)
	return b
}

// sender puts rows into slots, as many a slot as fit.
type sender struct {
	*client
	handle  uint32
	tokens  int // of a block
	slot    leased
	entries [][]byte
	data    []byte
}

func (s *sender) add(x rows, data []byte) {
	if s.entries != nil && (len(s.entries) == maxEntries || len(s.data)+len(data) > int(s.slot.Room)) {
		s.flush()
	}
	if s.entries == nil {
		l, why := s.lease(s.handle, x.First/uint32(s.tokens), 10*time.Second)
		if why != codeOK {
			s.tb.Errorf("no slot: %v", why)
			return
		}
		s.slot = l
	}
	e := make([]byte, entrySize)
	x.Length = uint32(len(data))
	x.put(e)
	s.entries, s.data = append(s.entries, e), append(s.data, data...)
}

func (s *sender) flush() {
	if s.entries == nil {
		return
	}
	cm := s.fill(s.slot, s.entries, s.data)
	s.say(typeCommit, s.handle, &cm)
	s.entries, s.data = nil, nil
}

// TestRowsOfPlainKV: two ranks, each with its heads, in chunks of any length, of which
// some come twice.
func TestRowsOfPlainKV(t *testing.T) {
	for _, chunk := range []int{97, 256, 512} {
		d := newDecoder(t)
		h := newHost(t, d, Options{LeaseWait: maxLeaseWait, Slots: 128}) // the ranks are not in step, so all blocks may be open
		p := d.recorded(t, "kv-qwen3")
		spec := p.layout.Spec()
		r := h.run(p.prompt)
		elem := int(safetensors.DType(spec.DType).Size())
		var ranks sync.WaitGroup
		for rank := range 2 {
			who := helloOf(rank, 2, 2)
			heads := spec.KVHeads / 2
			who.Heads = span{uint32(rank * heads), uint32((rank + 1) * heads)}
			c := connect(t, h.socket, who)
			ranks.Go(func() {
				own := heads * spec.HeadDim * elem
				handle, why, g, _ := c.begin(begin{
					Transfer: p.id, PromptTokens: uint32(p.tokens()), Mode: modeRows, DType: dtypeNumber(safetensors.DType(spec.DType)), RowBytes: uint32(own),
				})
				if why != codeOK {
					t.Errorf("begin: %v", why)
					return
				}
				s := &sender{client: c, handle: handle, tokens: spec.BlockTokens}
				for at := 0; at < p.tokens(); at += chunk {
					from := max(0, at-7) // the rows of before are sent again
					n := min(at+chunk, p.tokens(), int(g.Blocks*g.BlockTokens)) - from
					if n < 1 {
						break
					}
					for layer := range spec.Layers {
						for what, part := range []string{"k", "v"} {
							all := p.capture(t, layerName(layer, part))
							row := len(all) / p.c.Captured
							for first := from; first < from+n; first += 50 {
								m := min(50, from+n-first)
								var data []byte
								for i := range m {
									begin := (first+i)*row + rank*own
									data = append(data, all[begin:begin+own]...)
								}
								s.add(rows{Layer: uint32(layer), First: uint32(first), Tokens: uint32(m), What: uint8(what), Heads: who.Heads}, data)
							}
						}
					}
				}
				s.flush()
				c.end(handle, p.tokens())
			})
		}
		ranks.Wait()
		res := r.result()
		if r.err != nil || res.State != bridge.Complete {
			t.Errorf("chunk %d: %v, %v, sealed at %d, %s", chunk, r.err, res.Verdict, res.Sealed, res.Why)
		}
		p.stock.equal(t, p.blocks, len(p.blocks))
	}
}

func layerName(layer int, part string) string { return "layer_" + string(rune('0'+layer)) + "." + part }

// TestWholeBlocksDoNotWait: a block's last bytes go out with the row that completes
// it, and a few bytes of another after a while.
func TestWholeBlocksDoNotWait(t *testing.T) {
	for _, push := range []time.Duration{time.Hour, time.Millisecond} {
		d := newDecoder(t)
		h := newHost(t, d, Options{waits: waits{push: push}})
		p := d.newPrompt(t, "p", 2)
		r := h.run(p)
		c := connect(t, h.socket, helloOf(0, 1, 1))
		handle, why, _, _ := c.begin(begin{Transfer: p.id, PromptTokens: 37, Mode: modeRows, DType: dtypeBF16, RowBytes: 4 * 32 * 2})
		if why != codeOK {
			t.Fatal(why)
		}
		s := &sender{client: c, handle: handle, tokens: 16}
		for layer := range 3 {
			for what := range 2 {
				s.add(rows{Layer: uint32(layer), Tokens: 16, What: uint8(what), Heads: span{0, 4}}, make([]byte, 16*256))
			}
		}
		if push < time.Second { // not whole: it goes out because nothing comes
			s.entries, s.data = s.entries[:5], s.data[:5*16*256]
		}
		s.flush()
		if push < time.Second {
			eventually(t, "the frame is sent", func() bool {
				for i := range h.geometry.slots {
					if u32(c.mem[pageSize+i*recordSize:]) == stateTaken {
						return true
					}
				}
				return false
			})
		} else {
			eventually(t, "the block is visible", func() bool { return p.stock.visible() == 1 })
		}
		c.end(handle, 16)
		r.result()
	}
}

// projection is a case's.
func (p *recorded) projection(t *testing.T) *Projection {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "case.json"))
	must(t, err)
	var file struct {
		Config json.RawMessage `json:"config"`
	}
	must(t, json.Unmarshal(text, &file))
	g, err := kernels.ParseGeometry(file.Config)
	must(t, err)
	n, err := kernels.ParseNumerics(p.c.Numerics)
	must(t, err)
	w, err := kernels.OpenWeights(filepath.Join(p.dir, "weights.safetensors"), g)
	must(t, err)
	t.Cleanup(func() { w.Close() })
	return &Projection{Geometry: g, Weights: w, Numerics: n, Workers: 1}
}

// feed sends the attention inputs of layers, tokens [from, end), in chunks.
func (p *recorded) feed(t *testing.T, s *sender, layers span, from, end, chunk int) {
	for at := from; at < end; at += chunk {
		n := min(chunk, end-at)
		for layer := layers.First; layer < layers.End; layer++ {
			all := p.capture(t, layerName(int(layer), "x"))
			row := len(all) / p.c.Captured
			s.add(rows{Layer: layer, First: uint32(at), Tokens: uint32(n), What: whatX}, all[at*row:(at+n)*row])
		}
	}
	s.flush()
}

// TestRowsOfDeepSeek: two ranks that see the same share the layers, in any chunks;
// rows that come twice are left out.
func TestRowsOfDeepSeek(t *testing.T) {
	for _, chunk := range []int{97} { // of rows; no divisor of anything
		d := newDecoder(t)
		p := d.recorded(t, "dsv4-a")
		h := newHost(t, d, Options{Projection: p.projection(t), LeaseWait: maxLeaseWait, Slots: 128})
		r := h.run(p.prompt)
		var ranks sync.WaitGroup
		var mu sync.Mutex
		seen := uint32(0)
		for rank := range 2 {
			c := connect(t, h.socket, helloOf(rank, 2, 2))
			ranks.Go(func() {
				hidden := h.o.Projection.Geometry.Hidden
				handle, why, g, _ := c.begin(begin{Transfer: p.id, PromptTokens: uint32(p.tokens()), Mode: modeRows, DType: dtypeBF16, RowBytes: uint32(2 * hidden)})
				if why != codeOK || g.Kind != kindDSV4 || g.From != 0 {
					t.Errorf("begin: %v, %+v", why, g)
					return
				}
				mu.Lock()
				seen += g.Layers.End - g.Layers.First
				mu.Unlock()
				s := &sender{client: c, handle: handle, tokens: int(g.BlockTokens)}
				p.feed(t, s, g.Layers, 0, 1024, chunk)
				p.feed(t, s, g.Layers, 31, 1024, 250) // after a preemption
				c.end(handle, p.tokens())
			})
		}
		ranks.Wait()
		if seen != 5 {
			t.Errorf("%d layers are sent, want each once", seen)
		}
		res := r.result()
		if r.err != nil || res.State != bridge.Complete || res.Projected == 0 {
			t.Errorf("chunk %d: %v, %v, sealed at %d, %s", chunk, r.err, res.Verdict, res.Sealed, res.Why)
		}
		p.stock.equal(t, p.blocks, len(p.blocks))
	}
}

// TestGapSealsTheTransfer: behind rows that are missing nothing can be made.
func TestGapSealsTheTransfer(t *testing.T) {
	d := newDecoder(t)
	p := d.recorded(t, "dsv4-a")
	h := newHost(t, d, Options{Projection: p.projection(t), LeaseWait: maxLeaseWait, Slots: 128})
	r := h.run(p.prompt)
	c := connect(t, h.socket, helloOf(0, 1, 1))
	handle, why, g, _ := c.begin(begin{
		Transfer: p.id, PromptTokens: uint32(p.tokens()), Mode: modeRows, DType: dtypeBF16, RowBytes: uint32(2 * h.o.Projection.Geometry.Hidden),
	})
	if why != codeOK {
		t.Fatal(why)
	}
	s := &sender{client: c, handle: handle, tokens: int(g.BlockTokens)}
	all := p.capture(t, layerName(4, "x"))
	row := len(all) / p.c.Captured
	for at := uint32(0); at < 800; at += 200 {
		s.add(rows{Layer: 4, First: at, Tokens: 200, What: whatX}, all[int(at)*row:int(at+200)*row])
	}
	s.flush()
	s.add(rows{Layer: 4, First: 801, Tokens: 200, What: whatX}, all[801*row:1001*row])
	s.flush()
	p.feed(t, s, span{0, 4}, 0, 512, 200)
	m := c.hear(typeSealed)
	var at sealed
	if at.get(&m.body); at != 1 || m.code != codePlan {
		t.Errorf("sealed at %d, %v", at, m.code)
	}
	c.end(handle, p.tokens())
	if res := r.result(); r.err != nil || res.State != bridge.Partial || res.Blocks != 1 || res.Sealed != 1 {
		t.Errorf("%v, %+v", r.err, res)
	}
	p.stock.equal(t, p.blocks, 1)
}

// TestRowsWithoutProjection: DeepSeek-V4's rows are refused where nothing can be
// made of them, or where the weights are another model's.
func TestRowsWithoutProjection(t *testing.T) {
	d := newDecoder(t)
	p := d.recorded(t, "dsv4-a")
	other := p.projection(t)
	other.Geometry.Window /= 2
	for name, o := range map[string]Options{"none": {}, "another": {Projection: other}} {
		h := newHost(t, d, o)
		p.id = transport.NewID()
		r := h.run(p.prompt)
		c := connect(t, h.socket, helloOf(0, 1, 1))
		if _, why, _, _ := c.begin(begin{Transfer: p.id, PromptTokens: uint32(p.tokens()), Mode: modeRows, DType: dtypeBF16, RowBytes: 256}); why != codePlan {
			t.Errorf("%s: %v", name, why)
		}
		r.Cancel("enough")
		r.result()
	}
}
