package main

import (
	"errors"

	"github.com/fatih/color"
	"github.com/spf13/cobra"

	"pdlink/bridge/omlx"
	"pdlink/bridge/replay"
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
	Path   string `json:"path"`
	Check  string `json:"check"`
	Detail string `json:"detail"`
	Warn   bool   `json:"warn,omitempty"`
}

// verifySummary is the last line.
type verifySummary struct {
	Files    int `json:"files"`
	Sound    int `json:"sound"`
	Bad      int `json:"bad"`
	Warnings int `json:"warnings"`
	Missing  int `json:"missing"`
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

Exit status 0 if nothing is wrong; warnings are things that decoders forgive.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return f.run(std, args[0]) },
	}
	fl := c.Flags()
	fl.BoolVar(&f.finite, "finite", false, "read all values and demand that they are finite")
	fl.StringVar(&f.caseDir, "case", "", "check the blocks of this `CASE` against its chain and layout; blocks of other prompts are not looked at")
	fl.StringVar(&f.format, "format", "", "with --case: block format, if not the case's")
	fl.IntVar(&f.poolState, "pool-state", 0, "with --case: elements of a pool's state, if not the case's")
	fl.BoolVar(&f.asJSON, "json", false, "print JSON, a finding a line and a summary")
	must(c.MarkFlagDirname("case"))
	return c
}

func (f *verifyFlags) run(std streams, dir string) error {
	o := omlx.CheckOptions{Finite: f.finite}
	var plan omlx.Plan
	if f.caseDir != "" {
		c, err := replay.Load(f.caseDir)
		if err != nil {
			return err
		}
		spec, err := c.Spec(replay.Overrides{Format: f.format, PoolState: f.poolState})
		if err != nil {
			return err
		}
		plan = c.Plan(spec)
		if o.Layout, err = omlx.NewLayout(spec); err != nil {
			return err
		}
		o.Tokens = c.Tokens
	}
	wanted := make(map[omlx.Hash]bool, len(plan.Hashes))
	for _, h := range plan.Hashes {
		wanted[h] = true
	}
	var sum verifySummary
	err := omlx.List(dir, func(e omlx.Entry) error {
		if f.caseDir != "" && e.Err == nil && !wanted[e.Hash] {
			return nil
		}
		delete(wanted, e.Hash)
		return f.entry(std, e, o, &sum)
	})
	if err != nil {
		return err
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
		findings = []omlx.Finding{{Check: "temporary file", Detail: "of pdlink, invisible to decoders; the next start removes it", Warn: true}}
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
		std.printf("%d files: %d sound, %d bad, %d warnings, %d missing\n", sum.Files, sum.Sound, sum.Bad, sum.Warnings, sum.Missing)
	}
	if sum.Bad > 0 || sum.Missing > 0 {
		return &statusError{code: exitFailed}
	}
	return nil
}

// diffJSON is one line of `pdlink store diff --json`.
type diffJSON struct {
	Hash   string `json:"hash"`
	Result string `json:"result"` // identical, different, only_a, only_b
	Detail string `json:"detail,omitempty"`
}

func newStoreDiff(std streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "diff A B",
		Short: "compare two stores, or two blocks",
		Long: `diff compares blocks of the same hash: headers parsed and compared but for
created_at and padding, data byte for byte. A and B are stores or block files.
Exit status 0 if both hold the same blocks and none differs.`,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error { return storeDiff(std, args[0], args[1], asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, a block a line")
	return c
}

// blockPaths maps the blocks of a store, or a single block file, by hash.
func blockPaths(path string) (map[omlx.Hash]string, []omlx.Hash, error) {
	paths := make(map[omlx.Hash]string)
	var order []omlx.Hash
	add := func(h omlx.Hash, p string) {
		if _, twice := paths[h]; !twice {
			order = append(order, h)
		}
		paths[h] = p
	}
	if b, err := omlx.ReadBlock(path); err == nil {
		add(b.Hash, path)
		return paths, order, nil
	}
	err := omlx.List(path, func(e omlx.Entry) error {
		if e.Kind != omlx.EntryBlock {
			return nil
		}
		if e.Err != nil {
			return failed(e.Err)
		}
		add(e.Hash, e.Path)
		return nil
	})
	return paths, order, err
}

func storeDiff(std streams, a, b string, asJSON bool) error {
	inA, orderA, errA := blockPaths(a)
	inB, orderB, errB := blockPaths(b)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	same, different := 0, 0
	say := func(d diffJSON) error {
		if d.Result == "identical" {
			same++
		} else {
			different++
		}
		if asJSON {
			return std.json(d)
		}
		std.printf("%s  %s %s\n", d.Hash, std.verdict(d.Result, d.Result == "identical"), d.Detail)
		return nil
	}
	for _, h := range orderA {
		d := diffJSON{Hash: h.String(), Result: "only_a"}
		if pb, ok := inB[h]; ok {
			diff, err := omlx.Compare(inA[h], pb)
			if err != nil {
				return failed(err)
			}
			d.Result = "identical"
			if !diff.Equal() {
				d.Result, d.Detail = "different", diff.String()
			}
		}
		if err := say(d); err != nil {
			return err
		}
	}
	for _, h := range orderB {
		if _, ok := inA[h]; !ok {
			if err := say(diffJSON{Hash: h.String(), Result: "only_b"}); err != nil {
				return err
			}
		}
	}
	if !asJSON {
		std.printf("%d identical, %d not\n", same, different)
	}
	if different > 0 {
		return &statusError{code: exitFailed, err: nil}
	}
	return nil
}
