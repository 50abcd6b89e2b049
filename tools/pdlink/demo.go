package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/fatih/color"
	"github.com/spf13/cobra"

	"pdlink/bridge"
)

func newDemo(std streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "run the whole job on what is built in",
		Long: `demo replays the bundled cases over every link that needs no set-up, puts the
blocks into a store in a temporary directory, and compares them with those that
a real decoder wrote for the same prompts. It needs no GPU, no root and no
network. It measures nothing: the seconds are mostly the arithmetic of the
kernels in plain Go.

` + statusText,
		Args: wants(0),
		RunE: func(c *cobra.Command, _ []string) error { return demo(c.Context(), std, asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a result for each case and link as JSON, one a line, and a summary")
	return c
}

// demoLinks are the links that the demo shows.
func demoLinks() []string { return []string{"mem://", "tcp://127.0.0.1:0"} }

// demoSummary is the last line of `pdlink demo --json`.
type demoSummary struct {
	Event     string `json:"event"`
	OK        bool   `json:"ok"`
	Identical int    `json:"identical"`
	Total     int    `json:"total"`
}

func demo(ctx context.Context, std streams, asJSON bool) error {
	dir, err := os.MkdirTemp("", "pdlink-demo-")
	if err != nil {
		return failed(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the system's own clean-up takes what is left
	names, err := bundledCases()
	if err != nil {
		return failed(err)
	}
	results := make([]replayResult, 0, len(names)*len(demoLinks()))
	for _, name := range names {
		for _, link := range demoLinks() {
			if !asJSON {
				std.notef("replay %s over %s\n", name, link)
			}
			res, err := demoRun(ctx, std, bundledPrefix+name, link, filepath.Join(dir, fmt.Sprintf("store-%d", len(results))))
			if err != nil {
				return failed(fmt.Errorf("replay %s over %s: %w", name, link, err))
			}
			results = append(results, res)
		}
	}
	return demoReport(std, results, asJSON)
}

// demoRun replays one case over one link into a new store.
func demoRun(ctx context.Context, std streams, name, link, store string) (replayResult, error) {
	f := replayFlags{store: store, link: link, senders: 1}
	if err := f.settle(); err != nil {
		return replayResult{}, err
	}
	j, err := f.job([]string{name}, nil)
	if err != nil {
		return replayResult{}, err
	}
	defer j.release()
	v, err := f.transfer(ctx, std, j)
	if err != nil {
		return replayResult{}, err
	}
	res, findings, err := f.result(j, v)
	for _, why := range findings {
		std.notef("%s\n", why)
	}
	if err == nil && v.State != bridge.Complete {
		err = fmt.Errorf("verdict %s", v)
	}
	res.Event = "replay"
	return res, err
}

// demoReport prints the results and decides.
func demoReport(std streams, results []replayResult, asJSON bool) error {
	sum := demoSummary{Event: "summary"}
	for _, r := range results {
		sum.Identical += r.Identical
		sum.Total += r.Total
	}
	sum.OK = sum.Identical == sum.Total
	if !asJSON {
		return demoTable(std, results, sum)
	}
	for _, r := range results {
		if err := std.json(r); err != nil {
			return err
		}
	}
	if err := std.json(sum); err != nil || sum.OK {
		return err
	}
	return failed(nil)
}

// demoTable prints the results for people.
func demoTable(std streams, results []replayResult, sum demoSummary) error {
	tw := tabwriter.NewWriter(std.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "case\tlink\tblocks\tbytes\tseconds\tidentical\t")
	for _, r := range results {
		printTo(tw, "%s\t%s\t%d\t%d\t%.3f\t%d of %d\t\n", r.Case, r.Link, r.Blocks, r.Bytes, r.Seconds, r.Identical, r.Total)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	word, attr := "ok", color.FgGreen
	if !sum.OK {
		word, attr = "FAILED", color.FgRed
	}
	std.printf("(seconds include the kernels' arithmetic: they do not say what a link can do)\n")
	std.printf("%s\n", std.paint(
		fmt.Sprintf("demo: %s, %d of %d blocks identical to the decoder's own", word, sum.Identical, sum.Total), attr))
	if !sum.OK {
		return failed(nil)
	}
	return nil
}
