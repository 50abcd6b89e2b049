package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pdlink/bridge/cost"
	"pdlink/bridge/cost/page"
	"pdlink/bridge/replay"
)

const costLong = `cost measures what each kind of link takes under the bridge on this host, with a
real model's block sizes, and says what that means to somebody who waits for an
answer: milliseconds a token, seconds for prompts of usual lengths, the wait that
is left when the prefill is over, processor time at both ends, and the length of a
prompt from which bridging is faster than the decoder alone.

Both ends run here, in a process each (mem: in one). Links take turns, and the first
round is not counted. rdma needs an address of an RDMA port of this host: --at. What
a cable in between would allow is computed, and the report says how.

How fast the engines are is said with --prefill-rate and --native-rate, as tokens/s
or as seconds of prompts (25000:17.1,82000:42.2), or asked from two OpenAI endpoints
with --engines PREFILL,DECODER: prompts of random words, one token to answer. Without
either it is what somebody published for the model, and the report says who. Whatever
is not measured here is marked as given, published or assumed.

With a CASE (a directory, or bundled:NAME) its own blocks are sent: its length is the
only one measured then. They are made before the clock runs, up to 256 MB; of more the
arithmetic in plain Go is in the numbers, and the report says so. Where nobody says how
fast the engines are, break-evens are those of assumed ones.

Other lengths than those measured (--measure) are taken from a line through them, marked
~, and ~~ where they are more than ten times as long; each with its interval of 95 %.

--html writes a page for people, without scripts and without anything from a network;
--json prints the same as JSON, whose schema "pdlink cost schema" prints. "pdlink cost
compare A B" compares two such files.

` + statusText

// costFlags are the flags of `pdlink cost`.
type costFlags struct {
	links                   []string
	at                      string
	model                   string
	measure                 []int
	runs, tails             int
	chunk                   int
	prefill, native, cached string
	engines                 []string
	asked                   []int
	html, store             string
	discard, noSync, asJSON bool

	// What check made of them.
	known cost.Known
}

// costLinks are the links that cost knows, in the order of a report.
func costLinks() []string { return []string{"mem", "unix", "tcp", "tcp+tls", schemeRDMA} }

func newCost(std streams) *cobra.Command {
	var f costFlags
	c := &cobra.Command{
		Use:   "cost [CASE]",
		Short: "say what each link costs, and from which prompt on bridging pays",
		Long:  costLong,
		Example: `  pdlink cost --html cost.html
  pdlink cost --model qwen3-32b --links tcp,tcp+tls,rdma --at 10.0.0.5 --json >cost.json
  pdlink cost --engines http://127.0.0.1:8000,http://127.0.0.1:8010 --html cost.html`,
		Args:              wants(0, "CASE"),
		ValidArgsFunction: completeCase,
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(flagsOf(c), args); err != nil {
				return err
			}
			return f.run(c.Context(), std, args)
		},
	}
	f.register(c)
	c.AddCommand(newCostCompare(std), newCostSchema(std), newCostEnd(std))
	return c
}

func newCostSchema(std streams) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "print the JSON schema of what cost --json prints",
		Long:  "schema prints the JSON schema of what cost --json prints.\n\n" + statusText,
		Args:  wants(0),
		RunE: func(*cobra.Command, []string) error {
			std.printf("%s", painted(cost.Schema))
			return nil
		},
	}
}

