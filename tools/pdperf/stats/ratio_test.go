package stats_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pdlink/tools/pdperf/stats"
)

// TestRatioCoverage: the coverages are those of published tables of the Mann-Whitney
// test: 1 - 2 P(U <= k).
func TestRatioCoverage(t *testing.T) {
	series := func(n int, from, step float64) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = from + step*float64(i)
		}
		return v
	}
	for _, c := range []struct {
		n, m     int
		coverage float64
		k        int // quotients outside of the interval at each end
	}{
		{1, 1, 0, 0}, {3, 3, 0.9, 0}, {4, 4, 1 - 2.0/70, 0}, {5, 5, 1 - 2*4.0/252, 2}, {3, 5, 1 - 2.0/56, 0}, {10, 10, 0.9566, 23},
	} {
		of, by := series(c.n, 10, 0.37), series(c.m, 9, 0.21)
		got := stats.Ratio(of, by, 0.95)
		outside := 0
		for _, a := range of {
			for _, b := range by {
				if a/b < got.Low {
					outside++
				}
			}
		}
		if math.Abs(got.Coverage-c.coverage) > 5e-4 || outside != c.k || got.N != c.n*c.m || !(got.Low <= got.Median && got.Median <= got.High) {
			t.Errorf("%d and %d: %+v with %d outside; want %v with %d", c.n, c.m, got, outside, c.coverage, c.k)
		}
	}
	for _, v := range [][]float64{nil, {0}, {-1, math.NaN(), math.Inf(1)}} {
		if got := stats.Ratio(v, []float64{1}, 0.95); got.N != 0 || !math.IsNaN(got.Median) {
			t.Errorf("%v: %+v", v, got)
		}
	}
}

// TestRatioContainsTheTruth draws samples whose true ratio is known: as many intervals
// contain it as they promise, for small samples and for those that are approximated.
func TestRatioContainsTheTruth(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{6, 80} {
		hit, rounds, promised := 0, 400, 0.0
		for range rounds {
			of, by := make([]float64, n), make([]float64, n)
			for i := range of {
				of[i], by[i] = 1.3*math.Exp(rng.NormFloat64()/10), math.Exp(rng.NormFloat64()/10)
			}
			r := stats.Ratio(of, by, 0.95)
			promised = r.Coverage
			if r.Low <= 1.3 && 1.3 <= r.High {
				hit++
			}
		}
		if share := float64(hit) / float64(rounds); promised < 0.95 || share < promised-0.04 || share > promised+0.04 {
			t.Errorf("n %d: %v of the intervals contain the truth, promised %v", n, share, promised)
		}
	}
}

func TestTimes(t *testing.T) {
	h := stats.NewTimes()
	if h.N() != 0 || h.Percentile(50) != 0 || h.Max() != 0 {
		t.Errorf("empty: %d, %v, %v", h.N(), h.Percentile(50), h.Max())
	}
	other := stats.NewTimes()
	for i := range 1000 {
		to := h
		if i%2 == 1 {
			to = other
		}
		to.Record(time.Duration(1000-i) * time.Millisecond)
	}
	h.Merge(other)
	h.Merge(nil)
	for p, want := range map[float64]time.Duration{50: 500, 90: 900, 99: 990, 99.9: 999, 100: 1000, -1: 1, 0: 1, 200: 1000} {
		want *= time.Millisecond
		if got := h.Percentile(p); got < want-want/1000 || got > want+want/500 {
			t.Errorf("p%v: %v, want %v", p, got, want)
		}
	}
	if h.N() != 1000 || h.Max() != time.Second || h.Percentile(100) != time.Second {
		t.Errorf("%d, max %v, p100 %v", h.N(), h.Max(), h.Percentile(100))
	}
	h.Record(-time.Second)
	h.Record(48 * time.Hour)
	if h.N() != 1002 || h.Max() != 48*time.Hour {
		t.Errorf("%d, max %v", h.N(), h.Max())
	}
}
