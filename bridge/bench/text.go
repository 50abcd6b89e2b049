package bench

import (
	"fmt"
	"strings"
	"time"
)

// line is the round in one line for people: what the engine took, what was added, what the
// decoder takes by itself. "": there is nothing to say.
func (d *round) line() string {
	head := fmt.Sprintf("%d tokens, %s %d of %d: ", d.want, d.what, d.n, d.o.Runs)
	if !d.counted {
		head = fmt.Sprintf("%d tokens, %s %d of %d: ", d.want, d.what, d.n, d.o.WarmUp)
	}
	var parts []string
	r := d.bridged
	switch {
	case r == nil && d.native == nil && d.engine == nil:
		return ""
	case r != nil && r.Error != "":
		parts = append(parts, "through the front: "+r.Error)
	case r != nil && r.Overhead != nil:
		parts = append(parts, fmt.Sprintf("first token after %s: the engine took %s, %s were added%s",
			secondsText(r.First), secondsText(r.Reading), secondsText(*r.Overhead), spentText(r)))
	case r != nil:
		parts = append(parts, fmt.Sprintf("first token through the front after %s (%s)", secondsText(r.First), or(r.Verdict, "no verdict")))
	}
	if e := d.engine; e != nil && e.Error != "" {
		parts = append(parts, "the engine: "+e.Error)
	} else if e != nil && (r == nil || r.Overhead == nil) {
		parts = append(parts, "the engine took "+secondsText(e.Total))
	}
	switch n := d.native; {
	case n == nil:
		if r != nil {
			parts = append(parts, "native was not measured")
		}
	case n.Error != "":
		parts = append(parts, "native: "+n.Error)
	case r != nil && r.Error == "" && r.First > 0 && n.First > 0:
		parts = append(parts, fmt.Sprintf("native would take %s, %.2f times as long", secondsText(n.First), n.First/r.First))
	default:
		parts = append(parts, "native takes "+secondsText(n.First))
	}
	if r != nil && r.Pair > 0 {
		parts = append(parts, fmt.Sprintf("it decodes %.1f tok/s, native %.1f (%+.1f %%)", r.Rate, d.native.Rate, 100*(r.Pair-1)))
	}
	return head + strings.Join(parts, "; ")
}

// spentText is what the front says that it did meanwhile.
func spentText(r *Row) string {
	if r.Bridge == 0 {
		return ""
	}
	return fmt.Sprintf(" (plan %s, engine to adoption %s, then the decoder %s)",
		secondsText(r.Plan), secondsText(r.Bridge), secondsText(max(0, r.First-r.Plan-r.Bridge)))
}

// String is the row in one line.
func (r Row) String() string {
	var b strings.Builder
	what := fmt.Sprintf("run %d", r.Run)
	if !r.Counted {
		what = fmt.Sprintf("warm-up %d", r.Run)
	}
	fmt.Fprintf(&b, "%-7s %7d tokens, %s: ", r.Arm, max(r.Tokens, 0), what)
	if r.Error != "" {
		b.WriteString(r.Error)
		return b.String()
	}
	if r.First > 0 {
		fmt.Fprintf(&b, "first token %s, ", secondsText(r.First))
	}
	fmt.Fprintf(&b, "all %s", secondsText(r.Total))
	if r.Rate > 0 {
		fmt.Fprintf(&b, ", %.1f tok/s", r.Rate)
	}
	fmt.Fprintf(&b, ", %s", cachedText(&r))
	if r.Marker != "" {
		fmt.Fprintf(&b, ", marker %s", r.Marker)
	}
	if r.Verdict != "" {
		fmt.Fprintf(&b, ", %s", r.Verdict)
	}
	return b.String()
}

// secondsText is a time in seconds, for people.
func secondsText(s float64) string {
	switch d := time.Duration(s * float64(time.Second)); {
	case d < 0:
		return "-" + secondsText(-s)
	case d < time.Second:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < 100*time.Second:
		return fmt.Sprintf("%.2f s", s)
	}
	return fmt.Sprintf("%.1f s", s)
}

