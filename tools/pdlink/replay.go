package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/bridge/replay"
	"pdlink/transport"
)

// replayFlags are the flags of `pdlink replay`.
type replayFlags struct {
	store, to, link  string
	discard, noSync  bool
	format           string
	poolState, chunk int
	numerics         string
	senders, workers int
	part, id         string
	synthetic        string
	tokens           int
	seed             uint64
	timeout          time.Duration
	keep, asJSON     bool
	share            replay.Share
}

const replayLong = `replay makes the blocks of a case (a recorded prefill, see the README) with the
same kernels and layouts as a live prefill, sends them over a link and puts them
into a store.

With --store the receiver runs in this process and the blocks are compared with
CASE/expected, where the decoder's own are recorded: header parsed and compared
but for created_at and padding, data byte for byte. With --to the receiver is a
"pdlink decode" elsewhere; several processes with --part 1/N … N/N fill one
transfer together, each with its share of the layers.

A prompt shorter than a block has no blocks: the verdict is "skipped". Tokens
behind the last whole block are left to the decoder. Where the prompt is an exact
multiple of the block and the decoder cannot use a block that leaves it no token
to compute (DeepSeek-V4), the last block is withheld.

Exit status 0 only if everything that was expected is there and identical.`

func newReplay(std streams) *cobra.Command {
	var f replayFlags
	c := &cobra.Command{
		Use:   "replay CASE {--store DIR | --to URL}",
		Short: "send the blocks of a recorded prefill",
		Long:  replayLong,
		Example: `  pdlink replay testdata/cases/kv-qwen3 --store /tmp/store --link tcp://127.0.0.1:0
  pdlink replay CASE --to tcp://127.0.0.1:7411 --part 1/2
  pdlink replay --synthetic deepseek-v4-flash --tokens 100000 --to tcp://127.0.0.1:7411`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return f.run(c.Context(), std, args) },
	}
	f.register(c)
	return c
}

func (f *replayFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.store, "store", "", "receive here, into the block store at `DIR`")
	fl.BoolVar(&f.discard, "discard", false, "receive here and keep nothing: for measuring")
	fl.StringVar(&f.to, "to", "", "send to the receiver at `URL` (tcp://host:port)")
	fl.StringVar(&f.link, "link", "mem://", "link to use with --store: mem:// or tcp://127.0.0.1:0")
	fl.BoolVar(&f.noSync, "no-sync", false, "with --store: do not wait for the disk")
	fl.StringVar(&f.format, "format", "", "block format 3, 4 or 5 (default: the case's)")
	fl.IntVar(&f.poolState, "pool-state", 0, "elements of a pool's state, 3 or 5 (default: the case's in its own format, else what the format's writers use)")
	fl.IntVar(&f.chunk, "chunk", 0, "tokens taken at a time; 0 is "+strconv.Itoa(replay.DefaultChunk)+", -1 the whole prompt")
	fl.StringVar(&f.numerics, "numerics", "", "rounding profile: mlx-cpu, mlx-metal or ideal (default: the case's)")
	fl.IntVar(&f.senders, "senders", 1, "senders that share the layers, each with a connection of its own")
	fl.IntVar(&f.workers, "workers", 0, "goroutines of the kernels (default: all cores)")
	fl.StringVar(&f.part, "part", "", "send only share `I/N` of the layers; other processes send the rest")
	fl.StringVar(&f.id, "id", "", "transfer id, 32 hex digits (default: made from the plan, so that all parts agree)")
	fl.StringVar(&f.synthetic, "synthetic", "", "instead of a case: made-up values in the shapes of `MODEL` ("+strings.Join(replay.SyntheticModels(), ", ")+")")
	fl.IntVar(&f.tokens, "tokens", 0, "with --synthetic: length of the prompt")
	fl.Uint64Var(&f.seed, "seed", 0, "with --synthetic: other seeds give other blocks")
	fl.DurationVar(&f.timeout, "timeout", 0, "give up after this time (default: never)")
	fl.BoolVar(&f.keep, "keep", false, "keep every frame until its blocks are durable, as a live source must")
	fl.BoolVar(&f.asJSON, "json", false, "print the result as JSON")
	c.MarkFlagsMutuallyExclusive("store", "to", "discard")
	c.MarkFlagsOneRequired("store", "to", "discard")
	c.MarkFlagsMutuallyExclusive("senders", "part")
	must(c.MarkFlagDirname("store"))
	must(c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"3", "4", "5"}, cobra.ShellCompDirectiveNoFileComp)))
	must(c.RegisterFlagCompletionFunc("numerics", cobra.FixedCompletions([]string{"mlx-cpu", "mlx-metal", "ideal"}, cobra.ShellCompDirectiveNoFileComp)))
	must(c.RegisterFlagCompletionFunc("synthetic", cobra.FixedCompletions(replay.SyntheticModels(), cobra.ShellCompDirectiveNoFileComp)))
}

