package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	bridgebench "pdlink/bridge/bench"
)

const benchLong = `bench measures on your own hardware what bridging brings: cold prompts of chosen
lengths, each with a seed of its own and a marker to find in its middle, in up to four
ways, which take turns:

  native   by the decoder itself: --native, its own URL
  bridged  through the front door of "pdlink decode": --front
  engine   the same token ids by the prefill engine alone: --engine
  warm     the bridged prompt again; without --front the native one

Every request is told of in a line, with the time to its first token (TTFT), its total
time, the decode rate, the answer's cached tokens and the verdict; every round in one for
people: what the engine took, what was added, what native would take. At the end there are the
medians of each length with the least and the most, and checks: that all was answered, bridged
and as cold or warm as it should be, that markers were found where the model can find them at
all, that bridged answers decode as quickly as native ones (within 2 %: the medians, and half
of the rounds or more), that nothing slowed this host down, and that it had memory left. A
request that failed, was not cold or warm as it should be, not wholly bridged, without the
verdict that others have, found fewer cached tokens than were promised, or lost a marker that
native answers name is in no median, and the summary says of each why. Overhead is TTFT
through the front minus the engine's time on the same ids. Ids are those of the decoder's
plug-in, which --native leads to, else what the engine's tokenizer makes of the prompt.

Any one of the URLs will do, and --native and --front may be any endpoint that speaks the
OpenAI API, also one that sends no verdicts; what cannot be measured or known then is listed,
with why. Heat and memory are those of the host that
bench runs on: run it on the decode host. Nothing else should use the engines meanwhile.

$` + decoderKeyEnv + ` has the API key of --front and --native, $` + engineKeyEnv + ` that of --engine.
Ctrl-C prints what was measured until then.

` + statusText

// benchFlags are the flags of `pdlink bench`.
type benchFlags struct {
	front, native, engine  string
	model, api             string
	tokens, arms           []string
	runs, warmUp, answer   int
	seed                   uint64
	timeout                time.Duration
	report, markdown       string
	asJSON, schema, seeded bool
}

// benchRow is the event of a request.
type benchRow struct {
	Event string `json:"event"`
	bridgebench.Row
}

// benchSummary is the last line: the report.
type benchSummary struct {
	Event string `json:"event"`
	*bridgebench.Report
}

// maxSeed is the largest that JSON readers keep all digits of.
const maxSeed = 1<<53 - 1

func newBench(std streams) *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use:   "bench",
		Short: "measure what bridging brings on your own hardware",
		Long:  benchLong,
		Example: `  pdlink bench --front http://127.0.0.1:8012 --native http://127.0.0.1:8010 --engine http://spark:8000 --tokens 8k,32k,100k
  pdlink bench --native http://127.0.0.1:8010 --tokens 8k --runs 1 --json`,
		Args: wants(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if f.schema {
				std.printf("%s", painted(bridgebench.Schema()))
				return nil
			}
			g := flagsOf(c)
			f.seeded = g("seed")
			o, err := f.options(g)
			if err != nil {
				return err
			}
			return f.run(c.Context(), std, o)
		},
	}
	f.register(c)
	return c
}

func (f *benchFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.front, "front", "", "the front door of pdlink decode is at `URL`")
	fl.StringVar(&f.native, "native", "", "the decoder itself is at `URL`, or another endpoint that speaks the OpenAI API")
	fl.StringVar(&f.engine, "engine", "", "the prefill engine itself is at `URL`")
	fl.StringVar(&f.model, "model", "", "the model's id, `DECODER[=ENGINE]` (default: the one that is listed)")
	fl.StringSliceVar(&f.tokens, "tokens", nil, "`LENGTHS` of prompts in tokens, k is a thousand (default 8k,32k)")
	fl.StringSliceVar(&f.arms, "arms", nil, "`ARMS` to measure: native, bridged, engine, warm (default: all that the URLs allow)")
	fl.StringVar(&f.api, "api", string(bridgebench.Chat), "ask for `chat` or completions")
	fl.IntVar(&f.runs, "runs", bridgebench.DefaultRuns, "runs of each length and arm")
	fl.IntVar(&f.warmUp, "warm-up", 1, "runs of the shortest length before, which do not count")
	fl.IntVar(&f.answer, "answer", bridgebench.DefaultAnswer, "tokens that an answer may have")
	fl.Uint64Var(&f.seed, "seed", 0, "make the prompts of this seed, which are cold once only (default: a new one)")
	fl.DurationVar(&f.timeout, "timeout", bridgebench.DefaultTimeout, "how long a request may take")
	fl.StringVar(&f.report, "report", "", "write the report as JSON to `FILE`")
	fl.StringVar(&f.markdown, "markdown", "", "write it as Markdown to `FILE`")
	fl.BoolVar(&f.schema, "schema", false, "print the JSON Schema of reports, which says what each field means, and do nothing else")
	fl.BoolVar(&f.asJSON, "json", false, "print JSON, a request a line and a summary, which is the report")
	must(c.MarkFlagFilename("report", "json"))
	must(c.MarkFlagFilename("markdown", "md"))
	must(c.RegisterFlagCompletionFunc("api", cobra.FixedCompletions([]string{string(bridgebench.Chat), string(bridgebench.Completions)}, cobra.ShellCompDirectiveNoFileComp)))
	must(c.RegisterFlagCompletionFunc("arms", cobra.FixedCompletions(armNames(), cobra.ShellCompDirectiveNoFileComp)))
}

func armNames() (names []string) {
	for _, a := range bridgebench.Arms() {
		names = append(names, string(a))
	}
	return names
}

