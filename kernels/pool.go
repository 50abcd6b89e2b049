package kernels

import "math"

// pool compresses the tokens of a sequence to one row per ratio tokens and carries
// what is left over between calls. Windows are counted from token 0 of the sequence.
type pool struct {
	ratio, dim, width int
	kvW, gateW        []uint16  // bf16 [width, hidden]
	ape               []float32 // [ratio, width]; rounded to bf16 for the overlapping pool
	// kv and gate are raw projections, bf16 [ratio-1+segmentRows, width]; the first rem
	// rows are left over from before, the projector appends.
	kv, gate []uint16
	rem      int
	// prevKV and prevGate are the raw rows of the last complete window, bf16
	// [ratio, width]; only for the overlapping pool, and only if hasPrev.
	prevKV, prevGate []uint16
	hasPrev          bool

	candKV, candGate []float32 // [candidates, dim]
	red              reducer
	fin              finisher
}

func newPool(n Numerics, g Geometry, ratio, dim int, w PoolWeights) *pool {
	p := &pool{ratio: ratio, dim: dim, width: poolWidth(ratio, dim), kvW: w.KV, gateW: w.Gate, ape: w.APE}
	rows := (ratio - 1 + segmentRows) * p.width
	p.kv, p.gate = make([]uint16, rows), make([]uint16, rows)
	candidates := ratio
	if p.overlaps() {
		candidates = 2 * ratio
		p.prevKV, p.prevGate = make([]uint16, ratio*p.width), make([]uint16, ratio*p.width)
		p.ape = make([]float32, len(w.APE))
		for i, v := range w.APE {
			p.ape[i] = round(v)
		}
	}
	p.candKV, p.candGate = make([]float32, candidates*dim), make([]float32, candidates*dim)
	p.red, p.fin = newReducer(n, dim), newFinisher(n, g, w.Norm, true)
	return p
}

func (p *pool) overlaps() bool { return p.ratio == overlapRatio }

// appendProducts adds the pool's two projections of the loaded rows.
func (p *pool) appendProducts(ps []product) []product {
	at := p.rem * p.width
	return append(ps, product{w: p.kvW, cols: p.width, dst: p.kv[at:]},
		product{w: p.gateW, cols: p.width, dst: p.gate[at:]})
}

// consume pools what the projections of the n tokens from position pos on
// completed, and appends the rows to out.
func (p *pool) consume(pos, n int, out *Rows) {
	if out.Dim == 0 {
		out.Dim, out.First = p.dim, pos/p.ratio
	}
	total, step := p.rem+n, p.ratio*p.width
	start := pos - p.rem
	windows := total / p.ratio
	for i := range windows {
		kv, gate := p.kv[i*step:(i+1)*step], p.gate[i*step:(i+1)*step]
		p.candidates(kv, gate)
		p.red.softmax(p.candGate)
		var row []uint16
		out.Data, row = grow(out.Data, p.dim)
		p.red.weightedSum(row, p.candKV, p.candGate)
		p.fin.finish(row, nil, row, start+i*p.ratio)
		if p.overlaps() {
			copy(p.prevKV, kv)
			copy(p.prevGate, gate)
			p.hasPrev = true
		}
	}
	p.rem = total - windows*p.ratio
	if windows > 0 {
		from, to := windows*step, total*p.width
		copy(p.kv, p.kv[from:to])
		copy(p.gate, p.gate[from:to])
	}
}

// candidates fills candKV and candGate, [rows, dim], with what one pooled row is
// made of: the window's rows with their bias, preceded for the overlapping pool by
// lane A of the window before.
func (p *pool) candidates(kv, gate []uint16) {
	if !p.overlaps() {
		unpack(p.candKV, kv)
		for i, b := range gate {
			p.candGate[i] = Float32(b) + p.ape[i]
		}
		return
	}
	half := p.ratio * p.dim
	if p.hasPrev {
		p.lane(p.candKV[:half], p.candGate[:half], p.prevKV, p.prevGate, 0)
	} else {
		// No window before: weight zero, which leaves the other lane's sums unchanged.
		clear(p.candKV[:half])
		never := float32(math.Inf(-1))
		for i := range half {
			p.candGate[i] = never
		}
	}
	p.lane(p.candKV[half:], p.candGate[half:], kv, gate, p.dim)
}

// lane copies the dim columns from column first on, adding the bias in bf16.
func (p *pool) lane(dstKV, dstGate []float32, kv, gate []uint16, first int) {
	for j := range p.ratio {
		src := j*p.width + first
		unpack(dstKV[j*p.dim:(j+1)*p.dim], kv[src:src+p.dim])
		ape, dst := p.ape[src:src+p.dim], dstGate[j*p.dim:(j+1)*p.dim]
		for d, b := range gate[src : src+p.dim] {
			dst[d] = round(Float32(b) + ape[d])
		}
	}
}
