package stats

import (
	"math"
	"slices"
)

// Ratio compares two samples that were not measured in pairs: how many times as large
// the values of the second are. It assumes positive values, and that the two
// distributions of logarithms differ by a shift at most; nothing about their form.
//
// The median is the Hodges-Lehmann estimate, the median of all quotients; the interval
// is the one that belongs to the Mann-Whitney test, from the k-th smallest quotient to
// the k-th largest; see Hollander, Wolfe and Chicken, Nonparametric Statistical Methods,
// 4.3. Coverage is exact where no values are equal; with too few values for the
// confidence asked for the interval is from the smallest to the largest quotient, and
// Coverage says how little that is worth. N is the number of quotients. Values that are
// not positive and finite are left out.
func Ratio(of, by []float64, confidence float64) Interval {
	of, by = positive(of), positive(by)
	n, m := len(of), len(by)
	if n == 0 || m == 0 {
		return Interval{Median: math.NaN(), Low: math.NaN(), High: math.NaN()}
	}
	q := make([]float64, 0, n*m)
	for _, a := range of {
		for _, b := range by {
			q = append(q, a/b)
		}
	}
	slices.Sort(q)
	tails := mannWhitney(n, m)
	k := 0 // U <= k is outside of the interval on one side
	for k+1 <= (n*m-1)/2 && 1-2*tails[k+1] >= confidence {
		k++
	}
	return Interval{
		N: n * m, Median: math.Sqrt(q[(n*m-1)/2] * q[n*m/2]),
		Low: q[k], High: q[n*m-1-k], Coverage: max(0, 1-2*tails[k]),
	}
}

// mostExact bounds the size of samples whose distribution is counted; larger ones are
// cut for it, which makes the interval wider.
const mostExact = 64

// mannWhitney returns P(U <= k) for k from 0 to n·m, where all orders of n and m values
// are equally likely.
func mannWhitney(n, m int) []float64 {
	if n > mostExact || m > mostExact { // the normal approximation, with its correction
		return normalTails(n, m)
	}
	// ways[j][u]: in how many orders of i values of one sample and j of the other U is u.
	ways := make([][]float64, m+1)
	for j := range ways {
		ways[j] = []float64{1}
	}
	for i := 1; i <= n; i++ {
		for j := 1; j <= m; j++ {
			// The largest of all is of the first sample, above the j of the other, or not.
			next := make([]float64, i*j+1)
			for u, c := range ways[j] {
				next[u+j] += c
			}
			for u, c := range ways[j-1] {
				next[u] += c
			}
			ways[j] = next
		}
	}
	total, sum := 0.0, 0.0
	for _, c := range ways[m] {
		total += c
	}
	tails := make([]float64, len(ways[m]))
	for u, c := range ways[m] {
		sum += c
		tails[u] = sum / total
	}
	return tails
}

func normalTails(n, m int) []float64 {
	mean := float64(n) * float64(m) / 2
	sd := math.Sqrt(mean * float64(n+m+1) / 6)
	tails := make([]float64, n*m+1)
	for k := range tails {
		tails[k] = math.Erfc((mean-0.5-float64(k))/(sd*math.Sqrt2)) / 2
	}
	return tails
}

func positive(v []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(v), func(x float64) bool { return !(x > 0) || math.IsInf(x, 0) })
}
