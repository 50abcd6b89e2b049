package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"pdlink/tools/pdperf/stats"
)

// tableConfidence is of the intervals in tables.
const tableConfidence = 0.95

// none is an empty cell.
const none = "-"

// printTable writes the results of several measurements for people.
func printTable(out streams, all []*result) {
	if len(all) == 0 {
		return
	}
	list := grouped(all)
	reps := 0
	for _, s := range list {
		reps = max(reps, len(s.all)+len(s.bad))
	}
	tw := tabwriter.NewWriter(out.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "link\tblock\tlanes\tin flight\tway\tGB/s (least to most)\tof floor\tof line\tp50\tp90\tp99\tp99.9 ms\ts/GB sender\treceiver\treads/GB\tlimited by")
	for _, s := range list {
		fmt.Fprintln(tw, strings.Join(s.row(list), "\t"))
	}
	tw.Flush() //nolint:errcheck // nobody is left to tell
	out.printf("\n%d repetition%s, interleaved; medians. Block times in milliseconds, %q where the blocks are too few for a percentile; CPU in seconds per 10^9 bytes, of whole processes.\n",
		reps, plural(reps), none)
	printNotes(out.out, list)
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// row is the cells of a series.
func (s *series) row(list []*series) []string {
	head := []string{s.key.Link, s.key.block(), fmt.Sprint(s.key.Lanes), fmt.Sprint(s.key.InFlight), s.key.Direction}
	if len(s.all) == 0 {
		return append(head, "FAILED")
	}
	rates := s.values(goodput)
	rate := fmt.Sprintf("%.3f", middle(rates))
	if len(rates) > 1 {
		rate += fmt.Sprintf(" (%.3f to %.3f)", slices.Min(rates), slices.Max(rates))
	}
	ofFloor, ofLine := none, none
	if f := s.floor(list); f != nil && f != s && s.key.Direction != both { // the floor has one way
		x, y := pairs(s, f, goodput)
		ofFloor = number(middle(stats.Ratios(x, y)), 2)
	}
	if s.last.Line > 0 && s.key.Direction != both {
		ofLine = number(middle(s.values(func(r *result) float64 { return r.Goodput / r.Line })), 3)
	}
	ms := func(p float64) string {
		return number(middle(s.values(func(r *result) float64 { return r.blockMs(p) })), 2)
	}
	sender, receiver := number(middle(s.values(senderCost)), 3), number(middle(s.values(receiverCost)), 3)
	if s.last.Both != nil {
		sender, receiver = number(middle(s.values(bothCost)), 3), "(both)"
	}
	return append(head, rate, ofFloor, ofLine,
		ms(50), ms(90), ms(99), ms(99.9),
		sender, receiver, number(middle(s.values(readsOf)), 0), s.cause())
}

// cause is what limited most repetitions.
func (s *series) cause() string {
	count := map[string]int{}
	for _, r := range s.all {
		if r.Limited != nil {
			count[r.Limited.Cause]++
		}
	}
	best := none
	for _, r := range s.all {
		if r.Limited != nil && (best == none || count[r.Limited.Cause] > count[best]) {
			best = r.Limited.Cause
		}
	}
	if n := count[best]; n > 0 && n < len(s.all) {
		best += fmt.Sprintf(" (%d of %d)", n, len(s.all))
	}
	return best
}

// middle is the median of those values that are numbers, NaN where none is.
func middle(v []float64) float64 {
	return stats.Median(slices.DeleteFunc(slices.Clone(v), math.IsNaN), tableConfidence).Median
}

func number(v float64, digits int) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return none
	}
	return fmt.Sprintf("%.*f", digits, v)
}

// notes are lines that are each written once.
type notes struct {
	out  io.Writer
	seen map[string]bool
}

func (n *notes) add(format string, args ...any) {
	n.once(fmt.Sprintf(format, args...), format, args...)
}

// once writes a line, unless one of the same key was written.
func (n *notes) once(key, format string, args ...any) {
	if !n.seen[key] {
		n.seen[key] = true
		fmt.Fprintf(n.out, format+"\n", args...)
	}
}

