package prefill

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"pdlink/bridge/omlx"
	"pdlink/kernels/safetensors"
	"pdlink/transport"
)

// dtypeNumber is how the protocol numbers a data type; 0 for others.
func dtypeNumber(d safetensors.DType) uint8 {
	switch d {
	case safetensors.BF16:
		return dtypeBF16
	case safetensors.F16:
		return dtypeF16
	case safetensors.F32:
		return dtypeF32
	}
	return 0
}

// attach makes a request a part of the transfer and says what is wanted of it.
// The caller holds the worker's mutex; with codeOK the request has its transfer.
func (t *Transfer) attach(r *request) (begun, []array, code) {
	spec := t.job.Layout.Spec()
	layers, heads, c := t.bounds(r)
	t.mu.Lock()
	defer t.mu.Unlock()
	if c != codeOK {
		t.because(fmt.Sprintf("%s: what it has does not fit the plan: layers %d to %d, heads %d to %d (0 to 0: all), rows of %d bytes, dtype %d",
			r.w.name(), r.w.Layers.First, r.w.Layers.End, r.w.Heads.First, r.w.Heads.End, r.begin.RowBytes, r.begin.DType))
		return begun{}, nil, c
	}
	p := t.parts[r.w.Instance]
	switch {
	case t.over || t.failed != nil:
		return begun{}, nil, codeOver
	case p != nil && p.req != nil:
		return begun{}, nil, codeBusy // it has begun it already
	case p == nil && len(t.parts) >= maxWorkers:
		return begun{}, nil, codeBusy
	case p == nil:
		p = &part{}
		t.parts[r.w.Instance] = p
	}
	r.t, r.layers, r.heads = t, layers, heads
	p.req, p.ended, p.report = r, false, Report{Rank: int(r.w.TPRank)}
	if t.job.Workers == 0 {
		t.expect = max(t.expect, int(r.w.LocalWorkers))
	}
	b := begun{
		Kind: kindKV, Blocks: uint32(t.job.Blocks), BlockTokens: uint32(spec.BlockTokens), From: uint32(t.from), BlockBytes: t.blockBytes,
		Layers: layers, MaxLeases: uint32(t.s.leases()),
	}
	if spec.Kind == omlx.KindDSV4 {
		b.Kind = kindDSV4
	}
	if r.begin.Mode == modeRows {
		t.share -= p.share
		p.share = t.made(layers, heads)
		t.share += p.share
		return b, nil, codeOK
	}
	places, id := t.places(layers)
	b.Layout = id
	if id == r.begin.Layout {
		return b, nil, codeOK
	}
	b.Arrays = uint32(len(places))
	return b, places, codeOK
}

// made is the bytes of a block that are made of rows of layers and heads.
func (t *Transfer) made(layers, heads span) int64 {
	n := int64(0)
	for l := int(layers.First); l < int(layers.End); l++ {
		_, size := t.job.Layout.LayerRange(l)
		n += size
	}
	if spec := t.job.Layout.Spec(); spec.Kind == omlx.KindKV {
		n = n / int64(spec.KVHeads) * int64(heads.End-heads.First)
	}
	return n
}

// bounds is the layers and heads that are wanted of a request, or why it does not
// fit the plan.
func (t *Transfer) bounds(r *request) (layers, heads span, c code) {
	spec := t.job.Layout.Spec()
	w, b := r.w, &r.begin
	layers, heads = w.Layers, w.Heads
	if layers == (span{}) {
		layers.End = uint32(spec.Layers)
	}
	width := safetensors.DType(spec.DType).Size()
	row := int64(0)
	if spec.Kind == omlx.KindDSV4 {
		heads = span{}
		layers = shareLayers(spec.Ratios, layers, int(w.TPRank), int(w.TPSize))
		if b.Mode == modeRows {
			if t.s.weights == nil || !t.s.weights.fits(spec) {
				return layers, heads, codePlan
			}
			row = int64(t.s.weights.p.Geometry.Hidden) * width
		}
	} else {
		if heads == (span{}) {
			heads.End = uint32(spec.KVHeads)
		}
		if b.Mode == modeRows {
			row = int64(heads.End-heads.First) * int64(spec.HeadDim) * width
		}
	}
	fits := layers.End <= uint32(spec.Layers) && heads.End <= uint32(max(spec.KVHeads, 1)) &&
		b.DType == dtypeNumber(safetensors.DType(spec.DType)) && int64(b.RowBytes) == row &&
		int64(b.PromptTokens) >= int64(t.to) && int64(b.From) <= int64(t.from)
	if !fits {
		return layers, heads, codePlan
	}
	return layers, heads, codeOK
}

// shareLayers gives one of several ranks that see the same its run of the layers
// [all.First, all.End), so that all have about the same work: the columns of a
// layer's projection. Every sidecar computes the same.
func shareLayers(ratios []int, all span, rank, size int) span {
	if int64(all.End) > int64(len(ratios)) {
		return all // refused by the caller
	}
	total := 0
	for _, r := range ratios[all.First:all.End] {
		total += layerWork(r)
	}
	mine := span{all.End, all.End}
	begun := false
	done := 0
	for i := all.First; i < all.End; i++ {
		w := layerWork(ratios[i])
		owner := (2*done + w) * size / (2 * total) // by where the layer's middle lies
		done += w
		if owner == rank && !begun {
			mine.First, begun = i, true
		}
		if owner > rank {
			mine.End = i
			break
		}
	}
	if !begun {
		mine.First = mine.End
	}
	return mine
}