// job is a replay that is ready to run: a case or a synthetic prompt.
type job struct {
	name, kind string
	plan       omlx.Plan
	withheld   int
	compare    func(store string) (replay.Comparison, error) // nil: nothing is recorded
	source     func(replay.Options) (bridge.Source, error)
}

// replayResult is what `pdlink replay --json` prints.
type replayResult struct {
	Case      string  `json:"case"`
	Kind      string  `json:"kind"`
	Link      string  `json:"link"`
	Verdict   string  `json:"verdict"`
	Blocks    int     `json:"blocks"` // visible
	Total     int     `json:"total"`  // of the plan
	Bytes     uint64  `json:"bytes"`  // payload that arrived
	Seconds   float64 `json:"seconds"`
	Tokens    int     `json:"tokens"`   // that the visible blocks cover
	Withheld  int     `json:"withheld"` // whole blocks that the decoder could not use
	Compared  bool    `json:"compared"` // the next three count
	Identical int     `json:"identical"`
	Different int     `json:"different"`
	Missing   int     `json:"missing"`
	PeakRSS   uint64  `json:"peak_rss_bytes"`
}

func (f *replayFlags) run(ctx context.Context, std streams, args []string) error {
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("not done after %v (--timeout)", f.timeout))
		defer cancel()
	}
	if err := f.parseShare(); err != nil {
		return err
	}
	j, err := f.job(args)
	if err != nil {
		return err
	}
	v := bridge.Verdict{State: bridge.Skipped, Reason: "the prompt has no whole block"}
	if j.withheld > 0 {
		v.Reason = "the prompt's only whole block leaves the decoder no token to compute"
	}
	if len(j.plan.Hashes) > 0 {
		if v, err = f.transfer(ctx, std, j); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return failed(err)
		}
	}
	res, findings, err := f.result(j, v)
	if err != nil {
		return failed(err)
	}
	for _, why := range findings {
		std.notef("%s\n", why)
	}
	good := (v.State == bridge.Complete || v.State == bridge.Skipped) && res.Different == 0 && res.Missing == 0
	if !f.asJSON {
		printReplay(std, res, good)
	} else if err := std.json(res); err != nil {
		return err
	}
	if !good {
		return &statusError{code: exitFailed}
	}
	return nil
}

// result puts together what a transfer came to, and compares its blocks with
// those that the case records.
func (f *replayFlags) result(j *job, v bridge.Verdict) (res replayResult, findings []string, err error) {
	res = replayResult{
		Case: j.name, Kind: j.kind, Link: scheme(f.link), Verdict: v.String(),
		Blocks: v.Blocks, Total: len(j.plan.Hashes), Bytes: v.Bytes, Seconds: v.Seconds,
		Tokens: v.Blocks * j.plan.Spec.BlockTokens, Withheld: j.withheld, PeakRSS: peakRSS(),
	}
	if f.to != "" {
		res.Link = scheme(f.to)
	}
	if j.compare == nil || f.store == "" {
		return res, nil, nil
	}
	cmp, err := j.compare(f.store)
	res.Compared, res.Identical, res.Different, res.Missing = err == nil, cmp.Identical, cmp.Different, cmp.Missing
	return res, cmp.Findings, err
}

