package cost

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Synthetic is what Report.Case begins with where values are made up.
const Synthetic = "synthetic:"

// defaultLink stands for the product where one number is wanted: sealed TCP where it was
// measured, which is what two hosts have by default.
const defaultLink = "tcp+tls"

// Usual is the link that the headline and the cables are about: sealed TCP where that was
// measured. The report has one link at least.
func (r *Report) Usual() *LinkReport {
	for _, want := range []string{defaultLink, "tcp"} {
		for i := range r.Links {
			if r.Links[i].Link == want {
				return &r.Links[i]
			}
		}
	}
	return &r.Links[0]
}

// shape is the model's.
func (r *Report) shape() Shape { return Shape{r.BytesPerToken, r.Layers, r.Chunk} }

// cables fills what physical links would make of one that was measured.
func (r *Report) cables(e Engines, l *LinkReport) {
	before := math.NaN()
	for _, c := range Cables() {
		over := l.model().Over(c, r.shape())
		row := CableCost{Cable: c.Name, Rate: c.Rate, MsToken: over.PerToken * 1e3, Tokens: At, Seconds: over.Stream(e.Usable(At))}
		if len(e.Native) > 0 && len(e.Prefill) > 0 {
			t := e.Bridged(over, At)
			if row.Bridged = &t; !math.IsNaN(before) {
				row.Saves = before - t.Total
			}
			before = t.Total
			if n, ok := e.BreakEven(over); ok {
				row.BreakEven = &n
			}
		}
		r.Cables = append(r.Cables, row)
	}
}

// noisy is how many times as long as the fastest run of a length the slowest may take
// before a report says that the host was busy with other things.
const noisy = 1.5

