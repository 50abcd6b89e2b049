package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pdlink/bridge/replay"
	"pdlink/bridge/trace"
	"pdlink/rdma"
	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
	"pdlink/transport/failover"
	"pdlink/transport/session"
)

// replayFlags are the flags of `pdlink replay`.
type replayFlags struct {
	store, link      string
	to               []string
	require          string
	discard, noSync  bool
	format           string
	poolState, chunk int
	numerics         string
	senders, workers int
	part, id         string
	synthetic        string
	tokens           int
	seed             uint64
	timeout, retry   time.Duration
	keep, asJSON     bool
	peers            linkkeys.Flags
	trace            string

	// What check made of them.
	url    linkURL   // of --link
	routes []linkURL // of --to, the preferred one first
	share  replay.Share

	// What run opened for the link, and who was there.
	keys     linkkeys.Choice
	names    peerNames
	ports    rdma.Ports      // that rdma links take
	timeline *trace.Recorder // nil: nobody wants it
	hide     func()          // clears the line of the progress; nil: there is none
}

// openLink returns the link of a URL that blocks travel over.
func (f *replayFlags) openLink(u linkURL, o session.Options) transport.Link {
	o.Intercept = f.timeline.Intercept(nil)
	lo := linkOptions{session: o, keys: f.keys, peers: &f.names}
	lo.follow(&f.ports)
	return u.open(lo)
}

func (f *replayFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.store, "store", "", "receive here, into the block store at `DIR`, which is made if there is none")
	fl.BoolVar(&f.discard, "discard", false, "receive here and keep nothing: for measuring")
	fl.StringArrayVar(&f.to, "to", nil, "send to the receiver at `URL` (tcp://host:port, rdma://host:port, unix://path); may be repeated: other ways to the same receiver, the preferred one first")
	fl.StringVar(&f.require, "require", "", "with --to: only over links of `SCHEME`")
	fl.StringVar(&f.link, "link", "mem://", "link to use with --store and --discard, `URL`: mem:// or tcp://127.0.0.1:0")
	fl.BoolVar(&f.noSync, "no-sync", false, "with --store: do not wait for the disk")
	fl.StringVar(&f.format, "format", "", "block format 3, 4 or 5 (default: the case's)")
	fl.IntVar(&f.poolState, "pool-state", 0, "elements of a pool's state, 3 or 5 (default: the case's in its own format, else what the format's writers use)")
	fl.IntVar(&f.chunk, "chunk", 0, "tokens taken at a time; 0 is "+strconv.Itoa(replay.DefaultChunk)+", -1 the whole prompt")
	fl.StringVar(&f.numerics, "numerics", "", "rounding profile: mlx-cpu, mlx-metal or ideal (default: the case's)")
	fl.IntVar(&f.senders, "senders", 1, "senders that share the layers, each with a connection of its own")
	fl.IntVar(&f.workers, "workers", 0, "goroutines of the kernels; 0 is one for each core")
	fl.StringVar(&f.part, "part", "", "with --to: send only share `I/N` of the layers; other processes send the rest at the same time")
	fl.StringVar(&f.id, "id", "", "transfer id, 32 hex digits (default: made from the plan, so that all parts agree)")
	fl.StringVar(&f.synthetic, "synthetic", "", "instead of a case: made-up values in the shapes of `MODEL` ("+listText(replay.SyntheticModels())+")")
	fl.IntVar(&f.tokens, "tokens", 0, "with --synthetic: length of the prompt")
	fl.Uint64Var(&f.seed, "seed", 0, "with --synthetic: other seeds give other blocks")
	fl.DurationVar(&f.timeout, "timeout", 0, "give up after this time; 0 is never")
	fl.DurationVar(&f.retry, "retry", failover.DefaultWindow, "with --to: after a lost connection, how long to try without progress; 0 is not at all")
	fl.BoolVar(&f.keep, "keep", false, "keep every frame until its blocks are durable, as a live source must")
	fl.BoolVar(&f.asJSON, "json", false, "print the result as JSON")
	fl.StringVar(&f.trace, "trace", "", "at the end, write a timeline of what was done to `FILE`, for ui.perfetto.dev; default: none")
	f.peers.Register(c, true)
	must(c.MarkFlagFilename("trace", "json"))
	must(c.MarkFlagDirname("store"))
	// What these have no effect with, checkUnused says; a config file may have them all.
	cmdline.OnlyWithout(c, []string{"store"}, "to", "discard")
	cmdline.OnlyWithout(c, []string{"to"}, "store", "discard")
	cmdline.OnlyWithout(c, []string{"discard"}, "store", "to")
	cmdline.OnlyWith(c, append([]string{"part", "retry", "require"}, linkkeys.Names()...), "to")
	cmdline.OnlyWith(c, []string{"link"}, "store", "discard")
	cmdline.OnlyWith(c, []string{"no-sync"}, "store")
	cmdline.OnlyWith(c, []string{"tokens", "seed"}, "synthetic")
	cmdline.OnlyWithout(c, []string{"numerics", "pool-state", "workers"}, "synthetic")
	cmdline.OnlyWithout(c, []string{"senders"}, "part")
	for flag, values := range map[string][]string{
		"format": {"3", "4", "5"}, "pool-state": {"3", "5"}, "numerics": {"mlx-cpu", "mlx-metal", "ideal"},
		"synthetic": replay.SyntheticModels(), "link": {"mem://", "tcp://127.0.0.1:0"}, "require": {schemeTCP, schemeRDMA, schemeUnix},
	} {
		must(c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
	}
}

