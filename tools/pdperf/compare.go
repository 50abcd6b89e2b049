package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"pdlink/tools/cmdline"
	"pdlink/tools/pdperf/stats"
	"pdlink/transport/wire"
)

// compareFlags are the flags of `pdperf compare`.
type compareFlags struct {
	confidence float64
	slower     string
	asJSON     bool

	limit float64 // of slower, as a share; 0: not asked for
}

func newCompare(io streams) *cobra.Command {
	var f compareFlags
	c := &cobra.Command{
		Use:   "compare A.json B.json",
		Short: "compare the results of two runs, with confidence",
		Long: `compare reads two files of results, as --json prints and --save writes them, and
prints for each way to move blocks that both have how B differs from A: medians, their
ratio, and the interval that contains the true ratio with --confidence. The interval
assumes nothing about how the figures are distributed; it needs repetitions: 4 on each
side for 95 %. A difference whose interval contains 1 is none that was shown.
Repetitions that something else disturbed are counted and named, and so are settings
that differ in A and B (frames, checksums, rings, warm-up): what follows from those is
not the difference of what was to be compared.

--fail-if-slower 5% ends with status 1 where the goodput of B is shown to be lower and
its median is lower by more than that, where repetitions do not suffice to tell, where
settings differ, and where B lacks what A has.

Exit status: 0 compared; 1 B is slower than allowed, or that cannot be told; 2 the
command line or a file cannot be used.`,
		Example: `  pdperf local --links tcp,tcp+tls --reps 5 --save before.json
  pdperf local --links tcp,tcp+tls --reps 5 --save after.json
  pdperf compare before.json after.json --fail-if-slower 5%`,
		Args: cmdline.Wants(2, "A.json", "B.json"),
		RunE: func(c *cobra.Command, args []string) error { return f.run(c.Context(), io, args[0], args[1]) },
	}
	fl := c.Flags()
	fl.Float64Var(&f.confidence, "confidence", tableConfidence, "of the intervals, between 0 and 1")
	fl.StringVar(&f.slower, "fail-if-slower", "", "how much lower the goodput of B may be, for example 5%")
	fl.BoolVar(&f.asJSON, "json", false, "print a line of JSON for each comparison")
	c.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"json", "jsonl"}, cobra.ShellCompDirectiveFilterFileExt
	}
	return c
}

func (f *compareFlags) check() error {
	if !(f.confidence > 0 && f.confidence < 1) {
		return fmt.Errorf("--confidence %v: want a number between 0 and 1, for example 0.95", f.confidence)
	}
	if f.slower == "" {
		return nil
	}
	v, err := strconv.ParseFloat(strings.TrimSuffix(f.slower, "%"), 64)
	if err != nil || !strings.HasSuffix(f.slower, "%") || !(v > 0 && v < 100) {
		return fmt.Errorf("--fail-if-slower %q: want a share, for example 5%%", f.slower)
	}
	f.limit = v / 100
	return nil
}

// compared is one figure of one way to move blocks, in both files.
type compared struct {
	seriesKey
	Figure   string  `json:"figure"`
	A        float64 `json:"a"` // medians
	B        float64 `json:"b"`
	RunsA    int     `json:"runs_a"`
	RunsB    int     `json:"runs_b"`
	Ratio    float64 `json:"ratio"` // B by A
	Low      float64 `json:"ratio_low"`
	High     float64 `json:"ratio_high"`
	Coverage float64 `json:"coverage"` // of the interval
	Verdict  string  `json:"verdict"`  // better, worse, "~" or undecided

	DisturbedA int      `json:"disturbed_a"` // of RunsA, those that something else had a part in
	DisturbedB int      `json:"disturbed_b"`
	Settings   []string `json:"settings_differ"` // what else is not the same in A and B
}

// figure is what is compared.
type figure struct {
	name   string
	of     func(*result) float64
	larger bool // is better
}

func figures() []figure {
	return []figure{
		{"goodput GB/s", goodput, true},
		{"p50 ms", func(r *result) float64 { return r.blockMs(50) }, false},
		{"p99 ms", func(r *result) float64 { return r.blockMs(99) }, false},
		{"sender s/GB", senderCost, false},
		{"receiver s/GB", receiverCost, false},
		{"both ends s/GB", bothCost, false},
		{"reads/GB", readsOf, false},
	}
}

func (f *compareFlags) run(_ context.Context, io streams, fileA, fileB string) error {
	if err := f.check(); err != nil {
		return err
	}
	a, err := readResults(fileA)
	if err != nil {
		return err
	}
	b, err := readResults(fileB)
	if err != nil {
		return err
	}
	rows, onlyA, onlyB := f.compare(grouped(a), grouped(b))
	for _, k := range onlyB {
		io.notef("only in %s: %s\n", fileB, k.text())
	}
	for _, k := range onlyA {
		io.notef("only in %s: %s\n", fileA, k.text())
	}
	if len(rows) == 0 {
		return fmt.Errorf("%s and %s have nothing in common that went well", fileA, fileB)
	}
	if !f.asJSON {
		f.print(io, rows)
	}
	for _, row := range rows {
		if f.asJSON {
			if err := io.json(row); err != nil {
				return err
			}
		}
	}
	return f.judge(rows, onlyA)
}

// text is a key for people.
func (k seriesKey) text() string {
	return fmt.Sprintf("%s %s, %d in flight, %d lanes, %s", k.Link, k.block(), k.InFlight, k.Lanes, k.Direction)
}