// column is one of a table of medians.
type column struct {
	head string
	cell func(*Length) string
}

// columns of the table of medians.
func columns() []column {
	first := func(a Arm) func(*Length) string {
		return func(l *Length) string { return spreadText(l.Arms[a].First, secondsText) }
	}
	rate := func(a Arm) func(*Length) string {
		return func(l *Length) string {
			return spreadText(l.Arms[a].Rate, func(v float64) string { return fmt.Sprintf("%.1f", v) })
		}
	}
	times := func(v float64, format string) string {
		if v == 0 {
			return "-"
		}
		return fmt.Sprintf(format, v)
	}
	return []column{
		{"tokens", func(l *Length) string { return fmt.Sprint(l.Tokens) }},
		{"native", first(Native)}, {"bridged", first(Bridged)},
		{"sooner", func(l *Length) string { return times(l.Sooner, "%.2f x") }},
		{"engine only", first(Engine)},
		{"overhead", func(l *Length) string { return spreadText(l.Overhead, secondsText) }},
		{"warm", first(Warm)},
		{"tok/s native", rate(Native)}, {"bridged tok/s", rate(Bridged)},
		{"ratio", func(l *Length) string { return times(l.Rate, "%.3f") }},
		{"pairs", func(l *Length) string {
			return spreadText(l.Pairs, func(v float64) string { return fmt.Sprintf("%.3f", v) })
		}},
	}
}

// spreadText is "median (least to most of n)".
func spreadText(s *Spread, text func(float64) string) string {
	switch {
	case s == nil:
		return "-"
	case s.N == 1:
		return text(s.Median)
	}
	return fmt.Sprintf("%s (%s to %s of %d)", text(s.Median), text(s.Least), text(s.Most), s.N)
}

// about are facts of the report, a line each.
func (r *Report) about() []string {
	of := r.Model
	if r.Reads != "" && r.Reads != r.Model {
		of = strings.TrimPrefix(of+", read by the engine as "+r.Reads, ", ")
	}
	host := fmt.Sprintf("%s/%s, %d cores", r.Host.System, r.Host.Arch, r.Host.Cores)
	if r.Host.Name != "" {
		host = r.Host.Name + ", " + host
	}
	if r.Host.Memory > 0 {
		host += fmt.Sprintf(", %.1f GB", float64(r.Host.Memory)/1e9)
	}
	lines := []string{
		fmt.Sprintf("model %s; %s; answers of at most %d tokens; seed %d; %d runs; %s", of, r.API, r.Answer, r.Seed, r.Runs, r.Time.UTC().Format(time.RFC3339)),
		"measured from " + host,
	}
	if r.IDs != "" {
		lines = append(lines, "ids of the "+r.IDs+"; overhead is the first token through the front minus the engine alone on the same ids, of the same round")
	}
	if !r.Whole {
		lines = append(lines, "interrupted: this is what was measured until then")
	}
	return lines
}

// Text is the report for a terminal: medians, each with the least and the most, checks, the
// requests that count and are in no median, and what is missing.
func (r *Report) Text() string {
	var b strings.Builder
	for _, line := range r.about() {
		fmt.Fprintln(&b, line)
	}
	for i := range r.Lengths {
		l := &r.Lengths[i]
		fmt.Fprintf(&b, "\n%d tokens (%d), median (least to most of so many)\n", l.Want, l.Tokens)
		for _, c := range columns()[1:] {
			if cell := c.cell(l); cell != "-" {
				fmt.Fprintf(&b, "  %-14s %s\n", c.head, cell)
			}
		}
	}
	b.WriteByte('\n')
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "%-4s  %s: %s\n", c.Level, c.Check, c.Text)
	}
	for i := range r.Rows {
		if x := &r.Rows[i]; x.Counted && x.Unfit != "" {
			fmt.Fprintf(&b, "not in a median: %s, %d tokens, run %d: %s\n", x.Arm, x.Want, x.Run, x.Unfit)
		}
	}
	for _, m := range r.Lacks {
		fmt.Fprintf(&b, "not measured  %s\n", m)
	}
	return b.String()
}

