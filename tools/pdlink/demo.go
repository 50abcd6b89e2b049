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
	"pdlink/bridge/replay"
)

func newDemo(std streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "run the whole job on what is built in",
		Long: `demo replays the bundled cases over every link that needs no set-up, puts the
blocks into a store in a temporary directory, and compares them with those that
a real decoder wrote for the same prompts. It needs no GPU, no root and no
network.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return demo(c.Context(), std, asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a result for each case and link as JSON, one a line")
	return c
}

// demoLinks are the links that the demo shows.
func demoLinks() []string { return []string{"mem://", "tcp://127.0.0.1:0"} }

func demo(ctx context.Context, std streams, asJSON bool) error {
	dir, err := os.MkdirTemp("", "pdlink-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the system's own clean-up takes what is left
	names, err := bundledCases()
	if err != nil {
		return err
	}
	results := make([]replayResult, 0, len(names)*len(demoLinks()))
	for _, name := range names {
		path, err := unpackCase(name, filepath.Join(dir, "cases"))
		if err != nil {
			return err
		}
		for _, link := range demoLinks() {
			if !asJSON {
				std.notef("replay %s over %s\n", name, link)
			}
			res, err := demoRun(ctx, std, path, link, filepath.Join(dir, "store-"+name+"-"+scheme(link)))
			if err != nil {
				return failed(fmt.Errorf("replay %s over %s: %w", name, link, err))
			}
			results = append(results, res)
		}
	}
	return demoReport(std, results, asJSON)
}

// demoRun replays one case over one link into a new store.
func demoRun(ctx context.Context, std streams, path, link, store string) (replayResult, error) {
	f := replayFlags{store: store, link: link, senders: 1, share: replay.Share{Parts: 1}}
	j, err := f.job([]string{path})
	if err != nil {
		return replayResult{}, err
	}
	v, err := f.transfer(ctx, std, j)
	if err != nil {
		return replayResult{}, err
	}
	res, _, err := f.result(j, v)
	if err == nil && v.State != bridge.Complete {
		err = fmt.Errorf("verdict %s", v)
	}
	return res, err
}

// demoReport prints the table and decides.
func demoReport(std streams, results []replayResult, asJSON bool) error {
	identical, total := 0, 0
	tw := tabwriter.NewWriter(std.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if !asJSON {
		fmt.Fprintln(tw, "case\tlink\tblocks\tbytes\tseconds\tGB/s\tms/token\tidentical\t")
	}
	for _, r := range results {
		identical += r.Identical
		total += r.Total
		if asJSON {
			if err := std.json(r); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%.3f\t%.4f\t%.4f\t%d of %d\t\n",
			r.Case, r.Link, r.Blocks, r.Bytes, r.Seconds, float64(r.Bytes)/r.Seconds/1e9,
			r.Seconds*1e3/float64(r.Tokens), r.Identical, r.Total)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	word, good := "ok", identical == total
	if !good {
		word = "FAILED"
	}
	line := fmt.Sprintf("demo: %s, %d of %d blocks identical to the decoder's own", word, identical, total)
	if asJSON {
		std.notef("%s\n", line)
	} else {
		attr := color.FgGreen
		if !good {
			attr = color.FgRed
		}
		std.printf("%s\n", std.paint(line, attr))
	}
	if !good {
		return &statusError{code: exitFailed}
	}
	return nil
}
