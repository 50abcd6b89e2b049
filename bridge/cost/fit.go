package cost

import (
	"math"
	"slices"
)

// Far is how many times as long as the longest prompt that was measured another may be
// before its time is an order of magnitude only.
const Far = 10

// Bases of a length's seconds.
const (
	BasisMeasured     = "measured"
	BasisInterpolated = "interpolated" // between lengths that were measured
	BasisExtrapolated = "extrapolated"
	BasisFar          = "far" // extrapolated, and more than Far times as long
)

// FitText is the model behind lengths that were not measured.
const FitText = "seconds = fixed + per token × tokens, through the medians of the measured lengths; a link has no term in tokens²"

// FitReport is what is known of the line that the seconds of other lengths lie on.
type FitReport struct {
	Model    string   `json:"model"`
	Shortest int      `json:"shortest_tokens"` // that was measured
	Longest  int      `json:"longest_tokens"`
	Lengths  int      `json:"lengths"`
	Runs     int      `json:"runs"`
	Residual *float64 `json:"residual"` // runs' standard deviation from the line, as a part of it; null: too few runs
}

// fit is the line itself, with what says how sure it is.
type fit struct {
	FitReport
	line       Link
	w, wx, wxx float64 // sums over runs of w, w·x and w·x²: w is 1/y², y the line's seconds
}

// student is Student's t at 95 %, two-sided, by degrees of freedom from 1 on.
var student = [...]float64{12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086}

// studentMany is what it is of more of them, a little too wide.
const studentMany = 2.08

// fitOf looks at the runs that a line goes through.
func fitOf(line Link, runs []Run) fit {
	f := fit{FitReport: FitReport{Model: FitText}, line: line}
	var lengths []int
	squares := 0.0
	for _, r := range runs {
		y := line.Stream(r.Tokens)
		if r.Paced || r.Tokens < 1 || !(y > 0) {
			continue
		}
		if !slices.Contains(lengths, r.Tokens) {
			lengths = append(lengths, r.Tokens)
		}
		x, q := float64(r.Tokens), 1/(y*y)
		f.w, f.wx, f.wxx = f.w+q, f.wx+q*x, f.wxx+q*x*x
		d := r.Seconds/y - 1
		squares += d * d
		f.Runs++
	}
	if f.Lengths = len(lengths); f.Lengths == 0 {
		return f
	}
	f.Shortest, f.Longest = slices.Min(lengths), slices.Max(lengths)
	if free := f.free(); free > 0 {
		s := math.Sqrt(squares / float64(free))
		f.Residual = &s
	}
	return f
}

// free is the degrees of freedom that the runs leave.
func (f *fit) free() int { return f.Runs - min(f.Lengths, 2) }

// half is half of the interval that has one more transfer of a length with 95 %, as far as
// the line holds there; false: too few runs to tell.
func (f *fit) half(tokens int) (seconds float64, ok bool) {
	if f.Residual == nil {
		return 0, false
	}
	x, y := float64(tokens), f.line.Stream(tokens)
	of := x * x / f.wxx // variance of the line there, one length: through the origin
	if det := f.w*f.wxx - f.wx*f.wx; f.Lengths > 1 && det > 0 {
		of = (f.wxx - 2*x*f.wx + x*x*f.w) / det
	}
	t := studentMany
	if n := f.free(); n <= len(student) {
		t = student[n-1]
	}
	return t * *f.Residual * math.Sqrt(of+y*y), true
}

// basis says how a length's seconds are known that was not measured, and how many times as
// long it is as the longest that was.
func (f *FitReport) basis(tokens int) (basis string, factor float64) {
	factor = float64(tokens) / float64(max(1, f.Longest))
	switch {
	case factor > Far:
		return BasisFar, factor
	case tokens < f.Shortest || tokens > f.Longest:
		return BasisExtrapolated, factor
	}
	return BasisInterpolated, factor
}

// Known reports whether a prompt's length is within those that the engines' times are known
// of. A rate is said of every length.
func (e Engines) Known(tokens int) bool {
	for _, s := range []Series{e.Prefill, e.Native, e.Cached} {
		if n := s.Longest(); n > 0 && (float64(tokens) > (1+nearLength)*float64(n) || float64(tokens) < (1-nearLength)*float64(s[0].Tokens)) {
			return false
		}
	}
	return true
}