// check looks at the command line as far as it can be judged without the input.
func (f *replayFlags) check(g given) error {
	err := errors.Join(
		g.oneOf([]string{"store", "to", "discard"}, []string{"--store DIR", "--to URL", "--discard"}),
		g.filled(map[string]string{
			"store": f.store, "to": strings.Join(f.to, " "), "require": f.require, "link": f.link, "format": f.format, "numerics": f.numerics,
			"part": f.part, "id": f.id, "synthetic": f.synthetic, "trace": f.trace, "keys": f.peers.Dir, "peer": f.peers.Peer,
		}),
		f.peers.Check())
	if err == nil {
		err = f.checkUnused(g)
	}
	if err == nil {
		err = f.settle()
	}
	return err
}

// checkUnused refuses combinations in which a flag would have no effect.
func (f *replayFlags) checkUnused(g given) error {
	var errs []error
	if len(f.to) > 0 {
		errs = append(errs, g.unused("is for --store and --discard: with --to the URL names the link", "link"))
	} else {
		errs = append(errs,
			g.unused("is for --to: with --store and --discard, --senders shares the layers", "part"),
			g.unused("is for --to: with --store and --discard no connection can be lost", "retry"),
			g.unused("is for --to: with --store and --discard --link names the link", "require"),
			g.unused("is for --to: with --store and --discard both ends are in this process", linkkeys.Names()...))
	}
	if f.store == "" {
		errs = append(errs, g.unused("is for --store", "no-sync"))
	}
	if f.synthetic == "" {
		errs = append(errs, g.unused("is for --synthetic: a case has its own prompt", "tokens", "seed"))
	} else {
		errs = append(errs, g.unused("is for cases: --synthetic makes its values up", "numerics", "pool-state", "workers"))
	}
	if f.part != "" {
		errs = append(errs, g.unused("is for one process, --part for several: give one of them", "senders"))
	}
	return errors.Join(errs...)
}

// settle checks values and fills what is made of them.
func (f *replayFlags) settle() (err error) {
	switch {
	case f.senders < 1 || f.senders > transport.MaxParts:
		return fmt.Errorf("--senders %d: want 1 to %d", f.senders, transport.MaxParts)
	case f.chunk < replay.OneShot:
		return fmt.Errorf("--chunk %d: want 1 or more tokens, 0 for %d, or -1 for the whole prompt", f.chunk, replay.DefaultChunk)
	case f.retry < 0:
		return fmt.Errorf("--retry %v: want a time, or 0 to give up at once", f.retry)
	case f.timeout < 0:
		return fmt.Errorf("--timeout %v: want a time that is not over yet", f.timeout)
	}
	if err := checkWorkers(f.workers); err != nil {
		return err
	}
	if f.id != "" {
		if _, err := transport.ParseID(f.id); err != nil {
			return fmt.Errorf("--id: %w", err)
		}
	}
	if err := f.parseShare(); err != nil {
		return err
	}
	if len(f.to) == 0 {
		f.url, err = parseLink(f.link)
		return err
	}
	return f.parseRoutes()
}

// parseRoutes reads --to and --require.
func (f *replayFlags) parseRoutes() error {
	schemes := linkSchemes()
	if f.require != "" && !slices.Contains(schemes, f.require) {
		return fmt.Errorf("--require %s: %w: this build has %s", f.require, transport.ErrUnavailable, listText(schemes))
	}
	f.routes = nil
	for _, to := range f.to {
		u, err := parseLink(to)
		if err == nil {
			err = u.target("to")
		}
		if err != nil {
			return err
		}
		if f.require == "" || u.scheme == f.require {
			f.routes = append(f.routes, u)
		}
	}
	if len(f.routes) == 0 {
		return fmt.Errorf("--require %s: no --to is of that scheme", f.require)
	}
	f.url = f.routes[0]
	return nil
}

// parseShare reads --part.
func (f *replayFlags) parseShare() error {
	f.share = replay.Share{Parts: 1}
	if f.part == "" {
		return nil
	}
	a, b, ok := strings.Cut(f.part, "/")
	i, err1 := strconv.Atoi(a)
	n, err2 := strconv.Atoi(b)
	if !ok || err1 != nil || err2 != nil || i < 1 || i > n || n > transport.MaxParts {
		return fmt.Errorf("--part %q: want I/N, for example 1/2, with N up to %d", f.part, transport.MaxParts)
	}
	f.share = replay.Share{Part: i - 1, Parts: n}
	return nil
}
