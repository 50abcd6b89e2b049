package cost

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ErrSeries is returned for a text that says no time or rate.
var ErrSeries = errors.New("no time or rate of an engine")

// Limits of what a series may say.
const (
	maxPoints  = 256
	maxTokens  = 100_000_000
	maxSeconds = 1e7
)

// Point is how long a prompt of a length took.
type Point struct {
	Tokens  int     `json:"tokens"`
	Seconds float64 `json:"seconds"`
}

// Series is how long an engine takes for prompts of any length, from some that were
// measured, shortest first. The empty one is not known. It is read-only and may be used
// concurrently.
type Series []Point

// ParseSeries reads what a command line says of an engine: a rate, "1500" tokens/s, or
// times of prompts, "25000:17.1,82000:42.2" seconds. Errors are ErrSeries.
func ParseSeries(text string) (Series, error) {
	if !strings.Contains(text, ":") {
		rate, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil || !(rate >= 1/maxSeconds && rate <= maxTokens) {
			return nil, fmt.Errorf("%w: %.40q: want tokens/s, for example 1500, or tokens:seconds,…, for example 25000:17.1,82000:42.2", ErrSeries, text)
		}
		return Rate(rate), nil
	}
	parts := strings.Split(text, ",")
	if len(parts) > maxPoints {
		return nil, fmt.Errorf("%w: %d points, more than %d", ErrSeries, len(parts), maxPoints)
	}
	s := make(Series, 0, len(parts))
	for _, p := range parts {
		a, b, _ := strings.Cut(p, ":")
		tokens, err1 := strconv.Atoi(strings.TrimSpace(a))
		seconds, err2 := strconv.ParseFloat(strings.TrimSpace(b), 64)
		if err1 != nil || err2 != nil || tokens < 1 || tokens > maxTokens || !(seconds > 0 && seconds <= maxSeconds) {
			return nil, fmt.Errorf("%w: %.40q: want tokens:seconds, both more than 0", ErrSeries, p)
		}
		s = append(s, Point{tokens, seconds})
	}
	return s, s.settle()
}

// Rate is the series of an engine that reads so many tokens/s at any length.
func Rate(perSecond float64) Series { return Series{{1, 1 / perSecond}} }

// settle sorts the series and refuses a length that is there twice.
func (s Series) settle() error {
	slices.SortFunc(s, func(a, b Point) int { return cmp.Compare(a.Tokens, b.Tokens) })
	for i := range s {
		if i > 0 && s[i].Tokens == s[i-1].Tokens {
			return fmt.Errorf("%w: %d tokens are there twice", ErrSeries, s[i].Tokens)
		}
	}
	return nil
}

// At is the time of a prompt in seconds. The time of a token is taken as linear between
// the points, as attention has it, and as constant below the first one. Beyond the last
// it goes on as between the last two where it rises there, else it stays. NaN where the
// series is empty.
func (s Series) At(tokens int) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	return s.each(float64(tokens)) * float64(tokens)
}

// each is the time of one token of a prompt of a length.
func (s Series) each(tokens float64) float64 {
	i, _ := slices.BinarySearchFunc(s, tokens, func(p Point, t float64) int { return cmp.Compare(float64(p.Tokens), t) })
	switch {
	case i == 0:
		return s[0].each()
	case i < len(s):
		return line(s[i-1], s[i], tokens)
	case i == 1:
		return s[0].each()
	}
	last := s[i-1]
	return max(last.each(), line(s[i-2], last, tokens))
}

// each is the time of one of the point's tokens.
func (p Point) each() float64 { return p.Seconds / float64(p.Tokens) }

// line is the time of a token on the line through two points.
func line(a, b Point, tokens float64) float64 {
	x := (tokens - float64(a.Tokens)) / float64(b.Tokens-a.Tokens)
	return a.each() + x*(b.each()-a.each())
}

// Longest is the longest prompt of the series that was measured; 0 for a rate.
func (s Series) Longest() int {
	if len(s) == 0 || s[len(s)-1].Tokens == 1 {
		return 0
	}
	return s[len(s)-1].Tokens
}

// String is the series as ParseSeries reads it.
func (s Series) String() string {
	if len(s) == 0 {
		return "not known"
	}
	if s.Longest() == 0 {
		return strconv.FormatFloat(1/s[0].Seconds, 'f', -1, 64)
	}
	words := make([]string, len(s))
	for i, p := range s {
		words[i] = fmt.Sprintf("%d:%g", p.Tokens, p.Seconds)
	}
	return strings.Join(words, ",")
}
