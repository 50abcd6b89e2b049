// Command peers runs pdperf, its floor and other transports side by side on one
// host: in two network namespaces that it makes and removes, interleaved, with
// the order reversed on every second repetition, and prints medians with
// confidence intervals. It needs root and Linux, and setup.sh beside it for what
// it compares with.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "peers: %v\n", err)
		}
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	dir, pdperf string
	links       []string
	peers       []string
	mtus        []int
	blocks      []int64
	reps        int
	time        time.Duration
	quiet       time.Duration
	out         string
	table       string
	base        string
	confidence  float64
	own         bool
}

func parse(args []string, errOut io.Writer) (options, error) {
	o := options{}
	fl := flag.NewFlagSet("peers", flag.ContinueOnError)
	fl.SetOutput(errOut)
	fl.StringVar(&o.dir, "dir", ".build/peers", "where setup.sh put the other transports")
	fl.StringVar(&o.pdperf, "pdperf", ".build/pdperf", "the program that is compared")
	links := fl.String("links", "10g", "comma-separated: lo, wire (unshaped), 10g, 2.5g, 1g")
	names := fl.String("peers", strings.Join(peerNames(), ","), "comma-separated; pdperf, pdperf-sealed and floor take flags after a colon: pdperf:--lanes=2")
	mtus := fl.String("mtu", "1500", "comma-separated bytes, for links but lo")
	blocks := fl.String("sizes", "16777216,20971520", "comma-separated block sizes in bytes")
	fl.IntVar(&o.reps, "reps", 9, "repetitions")
	fl.DurationVar(&o.time, "time", 5*time.Second, "length of one measurement, whole seconds")
	fl.DurationVar(&o.quiet, "quiet", 0, "before each measurement wait up to so long until nothing else runs")
	fl.StringVar(&o.out, "out", "", "append one line of JSON for each measurement to this file")
	fl.StringVar(&o.table, "table", "", "measure nothing: print the table of such a file")
	fl.StringVar(&o.base, "base", "iperf3", "the peer that the others are divided by")
	fl.Float64Var(&o.confidence, "confidence", 0.95, "of the intervals")
	fl.BoolVar(&o.own, "own", false, "measure the links of pdperf alone, in clear and sealed, beside its floor, and print one table of all; the peers do not count")
	if err := fl.Parse(args); err != nil {
		return o, err
	}
	o.links, o.peers = strings.Split(*links, ","), strings.Split(*names, ",")
	for _, l := range o.links {
		if _, err := linkByName(l); err != nil {
			return o, err
		}
	}
	var err error
	if o.mtus, err = numbers[int](*mtus); err != nil {
		return o, fmt.Errorf("-mtu: %w", err)
	}
	if o.blocks, err = numbers[int64](*blocks); err != nil {
		return o, fmt.Errorf("-sizes: %w", err)
	}
	if o.own && o.table != "" {
		return o, errors.New("-own and -table exclude each other")
	}
	if fl.NArg() > 0 || o.reps < 1 || o.time < time.Second || o.time%time.Second != 0 || o.confidence <= 0 || o.confidence >= 1 {
		return o, errors.New("want flags only, at least one repetition, whole seconds, and a confidence between 0 and 1")
	}
	return o, nil
}

// numbers reads a comma-separated list of positive numbers.
func numbers[T int | int64](list string) (all []T, err error) {
	for text := range strings.SplitSeq(list, ",") {
		v, err := strconv.ParseInt(text, 10, 40)
		if err != nil || v < 1 {
			return nil, fmt.Errorf("%q is no positive number", text)
		}
		all = append(all, T(v))
	}
	return all, nil
}

func run(ctx context.Context, args []string, out, errOut io.Writer) (err error) {
	o, err := parse(args, errOut)
	if err != nil {
		return err
	}
	if o.table != "" {
		all, err := readRecords(o.table)
		if err != nil {
			return err
		}
		printTables(out, all, o)
		return nil
	}
	if o.own {
		o.peers = []string{"pdperf"}
	}
	var list []peer
	for _, name := range o.peers {
		p, err := peerByName(name, o)
		if err != nil {
			return err
		}
		if p.missing != nil {
			if o.own { // there would be nothing to compare it with
				return p.missing
			}
			fmt.Fprintf(errOut, "peers: %v\n", p.missing)
		}
		list = append(list, p)
	}
	log := io.Discard
	if o.out != "" {
		f, err := os.OpenFile(o.out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer f.Close()
		log = f
	}
	b, err := newBed(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if o.own {
		fmt.Fprintf(errOut, "this takes %v or more\n", ownTime(o))
		all, err := measureLinks(ctx, b, o, log, errOut)
		printLinks(out, all, o.confidence)
		return err
	}
	all, err := measureAll(ctx, b, o, list, log, errOut)
	printTables(out, all, o)
	return errors.Join(err, failures(all))
}

// failures is the error of measurements that came to nothing, by name of their peers.
func failures(all []record) error {
	var names []string
	count := map[string]int{}
	for _, r := range all {
		if r.Error == "" {
			continue
		}
		if count[r.Peer] == 0 {
			names = append(names, r.Peer)
		}
		count[r.Peer]++
	}
	if len(names) == 0 {
		return nil
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%s (%d)", name, count[name])
	}
	return fmt.Errorf("measurements failed, of %s: the tables say why", strings.Join(names, ", "))
}

// eachLink makes the bed be one link after the other, with each MTU, and calls f with it.
func (b *bed) eachLink(ctx context.Context, o options, f func(link) error) error {
	for _, name := range o.links {
		l, err := linkByName(name)
		if err != nil {
			return err
		}
		mtus := o.mtus
		if l.loopback {
			mtus = []int{0}
		}
		for _, mtu := range mtus {
			l.mtu = mtu
			if err := b.prepare(ctx, l); err != nil {
				return err
			}
			if err := f(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// measureAll runs everything that was asked for.
func measureAll(ctx context.Context, b *bed, o options, list []peer, log, errOut io.Writer) (all []record, err error) {
	err = b.eachLink(ctx, o, func(l link) error {
		for _, block := range o.blocks {
			got, err := interleave(ctx, b, o, trial{bed: b, link: l, block: block, time: o.time}, list, log, errOut)
			all = append(all, got...)
			if err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}

// interleave runs every peer once a repetition, in one order and then in the
// other, so that what drifts hits all of them alike. A peer that fails is
// recorded and does not stop the others.
func interleave(ctx context.Context, b *bed, o options, t trial, list []peer, log, errOut io.Writer) ([]record, error) {
	var all []record
	for rep := range o.reps {
		order := slices.Clone(list)
		if rep%2 == 1 {
			slices.Reverse(order)
		}
		for _, p := range order {
			t.port = b.nextPort()
			waitQuiet(ctx, o.quiet)
			r := measure(ctx, p, t)
			if ctx.Err() != nil {
				return all, errors.New("stopped")
			}
			r.Rep = rep
			all = append(all, r)
			if err := writeRecords(log, []record{r}); err != nil {
				return all, err
			}
			fmt.Fprintf(errOut, "%s\n", r.line())
		}
	}
	return all, nil
}

// readRecords reads the lines of an earlier run.
func readRecords(path string) ([]record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []record
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		all = append(all, r)
	}
	return all, lines.Err()
}
