package kernels

import (
	"fmt"
	"testing"
)

// BenchmarkDSV4Layer measures one layer of each kind at the real model's
// dimensions, in tokens per second with all cores.
func BenchmarkDSV4Layer(b *testing.B) {
	const tokens = 512
	for _, ratio := range []int{0, 4, 128} {
		g := fullGeometry(ratio)
		w, x := sampleWeights(g, ratio), samplePatterns(ratio, 0, tokens*g.Hidden, 1, 0)
		for _, n := range []Numerics{MLXMetal, MLXCPU} {
			b.Run(fmt.Sprintf("ratio=%d/%v", ratio, n), func(b *testing.B) {
				l, err := NewLayer(g, 0, w, n, 2048, 0)
				must(b, err)
				var out Output
				for b.Loop() {
					if l.Pos() == 2048 {
						must(b, l.Seed(0, State{}))
					}
					must(b, l.Feed(x, &out))
				}
				b.ReportMetric(tokens*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
			})
		}
	}
}

// BenchmarkGatherKV moves one 256-token block of one layer of a 32-billion
// parameter model (8 heads of 128, bf16), cold enough to leave the second-level cache.
func BenchmarkGatherKV(b *testing.B) {
	const tokens, blocks = 256, 64
	l := KVLayout{Heads: 8, HeadDim: 128, ElemSize: 2}
	size := tokens * l.Heads * l.HeadDim * l.ElemSize
	src, dst := numbered(size*blocks), make([]byte, size*blocks)
	b.SetBytes(int64(size))
	i := 0
	for b.Loop() {
		must(b, GatherKV(dst[i*size:(i+1)*size], src, l, i*tokens, tokens))
		i = (i + 1) % blocks
	}
}