// NoiseText says whose runs differ so much that the host was probably busy with other
// things; empty where none do.
func (r *Report) NoiseText() string {
	var names []string
	for _, l := range r.Links {
		_, least, most := spread(longest(l.Measurements), func(r Run) float64 { return r.Seconds })
		if most > noisy*least {
			names = append(names, fmt.Sprintf("%s (%s to %s)", LinkName(l.Link), Seconds(least), Seconds(most)))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "Runs of one length differ by more than a half: " + strings.Join(names, ", ") + ". This host or its disk was busy with other things; links that are this close cannot be told apart here."
}

// nothing is the part of a wait that nobody would pay for.
const nothing = 0.01

// CableText is what a faster cable buys, in a sentence; empty where the engines are not
// known.
func (r *Report) CableText() string {
	if len(r.Cables) == 0 || r.Cables[0].Bridged == nil {
		return ""
	}
	first, last := r.Cables[0], r.Cables[len(r.Cables)-1]
	saved := first.Bridged.Total - last.Bridged.Total
	if saved < nothing*first.Bridged.Total {
		return fmt.Sprintf("A faster cable buys next to nothing: even %s carries the blocks in less time than the prompt is read, and from there to %s the first token comes %s sooner, of %s.",
			first.Cable, last.Cable, Seconds(saved), Seconds(first.Bridged.Total))
	}
	for i, c := range r.Cables {
		if rest := c.Bridged.Total - last.Bridged.Total; rest < nothing*c.Bridged.Total {
			return fmt.Sprintf("%s is enough: it makes the first token come %s sooner than %s, and all faster ones together only %s more.",
				c.Cable, Seconds(first.Bridged.Total-c.Bridged.Total), r.Cables[0].Cable, Seconds(r.Cables[i].Bridged.Total-last.Bridged.Total))
		}
	}
	return ""
}

// publishedCable is what the system of Reference had.
const publishedCable = "10 GbE"

// published fills the published table where the model and the engines are those of it.
func (r *Report) published(e Engines, l *LinkReport) {
	known, ok := KnownEngines("deepseek-v4-flash")
	if !ok || r.Engines.Source != known.Source {
		return
	}
	for _, c := range Cables() {
		if c.Name != publishedCable {
			continue
		}
		over := l.model().Over(c, r.shape())
		for _, row := range Reference() {
			r.Published = append(r.Published, Replaced{
				Row: row, Model: e.Bridged(Link{Tail: row.Between()}, row.Tokens).Total, Ours: e.Bridged(over, row.Tokens), Link: l.Link, Cable: c.Name,
			})
		}
	}
}

// assume writes down what the numbers hold with.
func (r *Report) assume(e Engines) {
	add := func(source Source, format string, args ...any) {
		r.Assumptions = append(r.Assumptions, Assumption{fmt.Sprintf(format, args...), source})
	}
	const here, rule = "measured here", "the model's rule"
	add(here, "Both ends of every link are on this one host, and share its processors: a cable and a card are not in these numbers, and neither is a second host's own processor.")
	if len(e.Prefill) > 0 {
		add(r.Engines.Source, "Prefill takes %s (tokens:seconds, or tokens/s); between points the time of a token is linear, below the first it is constant, beyond the last it goes on rising.", e.Prefill)
	}
	if len(e.Native) > 0 {
		add(r.Engines.Source, "The decoder alone takes %s; beyond %s tokens that is extrapolated.", e.Native, Number(e.Native.Longest()))
	}
	if len(e.Cached) > 0 {
		add(r.Engines.Source, "With all blocks in its store the decoder takes %s to the first token; that is its own time on its own hardware.", e.Cached)
	} else if len(e.Native) > 0 {
		add(rule, "With all blocks in its store the decoder takes what it would for the tokens behind the last whole block; loading blocks is not counted.")
	}
	add(rule, "A bridged prompt takes prefill + what the link is slower than that + the tail + the decoder's own part. Seconds of a length that was not measured are the fixed part and so much for each token, "+
		"the line through the medians of the lengths that were.")
	if len(r.Links) > 0 && r.Links[0].Paced {
		add(here, "The tail is from the last layer's last piece to all blocks visible, of a chunk of %s tokens made at the prefill's pace; it is taken as the same for every length, since earlier chunks have travelled by then.", Number(r.Chunk))
	} else {
		add(here, "The tail is from the source's last piece to all blocks visible, with the source as fast as it goes: a full ring is still on its way then, so it is an upper bound.")
	}
	add(rule, "A cable carries 1448/1538 of its line rate as payload (TCP, MTU 1500). Over it a token takes the longer of that and what was measured, and the tail is longer by the last layer's %s.", Bytes(r.shape().LastLayer()))
	switch r.Store {
	case "none":
		add(here, "Blocks are verified and then dropped: the decoder's disk is not in these numbers.")
	case "written":
		add(here, "Blocks are written to this host's disk, and nobody waits until it has them.")
	default:
		add(here, "Blocks are written to this host's disk and synchronised before they count.")
	}
	add(rule, "Not counted: the front door's planning, the queue for an engine, and the decoder's adoption. The projection on the GPU is part of prefill.")
	if strings.HasPrefix(r.Case, Synthetic) {
		add(here, "What travels is made up, in the model's shapes: making it takes next to nothing.")
	} else {
		add(here, "The case's blocks are made by the kernels in plain Go on this host: that arithmetic (project) is in the seconds and in the sender's processor time, and a GPU's is not. What a link adds is the difference to memory.")
	}
}

// headline is the report in a sentence or two.
func (r *Report) headline(e Engines, l *LinkReport) string {
	text := fmt.Sprintf("Over %s, %s costs %s a token here", LinkName(l.Link), modelName(r), Milliseconds(l.MsPerToken))
	if len(e.Native) == 0 || len(e.Prefill) == 0 {
		return text + fmt.Sprintf(" (%s for %s tokens). How fast the engines are is not known, so nobody can say here from which prompt on that pays.",
			Seconds(l.Fixed+l.MsPerToken/1e3*At), Number(At))
	}
	t := e.Bridged(l.model(), At)
	native := e.Native.At(At)
	ours := t.Exposed + t.Tail
	if t.Total > native {
		return text + fmt.Sprintf(". A prompt of %s tokens is answered after %s instead of %s: bridging does not pay at that length.", Number(At), Seconds(t.Total), Seconds(native))
	}
	pays := "it pays at no length"
	if l.BreakEven != nil {
		pays = fmt.Sprintf("it pays from %s tokens on", Number(*l.BreakEven))
	}
	return text + fmt.Sprintf(". A prompt of %s tokens is answered after %s instead of %s (%.1f times sooner), of which the link adds %s; %s.",
		Number(At), Seconds(t.Total), Seconds(native), native/t.Total, Seconds(ours), pays)
}

// modelName is the model of a report, for a sentence.
func modelName(r *Report) string {
	if r.Model == "" {
		return r.Case
	}
	return r.Model
}

// LinkName is a link's name for people: "sealed TCP" for "tcp+tls".
func LinkName(link string) string {
	switch link {
	case "tcp+tls":
		return "sealed TCP"
	case "tcp":
		return "TCP in clear"
	case "rdma":
		return "RDMA"
	case "unix":
		return "a Unix socket"
	case "mem":
		return "memory (no link at all)"
	}
	return link
}

// Seconds is a time for people: "28.2 s", "47 ms", "12 min 12 s".
func Seconds(s float64) string {
	switch {
	case math.IsNaN(s) || math.IsInf(s, 0):
		return "?"
	case s < 0:
		return "−" + Seconds(-s)
	case s < 1:
		return Milliseconds(s * 1e3)
	case s < 100:
		return fmt.Sprintf("%.1f s", s)
	case s < 600:
		return fmt.Sprintf("%.0f s", s)
	}
	m := int(math.Round(s))
	return fmt.Sprintf("%d min %02d s", m/60, m%60)
}

// Milliseconds is a time in milliseconds for people, with as many digits as say something:
// "12.3 µs".
func Milliseconds(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f ms", v)
	case v >= 10:
		return fmt.Sprintf("%.1f ms", v)
	case v >= 1:
		return fmt.Sprintf("%.2f ms", v)
	case v >= 0.1:
		return fmt.Sprintf("%.0f µs", v*1e3)
	}
	return fmt.Sprintf("%.1f µs", v*1e3)
}

// Number is a count with its thousands apart: "82,000".
func Number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Bytes is an amount of bytes for people: "10.4 kB".
func Bytes(v float64) string {
	for _, u := range []string{"B", "kB", "MB", "GB"} {
		if v < 1000 {
			return fmt.Sprintf("%.3g %s", v, u)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.3g TB", v)
}
