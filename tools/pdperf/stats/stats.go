// Package stats has the few statistics that measurements of a link need:
// percentiles of block times, and medians of repetitions with a confidence
// interval that assumes nothing about their distribution.
package stats

import (
	"math"
	"slices"
)

// Percentile returns the nearest-rank percentile of sorted values: the smallest
// one that at least p percent of them do not exceed. p is clamped to 0..100.
// NaN for no values.
func Percentile(sorted []float64, p float64) float64 {
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	rank := int(math.Ceil(min(max(p, 0), 100) / 100 * float64(n)))
	return sorted[max(rank, 1)-1]
}

// Interval is a median and an interval that contains the true one with
// probability Coverage.
type Interval struct {
	N         int     // values
	Median    float64 // NaN where N is 0, as are Low and High
	Low, High float64
	Coverage  float64 // reached, 0..1: less than was asked for where there are too few values
}

// Median returns the median of values, which it does not change, and the
// narrowest pair of order statistics that contains the true median with at
// least the given confidence (0..1). With too few values for that (fewer than 6
// for 0.95) the interval is from the smallest to the largest, and Coverage says
// how little that is worth.
//
// The number of values below the true median is binomial (n, 1/2), so the
// interval from the k-th smallest to the k-th largest misses it with
// probability 2·P(X < k); see David and Nagaraja, Order Statistics, 7.1.
func Median(values []float64, confidence float64) Interval {
	n := len(values)
	if n == 0 {
		return Interval{Median: math.NaN(), Low: math.NaN(), High: math.NaN()}
	}
	v := slices.Sorted(slices.Values(values))
	k, tail := 1, binomial(n, 0)
	for k < (n+1)/2 {
		next := tail + binomial(n, k)
		if 1-2*next < confidence {
			break
		}
		k, tail = k+1, next
	}
	return Interval{
		N: n, Median: (v[(n-1)/2] + v[n/2]) / 2,
		Low: v[k-1], High: v[n-k], Coverage: max(0, 1-2*tail),
	}
}

// binomial is P(X = k) for X binomial (n, 1/2).
func binomial(n, k int) float64 {
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(k + 1))
	c, _ := math.Lgamma(float64(n - k + 1))
	return math.Exp(a - b - c - float64(n)*math.Ln2)
}

// Ratios divides pairwise, for values that were measured side by side: a[i] by
// b[i]. Pairs without a finite ratio (one is missing, or b[i] is 0) are left
// out; so are those that only one of the two has.
func Ratios(a, b []float64) []float64 {
	var r []float64
	for i := range min(len(a), len(b)) {
		if q := a[i] / b[i]; !math.IsNaN(q) && !math.IsInf(q, 0) {
			r = append(r, q)
		}
	}
	return r
}
