package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"pdlink/tools/pdperf/stats"
)

// series is the measurements of one peer under one condition, by repetition.
type series struct {
	peer                      string
	goodput, sender, receiver []float64 // NaN where a repetition failed
	p50, p99, foreign         []float64
	retrans                   []float64
	verified, sealed, failed  int
	limit                     float64
	note                      string
	errors                    []string
}

// condition is what the measurements of a table have in common.
type condition struct {
	link  string
	mtu   int
	block int64
}

// printTables prints a table for each condition, in the order of the records.
func printTables(out io.Writer, all []record, o options) {
	var order []condition
	by := map[condition][]record{}
	for _, r := range all {
		c := condition{r.Link, r.MTU, r.Block}
		if by[c] == nil {
			order = append(order, c)
		}
		by[c] = append(by[c], r)
	}
	for _, c := range order {
		t := table{list: group(by[c]), confidence: o.confidence, coverage: 1}
		for _, s := range t.list {
			if s.peer == o.base {
				t.base = s
			}
		}
		t.print(out, c, o.base)
	}
}

// group sorts the records of one condition into series.
func group(all []record) []*series {
	var list []*series
	reps := 0
	for _, r := range all {
		reps = max(reps, r.Rep+1)
	}
	for _, r := range all {
		i := slices.IndexFunc(list, func(s *series) bool { return s.peer == r.Peer })
		if i < 0 {
			s := &series{peer: r.Peer, limit: r.Limit}
			for _, v := range s.columns() {
				*v = make([]float64, reps)
				for k := range *v {
					(*v)[k] = math.NaN()
				}
			}
			list, i = append(list, s), len(list)
		}
		s := list[i]
		if r.Error != "" {
			s.failed++
			s.errors = append(s.errors, r.Error)
			continue
		}
		for k, v := range []float64{r.Goodput, r.Sender, r.Receiver, r.P50, p99(r.P99, r.GB*1e9, r.Block), r.Foreign, float64(r.Retrans)} {
			(*s.columns()[k])[r.Rep] = v
		}
		if r.Verified {
			s.verified++
		}
		if r.Sealed {
			s.sealed++
		}
		s.note = r.Note
	}
	return list
}

func (s *series) columns() []*[]float64 {
	return []*[]float64{&s.goodput, &s.sender, &s.receiver, &s.p50, &s.p99, &s.foreign, &s.retrans}
}

// present are the values of repetitions that succeeded.
func present(v []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(v), math.IsNaN)
}

// table is what is printed for one condition.
type table struct {
	list       []*series
	base       *series // the peer that the others are divided by; nil: it is not there
	confidence float64
	coverage   float64 // the least that an interval of the table reached
}

// print prints the table and what has to be said about it.
func (t *table) print(out io.Writer, c condition, base string) {
	where := c.link
	if c.mtu > 0 {
		where += fmt.Sprintf(", MTU %d", c.mtu)
	}
	fmt.Fprintf(out, "\n### %s, blocks of %.1f MB\n", where, float64(c.block)/1e6)
	if limit := t.list[0].limit; limit > 0 {
		fmt.Fprintf(out, "The link carries %.4f GB/s of TCP payload.\n", limit)
	}
	fmt.Fprintf(out, "Median (%.0f %% interval by order statistics) of the repetitions; ratios to %s are medians of pairs.\n\n", t.confidence*100, base)
	tw := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintf(tw, "| peer\t| n\t| GB/s\t| of limit\t| ratio\t| sender s/GB\t| ratio\t| receiver s/GB\t| ratio\t| p50 ms\t| p99 ms\t| retrans\t| foreign cores\t| verified\t| sealed\t|\n")
	fmt.Fprintln(tw, strings.Repeat("|---\t", 15)+"|")
	for _, s := range t.list {
		fmt.Fprintln(tw, t.row(s))
	}
	tw.Flush() //nolint:errcheck // nobody is left to tell
	fmt.Fprintln(out)
	if t.coverage < t.confidence {
		fmt.Fprintf(out, "With so few repetitions an interval has the true median with a probability of %.2f only.\n", t.coverage)
	}
	for _, s := range t.list {
		if s.note != "" {
			fmt.Fprintf(out, "- %s: %s\n", s.peer, s.note)
		}
		for _, e := range s.errors {
			fmt.Fprintf(out, "- %s FAILED: %s\n", s.peer, strings.Join(strings.Fields(e), " "))
		}
	}
}

// row is the cells of one peer.
func (t *table) row(s *series) string {
	ratio := func(of, by []float64) string {
		if t.base == s {
			return none
		}
		return t.interval(stats.Ratios(of, by))
	}
	base := t.base
	if base == nil {
		base = &series{}
	}
	cells := []string{
		s.peer, strconv.Itoa(len(present(s.goodput))),
		t.interval(s.goodput), t.middle(s.goodput, 4, s.limit), ratio(s.goodput, base.goodput),
		t.interval(s.sender), ratio(s.sender, base.sender), t.interval(s.receiver), ratio(s.receiver, base.receiver),
		t.middle(told(s.p50), 1, 1), t.middle(told(s.p99), 1, 1), t.middle(s.retrans, 0, 1), t.middle(s.foreign, 2, 1), s.always(s.verified), s.always(s.sealed),
	}
	return "| " + strings.Join(cells, "\t| ") + "\t|"
}

// none is an empty cell.
const none = "–"

// interval is the cell of a median with its interval.
func (t *table) interval(v []float64) string {
	i := stats.Median(present(v), t.confidence)
	if i.N == 0 {
		return none
	}
	t.coverage = min(t.coverage, i.Coverage)
	return fmt.Sprintf("%.3f (%.3f–%.3f)", i.Median, i.Low, i.High)
}

// middle is the cell of a median divided by something, empty where that is 0.
func (t *table) middle(v []float64, digits int, by float64) string {
	m := stats.Median(present(v), t.confidence).Median / by
	if math.IsNaN(m) || math.IsInf(m, 0) {
		return none
	}
	return strconv.FormatFloat(m, 'f', digits, 64)
}

// told leaves out the zeros that stand for what a peer does not tell.
func told(v []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(v), func(x float64) bool { return !(x > 0) })
}

// always is the cell of something that was so in n of the repetitions.
func (s *series) always(n int) string {
	if n > 0 && n == len(present(s.goodput)) {
		return "yes"
	}
	return "no"
}