// printNotes writes what belongs to a table and has no room in it.
func printNotes(out io.Writer, list []*series) {
	n := &notes{out, map[string]bool{}}
	n.faults(list)
	for _, s := range list {
		if r := s.newest(); r != nil && r.Limited != nil {
			n.add("Limited by, %s %s, %s: %s: %s", s.key.Link, s.key.block(), s.key.Direction, r.Limited.Cause, r.Limited.Evidence)
		}
	}
	for _, s := range list {
		if r := s.newest(); r != nil && r.Watched != nil {
			n.add("watched, %s %s, %s: %s", s.key.Link, s.key.block(), s.key.Direction, r.Watched.text())
		}
	}
	for _, s := range list {
		r := s.newest()
		if r == nil {
			continue
		}
		if text := grantedText(s.key.Link, r); text != "" {
			n.once("granted "+s.key.Link, "%s", text)
		}
		if r.LineOf != "" {
			n.add("line: %.3f GB/s of payload by the %s", r.Line, r.LineOf)
		}
	}
	for _, s := range list {
		if r := s.newest(); r != nil {
			n.add("host: %s", hostsText(r))
		}
	}
}

// faults writes what is wrong with figures, or missing.
func (n *notes) faults(list []*series) {
	disturbed := 0
	for _, s := range list {
		for _, r := range s.bad {
			n.add("FAILED: %s %s, %s, repetition %d: %s", s.key.Link, s.key.block(), s.key.Direction, r.Rep+1, r.Why)
		}
		for _, r := range s.all {
			if len(r.Disturbed) > 0 {
				disturbed++
			}
			if r.Interrupted {
				n.add("INTERRUPTED: %s %s, %s, repetition %d: its time was cut short", s.key.Link, s.key.block(), s.key.Direction, r.Rep+1)
			}
			if r.Sum == "none" && r.Program != floorLink {
				n.add("NOT VERIFIED: %s had no checksum", s.key.Link)
			}
		}
	}
	if disturbed == 0 {
		return
	}
	n.add("DISTURBED: %d of the measurements; one of each row:", disturbed)
	for _, s := range list {
		if i := slices.IndexFunc(s.all, func(r *result) bool { return len(r.Disturbed) > 0 }); i >= 0 {
			n.add("  %s %s, %s, repetition %d: %s", s.key.Link, s.key.block(), s.key.Direction, s.all[i].Rep+1, strings.Join(s.all[i].Disturbed, "; "))
		}
	}
}

// newest is the last good repetition, nil where there is none.
func (s *series) newest() *result {
	if len(s.all) == 0 {
		return nil
	}
	return s.all[len(s.all)-1]
}

// grantedText is what the kernel granted to the socket that moved most.
func grantedText(link string, r *result) string {
	if len(r.Sender.Sockets) == 0 || len(r.Receiver.Sockets) == 0 {
		return ""
	}
	s, t := r.Sender.Sockets[0], r.Receiver.Sockets[0]
	nic := ""
	if n := r.Sender.NIC; n != nil {
		nic = ", " + n.text()
	}
	if t.RecvLowWater > 1 {
		nic = ", low-water mark " + bytesText(t.RecvLowWater) + nic
	}
	return fmt.Sprintf("granted, %s: %s, MSS %d, send buffer %s, receive buffer %s%s", link, s.Congestion, s.MSS,
		bytesText(s.SendBuffer), bytesText(t.RecvBuffer), nic)
}

func bytesText(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}

// text is an interface for people.
func (n *nicFacts) text() string {
	words := []string{fmt.Sprintf("%s (%s), MTU %d", n.Name, orUnknown(n.Driver), n.MTU)}
	if n.Mbit > 0 {
		words = append(words, fmt.Sprintf("%g Gbit/s", float64(n.Mbit)/1e3))
	}
	if n.Shaped > 0 {
		words = append(words, fmt.Sprintf("token bucket of %g Gbit/s", math.Round(float64(n.Shaped)*8/1e6)/1e3))
	}
	if len(n.Offloads) > 0 {
		words = append(words, strings.Join(n.Offloads, " ")+" on")
	}
	return strings.Join(words, ", ")
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// hostsText is what the two ends ran on.
func hostsText(r *result) string {
	a := r.Sender.hostText()
	if b := r.Receiver.hostText(); b != a {
		return a + "; receiver: " + b
	}
	return a
}

func (e *endResult) hostText() string {
	text := fmt.Sprintf("%s, %d cores of %s", e.Platform, e.Cores, orUnknown(e.Host.CPU))
	if e.Host.Virtual {
		text += " (virtual)"
	}
	if e.Host.Memory > 0 {
		text += fmt.Sprintf(", %.0f GiB", float64(e.Host.Memory)/(1<<30))
	}
	return text + fmt.Sprintf(", %s, %s", orUnknown(e.Host.Kernel), orUnknown(e.Host.Go))
}
