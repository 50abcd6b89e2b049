package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"pdlink/bridge/omlx"
	"pdlink/bridge/replay"
	"pdlink/kernels"
	"pdlink/kernels/cuda"
	"pdlink/kernels/verify"
	"pdlink/tools/cmdline"
)

const verifyLong = `verify holds the projection against what a decoder had: over a case, which is a
recorded prefill (see "pdlink replay --help" for its files), on the GPU where there
is one and libpdproj.so, else with the reference in plain Go. Which of them it was,
and why, is said first. Five checks are made:

  arrays        windows and carried rows, of every layer and at every boundary,
                against CASE/state.safetensors
  pooled        the pooled tensors, the indexers' too, against the same
  self-test     the prompt in chunks of several lengths gives the bits of one run
  continuation  a prompt that begins at a block's end, with what the decoder's block
                holds there or behind a prefix that it has, goes on in the same bits
  blocks        the case's blocks, whole and in chunks, as "pdlink replay" makes them
                with the reference, against the decoder's own in CASE/expected

The reference rounds as the case's decoder did. Against a decoder on a CPU (numerics
mlx-cpu) all bits must be equal. A GPU rounds as a Mac does and sums in another order,
so it is held to limits, against what is recorded and against the reference of the
same roundings: how many elements are equal, and the relative L2 distance. self-test
and continuation are exact on both.

What is not recorded is not checked: a check that has nothing to compare is left out,
and says so, and one that has less than it could says how many layers are recorded.
Where all are left out the status is 2. state.safetensors holds layer_{i}.pooled and .idx_pooled, and at boundaries and the
end layer_{i}.win@512, .prev_kv@512, .prev_gate@512, .buf_kv@end and so on.

The reference needs seconds for the bundled cases, and hours for a long prompt of a
real model: --tokens and --layers take a part of one.

` + statusText

// verifyCaseFlags are the flags of `pdlink verify`.
type verifyCaseFlags struct {
	engine, library string
	tokens, workers int
	layers          layerList
	asJSON          bool
}

// verifyCheck is one line of `pdlink verify --json`.
type verifyCheck struct {
	Event   string        `json:"event"`
	Case    string        `json:"case"`
	Check   string        `json:"check"`
	Engine  string        `json:"engine"`
	Result  verify.Result `json:"result"`
	Detail  string        `json:"detail,omitempty"`
	Classes []verifyClass `json:"classes,omitempty"`
}

// verifyClass is how far one sort of array is from what it should be.
type verifyClass struct {
	Class    string  `json:"class"`
	Against  string  `json:"against"` // recorded or reference
	Elements int     `json:"elements"`
	Equal    int     `json:"equal"`
	L2       float64 `json:"relative_l2"`
	Least    float64 `json:"least_equal_share"`
	Most     float64 `json:"most_relative_l2"`
	OK       bool    `json:"ok"`
}

// verifyCaseSummary is the last line.
type verifyCaseSummary struct {
	Event    string `json:"event"`
	Case     string `json:"case"`
	Engine   string `json:"engine"`
	Why      string `json:"why"`
	Numerics string `json:"numerics"`
	Tokens   int    `json:"tokens"`
	Layers   int    `json:"layers"`
	Passed   int    `json:"passed"`
	Failed   int    `json:"failed"`
	LeftOut  int    `json:"left_out"`
	OK       bool   `json:"ok"`
}

