package stats_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pdlink/tools/pdperf/stats"
)

func TestPercentile(t *testing.T) {
	ten := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, c := range []struct {
		v    []float64
		p    float64
		want float64
	}{
		{ten, 50, 5}, {ten, 51, 6}, {ten, 90, 9}, {ten, 99, 10}, {ten, 100, 10}, {ten, 0, 1}, {ten, -5, 1}, {ten, 500, 10},
		{[]float64{7}, 1, 7}, {[]float64{7}, 99, 7},
		{[]float64{1, 2}, 50, 1}, {[]float64{1, 2}, 50.1, 2},
	} {
		if got := stats.Percentile(c.v, c.p); got != c.want {
			t.Errorf("percentile %v of %v: %v, want %v", c.p, c.v, got, c.want)
		}
	}
	if got := stats.Percentile(nil, 50); !math.IsNaN(got) {
		t.Errorf("percentile of nothing: %v", got)
	}
}

func TestMedian(t *testing.T) {
	count := func(n int) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(n - i) // not sorted
		}
		return v
	}
	// Ranks and coverages are those of published tables for the sign test.
	for _, c := range []struct {
		n                 int
		median, low, high float64
		coverage          float64
	}{
		{1, 1, 1, 1, 0},
		{2, 1.5, 1, 2, 0.5},
		{5, 3, 1, 5, 0.9375},
		{6, 3.5, 1, 6, 0.96875},
		{8, 4.5, 1, 8, 0.9921875},
		{9, 5, 2, 8, 0.9609375},
		{10, 5.5, 2, 9, 0.978515625},
		{15, 8, 4, 12, 0.96484375},
		{20, 10.5, 6, 15, 0.958610534},
		{100, 50.5, 40, 61, 0.964799800},
	} {
		v := count(c.n)
		was := slices.Clone(v)
		got := stats.Median(v, 0.95)
		if got.N != c.n || got.Median != c.median || got.Low != c.low || got.High != c.high || math.Abs(got.Coverage-c.coverage) > 1e-8 {
			t.Errorf("median of 1..%d: %+v, want %+v", c.n, got, c)
		}
		if !slices.Equal(v, was) {
			t.Errorf("the values were changed")
		}
	}
	if got := stats.Median(nil, 0.95); got.N != 0 || !math.IsNaN(got.Median) || !math.IsNaN(got.Low) || !math.IsNaN(got.High) {
		t.Errorf("median of nothing: %+v", got)
	}
}

// TestCoverage draws from a skewed distribution whose median is known and counts
// how often the interval has it.
func TestCoverage(t *testing.T) {
	const rounds, n = 4000, 9
	rng := rand.New(rand.NewPCG(1, 2))
	hit := 0
	v := make([]float64, n)
	for range rounds {
		for i := range v {
			v[i] = rng.ExpFloat64()
		}
		if m := stats.Median(v, 0.95); m.Low <= math.Ln2 && math.Ln2 <= m.High {
			hit++
		}
	}
	// 0.961 is expected; six standard deviations are 0.018.
	if got := float64(hit) / rounds; got < 0.943 || got > 0.979 {
		t.Errorf("the interval had the median in %.3f of the rounds", got)
	}
}

func TestRatios(t *testing.T) {
	nan := math.NaN()
	got := stats.Ratios([]float64{1, 2, nan, 4, 5, 6}, []float64{2, 0, 1, nan, 2})
	if !slices.Equal(got, []float64{0.5, 2.5}) {
		t.Errorf("%v", got)
	}
}