func (f *costFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringSliceVar(&f.links, "links", costLinks(), "links to measure, of "+listText(costLinks())+"; tcp and rdma are in clear, tcp+tls is sealed")
	fl.StringVar(&f.at, "at", "127.0.0.1", "`ADDRESS` of this host at which tcp and rdma receive")
	fl.StringVar(&f.model, "model", "deepseek-v4-flash", "`MODEL` whose shapes the blocks have ("+listText(replay.SyntheticModels())+")")
	fl.IntSliceVar(&f.measure, "measure", nil, "prompt lengths to measure, in tokens (default: two, the longer of about 256 MB of blocks)")
	fl.IntVar(&f.runs, "runs", 5, "times that each length is measured")
	fl.IntVar(&f.tails, "tail-runs", 3, "times that the wait behind the last layer is measured at the prefill's pace; 0: not at all")
	fl.IntVar(&f.chunk, "chunk", replay.DefaultChunk, "tokens that the engine computes at a time")
	fl.StringVar(&f.prefill, "prefill-rate", "", "how fast the prefill engine is: `TOKENS/S`, or tokens:seconds,…")
	fl.StringVar(&f.native, "native-rate", "", "how fast the decoder reads prompts by itself: `TOKENS/S`, or tokens:seconds,…")
	fl.StringVar(&f.cached, "cached-rate", "", "how fast the decoder answers when it has the blocks: `TOKENS/S`, or tokens:seconds,…")
	fl.StringSliceVar(&f.engines, "engines", nil, "ask both engines how fast they are: `URL,URL` of the prefill engine and of the decoder")
	fl.IntSliceVar(&f.asked, "engine-lengths", []int{2000, 8000}, "with --engines: prompt lengths to ask with, in words or so")
	fl.StringVar(&f.store, "store", "", "make the stores below `DIR`, on the decoder's disk (default: the directory for temporary files)")
	fl.BoolVar(&f.discard, "discard", false, "verify blocks and keep nothing: leaves the disk out")
	fl.BoolVar(&f.noSync, "no-sync", false, "do not wait for the disk")
	fl.StringVar(&f.html, "html", "", "write the page for people to `FILE`")
	fl.BoolVar(&f.asJSON, "json", false, "print the report as JSON")
	must(c.MarkFlagDirname("store"))
	must(c.MarkFlagFilename("html", "html"))
	for flag, values := range map[string][]string{"links": costLinks(), "model": replay.SyntheticModels()} {
		must(c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
	}
}

// Limits of what a command line may ask for.
const (
	maxCostRuns    = 1000
	maxCostTokens  = 4_000_000
	maxCostLengths = 16
)

func (f *costFlags) check(g given, args []string) error {
	err := g.filled(map[string]string{
		"links": strings.Join(f.links, ""), "at": f.at, "model": f.model, "prefill-rate": f.prefill, "native-rate": f.native, "cached-rate": f.cached,
		"engines": strings.Join(f.engines, ""), "store": f.store, "html": f.html,
	})
	if err != nil {
		return err
	}
	for i, l := range f.links {
		if !slices.Contains(costLinks(), l) || slices.Contains(f.links[:i], l) {
			return fmt.Errorf("--links %s: want each of %s once at most", strings.Join(f.links, ","), listText(costLinks()))
		}
	}
	slices.SortFunc(f.links, func(a, b string) int { return slices.Index(costLinks(), a) - slices.Index(costLinks(), b) })
	switch {
	case f.runs < 1 || f.runs > maxCostRuns || f.tails < 0 || f.tails > maxCostRuns:
		return fmt.Errorf("--runs %d, --tail-runs %d: want 1 to %[3]d, and 0 to %[3]d", f.runs, f.tails, maxCostRuns)
	case f.chunk < 1 || f.chunk > maxCostTokens:
		return fmt.Errorf("--chunk %d: want 1 to %d tokens", f.chunk, maxCostTokens)
	case len(f.engines) != 0 && len(f.engines) != 2:
		return fmt.Errorf("--engines: want two URLs, of the prefill engine and of the decoder, not %d", len(f.engines))
	case len(args) > 0 && (g("model") || g("measure")):
		return errors.New("--model and --measure are for made-up prompts: a case has its own model and length")
	case f.discard && (g("store") || f.noSync):
		return errors.New("--store and --no-sync have no effect with --discard, which keeps nothing")
	case strings.ContainsAny(f.at, "/ \t[]@?"):
		return fmt.Errorf("--at %q: want an address of this host, without a scheme and a port", f.at)
	}
	if err := checkLengths("measure", f.measure); err != nil {
		return err
	}
	if err := checkLengths("engine-lengths", f.asked); err != nil {
		return err
	}
	return f.settle(g, args)
}

// checkLengths refuses what is no length of a prompt.
func checkLengths(flag string, list []int) error {
	if len(list) > maxCostLengths || slices.ContainsFunc(list, func(n int) bool { return n < 1 || n > maxCostTokens }) {
		return fmt.Errorf("--%s %s: want up to %d lengths of 1 to %d tokens", flag, listText(list), maxCostLengths, maxCostTokens)
	}
	return nil
}

// settle makes what is known of the engines.
func (f *costFlags) settle(g given, args []string) error {
	if len(args) == 0 && !slices.Contains(replay.SyntheticModels(), strings.ToLower(f.model)) {
		return fmt.Errorf("--model %s: want one of %s", f.model, listText(replay.SyntheticModels()))
	}
	rates := []struct {
		flag, text string
		to         *cost.Series
	}{{"prefill-rate", f.prefill, &f.known.Prefill}, {"native-rate", f.native, &f.known.Native}, {"cached-rate", f.cached, &f.known.Cached}}
	said := g("prefill-rate") || g("native-rate")
	switch {
	case len(f.engines) > 0 && (said || g("cached-rate")):
		return errors.New("give --engines, which asks, or rates, which say")
	case said != (g("prefill-rate") && g("native-rate")):
		return errors.New("--prefill-rate and --native-rate go together: one of them alone decides nothing")
	case said:
		f.known.Source, f.known.Origins = "said on the command line", cost.Origins{Prefill: cost.Given, Native: cost.Given}
	case len(f.engines) == 0 && len(args) == 0:
		f.known, _ = cost.KnownEngines(f.model)
		if g("cached-rate") {
			f.known.Source += "; the decoder with its blocks: said on the command line"
		}
	}
	if g("cached-rate") {
		f.known.Origins.Cached = cost.Given
	}
	for _, r := range rates {
		if r.text == "" {
			continue
		}
		s, err := cost.ParseSeries(r.text)
		if err != nil {
			return fmt.Errorf("--%s: %w", r.flag, err)
		}
		*r.to = s
	}
	return nil
}

func (f *costFlags) run(ctx context.Context, std streams, args []string) error {
	if len(f.engines) > 0 {
		var err error
		if f.known, err = f.ask(ctx, std); err != nil {
			return failed(err)
		}
	}
	r, err := f.measured(ctx, std, args)
	if err != nil {
		if ctx.Err() != nil {
			return failed(errStopped)
		}
		return err
	}
	if f.html != "" {
		if err := writePage(f.html, r); err != nil {
			return failed(err)
		}
		std.notef("the page is in %s\n", f.html)
	}
	if f.asJSON {
		return std.json(r)
	}
	printCost(std, r)
	if len(r.Engines.Native) == 0 {
		std.notef("say how fast the engines are, with --prefill-rate and --native-rate or --engines, to see from which prompt on bridging pays\n")
	}
	return nil
}

// writePage writes a report as a page.
func writePage(name string, r *cost.Report) error {
	w, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	if err = errors.Join(page.Write(w, r), w.Close()); err != nil {
		return fmt.Errorf("--html %s: %w", name, err)
	}
	return nil
}

// reportOf is a report that says on what it was measured.
func (f *costFlags) reportOf(args []string) *cost.Report {
	r := &cost.Report{
		Version: thisBuild().Version, Time: time.Now().UTC().Format(time.RFC3339), Host: costHost(), Case: cost.Synthetic + f.model,
		Chunk: f.chunk, Repeats: f.runs, Store: "durable", Missing: []cost.Missing{}, Published: []cost.Replaced{}, Native: []cost.Native{},
	}
	r.Engines.Source, r.Engines.Origins = f.known.Source, f.known.Origins
	switch {
	case f.discard:
		r.Store = "none"
	case f.noSync:
		r.Store = "written"
	}
	if len(args) > 0 {
		r.Case = args[0]
	}
	return r
}
