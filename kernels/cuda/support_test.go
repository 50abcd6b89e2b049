package cuda

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"pdlink/kernels"
)

// draw returns a reproducible bf16 value of about normal distribution: value i of
// a stream.
func draw(stream, i uint64, std, mean float64) uint16 {
	u := (i + 1 + stream<<40) * 0x9E3779B97F4A7C15
	u = (u ^ u>>30) * 0xBF58476D1CE4E5B9
	u = (u ^ u>>27) * 0x94D049BB133111EB
	u ^= u >> 31
	sum := int(u&0xffff) + int(u>>16&0xffff) + int(u>>32&0xffff) + int(u>>48) - 131070
	return kernels.BF16(float32(float64(sum)*std/37837.2293 + mean))
}

func draws(stream uint64, n int, std, mean float64) []uint16 {
	out := make([]uint16, n)
	var wg sync.WaitGroup
	const part = 1 << 20
	for from := 0; from < n; from += part {
		wg.Go(func() {
			for i := from; i < min(from+part, n); i++ {
				out[i] = draw(stream, uint64(i), std, mean)
			}
		})
	}
	wg.Wait()
	return out
}

// unpacked is draws as float32, for biases.
func unpacked(stream uint64, n int, std float64) []float32 {
	out := make([]float32, n)
	for i := range out {
		// Not a bf16 value: what is rounded where shows.
		out[i] = kernels.Float32(draw(stream, uint64(i), std, 0)) * 1.0009765625
	}
	return out
}

// model is a geometry with made-up weights. Picking weights take one element of x
// for each column, so that every order of summation gives the same bits.
type model struct {
	g       kernels.Geometry
	picking bool
}

// Layer implements Weights.
func (m model) Layer(i int) (kernels.LayerWeights, error) {
	s := uint64(100 * (i + 1))
	g := m.g
	w := kernels.LayerWeights{KV: m.matrix(s+1, g.HeadDim, 1), Norm: draws(s+2, g.HeadDim, 0.2, 1)}
	pool := func(first uint64, dim int) kernels.PoolWeights {
		r := g.Ratios[i]
		out := dim
		if r == 4 {
			out = 2 * dim
		}
		return kernels.PoolWeights{
			KV: m.matrix(s+first, out, 1), Gate: m.matrix(s+first+1, out, 2),
			APE: unpacked(s+first+2, r*out, 0.7), Norm: draws(s+first+3, dim, 0.2, 1),
		}
	}
	if g.Ratios[i] != 0 {
		w.Comp = pool(3, g.HeadDim)
	}
	if g.Ratios[i] == 4 {
		w.Index = pool(7, g.IndexDim)
	}
	return w, nil
}

func (m model) matrix(stream uint64, rows int, gain float64) []uint16 {
	if !m.picking {
		return draws(stream, rows*m.g.Hidden, gain/math.Sqrt(float64(m.g.Hidden)), 0)
	}
	w := make([]uint16, rows*m.g.Hidden)
	for r := range rows {
		w[r*m.g.Hidden+(r*7+int(stream)*13)%m.g.Hidden] = kernels.BF16(float32(gain))
	}
	return w
}

// realGeometry has layers of DeepSeek-V4-Flash.
func realGeometry(ratios ...int) kernels.Geometry {
	return kernels.Geometry{
		Hidden: 4096, HeadDim: 512, IndexDim: 128, RopeDim: 64, Window: 128, MaxPositions: 1 << 20,
		NormEps: 1e-6, RopeTheta: 10000, CompressRopeTheta: 160000,
		Yarn:   &kernels.Yarn{Factor: 16, OriginalMaxPositions: 65536, BetaFast: 32, BetaSlow: 1},
		Ratios: ratios,
	}
}

// smallGeometry exercises what real sizes do not: partly used warps, widths that
// are no power of two, rotation that begins inside a thread's four columns.
func smallGeometry(ratios ...int) kernels.Geometry {
	g := realGeometry(ratios...)
	g.Hidden, g.HeadDim, g.IndexDim, g.RopeDim, g.Window = 64, 40, 24, 18, 50
	return g
}

// sequence collects what a request yields for one layer.
type sequence struct{ arrays map[string][]uint16 }

// feed gives x to a layer in chunks of the given lengths; the last one repeats.
func (s *sequence) feed(tb testing.TB, q Request, layer, hidden int, x []uint16, cuts ...int) {
	tb.Helper()
	if s.arrays == nil {
		s.arrays = map[string][]uint16{}
	}
	var out kernels.Output
	for i := 0; len(x) > 0; i++ {
		n := min(cuts[min(i, len(cuts)-1)]*hidden, len(x))
		must(tb, q.Feed(layer, x[:n], &out))
		x = x[n:]
		s.arrays["pooled"] = append(s.arrays["pooled"], out.Pooled.Data...)
		s.arrays["idx_pooled"] = append(s.arrays["idx_pooled"], out.Index.Data...)
		for _, b := range out.Boundaries {
			s.keep(&b.State, fmt.Sprint(b.Pos))
		}
	}
	var st kernels.State
	must(tb, q.Carry(layer, &st))
	s.keep(&st, "end")
}

func (s *sequence) keep(st *kernels.State, at string) {
	for name, a := range map[string][]uint16{
		"win": st.Win, "win_pre": st.WinPre,
		"buf_kv": st.Comp.BufKV, "buf_gate": st.Comp.BufGate, "prev_kv": st.Comp.PrevKV, "prev_gate": st.Comp.PrevGate,
		"idx_buf_kv": st.Index.BufKV, "idx_buf_gate": st.Index.BufGate, "idx_prev_kv": st.Index.PrevKV, "idx_prev_gate": st.Index.PrevGate,
	} {
		if len(a) > 0 {
			s.arrays[name+"@"+at] = slices.Clone(a)
		}
	}
}

// identical requires the same bits.
func identical(tb testing.TB, what string, got, want map[string][]uint16) {
	tb.Helper()
	for name, w := range want {
		g := got[name]
		if len(g) != len(w) {
			tb.Errorf("%s: %s has %d elements, want %d", what, name, len(g), len(w))
			continue
		}
		n, first := 0, -1
		for i := range w {
			if g[i] != w[i] {
				if first < 0 {
					first = i
				}
				n++
			}
		}
		if n > 0 {
			tb.Errorf("%s: %s: %d of %d elements differ, first at %d: %04x, want %04x", what, name, n, len(w), first, g[first], w[first])
		}
	}
	for name, g := range got {
		if len(g) > 0 && len(want[name]) == 0 {
			tb.Errorf("%s: %s is there but should not be", what, name)
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