func newVerify(std streams) *cobra.Command {
	var f verifyCaseFlags
	c := &cobra.Command{
		Use:   "verify CASE",
		Short: "hold the projection against what a decoder had",
		Long:  verifyLong,
		Example: `  pdlink verify bundled:dsv4-a
  pdlink verify CASE --engine cuda --json`,
		Args:              wants(1, "CASE"),
		ValidArgsFunction: completeCase,
		RunE: func(c *cobra.Command, args []string) error {
			engine, err := f.check(flagsOf(c))
			if err != nil {
				return err
			}
			return f.run(c.Context(), std, args[0], engine)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.engine, "engine", cuda.Auto.String(), "who computes: `auto`, cuda or reference")
	fl.StringVar(&f.library, "library", "", "libpdproj.so is `FILE` (default: beside this program, else where the system's loader looks)")
	fl.IntVar(&f.tokens, "tokens", 0, "only the prompt's first so many tokens; 0 is all")
	fl.Var(&f.layers, "layers", "only these `LAYERS`, ascending, as 0,2,3 (default: all)")
	fl.IntVar(&f.workers, "workers", 0, "goroutines of the reference; 0 is one for each core")
	fl.BoolVar(&f.asJSON, "json", false, "print JSON, a check a line and a summary")
	must(c.RegisterFlagCompletionFunc("engine", cobra.FixedCompletions(verifyEngines(), cobra.ShellCompDirectiveNoFileComp)))
	return c
}

// verifyEngines are the values of --engine.
func verifyEngines() []string {
	return []string{cuda.Auto.String(), cuda.GPU.String(), cuda.Reference.String()}
}

// check looks at the command line as far as it can be judged without the case.
func (f *verifyCaseFlags) check(g given) (cuda.Engine, error) {
	if err := g.filled(map[string]string{"engine": f.engine, "library": f.library}); err != nil {
		return 0, err
	}
	if f.tokens < 0 {
		return 0, fmt.Errorf("--tokens %d: want 1 or more, or 0 for all", f.tokens)
	}
	if err := checkWorkers(f.workers); err != nil {
		return 0, err
	}
	for _, e := range []cuda.Engine{cuda.Auto, cuda.GPU, cuda.Reference} {
		if e.String() != f.engine {
			continue
		}
		if e == cuda.Reference {
			return e, g.unused("is for --engine auto and cuda", "library")
		}
		return e, nil
	}
	return 0, fmt.Errorf("--engine %q: want one of %s", f.engine, listText(verifyEngines()))
}

func (f *verifyCaseFlags) run(ctx context.Context, std streams, arg string, engine cuda.Engine) error {
	c, release, err := loadCase(arg)
	if err != nil {
		return err
	}
	defer release()
	if c.Kind != omlx.KindDSV4 && len(f.layers) > 0 {
		return errors.New("--layers: plain keys and values are moved, not computed layer by layer: leave it out")
	}
	if err := unpackState(arg, c); err != nil {
		return noRoom(err)
	}
	dir, err := makeTemp("pdlink-verify-") // before hours of arithmetic
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the system's own clean-up takes what is left
	rep, err := f.project(ctx, std, c, engine)
	if err != nil {
		return verifyError(err)
	}
	blocks, err := f.blocks(ctx, std, c, dir)
	switch {
	case ctx.Err() != nil:
		return failed(ctx.Err())
	case errors.Is(err, replay.ErrCase):
		return unusable(err)
	case errors.Is(err, omlx.ErrNoSpace): // what the other checks found counts all the same
		blocks.Result, blocks.Detail = verify.LeftOut, "there is no room for them in "+os.TempDir()
	case err != nil:
		blocks.Result, blocks.Detail = verify.Failed, cmdline.Plain(err)
	}
	blocks.Detail = strings.ReplaceAll(blocks.Detail, dir+"/", "") // which is gone when it is read
	rep.Checks = append(rep.Checks, blocks)
	if errors.Is(err, omlx.ErrNoSpace) {
		return f.say(std, c, &rep, unusable(noRoom(omlx.ErrNoSpace)))
	}
	return f.say(std, c, &rep, nil)
}

// noRoom adds to an error of the temporary directory what to do about it.
func noRoom(err error) error {
	return fmt.Errorf("%w: %s needs more room for what is made for the comparison: free that disk, or set $TMPDIR to a directory on another one", err, os.TempDir())
}

// verifyError sorts the errors of checks that could not be made: what is wrong with the
// case, the choice of a part of it or the engine is the input's.
func verifyError(err error) error {
	for _, input := range []error{verify.ErrInput, cuda.ErrUnavailable, replay.ErrCase, kernels.ErrGeometry, kernels.ErrWeights} {
		if errors.Is(err, input) {
			return unusable(err)
		}
	}
	return failed(err)
}

// project makes the checks of the projection.
func (f *verifyCaseFlags) project(ctx context.Context, std streams, c *replay.Case, engine cuda.Engine) (verify.Report, error) {
	if c.Kind != omlx.KindDSV4 {
		return f.movedOnly(c, engine)
	}
	rec, done, err := openRecording(c)
	if err != nil {
		return verify.Report{}, err
	}
	step, hide := std.progress("verify")
	rep, err := verify.Run(ctx, rec, verify.Options{
		Engine: engine, Library: f.library, Tokens: f.tokens, Layers: f.layers, Workers: f.workers, Progress: step,
	})
	hide()
	return rep, errors.Join(err, done())
}

// movedOnly is the report on plain keys and values: nothing of them is computed.
func (f *verifyCaseFlags) movedOnly(c *replay.Case, engine cuda.Engine) (verify.Report, error) {
	const why = "plain keys and values are moved, not computed"
	if engine == cuda.GPU {
		return verify.Report{}, fmt.Errorf("--engine cuda: %w: %s", cuda.ErrUnavailable, why)
	}
	r := verify.Report{Engine: cuda.Reference.String(), Why: "reference: " + why, Numerics: c.Numerics, Tokens: c.Captured}
	if f.part(c) {
		r.Tokens = f.tokens
	}
	for _, name := range []string{verify.Arrays, verify.Pooled, verify.SelfTest, verify.Continuation} {
		r.Checks = append(r.Checks, verify.Check{Name: name, Result: verify.LeftOut, Detail: why})
	}
	return r, nil
}

// part reports whether --tokens takes less than the case has.
func (f *verifyCaseFlags) part(c *replay.Case) bool { return f.tokens > 0 && f.tokens < c.Captured }

// oddChunk cuts blocks at places where nothing else ends.
const oddChunk = 333

// checkBlocks is the name of the check of block files.
const checkBlocks = "blocks"

// blocks replays the case into stores of its own, below dir, and compares.
func (f *verifyCaseFlags) blocks(ctx context.Context, std streams, c *replay.Case, dir string) (check verify.Check, err error) {
	check = verify.Check{Name: checkBlocks, Result: verify.LeftOut}
	spec, err := c.Spec(replay.Overrides{})
	if err != nil {
		return check, err
	}
	switch {
	case f.part(c) || len(f.layers) > 0:
		check.Detail = "blocks are made of the whole case: leave --tokens and --layers out"
		return check, nil
	case !c.Recorded(spec):
		check.Detail = "the case has no blocks of its decoder"
		return check, nil
	}
	check.Result = verify.Passed
	for i, chunk := range []int{0, oddChunk} {
		r := replayFlags{store: fmt.Sprintf("%s/%d", dir, i), link: "mem://", senders: 1, chunk: chunk, workers: f.workers}
		res, findings, err := r.compared(ctx, std, c.Dir)
		if err != nil {
			return check, err
		}
		if strings.Contains(res.Reason, omlx.ErrNoSpace.Error()) { // it came as a text, from a receiver in this process
			return check, fmt.Errorf("%w: verdict %s", omlx.ErrNoSpace, res.Verdict)
		}
		check.Detail = fmt.Sprintf("%s made with the reference, whole and in chunks of %d, %d identical to the decoder's own",
			count(res.Total, "block"), oddChunk, res.Identical)
		if !res.good() || res.Identical != res.Total {
			check.Result = verify.Failed
			check.Detail = fmt.Sprintf("verdict %s: %d identical, %d different, %d missing: %s", res.Verdict, res.Identical, res.Different, res.Missing, listText(findings))
			break
		}
	}
	return check, nil
}

// compared replays a case into the store of the flags and compares its blocks.
func (f *replayFlags) compared(ctx context.Context, std streams, dir string) (res replayResult, findings []string, err error) {
	if err := f.settle(); err != nil {
		return res, nil, err
	}
	j, err := f.job([]string{dir}, nil)
	if err != nil {
		return res, nil, err
	}
	defer j.release()
	v, err := f.verdict(ctx, std, j)
	if err != nil {
		return res, nil, err
	}
	return f.result(j, v)
}
