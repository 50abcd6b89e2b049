package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pdlink/tools/linkkeys"
	"pdlink/tools/pdperf/stats"
)

// ownRecord is a result of pdperf, as far as the tables of links need it, with where it was
// measured; see result.schema.json.
type ownRecord struct {
	Bed string `json:"bed"` // link of the bed
	MTU int    `json:"bed_mtu"`

	ownResult
	Program   string   `json:"program"`
	Link      string   `json:"link"`
	Block     int64    `json:"block_bytes"`
	Model     string   `json:"model"`
	Direction string   `json:"direction"`
	Rep       int      `json:"rep"`
	Line      float64  `json:"line_rate_gb_per_s"`
	Disturbed []string `json:"disturbed"`
	Limited   *struct {
		Cause string `json:"cause"`
	} `json:"limited_by"`
	Reads struct {
		CPU *struct {
			PerGB float64 `json:"reads_per_gb"`
		} `json:"cpu"`
	} `json:"receiver_reads"`
}

// name is what moved the blocks.
func (r *ownRecord) name() string {
	switch {
	case r.Program == "floor":
		return "floor"
	case r.Sealed:
		return r.Link + "+tls"
	}
	return r.Link
}

// measureLinks has pdperf measure its own links, in clear and sealed, beside the floor, on
// each link of the bed, and appends what it prints to log.
func measureLinks(ctx context.Context, b *bed, o options, log, errOut io.Writer) (all []ownRecord, err error) {
	dialler, listener, remove, err := linkkeys.Temporary()
	if err != nil {
		return nil, err
	}
	defer remove()
	err = b.eachLink(ctx, o, func(l link) error {
		fmt.Fprintf(errOut, "%s, MTU %d\n", l.name, l.mtu)
		waitQuiet(ctx, o.quiet)
		got, err := measureOn(ctx, b, l, o, dialler, listener, errOut)
		all = append(all, got...)
		if err != nil {
			err = fmt.Errorf("%s, MTU %d: %w", l.name, l.mtu, err)
		}
		return errors.Join(err, writeRecords(log, got))
	})
	return all, err
}

// writeRecords appends what was measured to a log, a line each.
func writeRecords[T any](log io.Writer, all []T) error {
	for _, r := range all {
		text, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(log, "%s\n", text); err != nil {
			return fmt.Errorf("write results: %w", err)
		}
	}
	return nil
}

// measureOn measures on one link of the bed.
func measureOn(ctx context.Context, b *bed, l link, o options, dialler, listener string, errOut io.Writer) ([]ownRecord, error) {
	at := func() string { return "tcp://" + net.JoinHostPort(b.receiver(l).local, strconv.Itoa(b.nextPort())) }
	url, floor := at(), at()
	s, err := startIn(ctx, b.receiver(l), nil, o.pdperf, "serve", "--json", "--listen", url, "--floor-listen", floor, "--keys="+listener, "--encrypt", "off")
	if err != nil {
		return nil, err
	}
	defer s.stop(syscall.SIGTERM)
	if _, err := s.until(listens()); err != nil {
		return nil, err
	}
	sizes := make([]string, len(o.blocks))
	for i, n := range o.blocks {
		sizes[i] = strconv.FormatInt(n, 10)
	}
	args := []string{"netns", "exec", b.sender(l).namespace, o.pdperf, "run", "--json", "--to", url, "--floor-to", floor, "--links", "tcp,tcp+tls",
		"--keys=" + dialler, "--size", strings.Join(sizes, ","), "--time", o.time.String(), "--reps", strconv.Itoa(o.reps)}
	cmd := exec.CommandContext(ctx, "ip", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) } // it then prints what it has
	cmd.WaitDelay = grace
	cmd.Stderr = errOut
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start pdperf: %w", err)
	}
	all, err := readOwn(out, l)
	if werr := cmd.Wait(); werr != nil {
		err = errors.Join(err, fmt.Errorf("pdperf run: %w", werr))
	}
	return all, err
}

// readOwn reads results of pdperf, a line each.
func readOwn(in io.Reader, l link) (all []ownRecord, err error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r ownRecord
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return all, fmt.Errorf("read results of pdperf: %w", err)
		}
		var more struct {
			Receiver struct {
				CPU *struct {
					PerGB float64 `json:"reads_per_gb"`
				} `json:"cpu"`
			} `json:"receiver"`
		}
		if err := json.Unmarshal(lines.Bytes(), &more); err != nil {
			return all, fmt.Errorf("read results of pdperf: %w", err)
		}
		r.Bed, r.MTU, r.Reads.CPU = l.name, l.mtu, more.Receiver.CPU
		all = append(all, r)
	}
	return all, lines.Err()
}