// Markdown is the report as a document: medians, every run, checks, what is missing.
func (r *Report) Markdown() string {
	var b strings.Builder
	b.WriteString("# What bridging brings\n\n")
	for _, line := range r.about() {
		b.WriteString("- " + escaped(line) + "\n")
	}
	b.WriteString("\n## Medians\n\nTime to the first token; in brackets the least and the most, and of how many runs.\n\n")
	all := columns()
	heads := make([]string, 0, len(all))
	for _, c := range all {
		heads = append(heads, c.head)
	}
	table(&b, heads)
	for i := range r.Lengths {
		cells := make([]string, 0, len(all))
		for _, c := range all {
			cells = append(cells, c.cell(&r.Lengths[i]))
		}
		tableRow(&b, cells)
	}
	b.WriteString("\n## Every run\n\n")
	table(&b, []string{"arm", "tokens", "run", "first token", "all", "tok/s", "cached", "promised", "marker", "overhead", "rate to native", "verdict", "in no median", "memory left", "heat"})
	for i := range r.Rows {
		tableRow(&b, r.Rows[i].cells())
	}
	b.WriteString("\n## Checks\n\n")
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "- **%s** %s: %s\n", c.Level, escaped(c.Check), escaped(c.Text))
	}
	if len(r.Lacks) > 0 {
		b.WriteString("\n## Not measured\n\n")
		for _, m := range r.Lacks {
			b.WriteString("- " + escaped(m) + "\n")
		}
	}
	return b.String()
}

// cells are the row's in the table of every run.
func (r *Row) cells() []string {
	dash := func(there bool, text string) string {
		if !there {
			return "-"
		}
		return text
	}
	cached, over := "-", "-"
	if r.Cached != nil {
		cached = fmt.Sprint(*r.Cached)
	}
	if r.Overhead != nil {
		over = secondsText(*r.Overhead)
	}
	pair := "-"
	if r.Pair > 0 {
		pair = fmt.Sprintf("%+.1f %%", 100*(r.Pair-1))
	}
	run := fmt.Sprint(r.Run)
	if !r.Counted {
		run = "warm-up"
	}
	heat := r.Host.Hot
	if r.Throttled > 0 {
		heat = strings.TrimPrefix(fmt.Sprintf("%s, slowed %d times", heat, r.Throttled), ", ")
	}
	return []string{
		string(r.Arm), fmt.Sprint(r.Tokens), run, dash(r.First > 0, secondsText(r.First)), dash(r.Total > 0, secondsText(r.Total)),
		dash(r.Rate > 0, fmt.Sprintf("%.1f", r.Rate)), cached, dash(r.Promised > 0, fmt.Sprint(r.Promised)), or(string(r.Marker), "-"), over, pair,
		or(or(r.Error, r.Verdict), "-"), or(r.Unfit, "-"), dash(r.Host.Available > 0, fmt.Sprintf("%.1f GB", float64(r.Host.Available)/1e9)), or(heat, "-"),
	}
}

func table(b *strings.Builder, heads []string) {
	tableRow(b, heads)
	b.WriteString(strings.Repeat("|---", len(heads)) + "|\n")
}

func tableRow(b *strings.Builder, cells []string) {
	for _, c := range cells {
		b.WriteString("| " + escaped(c) + " ")
	}
	b.WriteString("|\n")
}

// escaped keeps what an endpoint says from being markup.
func escaped(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ", "`", "'", "[", `\[`, "*", `\*`).Replace(text)
}
