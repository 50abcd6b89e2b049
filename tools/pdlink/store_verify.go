package main

import (
	"context"

	"github.com/fatih/color"
	"github.com/spf13/cobra"

	"pdlink/bridge/omlx"
)

// verifyFlags are the flags of `pdlink store verify`.
type verifyFlags struct {
	finite, asJSON bool
	caseDir        string
	format         string
	poolState      int
}

// findingJSON is one line of `pdlink store verify --json`.
type findingJSON struct {
	Event  string `json:"event"`
	Path   string `json:"path"`
	Check  string `json:"check"`
	Detail string `json:"detail"`
	Warn   bool   `json:"warn,omitempty"`
}

// verifySummary is the last line.
type verifySummary struct {
	Event    string `json:"event"`
	Files    int    `json:"files"`
	Sound    int    `json:"sound"`
	Bad      int    `json:"bad"`
	Warnings int    `json:"warnings"`
	Missing  int    `json:"missing"`
}

func newStoreVerify(std streams) *cobra.Command {
	var f verifyFlags
	c := &cobra.Command{
		Use:   "verify DIR",
		Short: "check every block of a store",
		Long: `verify makes every check that a decoder's reader makes, and the ones it forgets:
the container strictly, name and folder against the recorded hash, metadata and
signature against the tensors, shapes of every state. With --case also the
chain: each hash against the prompt's tokens, each shape against the case's
layout, and that no block of the prompt is missing. With --finite it reads all
values and reports NaN and infinity.

Warnings are things that decoders forgive; they do not count.

` + statusText,
		Args: wants(1, "DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(flagsOf(c)); err != nil {
				return err
			}
			return f.run(c.Context(), std, args[0])
		},
	}
	fl := c.Flags()
	fl.BoolVar(&f.finite, "finite", false, "read all values and demand that they are finite")
	fl.StringVar(&f.caseDir, "case", "", "check the blocks of this `CASE` (a directory or bundled:NAME) against its chain and layout; blocks of other prompts are not looked at")
	fl.StringVar(&f.format, "format", "", "with --case: block format, if not the case's")
	fl.IntVar(&f.poolState, "pool-state", 0, "with --case: elements of a pool's state, if not the case's")
	fl.BoolVar(&f.asJSON, "json", false, "print JSON, a finding a line and a summary")
	must(c.RegisterFlagCompletionFunc("case", func(c *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return completeCase(c, nil, typed)
	}))
	return c
}

// check refuses flags that would have no effect.
func (f *verifyFlags) check(g given) error {
	if err := g.filled(map[string]string{"case": f.caseDir, "format": f.format}); err != nil {
		return err
	}
	if f.caseDir == "" {
		return g.unused("is for --case: without one, blocks are checked against what they say about themselves", "format", "pool-state")
	}
	return nil
}

func (f *verifyFlags) run(ctx context.Context, std streams, dir string) error {
	if err := checkStore(dir); err != nil {
		return err
	}
	o := omlx.CheckOptions{Finite: f.finite}
	var plan omlx.Plan
	if f.caseDir != "" {
		c, release, err := loadCase(f.caseDir)
		if err != nil {
			return err
		}
		release() // its files are not needed
		spec, layout, err := layoutOf(c, f.format, f.poolState)
		if err != nil {
			return err
		}
		plan, o.Layout, o.Tokens = c.Plan(spec), layout, c.Tokens
	}
	wanted := make(map[omlx.Hash]bool, len(plan.Hashes))
	for _, h := range plan.Hashes {
		wanted[h] = true
	}
	sum := verifySummary{Event: "summary"}
	err := omlx.List(dir, func(e omlx.Entry) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if f.caseDir != "" && e.Err == nil && !wanted[e.Hash] {
			return nil
		}
		delete(wanted, e.Hash)
		return f.entry(std, e, o, &sum)
	})
	if err != nil {
		return failed(err)
	}
	for _, h := range plan.Hashes {
		if wanted[h] {
			sum.Missing++
			if err := f.say(std, findingJSON{Path: h.String(), Check: "missing", Detail: "no block of this hash is in the store"}); err != nil {
				return err
			}
		}
	}
	return f.summary(std, sum)
}

// entry checks one file.
func (f *verifyFlags) entry(std streams, e omlx.Entry, o omlx.CheckOptions, sum *verifySummary) error {
	sum.Files++
	var findings []omlx.Finding
	switch e.Kind {
	case omlx.EntryBlock:
		_, findings = omlx.CheckFile(e.Path, o)
	case omlx.EntryTemp:
		findings = []omlx.Finding{{Check: "temporary file", Detail: "left by a decoder; its scan takes it for a block"}}
	case omlx.EntrySymlink:
		findings = []omlx.Finding{{Check: "link", Detail: "decoders follow it; it was not examined", Warn: true}}
	case omlx.EntryPart:
		findings = []omlx.Finding{{Check: "temporary file", Detail: "of pdlink, invisible to decoders; the next pdlink decode or replay into this store removes it", Warn: true}}
	case omlx.EntryOther:
		findings = []omlx.Finding{{Check: "other file", Detail: "not a block", Warn: true}}
	}
	bad := false
	for _, x := range findings {
		bad = bad || !x.Warn
		if x.Warn {
			sum.Warnings++
		}
		if err := f.say(std, findingJSON{Path: e.Path, Check: x.Check, Detail: x.Detail, Warn: x.Warn}); err != nil {
			return err
		}
	}
	if bad {
		sum.Bad++
	} else if e.Kind == omlx.EntryBlock {
		sum.Sound++
	}
	return nil
}

func (f *verifyFlags) say(std streams, x findingJSON) error {
	if f.asJSON {
		x.Event = "finding"
		return std.json(x)
	}
	word := std.paint("bad", color.FgRed)
	if x.Warn {
		word = std.paint("warning", color.FgYellow)
	}
	std.printf("%s: %s: %s: %s\n", word, x.Path, x.Check, x.Detail)
	return nil
}

func (f *verifyFlags) summary(std streams, sum verifySummary) error {
	if f.asJSON {
		if err := std.json(sum); err != nil {
			return err
		}
	} else {
		std.printf("%s: %d sound, %d bad, %s, %d missing\n", count(sum.Files, "file"), sum.Sound, sum.Bad, count(sum.Warnings, "warning"), sum.Missing)
	}
	if sum.Bad > 0 || sum.Missing > 0 {
		return failed(nil)
	}
	return nil
}
