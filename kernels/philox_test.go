package kernels

import (
	"fmt"
	"math/bits"
	"testing"
)

// Full-size data is not stored but rebuilt from a seed with integer arithmetic:
// Philox4x64-10 with key (fullSizeSeed, stream·1000 + tensor), counter (n, 0, 0, 0)
// for n = 1, 2, …; a sample is the sum of a word's four 16-bit parts, centred and
// scaled in float32.
const fullSizeSeed = 0x44535634

type philox struct {
	key   [2]uint64
	n     uint64
	block [4]uint64
	used  int
}

func newPhilox(stream, tensor int) *philox {
	return &philox{key: [2]uint64{fullSizeSeed, uint64(stream*1000 + tensor)}, used: 4}
}

func (p *philox) next() uint64 {
	if p.used == 4 {
		p.n++
		p.block, p.used = philoxBlock([4]uint64{p.n}, p.key), 0
	}
	p.used++
	return p.block[p.used-1]
}

func philoxBlock(c [4]uint64, k [2]uint64) [4]uint64 {
	for range 10 {
		h0, l0 := bits.Mul64(0xD2E7470EE14C6C93, c[0])
		h1, l1 := bits.Mul64(0xCA5A826395121157, c[2])
		c = [4]uint64{h1 ^ c[1] ^ k[0], l1, h0 ^ c[3] ^ k[1], l0}
		k[0] += 0x9E3779B97F4A7C15
		k[1] += 0xBB67AE8584CAA73B
	}
	return c
}

// sample returns n values of standard deviation std around mean.
func sample(stream, tensor, n int, std, mean float64) []float32 {
	p, scale := newPhilox(stream, tensor), float32(std/37837.2293)
	out := make([]float32, n)
	for i := range out {
		u := p.next()
		k := int64(u&0xffff) + int64(u>>16&0xffff) + int64(u>>32&0xffff) + int64(u>>48) - 131070
		out[i] = float32(float32(k) * scale)
		if mean != 0 {
			out[i] += float32(mean)
		}
	}
	return out
}

func samplePatterns(stream, tensor, n int, std, mean float64) []uint16 {
	out := make([]uint16, n)
	pack(out, sample(stream, tensor, n, std, mean))
	return out
}

// fullGeometry is one layer of the real model.
func fullGeometry(ratio int) Geometry {
	return Geometry{
		Hidden: 4096, HeadDim: 512, IndexDim: 128, RopeDim: 64, Window: 128, MaxPositions: 1 << 20,
		NormEps: 1e-6, RopeTheta: 10000, CompressRopeTheta: 160000,
		Yarn:   &Yarn{Factor: 16, OriginalMaxPositions: 65536, BetaFast: 32, BetaSlow: 1},
		Ratios: []int{ratio},
	}
}

// sampleWeights rebuilds the weights of a layer of any geometry; the tensor
// numbers are part of the definition.
func sampleWeights(g Geometry, ratio int) LayerWeights {
	const s = 1 / 64.0
	w := LayerWeights{
		KV:   samplePatterns(ratio, 1, g.HeadDim*g.Hidden, s, 0),
		Norm: samplePatterns(ratio, 2, g.HeadDim, 0.2, 1),
	}
	pool := func(first, dim int) PoolWeights {
		out := poolWidth(ratio, dim)
		return PoolWeights{
			KV:   samplePatterns(ratio, first, out*g.Hidden, s, 0),
			Gate: samplePatterns(ratio, first+1, out*g.Hidden, 2*s, 0),
			APE:  sample(ratio, first+2, ratio*out, 0.7, 0),
			Norm: samplePatterns(ratio, first+3, dim, 0.2, 1),
		}
	}
	if ratio != 0 {
		w.Comp = pool(3, g.HeadDim)
	}
	if ratio == overlapRatio {
		w.Index = pool(7, g.IndexDim)
	}
	return w
}

func TestPhiloxKnownWords(t *testing.T) {
	// From an independent implementation of the generator (numpy's), key (seed, 4003).
	want := []string{"0x60f0c46a388b6f87", "0x5349cd504d057b9a", "0xb3f9f7a028a22f9e", "0x3f2d90c9aaee64ae", "0x2f1e4ca782398b0e", "0xe61a5450d955f582"}
	p := newPhilox(4, 3)
	for i, w := range want {
		if got := fmt.Sprintf("%#x", p.next()); got != w {
			t.Errorf("word %d is %s, want %s", i, got, w)
		}
	}
}