func printReplay(std streams, r replayResult, good bool) {
	std.printf("%s over %s: %s\n", r.Case, r.Link, std.verdict(r.Verdict, good))
	std.printf("  %d of %d blocks (%d tokens), %s in %.3f s", r.Blocks, r.Total, r.Tokens, bytesText(r.Bytes), r.Seconds)
	if r.Seconds > 0 && r.Tokens > 0 {
		std.printf(", %.3f GB/s, %.4f ms per token", float64(r.Bytes)/r.Seconds/1e9, r.Seconds*1e3/float64(r.Tokens))
	}
	std.printf("\n")
	if r.Withheld > 0 {
		std.printf("  %d block withheld: the decoder needs a token to compute\n", r.Withheld)
	}
	if r.Compared {
		std.printf("  against the decoder's own: %d identical, %d different, %d missing\n", r.Identical, r.Different, r.Missing)
	}
}

// parseShare reads --part.
func (f *replayFlags) parseShare() error {
	f.share = replay.Share{Parts: 1}
	if f.senders < 1 || f.senders > transport.MaxParts {
		return fmt.Errorf("--senders %d: want 1 to %d", f.senders, transport.MaxParts)
	}
	if f.part == "" {
		return nil
	}
	var i, n int
	a, b, ok := strings.Cut(f.part, "/")
	i, err1 := strconv.Atoi(a)
	n, err2 := strconv.Atoi(b)
	if !ok || err1 != nil || err2 != nil || i < 1 || n < 1 || i > n || n > transport.MaxParts {
		return fmt.Errorf("--part %q: want I/N, for example 1/2, with N up to %d", f.part, transport.MaxParts)
	}
	f.share = replay.Share{Part: i - 1, Parts: n}
	return nil
}

// job reads what is to be replayed.
func (f *replayFlags) job(args []string) (*job, error) {
	switch {
	case f.synthetic != "" && len(args) > 0:
		return nil, errors.New("give a case or --synthetic, not both")
	case f.synthetic != "":
		y := replay.Synthetic{Model: f.synthetic, Tokens: f.tokens, Format: f.format, Seed: f.seed}
		plan, err := y.Plan()
		if err != nil {
			return nil, err
		}
		return &job{
			name: "synthetic:" + f.synthetic, kind: plan.Spec.Kind, plan: plan,
			source: func(o replay.Options) (bridge.Source, error) { return replay.NewSynthetic(plan, o) },
		}, nil
	case len(args) == 0:
		return nil, errors.New("which case? give a directory, or --synthetic MODEL")
	}
	c, err := replay.Load(args[0])
	if err != nil {
		return nil, err
	}
	spec, err := c.Spec(replay.Overrides{Format: f.format, PoolState: f.poolState})
	if err != nil {
		return nil, err
	}
	layout, err := omlx.NewLayout(spec)
	if err != nil {
		return nil, err
	}
	j := &job{name: c.Name, kind: c.Kind, plan: c.Plan(spec), withheld: c.Withheld()}
	j.source = func(o replay.Options) (bridge.Source, error) { return replay.NewSource(c, layout, o) }
	if c.Recorded(spec) {
		j.compare = c.Compare
	}
	return j, nil
}

// transferID is the same for all parts of one plan.
func (f *replayFlags) transferID(meta []byte) (transport.ID, error) {
	if f.id != "" {
		return transport.ParseID(f.id)
	}
	sum := sha256.Sum256(append([]byte("pdlink replay\n"), meta...))
	return transport.ID(sum[:16]), nil
}
