package kernels

import (
	"sync"
	"sync/atomic"
)

// number is the type that products are summed in: float32 where the decoder's
// serial order is reproduced, float64 where the sum is to be exact.
type number interface{ float32 | float64 }

// product asks for x·wᵀ of the loaded rows from first on.
type product struct {
	w     []uint16 // [cols, k], bf16
	cols  int
	first int
	dst   []uint16 // row i of the loaded rows is written at (i-first)·cols
}

// projector multiplies a few rows with several matrices. load unpacks up to
// segmentRows rows [rows, k] of bf16; run computes the products for them and
// returns when all are written. Each result is a sum over k in ascending order with
// one accumulator, rounded once to bf16, so it does not depend on the other rows.
type projector interface {
	load(x []uint16)
	run(ps []product)
}

func newProjector(n Numerics, k, workers int) projector {
	if n == MLXCPU {
		return newGEMM[float32](k, workers)
	}
	return newGEMM[float64](k, workers)
}

// gemm is the projector. Rows and weights are unpacked into interleaved tiles, so
// that the inner loop walks both with stride one.
type gemm[T number] struct {
	k, rows int
	tiles   [][tileRows]T // [ceil(rows/tileRows)][k]
	panels  [][][tileCols]T
	ps      []product
	count   int64 // column panels of all products
	next    atomic.Int64
	ids     atomic.Int64
	wg      sync.WaitGroup
	spawn   func() // one value for all goroutines, so starting one allocates nothing
}

func newGEMM[T number](k, workers int) *gemm[T] {
	g := &gemm[T]{k: k, tiles: make([][tileRows]T, segmentRows/tileRows*k)}
	g.panels = make([][][tileCols]T, workers)
	for i := range g.panels {
		g.panels[i] = make([][tileCols]T, k)
	}
	g.spawn = func() {
		defer g.wg.Done()
		g.work(g.panels[g.ids.Add(1)])
	}
	return g
}

func (g *gemm[T]) load(x []uint16) {
	g.rows = len(x) / g.k
	for t := 0; t*tileRows < g.rows; t++ {
		tile := g.tiles[t*g.k : (t+1)*g.k]
		for r := range tileRows {
			row := t*tileRows + r
			if row >= g.rows {
				for i := range tile {
					tile[i][r] = 0
				}
				continue
			}
			for i, b := range x[row*g.k : (row+1)*g.k] {
				tile[i][r] = T(Float32(b))
			}
		}
	}
}

func (g *gemm[T]) run(ps []product) {
	g.ps, g.count = ps, 0
	for _, p := range ps {
		g.count += panelCount(p.cols)
	}
	g.next.Store(0)
	g.ids.Store(0)
	helpers := int(min(int64(len(g.panels)), g.count)) - 1
	for range helpers {
		g.wg.Add(1)
		go g.spawn()
	}
	g.work(g.panels[0])
	g.wg.Wait()
	g.ps = nil
}

func panelCount(cols int) int64 { return int64((cols + tileCols - 1) / tileCols) }

// work takes column panels until none is left.
func (g *gemm[T]) work(panel [][tileCols]T) {
	for {
		n := g.next.Add(1) - 1
		if n >= g.count {
			return
		}
		i := 0
		for n >= panelCount(g.ps[i].cols) {
			n -= panelCount(g.ps[i].cols)
			i++
		}
		g.panel(&g.ps[i], int(n)*tileCols, panel)
	}
}

// panel computes columns c … c+tileCols-1 of one product.
func (g *gemm[T]) panel(p *product, c int, panel [][tileCols]T) {
	cols := min(tileCols, p.cols-c)
	for j := range tileCols {
		// A missing last column repeats the one before and is not stored.
		w := p.w[(c+min(j, cols-1))*g.k:]
		for i, b := range w[:g.k] {
			panel[i][j] = T(Float32(b))
		}
	}
	for t := p.first / tileRows; t*tileRows < g.rows; t++ {
		acc := dot(g.tiles[t*g.k:(t+1)*g.k], panel)
		for r := range tileRows {
			row := t*tileRows + r - p.first
			if row < 0 || row+p.first >= g.rows {
				continue
			}
			for j := range cols {
				p.dst[row*p.cols+c+j] = BF16(float32(acc[r*tileCols+j]))
			}
		}
	}
}

// dot returns the tileRows × tileCols sums of a·b over the whole length, each
// summed serially. Products of two bf16 values are exact in T unless they
// underflow.
//
// It is not instrumented by the race detector, which would slow real dimensions
// down a hundredfold: the panel belongs to the caller, and tiles are only written by
// load, before run starts a goroutine.
//
//go:norace
func dot[T number](a [][tileRows]T, b [][tileCols]T) [tileRows * tileCols]T {
	var c00, c01, c10, c11, c20, c21 T
	b = b[:len(a)]
	for i := range a {
		x, w := &a[i], &b[i]
		w0, w1 := w[0], w[1]
		v := x[0]
		c00 += T(v * w0)
		c01 += T(v * w1)
		v = x[1]
		c10 += T(v * w0)
		c11 += T(v * w1)
		v = x[2]
		c20 += T(v * w0)
		c21 += T(v * w1)
	}
	return [tileRows * tileCols]T{c00, c01, c10, c11, c20, c21}
}
