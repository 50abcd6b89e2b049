package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"pdlink/rdma"
	"pdlink/tools/linkkeys"
)

// handoverFlags are the flags of `pdperf handover`.
type handoverFlags struct {
	links   []string
	at      string
	runs    int
	program string
	asJSON  bool
	keys    linkkeys.Flags // --encrypt alone
}

// handoverLinks are the links that blocks are handed over by, the first one without a
// cable: what it takes is what the others are compared with.
func handoverLinks() []string { return []string{"mem", "tcp", rdma.Scheme} }

func newHandover(io streams) *cobra.Command {
	var f handoverFlags
	c := &cobra.Command{
		Use:   "handover CASE...",
		Short: "compare what handing a prompt's blocks over costs, link by link",
		Long: `handover has pdlink replay a case over each link, into a store that is empty at the
beginning, and prints what that took: from the first open to the last block visible and
durable, kernels included. The same over mem://, where both ends are one process, is
what a link's own cost is counted from. CASE is a directory, bundled:NAME, or
synthetic:MODEL:TOKENS, whose blocks have a real model's size and take little to make.

Every run is compared: over mem:// with the decoder's own blocks, over the others with
those. tcp and rdma have a process at each end, with keys made for this. Where rdma
is measured --at names an address of an RDMA port of this host; ` + "`pdlink doctor rdma`" + `
lists them.

` + statusText,
		Example: `  pdperf handover bundled:dsv4-b --links mem,tcp
  pdperf handover synthetic:deepseek-v4-flash:16384 --at 10.0.0.5 --encrypt off`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("which case? give a directory, or bundled:NAME")
			}
			for _, a := range args {
				if strings.HasPrefix(a, "-") || a == "" {
					return fmt.Errorf("%q is no case: give flags before \"--\", and a directory, bundled:NAME or synthetic:MODEL:TOKENS", a)
				}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return f.run(c.Context(), io, args)
		},
	}
	fl := c.Flags()
	fl.StringSliceVar(&f.links, "links", handoverLinks(), "links to compare, of mem, tcp, rdma")
	fl.StringVar(&f.at, "at", "127.0.0.1", "address of this host at which tcp and rdma receive")
	fl.IntVar(&f.runs, "runs", 5, "times that each is done; the median counts")
	fl.StringVar(&f.program, "pdlink", "", "`FILE` of pdlink (default: beside this program, else from PATH)")
	fl.BoolVar(&f.asJSON, "json", false, "print a line of JSON for each case and link")
	f.keys.RegisterEncrypt(c)
	must(c.MarkFlagFilename("pdlink"))
	return c
}

// maxRuns bounds --runs.
const maxRuns = 1000

func (f *handoverFlags) check() error {
	for i, l := range f.links {
		if !slices.Contains(handoverLinks(), l) || slices.Contains(f.links[:i], l) {
			return fmt.Errorf("--links %s: want each of %s once at most", strings.Join(f.links, ","), strings.Join(handoverLinks(), ", "))
		}
	}
	// What the others are compared with comes first, wherever it was named.
	slices.SortStableFunc(f.links, func(a, b string) int {
		return cmp.Compare(slices.Index(handoverLinks(), a), slices.Index(handoverLinks(), b))
	})
	switch {
	case len(f.links) == 0:
		return errors.New("--links: none is given")
	case f.runs < 1 || f.runs > maxRuns:
		return fmt.Errorf("--runs %d: want 1 to %d", f.runs, maxRuns)
	case !hostAddress(f.at):
		return fmt.Errorf("--at %q: want an address of this host, without a scheme and a port", f.at)
	}
	return f.keys.Check()
}

// hostAddress reports whether text can be a host's name or address, and nothing else.
func hostAddress(text string) bool {
	return text != "" && !strings.ContainsAny(text, "/ \t[]@?") && (!strings.Contains(text, ":") || net.ParseIP(strings.Split(text, "%")[0]) != nil)
}

