package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"pdlink/bridge/cost"
	"pdlink/tools/cmdline"
	"pdlink/tools/pdperf/stats"
)

// maxCostReport bounds the file of a report: a thousand runs of five links are 3 MB.
const maxCostReport = 32 << 20

// costConfidence is that of a comparison's intervals.
const costConfidence = 0.95

// costRatio is a line of `pdlink cost compare --json`.
type costRatio struct {
	Event    string  `json:"event"`
	Link     string  `json:"link"`
	What     string  `json:"what"`
	A        float64 `json:"a"`
	B        float64 `json:"b"`
	Ratio    float64 `json:"ratio"` // of B to A, by all pairs of their runs
	Low      float64 `json:"ratio_low"`
	High     float64 `json:"ratio_high"`
	Coverage float64 `json:"coverage"` // how probable it is that the interval has the true one
	Differs  bool    `json:"differs"`  // 1 is outside of an interval that is sure enough, and nothing disturbed the runs

	Disturbed []string `json:"disturbed"` // which reports' runs of this row differ by more than a half among themselves; null: none
	Unlike    []string `json:"unlike"`    // in what A and B were measured differently; null: in nothing
}

func newCostCompare(std streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "compare A B",
		Short: "compare two reports of cost, run by run",
		Long: `compare says how B differs from A, link by link: the time of the longest prompt that
both measured, and the wait behind the last layer, as the ratio B/A with an interval
that has the true one with a probability of 95 % or as much as the runs allow. Four
runs on each side are enough for that. A and B are files of "pdlink cost --json".

Reports of other cases, stores, chunks or ends are refused: ends are two processes, or both
in one. A row whose runs differ by more than a half among themselves in one of the reports,
in the row's own figure or in their seconds, was disturbed, and no difference is claimed of
it. Where hosts, builds or the prefill's pace are not the same, that is said.

` + statusText,
		Args: wants(2, "A", "B"),
		RunE: func(_ *cobra.Command, args []string) error {
			a, err := readCost(args[0])
			if err != nil {
				return err
			}
			b, err := readCost(args[1])
			if err != nil {
				return err
			}
			if list := differences(a, b); len(list) > 0 {
				return fmt.Errorf("they are of different things: %s", strings.Join(list, "; "))
			}
			return printRatios(std, ratios(a, b), asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each ratio")
	return c
}

// readCost reads a report. An error is the user's to mend.
func readCost(name string) (*cost.Report, error) {
	b, err := cmdline.ReadFile(name, maxCostReport, nil)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	r, err := cost.UnmarshalReport(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// setting is something that a report was measured with.
type setting struct{ what, a, b string }

// unequal are the settings that differ.
func unequal(list []setting) (texts []string) {
	for _, s := range list {
		if s.a != s.b {
			texts = append(texts, fmt.Sprintf("%s: A %s, B %s", s.what, cmp.Or(s.a, "none"), cmp.Or(s.b, "none")))
		}
	}
	return texts
}

// differences are those between two reports that make their numbers ones of different things.
func differences(a, b *cost.Report) []string {
	list := []setting{
		{"case", a.Case, b.Case}, {"model", a.Model, b.Model}, {"bytes a token", exactBytes(a.BytesPerToken), exactBytes(b.BytesPerToken)},
		{"tokens of a block", fmt.Sprint(a.BlockTokens), fmt.Sprint(b.BlockTokens)}, {"layers", fmt.Sprint(a.Layers), fmt.Sprint(b.Layers)},
		{"tokens of a chunk", fmt.Sprint(a.Chunk), fmt.Sprint(b.Chunk)}, {"store", a.Store, b.Store}, {"made before", fmt.Sprint(a.Made), fmt.Sprint(b.Made)},
	}
	for _, l := range a.Links {
		for _, m := range b.Links {
			if l.Link == m.Link {
				list = append(list, setting{"processes of " + l.Link, fmt.Sprint(l.Processes), fmt.Sprint(m.Processes)})
			}
		}
	}
	return unequal(list)
}

// exactBytes is an amount with all of its digits: equal texts are equal numbers.
func exactBytes(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) + " B" }

// costFigure is what a row of a comparison is of.
type costFigure struct {
	what  string
	paced bool // of runs at the prefill's pace, of any length
	of    func(cost.Run) float64
}

// costFigures are the rows of a link of which both measured prompts of n tokens.
func costFigures(n int) []costFigure {
	return []costFigure{
		{fmt.Sprintf("seconds of %s tokens", cost.Number(n)), false, func(r cost.Run) float64 { return r.Seconds }},
		{"tail, seconds", true, func(r cost.Run) float64 { return r.Tail }},
		{"sender CPU, seconds", false, func(r cost.Run) float64 { return r.SenderCPU }},
		{"receiver CPU, seconds", false, func(r cost.Run) float64 { return r.ReceiverCPU }},
	}
}

// pick returns the runs that the row is of, n tokens long, their values, and whether they
// were disturbed: those values or their seconds are too far apart.
func (f *costFigure) pick(all []cost.Run, n int) (values []float64, disturbed bool) {
	var runs []cost.Run
	for _, r := range all {
		if r.Paced == f.paced && (f.paced || r.Tokens == n) {
			runs, values = append(runs, r), append(values, f.of(r))
		}
	}
	_, _, figure := cost.Apart(runs, f.of)
	_, _, seconds := cost.Apart(runs, func(r cost.Run) float64 { return r.Seconds })
	return values, figure || seconds
}

// ratios compares the links that both reports have.
func ratios(a, b *cost.Report) (list []costRatio) {
	unlike := unequal([]setting{{"host", a.Host, b.Host}, {"pdlink", a.Version, b.Version}})
	for _, l := range a.Links {
		for _, m := range b.Links {
			if l.Link != m.Link {
				continue
			}
			n := commonLength(l.Measurements, m.Measurements)
			for _, f := range costFigures(n) {
				x, noisyA := f.pick(l.Measurements, n)
				y, noisyB := f.pick(m.Measurements, n)
				q := stats.Ratio(y, x, costConfidence)
				if math.IsNaN(q.Median) {
					continue
				}
				var disturbed []string
				if noisyA {
					disturbed = append(disturbed, "A")
				}
				if noisyB {
					disturbed = append(disturbed, "B")
				}
				also := slices.Clone(unlike)
				if f.paced {
					also = append(also, unequal([]setting{{"the prefill's pace", paceText(a), paceText(b)}})...)
				}
				list = append(list, costRatio{
					Event: "compare", Link: l.Link, What: f.what, A: stats.Median(x, costConfidence).Median, B: stats.Median(y, costConfidence).Median,
					Ratio: q.Median, Low: q.Low, High: q.High, Coverage: q.Coverage, Differs: q.Coverage >= costConfidence && (q.Low > 1 || q.High < 1) && len(disturbed) == 0,
					Disturbed: disturbed, Unlike: also,
				})
			}
		}
	}
	return list
}

// paceText is how fast a report's tails were made.
func paceText(r *cost.Report) string {
	chunk := r.Chunk
	if r.BlockTokens > 0 {
		chunk = max(1, chunk/r.BlockTokens) * r.BlockTokens
	}
	if len(r.Engines.Prefill) == 0 {
		return ""
	}
	return cost.Seconds(r.Engines.Prefill.At(chunk)) + " a chunk"
}

// commonLength is the longest prompt that both measured as fast as it goes; 0: none.
func commonLength(a, b []cost.Run) (most int) {
	for _, r := range a {
		for _, s := range b {
			if !r.Paced && !s.Paced && r.Tokens == s.Tokens {
				most = max(most, r.Tokens)
			}
		}
	}
	return most
}

func printRatios(std streams, list []costRatio, asJSON bool) error {
	if len(list) == 0 {
		return failed(fmt.Errorf("they have no link in common that was measured at the same length"))
	}
	tw := tabwriter.NewWriter(std.out, 0, 0, 2, ' ', 0)
	if !asJSON {
		fmt.Fprintln(tw, "link\twhat\tA\tB\tB/A\tinterval\t")
	}
	for _, r := range list {
		if asJSON {
			if err := std.json(r); err != nil {
				return err
			}
			continue
		}
		word := "no difference seen"
		switch {
		case len(r.Disturbed) > 0:
			word = "disturbed: runs of " + strings.Join(r.Disturbed, " and ") + " differ too much"
		case r.Differs && r.Ratio > 1:
			word = "B takes more"
		case r.Differs:
			word = "B takes less"
		case r.Coverage < costConfidence:
			word = "too few runs to tell"
		}
		printTo(tw, "%s\t%s\t%.4g\t%.4g\t%.3f\t%.3f to %.3f (%.1f %%)\t%s\n", r.Link, r.What, r.A, r.B, r.Ratio, r.Low, r.High, 100*r.Coverage, word)
	}
	if err := tw.Flush(); err != nil || asJSON {
		return err
	}
	var said []string
	for _, r := range list {
		for _, text := range r.Unlike {
			if !slices.Contains(said, text) {
				said = append(said, text)
				std.printf("not the same: %s\n", text)
			}
		}
	}
	return nil
}