// printLinks prints the table of links, in Markdown.
func printLinks(out io.Writer, all []ownRecord, confidence float64) {
	type key struct {
		bed   string
		mtu   int
		block int64
		name  string
	}
	var order []key
	by := map[key][]ownRecord{}
	for _, r := range all {
		k := key{r.Bed, r.MTU, r.Block, r.name()}
		if by[k] == nil {
			order = append(order, k)
		}
		by[k] = append(by[k], r)
	}
	fmt.Fprintln(out, "| cable | MTU | block | link | n | GB/s | of the line | of the floor | p50 ms | p99 ms | sender s/GB | receiver s/GB | reads/GB | limited by | disturbed |")
	fmt.Fprintln(out, "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
	least := math.MaxInt
	for _, k := range order {
		rows, floor := good(by[k]), good(by[key{k.bed, k.mtu, k.block, "floor"}])
		if len(rows) == 0 {
			fmt.Fprintf(out, "| %s | %s | %s | %s | FAILED: %s |\n", k.bed, mtuText(k.mtu), blockText(k.block), k.name, by[k][0].Why)
			continue
		}
		least = min(least, len(rows))
		fmt.Fprintf(out, "| %s | %s | %s | %s | %d | %s |\n", k.bed, mtuText(k.mtu), blockText(k.block), k.name, len(rows), strings.Join(ownCells(rows, floor, confidence), " | "))
	}
	fmt.Fprintf(out, "\nMedians of n repetitions, with the interval that contains the true median with a probability of %.0f %% in brackets; of the floor: of pairs of one repetition.\n", confidence*100)
	if least == math.MaxInt {
		return // no measurement came to anything
	}
	if got := stats.Median(make([]float64, least), confidence).Coverage; got < confidence {
		fmt.Fprintf(out, "With %d repetitions it goes from the least to the most and does so with a probability of %.2f only.\n", least, got)
	}
}

func good(rows []ownRecord) []ownRecord {
	return slices.DeleteFunc(slices.Clone(rows), func(r ownRecord) bool { return !r.OK })
}

// ownCells are the cells of one row of printLinks.
func ownCells(rows, floor []ownRecord, confidence float64) []string {
	column := func(of func(ownRecord) float64) stats.Interval {
		v := make([]float64, 0, len(rows))
		for _, r := range rows {
			if x := of(r); !math.IsNaN(x) {
				v = append(v, x)
			}
		}
		return stats.Median(v, confidence)
	}
	cell := func(i stats.Interval, digits int, spread bool) string {
		switch {
		case i.N == 0 || math.IsInf(i.Median, 0):
			return none
		case spread && i.N > 1:
			return fmt.Sprintf("%.*f (%.*f–%.*f)", digits, i.Median, digits, i.Low, digits, i.High)
		}
		return fmt.Sprintf("%.*f", digits, i.Median)
	}
	cost := func(e func(ownRecord) ownEnd) func(ownRecord) float64 {
		return func(r ownRecord) float64 {
			if c := e(r).CPU; c != nil {
				return c.PerGB
			}
			return math.NaN()
		}
	}
	goodput := column(func(r ownRecord) float64 { return r.Goodput })
	line := column(func(r ownRecord) float64 {
		if r.Line == 0 {
			return math.NaN()
		}
		return r.Goodput / r.Line
	})
	cause, disturbed := map[string]int{}, 0
	for _, r := range rows {
		if r.Limited != nil {
			cause[r.Limited.Cause]++
		}
		if len(r.Disturbed) > 0 {
			disturbed++
		}
	}
	return []string{
		cell(goodput, 3, true), cell(line, 3, false), cell(stats.Median(ofFloor(rows, floor), confidence), 2, true),
		cell(column(func(r ownRecord) float64 { return r.BlockMs.P50 }), 1, false), cell(column(func(r ownRecord) float64 { return p99(r.BlockMs.P99, float64(r.Bytes), r.Block) }), 1, false),
		cell(column(cost(func(r ownRecord) ownEnd { return r.Sender })), 3, true), cell(column(cost(func(r ownRecord) ownEnd { return r.Receiver })), 3, true),
		cell(column(func(r ownRecord) float64 {
			if r.Reads.CPU == nil {
				return math.NaN()
			}
			return r.Reads.CPU.PerGB
		}), 0, false), causes(cause), fmt.Sprintf("%d of %d", disturbed, len(rows)),
	}
}

// ofFloor are the quotients of repetitions that both have, none of the floor by itself.
func ofFloor(rows, floor []ownRecord) (v []float64) {
	for _, r := range rows {
		for _, f := range floor {
			if r.Rep == f.Rep && r.Program != f.Program && f.Goodput > 0 {
				v = append(v, r.Goodput/f.Goodput)
			}
		}
	}
	return v
}

// causes are what limited the repetitions, the most frequent first.
func causes(count map[string]int) string {
	names := make([]string, 0, len(count))
	for name := range count {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := count[b] - count[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	for i, name := range names {
		if len(names) > 1 {
			names[i] = fmt.Sprintf("%s ×%d", name, count[name])
		}
	}
	if len(names) == 0 {
		return none
	}
	return strings.Join(names, ", ")
}

// p99 is a 99th percentile of the times of as many blocks as so many bytes are, NaN where it
// is the longest one's by number only.
func p99(ms, bytes float64, block int64) float64 {
	if block < 1 || bytes/float64(block) < 100 {
		return math.NaN()
	}
	return ms
}

func mtuText(mtu int) string {
	if mtu == 0 {
		return none
	}
	return strconv.Itoa(mtu)
}

func blockText(n int64) string {
	switch {
	case n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// ownTime is how long measuring links takes at least, for who waits.
func ownTime(o options) time.Duration {
	beds := 0
	for _, name := range o.links {
		if l, err := linkByName(name); err == nil && l.loopback {
			beds++
		} else {
			beds += len(o.mtus)
		}
	}
	return time.Duration(beds*len(o.blocks)*o.reps*3) * (o.time + time.Second)
}