// findProgram is pdlink, as a path that can be started.
func (f *handoverFlags) findProgram() (string, error) {
	if f.program != "" {
		return filepath.Abs(f.program)
	}
	if self, err := os.Executable(); err == nil {
		if beside, err := exec.LookPath(filepath.Join(filepath.Dir(self), "pdlink")); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath("pdlink")
	if err != nil {
		return "", errors.New("there is no pdlink beside this program nor in PATH: name it with --pdlink")
	}
	return path, nil
}

// handed is a line of the table.
type handed struct {
	Event     string   `json:"event"`
	Case      string   `json:"case"`
	Link      string   `json:"link"`
	Sealed    bool     `json:"sealed"`
	Tokens    int      `json:"tokens"`
	Blocks    int      `json:"blocks"`
	Bytes     uint64   `json:"bytes"`
	Seconds   float64  `json:"seconds"` // the median run
	Least     float64  `json:"least_seconds"`
	Most      float64  `json:"most_seconds"`
	Runs      int      `json:"runs"`
	PerToken  float64  `json:"ms_per_token"`
	Over      *float64 `json:"ms_per_token_over_mem"` // of it, beyond what mem takes; null without mem
	Identical bool     `json:"identical"`
	Why       string   `json:"why"` // it did not work
}

func (f *handoverFlags) run(ctx context.Context, io streams, cases []string) error {
	program, err := f.findProgram()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "pdperf-handover-")
	if err != nil {
		return failed(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the system's own clean-up takes what is left
	ours, theirs, remove, err := linkkeys.Temporary()
	if err != nil {
		return failed(err)
	}
	defer remove()
	h := &handing{program: program, dir: dir, ours: ours, theirs: theirs, encrypt: f.keys.Encrypt, at: net.JoinHostPort(f.at, "0"), io: io}
	var all []handed
	for _, name := range cases {
		for row := range f.rows(ctx, h, name) {
			if ctx.Err() != nil && row.Why != "" {
				break // it was interrupted
			}
			all = append(all, row)
			if f.asJSON {
				if err := io.json(row); err != nil {
					return err
				}
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	if !f.asJSON && len(all) > 0 {
		printHanded(io, all)
	}
	bad := 0
	for _, row := range all {
		if row.Why != "" {
			bad++
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case bad > 0:
		return failed(fmt.Errorf("%d of %d could not be handed over", bad, len(all)))
	}
	return nil
}

// rows hands a case over by each link. Without something to compare with there is one row,
// which says why.
func (f *handoverFlags) rows(ctx context.Context, h *handing, name string) iter.Seq[handed] {
	return func(yield func(handed) bool) {
		if err := h.reference(ctx, name); err != nil {
			yield(handed{Event: "handover", Case: name, Link: "mem", Runs: f.runs, Why: plain(err)})
			return
		}
		mem := -1.0
		for _, link := range f.links {
			row := h.measure(ctx, name, link, f.runs)
			if link == "mem" && row.Why == "" {
				mem = row.PerToken
			}
			if mem >= 0 && row.Why == "" {
				over := row.PerToken - mem
				row.Over = &over
			}
			if !yield(row) {
				return
			}
		}
	}
}

// printHanded writes the table.
func printHanded(io streams, all []handed) {
	tw := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "case\tlink\ttokens\tblocks\tMB\ts (least to most)\tms/token\tover mem\tblocks identical")
	for _, r := range all {
		if r.Why != "" {
			fmt.Fprintf(tw, "%s\t%s\tFAILED: %s\n", r.Case, r.Link, r.Why)
			continue
		}
		over, link := "", r.Link
		if r.Over != nil {
			over = fmt.Sprintf("%+.4f", *r.Over)
		}
		if r.Sealed {
			link += ", sealed"
		}
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%.3f\t%.4f (%.4f to %.4f)\t%.4f\t%s\t%s\n",
			r.Case, link, r.Tokens, r.Blocks, float64(r.Bytes)/1e6, r.Seconds, r.Least, r.Most, r.PerToken, over, yesNo(r.Identical))
	}
	tw.Flush() //nolint:errcheck // nobody is left to tell
}