// compare compares what both have.
func (f *compareFlags) compare(a, b []*series) (rows []compared, onlyA, onlyB []seriesKey) {
	find := func(list []*series, k seriesKey) *series {
		for _, s := range list {
			if s.key == k && len(s.all) > 0 {
				return s
			}
		}
		return nil
	}
	for _, s := range b {
		if find(a, s.key) == nil {
			onlyB = append(onlyB, s.key)
		}
	}
	for _, s := range a {
		t := find(b, s.key)
		if t == nil || len(s.all) == 0 {
			onlyA = append(onlyA, s.key)
			continue
		}
		for _, g := range figures() {
			if row, ok := f.row(s, t, g); ok {
				rows = append(rows, row)
			}
		}
	}
	return rows, onlyA, onlyB
}

// row compares one figure; false where they do not have it.
func (f *compareFlags) row(a, b *series, g figure) (compared, bool) {
	x, y := a.values(g.of), b.values(g.of)
	r := stats.Ratio(y, x, f.confidence)
	if r.N == 0 {
		return compared{}, false
	}
	row := compared{
		DisturbedA: a.disturbed(), DisturbedB: b.disturbed(), Settings: differences(a, b),
		seriesKey: a.key, Figure: g.name, A: micro(middle(x)), B: micro(middle(y)), RunsA: len(x), RunsB: len(y),
		Ratio: micro(r.Median), Low: micro(r.Low), High: micro(r.High), Coverage: micro(r.Coverage), Verdict: "~",
	}
	switch {
	case r.Coverage < f.confidence:
		row.Verdict = undecided
	case r.Low > 1 && g.larger, r.High < 1 && !g.larger:
		row.Verdict = "better"
	case r.High < 1, r.Low > 1:
		row.Verdict = "worse"
	}
	return row, true
}

// undecided is the verdict where repetitions do not suffice.
const undecided = "undecided"

func (f *compareFlags) print(io streams, rows []compared) {
	tw := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "link\tblock\tlanes\tin flight\tway\tfigure\tA\tB\tB/A (%g %%)\truns\t\n", f.confidence*100)
	few := false
	seen := map[string]bool{}
	var marks []string
	for _, r := range rows {
		few = few || r.Verdict == undecided
		for _, text := range r.marks() {
			if !seen[text] {
				seen[text], marks = true, append(marks, text)
			}
		}
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%s\t%s\t%.4g\t%.4g\t%.3f (%.3f to %.3f)\t%d, %d\t%s\n", r.Link, r.block(), r.Lanes, r.InFlight, r.Direction,
			r.Figure, r.A, r.B, r.Ratio, r.Low, r.High, r.RunsA, r.RunsB, r.Verdict)
	}
	tw.Flush() //nolint:errcheck // nobody is left to tell
	if few {
		io.printf("\nundecided: too few repetitions for %g %%; their intervals are from the smallest to the largest quotient\n", f.confidence*100)
	}
	for _, text := range marks {
		io.printf("%s\n", text)
	}
}

// marks are what a row has to be read with.
func (r compared) marks() (list []string) {
	if r.DisturbedA+r.DisturbedB > 0 {
		list = append(list, fmt.Sprintf("DISTURBED: %s: %d of %d repetitions of A and %d of %d of B", r.text(), r.DisturbedA, r.RunsA, r.DisturbedB, r.RunsB))
	}
	if len(r.Settings) > 0 {
		list = append(list, fmt.Sprintf("SETTINGS DIFFER: %s: %s", r.text(), strings.Join(r.Settings, "; ")))
	}
	return list
}

// judge is the error that --fail-if-slower asks for.
func (f *compareFlags) judge(rows []compared, onlyA []seriesKey) error {
	if f.limit == 0 {
		return nil
	}
	var bad []error
	for _, r := range rows {
		switch {
		case r.Figure != figures()[0].name:
		case len(r.Settings) > 0:
			bad = append(bad, fmt.Errorf("%s: A and B are not the same measurement: %s", r.text(), strings.Join(r.Settings, "; ")))
		case r.Verdict == undecided:
			bad = append(bad, fmt.Errorf("%s: %d and %d repetitions do not tell: measure with --reps 4 or more", r.text(), r.RunsA, r.RunsB))
		case r.Verdict == "worse" && r.Ratio < 1-f.limit:
			bad = append(bad, fmt.Errorf("%s: slower by %.1f %% (%.1f to %.1f)%s", r.text(), 100*(1-r.Ratio), 100*(1-r.High), 100*(1-r.Low), r.doubt()))
		}
	}
	for _, k := range onlyA {
		bad = append(bad, fmt.Errorf("%s: it is missing or failed", k.text()))
	}
	if len(bad) == 0 {
		return nil
	}
	return failed(errors.Join(bad...))
}

// doubt is what speaks against a difference.
func (r compared) doubt() string {
	if n := r.DisturbedA + r.DisturbedB; n > 0 {
		return fmt.Sprintf("; %d of the %d repetitions were disturbed: measure again where nothing else runs", n, r.RunsA+r.RunsB)
	}
	return ""
}

// maxResults bounds what of a file is read.
const maxResults = 1 << 20

// readResults reads the lines of a file of results.
func readResults(path string) (all []*result, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, 1<<32))
	lines.Buffer(nil, maxLine*16)
	for n := 1; lines.Scan(); n++ {
		if len(strings.TrimSpace(lines.Text())) == 0 {
			continue
		}
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		if r.Schema != schemaName {
			return nil, fmt.Errorf("%s:%d: no result of pdperf (schema %q, want %q): write it with --save or --json", path, n, wire.Printable(r.Schema, 32), schemaName)
		}
		r.Link, r.Model, r.Direction = wire.Printable(r.Link, 32), wire.Printable(r.Model, 64), wire.Printable(r.Direction, 16)
		if all = append(all, &r); len(all) > maxResults {
			return nil, fmt.Errorf("%s: more than %d results", path, maxResults)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no results in it", path)
	}
	return all, nil
}
