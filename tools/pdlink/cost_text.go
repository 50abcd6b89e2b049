package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"pdlink/bridge/cost"
)

// printCost prints a report for people.
func printCost(std streams, r *cost.Report) {
	std.printf("%s\n", r.Headline)
	if text := r.EnginesText(); text != "" {
		std.printf("%s\n", text)
	}
	std.printf("\n")
	tw := tabwriter.NewWriter(std.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := "link\tper token\t(least to most)\ttail\tCPU s/GB\t"
	for _, c := range r.Links[0].Costs {
		head += cost.Number(c.Tokens) + " tokens\t"
	}
	fmt.Fprintln(tw, head+"pays from\t")
	for i := range r.Links {
		l := &r.Links[i]
		cpu := fmt.Sprintf("%.2f + %.2f", l.SenderCPU, l.ReceiverCPU)
		if l.Processes == 1 {
			cpu = fmt.Sprintf("%.2f", l.SenderCPU)
		}
		printTo(tw, "%s\t%s\t(%s to %s)\t%s\t%s\t", l.Link, cost.Milliseconds(l.MsPerToken), cost.Milliseconds(l.MsLeast), cost.Milliseconds(l.MsMost), cost.Seconds(l.Tail), cpu)
		for _, c := range l.Costs {
			printTo(tw, "%s\t", costMark(c.Basis)+cost.Seconds(c.Seconds))
		}
		printTo(tw, "%s\t\n", r.EvenText(l))
	}
	tw.Flush() //nolint:errcheck // nobody is left to tell
	if r.Estimates() {
		std.printf("~ was not measured: %s ~~ is more than %d times as long as anything that was; ~ before a length: the engines' times are extrapolated to it.\n", r.FitText(), cost.Far)
	}
	for _, text := range []string{r.BlockText(), r.SmallText(), r.FarText(), farSeconds(r), r.NoiseText()} {
		if text != "" {
			std.printf("%s\n", text)
		}
	}
	printIf(std, r)
	for _, m := range r.Missing {
		std.printf("%s was not measured: %s\n", m.Link, m.Why)
	}
}

// costMark is what stands before seconds that were not measured.
func costMark(basis string) string {
	switch basis {
	case cost.BasisMeasured:
		return ""
	case cost.BasisFar:
		return "~~"
	}
	return "~"
}

// farSeconds are the usual link's seconds of lengths that are far from all that was
// measured, with their intervals; empty where there are none, or no interval.
func farSeconds(r *cost.Report) string {
	l, list := r.Usual(), []string(nil)
	for _, c := range l.Costs {
		if c.Basis == cost.BasisFar && c.Least != nil && c.Most != nil {
			list = append(list, fmt.Sprintf("%s tokens %s to %s", cost.Number(c.Tokens), cost.Seconds(*c.Least), cost.Seconds(*c.Most)))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "If the line holds that far, with 95 %: " + strings.Join(list, ", ") + "."
}

// printIf prints from which length on bridging would pay, where the engines are not known.
func printIf(std streams, r *cost.Report) {
	for i, pair := range r.Usual().If {
		list := make([]string, 0, len(r.Links))
		for _, l := range r.Links {
			pays := "never"
			if n := l.If[i].BreakEven; n != nil {
				pays = cost.Number(*n)
			}
			list = append(list, l.Link+" "+pays)
		}
		std.printf("if the %s tokens/s (assumed), it pays from: %s\n", pair.Text(), strings.Join(list, ", "))
	}
}
