package main

import (
	"fmt"
	"math"
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
	Differs  bool    `json:"differs"`  // 1 is outside of an interval that is sure enough
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
			if a.Model != b.Model || a.BytesPerToken != b.BytesPerToken || a.Store != b.Store {
				return fmt.Errorf("they are of different things: A of %s, %s a token, store %s; B of %s, %s a token, store %s",
					a.Model, cost.Bytes(a.BytesPerToken), a.Store, b.Model, cost.Bytes(b.BytesPerToken), b.Store)
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

// ratios compares the links that both reports have.
func ratios(a, b *cost.Report) (list []costRatio) {
	for _, l := range a.Links {
		for _, m := range b.Links {
			if l.Link != m.Link {
				continue
			}
			n := commonLength(l.Measurements, m.Measurements)
			for _, w := range []struct {
				what  string
				paced bool
				of    func(cost.Run) float64
			}{
				{fmt.Sprintf("seconds of %s tokens", cost.Number(n)), false, func(r cost.Run) float64 { return r.Seconds }},
				{"tail, seconds", true, func(r cost.Run) float64 { return r.Tail }},
				{"sender CPU, seconds", false, func(r cost.Run) float64 { return r.SenderCPU }},
				{"receiver CPU, seconds", false, func(r cost.Run) float64 { return r.ReceiverCPU }},
			} {
				pick := func(runs []cost.Run) (v []float64) {
					for _, r := range runs {
						if r.Paced == w.paced && (w.paced || r.Tokens == n) {
							v = append(v, w.of(r))
						}
					}
					return v
				}
				x, y := pick(l.Measurements), pick(m.Measurements)
				q := stats.Ratio(y, x, costConfidence)
				if math.IsNaN(q.Median) {
					continue
				}
				list = append(list, costRatio{
					Event: "compare", Link: l.Link, What: w.what, A: stats.Median(x, costConfidence).Median, B: stats.Median(y, costConfidence).Median,
					Ratio: q.Median, Low: q.Low, High: q.High, Coverage: q.Coverage, Differs: q.Coverage >= costConfidence && (q.Low > 1 || q.High < 1),
				})
			}
		}
	}
	return list
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
		case r.Differs && r.Ratio > 1:
			word = "B takes more"
		case r.Differs:
			word = "B takes less"
		case r.Coverage < costConfidence:
			word = "too few runs to tell"
		}
		printTo(tw, "%s\t%s\t%.4g\t%.4g\t%.3f\t%.3f to %.3f (%.1f %%)\t%s\n", r.Link, r.What, r.A, r.B, r.Ratio, r.Low, r.High, 100*r.Coverage, word)
	}
	return tw.Flush()
}
