package cost

import (
	"cmp"
	"fmt"
	"math"
	"slices"
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
		row := CableCost{Cable: c.Name, Rate: c.Rate, MsToken: over.PerToken * 1e3, Tokens: r.At, Seconds: over.Stream(e.Usable(r.At))}
		if len(e.Native) > 0 && len(e.Prefill) > 0 {
			t := e.Bridged(over, r.At)
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
		if least, most, ok := l.Noisy(); ok {
			names = append(names, fmt.Sprintf("%s (%s to %s)", LinkName(l.Link), Seconds(least), Seconds(most)))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "Runs of one length differ by more than a half: " + strings.Join(names, ", ") + ". This host or its disk was busy with other things; links that are this close cannot be told apart here."
}

// Noisy reports whether the link's runs differ so much, and between what.
func (l *LinkReport) Noisy() (least, most float64, ok bool) {
	return Apart(longest(l.Measurements), func(r Run) float64 { return r.Seconds })
}

// Apart reports whether a value of runs differs by more than a half among them, and between
// what.
func Apart(runs []Run, of func(Run) float64) (least, most float64, ok bool) {
	_, least, most = spread(runs, of)
	return least, most, most > noisy*least
}

// small is how many bytes a transfer has to have for its processor time a GB to be that of
// bytes, and not of opening and closing it.
const small = 64e6

// SmallText says that the transfers were small; empty where they were not.
func (r *Report) SmallText() string {
	if len(r.Links) == 0 {
		return ""
	}
	top := longest(r.Usual().Measurements)
	if len(top) == 0 || float64(top[0].Bytes) >= small {
		return ""
	}
	return fmt.Sprintf("The transfers are of %s only: what they take is mostly what every one does, of any length, so seconds a token and processor seconds a GB are upper bounds.", Bytes(float64(top[0].Bytes)))
}

// BlockText says what a break-even cannot be less than; empty where that is not known.
func (r *Report) BlockText() string {
	if r.BlockTokens < 1 {
		return ""
	}
	return fmt.Sprintf("A prompt of no whole block (%s tokens) and a token is not bridged; lengths are to an eighth of a block.", Number(r.BlockTokens))
}

// FarText says which lengths are far beyond what was measured; empty where none are.
func (r *Report) FarText() string {
	if len(r.Links) == 0 {
		return ""
	}
	l := r.Usual()
	var far []string
	for _, c := range l.Costs {
		if c.Basis == BasisFar {
			far = append(far, fmt.Sprintf("%s tokens (%.0f times as long)", Number(c.Tokens), c.Factor))
		}
	}
	if len(far) == 0 {
		return ""
	}
	return fmt.Sprintf("The longest prompt that was measured over %s has %s tokens: of %s the link's seconds are an order of magnitude only. --measure takes longer ones.",
		LinkName(l.Link), Number(l.Line.Longest), strings.Join(far, ", "))
}

// FitText says how lengths that were not measured are got, and how well that holds.
func (r *Report) FitText() string {
	l := r.Usual()
	text := fmt.Sprintf("%s; measured from %s to %s tokens", FitText, Number(l.Line.Shortest), Number(l.Line.Longest))
	if l.Line.Lengths < 2 {
		text = fmt.Sprintf("one length was measured, %s tokens, so all of its time is taken as per token", Number(l.Line.Longest))
	}
	if l.Line.Residual == nil {
		return text + "; too few runs to say how far off that is."
	}
	return text + fmt.Sprintf("; over %s runs lie %.0f %% off the line (one standard deviation).", LinkName(l.Link), 100**l.Line.Residual)
}

// KnownText says of which lengths the engines' times are known, with a space behind it;
// empty where they are of all, being rates, or of none.
func (r *Report) KnownText() string {
	least, most := 0, 0
	for _, s := range []Series{r.Engines.Prefill, r.Engines.Native, r.Engines.Cached} {
		if n := s.Longest(); n > 0 {
			if least = max(least, s[0].Tokens); most == 0 || n < most {
				most = n
			}
		}
	}
	switch {
	case most == 0:
		return ""
	case (1-nearLength)*float64(least) > (1+nearLength)*float64(most):
		return "The engines' times are known of no common length, so that one or another is extrapolated at each. "
	}
	return fmt.Sprintf("The engines' times are known from %s to %s tokens; outside of that they are extrapolated. ", Number(min(least, most)), Number(max(least, most)))
}

// Estimates reports whether a row or a break-even is not of lengths that were measured.
func (r *Report) Estimates() bool {
	return slices.ContainsFunc(r.Links, func(l LinkReport) bool {
		return l.BreakEven != nil && !l.EvenKnown || slices.ContainsFunc(l.Costs, func(c Length) bool { return c.Basis != BasisMeasured || !c.Known })
	})
}

// EvenText is a link's break-even for people: marked where the engines' times are not known
// of such a length.
func (r *Report) EvenText(l *LinkReport) string {
	switch {
	case l.BreakEven == nil && r.Engines.known():
		return "never"
	case l.BreakEven == nil:
		return "?"
	case !l.EvenKnown:
		return "~" + Number(*l.BreakEven)
	}
	return Number(*l.BreakEven)
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
	add(rule, "A bridged prompt takes prefill + what the link is slower than that + the tail + the decoder's own part. Seconds of a length that was not measured: %s", r.FitText())
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
	switch {
	case r.Made:
		add(here, "The case's own blocks travel; they were made before the clock ran, so that the kernels' arithmetic is in none of the numbers.")
	case strings.HasPrefix(r.Case, Synthetic):
		add(here, "What travels is made up, in the model's shapes: making it takes next to nothing.")
	default:
		add(here, "The case's blocks are made by the kernels in plain Go on this host: that arithmetic (project) is in the seconds and in the sender's processor time, and a GPU's is not. What a link adds is the difference to memory.")
	}
	add(here, "Processor time is that of an end's whole process while a transfer lasts, of all its lanes: opening the link, checksums, and at the receiver writing the store are in it. What is more than over memory is the link's.")
}

// headline is the report in a sentence or two: what is not measured here is said to be so.
func (r *Report) headline(e Engines, l *LinkReport) string {
	text := fmt.Sprintf("Over %s, %s costs %s a token here", LinkName(l.Link), modelName(r), Milliseconds(l.MsPerToken))
	if !r.Engines.known() {
		return text + fmt.Sprintf(" (%s for %s tokens). How fast your engines are is not known, so from which prompt on that pays is said for some that people have.",
			Seconds(l.model().Stream(r.At)), Number(r.At))
	}
	t := e.Bridged(l.model(), r.At)
	native := e.Native.At(r.At)
	ours := t.Exposed + t.Tail
	with := map[Origin]string{Here: "With your engines as measured", Given: "With engines as fast as you say", Elsewhere: "With engines as fast as somebody else published"}[r.Engines.Origins.Native]
	text += ". " + cmp.Or(with, "With such engines") + fmt.Sprintf(", a prompt of %s tokens has its first token after %s instead of %s", Number(r.At), Seconds(t.Total), Seconds(native))
	if t.Total > native {
		return text + ": bridging does not pay at that length."
	}
	pays := "it pays at no length"
	if l.BreakEven != nil {
		pays = fmt.Sprintf("it pays from %s tokens on", Number(*l.BreakEven))
		if !l.EvenKnown {
			pays = fmt.Sprintf("it pays from about %s tokens on, if the engines are as fast at that length, which is outside of what is known of them", Number(*l.BreakEven))
		}
	}
	return text + fmt.Sprintf(" (%.1f times sooner), of which the link adds %s; %s.", native/t.Total, Seconds(ours), pays)
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
	case s == 0:
		return "0 s"
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