// options makes the benchmark's of the flags.
func (f *benchFlags) options(g given) (o bridgebench.Options, err error) {
	errs := []error{g.filled(map[string]string{
		"front": f.front, "native": f.native, "engine": f.engine, "model": f.model, "report": f.report, "markdown": f.markdown,
		"tokens": strings.Join(f.tokens, ""), "arms": strings.Join(f.arms, ""),
	})}
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(f.front == "" && f.native == "" && f.engine == "", "%w", missingError("give at least one of --front URL, --native URL and --engine URL"))
	if f.front != "" {
		o.Front, err = parseHTTP("front", f.front)
		errs = append(errs, err)
	}
	if f.native != "" {
		o.Native, err = parseHTTP("native", f.native)
		errs = append(errs, err)
	}
	if f.engine != "" {
		o.Engine, err = parseHTTP("engine", f.engine)
		errs = append(errs, err)
	}
	o.Model, o.EngineModel, _ = strings.Cut(f.model, "=")
	o.Tokens, err = parseLengths(f.tokens)
	errs = append(errs, err)
	for _, a := range f.arms {
		bad(!slices.Contains(armNames(), a), "--arms %q: want one of %s", a, listText(armNames()))
		o.Arms = append(o.Arms, bridgebench.Arm(a))
	}
	bad(f.api != string(bridgebench.Chat) && f.api != string(bridgebench.Completions), "--api %q: want chat or completions", f.api)
	bad(f.runs < 1 || f.runs > bridgebench.MaxRuns, "--runs %d: want 1 to %d", f.runs, bridgebench.MaxRuns)
	bad(f.warmUp < 0 || f.warmUp > bridgebench.MaxRuns, "--warm-up %d: want 0 to %d", f.warmUp, bridgebench.MaxRuns)
	bad(f.answer < 2 || f.answer > bridgebench.MaxAnswer, "--answer %d: want 2 to %d tokens", f.answer, bridgebench.MaxAnswer)
	bad(f.seed > maxSeed, "--seed %d: want at most %d", f.seed, uint64(maxSeed))
	bad(f.timeout <= 0, "--timeout %v: want a time that is longer than nothing", f.timeout)
	o.API, o.Runs, o.Answer, o.Seed, o.Timeout = bridgebench.API(f.api), f.runs, f.answer, f.seed, f.timeout
	if o.WarmUp = f.warmUp; f.warmUp == 0 {
		o.WarmUp = -1
	}
	if !f.seeded {
		o.Seed = rand.Uint64N(maxSeed)
	}
	o.DecoderKey, o.EngineKey, o.Version = os.Getenv(decoderKeyEnv), os.Getenv(engineKeyEnv), thisBuild().Version
	return o, errors.Join(errs...)
}

// parseLengths reads "8k" and "8192".
func parseLengths(list []string) (out []int, err error) {
	if len(list) > bridgebench.MaxLengths {
		return nil, fmt.Errorf("--tokens has %d lengths: want at most %d", len(list), bridgebench.MaxLengths)
	}
	for _, text := range list {
		digits, thousands := strings.CutSuffix(strings.ToLower(strings.TrimSpace(text)), "k")
		n, err := strconv.ParseFloat(digits, 64)
		if thousands {
			n *= 1000
		}
		if err != nil || !(n >= bridgebench.MinTokens && n <= bridgebench.MaxTokens) || n != float64(int(n)) {
			return nil, fmt.Errorf("--tokens %q: want %d to %d tokens, for example 8k", text, bridgebench.MinTokens, bridgebench.MaxTokens)
		}
		out = append(out, int(n))
	}
	return out, nil
}

// run measures and says what came of it, whole or not.
func (f *benchFlags) run(ctx context.Context, std streams, o bridgebench.Options) error {
	for _, path := range []string{f.report, f.markdown} { // before hours of measuring
		if err := benchWritable(path); err != nil {
			return err
		}
	}
	step, end := std.progress("requests")
	say := func(format string, args ...any) {
		end()
		std.printf(format, args...)
	}
	o.OnStep = func(done, total int) { step(int64(done), int64(total)) }
	o.OnRow = func(r bridgebench.Row) {
		if f.asJSON {
			std.json(benchRow{"row", r}) //nolint:errcheck // what cannot be written ends in the exit status
		} else {
			say("%s\n", r)
		}
	}
	o.OnLine = func(text string) {
		if !f.asJSON {
			say("%s\n\n", text)
		}
	}
	report, err := bridgebench.Run(ctx, o)
	end()
	switch {
	case report == nil && errors.Is(err, bridgebench.ErrOptions):
		return err
	case report == nil:
		return failed(err)
	}
	said := f.tell(std, report)
	switch {
	case err != nil: // it was interrupted
		return answeredError{failed(err)}
	case said != nil:
		return failed(said)
	case !report.OK:
		return failed(nil)
	}
	return nil
}

// tell prints the report and writes its files.
func (f *benchFlags) tell(std streams, r *bridgebench.Report) error {
	var errs []error
	if f.asJSON {
		errs = append(errs, std.json(benchSummary{"summary", r}))
	} else {
		for line := range strings.Lines(r.Text()) {
			std.printf("%s\n", strings.TrimSuffix(line, "\n"))
		}
	}
	if f.report != "" {
		b, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = os.WriteFile(f.report, append(b, '\n'), 0o644)
		}
		errs = append(errs, err)
	}
	if f.markdown != "" {
		errs = append(errs, os.WriteFile(f.markdown, []byte(r.Markdown()), 0o644))
	}
	return errors.Join(errs...)
}

// benchWritable makes sure that a file can be written, and keeps what is in it. "" is no file.
func benchWritable(path string) error {
	if path == "" {
		return nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}