// layerWork is the cost of a layer, in projections of the window's width.
func layerWork(ratio int) int {
	switch ratio {
	case 0:
		return 1 // the window only
	case 4:
		return 6 // both halves of a pool twice as wide, and the indexer's
	}
	return 3 // the window, and a pool as wide
}

// places lists where the arrays of layers lie in a block, and a number that stands
// for the list.
func (t *Transfer) places(layers span) ([]array, uint64) {
	var list []array
	var h xxh3.Hasher
	for _, w := range t.job.Layout.WireTensors() {
		if w.Layer < int(layers.First) || w.Layer >= int(layers.End) {
			continue
		}
		a := array{
			Layer: uint32(w.Layer), Array: uint32(w.Array), Offset: uint64(w.Off), Size: uint64(w.Size),
			RowBytes: uint32(w.RowBytes), Rows: uint32(w.Rows), DType: dtypeNumber(w.DType), Index: uint32(len(list)),
		}
		list = append(list, a)
		m := pack(typeArray, codeOK, 0, &a)
		h.Write(m.body[:]) //nolint:errcheck // a hash takes everything
	}
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], t.blockBytes)
	h.Write(n[:]) //nolint:errcheck // a hash takes everything
	return list, max(h.Sum64(), 1)
}

// outside reports whether a piece is not of the plan.
func (t *Transfer) outside(p transport.Piece) bool {
	return int64(p.Block) >= int64(t.job.Blocks) || p.End() < p.Offset || p.End() > t.blockBytes
}

// check reports an entry of a committed list that is outside the plan.
func (t *Transfer) check(r *request, e []byte) error {
	if r.begin.Mode == modePieces {
		if p := piece(e); t.outside(p) {
			return breach("piece [%d,+%d) of block %d: the plan has %d blocks of %d bytes", p.Offset, p.Length, p.Block, t.job.Blocks, t.blockBytes)
		}
		return nil
	}
	x, err := getRows(e)
	if err != nil {
		return err
	}
	row := int64(r.begin.RowBytes)
	if t.job.Layout.Spec().Kind == omlx.KindKV {
		n := int64(x.Heads.End - x.Heads.First)
		if x.What > whatV || n < 1 || x.Heads.First < r.heads.First || x.Heads.End > r.heads.End {
			return breach("rows %d of heads [%d,%d), the worker has [%d,%d)", x.What, x.Heads.First, x.Heads.End, r.heads.First, r.heads.End)
		}
		row = row / int64(r.heads.End-r.heads.First) * n
	} else if x.What != whatX || x.Heads != (span{}) {
		return breach("rows %d of heads [%d,%d): the attention input has none", x.What, x.Heads.First, x.Heads.End)
	}
	switch {
	case x.Layer < r.layers.First || x.Layer >= r.layers.End:
		return breach("rows of layer %d, wanted are [%d,%d)", x.Layer, r.layers.First, r.layers.End)
	case x.Tokens < 1 || int64(x.First)+int64(x.Tokens) > int64(r.begin.PromptTokens):
		return breach("rows of tokens %d+%d, the prompt has %d", x.First, x.Tokens, r.begin.PromptTokens)
	case int64(x.Length) != row*int64(x.Tokens):
		return breach("%d bytes for %d rows of %d", x.Length, x.Tokens, row)
	}
	return nil
}

// ended notes a worker's last word.
func (t *Transfer) ended(r *request, rep Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.parts[r.w.Instance]
	if p == nil || p.req != r {
		return
	}
	p.req, p.ended, p.report = nil, true, rep
	if rep.Fault != "" {
		t.because(fmt.Sprintf("%s: %s", r.w.name(), rep.Fault))
	}
	signal(t.wake)
}

// lost notes that a request's connection has ended.
func (t *Transfer) lost(r *request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.parts[r.w.Instance]; p != nil && p.req == r {
		p.req = nil
	}
}

// gone notes that a lost request did not come again.
func (t *Transfer) gone(r *request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.parts[r.w.Instance]
	if p == nil || p.req != nil || p.ended {
		return
	}
	p.ended = true
	p.report.Fault = "the connection ended"
	t.because(r.w.name() + ": " + p.report.Fault)
	signal(t.wake)
}

// settled reports whether nothing will come any more, and otherwise after how
// long to look again; 0: when woken.
func (t *Transfer) settled() (done bool, again time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ended := 0
	for _, p := range t.parts {
		if p.ended {
			ended++
		}
	}
	done = t.from >= t.to || (ended == len(t.parts) && ended > 0 && ended >= t.expect)
	if !done && t.engine {
		again = max(time.Until(t.answer.Add(t.s.o.waits.end)), 0)
		if again == 0 {
			t.because("not every worker ended in time after the engine had answered")
			done = true
		}
	}
	t.over = t.over || done // nothing is taken behind the last look at the queue
	return done, again
}
