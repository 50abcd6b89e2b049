package cost

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// SchemaName is what Report.Schema says.
const SchemaName = "pdlink-cost/2"

// Schema is the JSON schema of a Report.
//
//go:embed report.schema.json
var Schema string

// ErrReport is returned for a file that is no report, or none of this version.
var ErrReport = errors.New("no report of pdlink cost")

// Lengths are the prompts that a report has rows for: those of the published table, and
// one ten times as long as a usual one.
func Lengths() []int { return []int{25_000, 82_000, 105_000, 241_000, 700_000} }

// usualAt is the length at which a report compares links: 82,000 tokens, or where it has no
// row of that the longest that it has.
const usualAt = 82_000

// Report is what `pdlink cost --json` prints. Times are in seconds where a name does not
// say otherwise; null is what is not known here.
type Report struct {
	Schema        string       `json:"schema"`
	Version       string       `json:"version"`
	Time          string       `json:"time"`
	Host          string       `json:"host"`
	Case          string       `json:"case"`
	Model         string       `json:"model"`
	BytesPerToken float64      `json:"bytes_per_token"`
	BlockTokens   int          `json:"block_tokens"`
	Layers        int          `json:"layers"`
	Chunk         int          `json:"chunk_tokens"`
	Store         string       `json:"store"`       // durable, written (not synchronised), or none
	Made          bool         `json:"made_before"` // a case's pieces were made before the clock ran
	Repeats       int          `json:"repeats"`
	At            int          `json:"at_tokens"` // the length that links are compared at
	Headline      string       `json:"headline"`
	Links         []LinkReport `json:"links"`
	Missing       []Missing    `json:"missing"`
	Engines       EngineReport `json:"engines"`
	Native        []Native     `json:"native"`
	Slowest       *float64     `json:"slowest_bytes_per_second"` // at which bridging is as fast as the decoder alone, at At
	Cables        []CableCost  `json:"cables"`
	Published     []Replaced   `json:"published"` // of another system, for its model only
	Assumptions   []Assumption `json:"assumptions"`
}

// LinkReport is one link's.
type LinkReport struct {
	Link         string    `json:"link"`
	Processes    int       `json:"processes"` // 1: both ends in one
	MsPerToken   float64   `json:"ms_per_token"`
	MsLeast      float64   `json:"ms_per_token_least"`
	MsMost       float64   `json:"ms_per_token_most"`
	Fixed        float64   `json:"fixed_seconds"`
	BytesRate    float64   `json:"bytes_per_second"` // of the longest prompt that was measured
	Tail         float64   `json:"tail_seconds"`
	TailLeast    float64   `json:"tail_seconds_least"`
	TailMost     float64   `json:"tail_seconds_most"`
	Paced        bool      `json:"tail_paced"`                  // measured at the pace of a prefill
	SenderCPU    float64   `json:"sender_cpu_seconds_per_gb"`   // of its whole process, all lanes together
	ReceiverCPU  float64   `json:"receiver_cpu_seconds_per_gb"` // 0 where both ends are one process: the sender's is both
	LinkCPU      *float64  `json:"link_cpu_seconds_per_gb"`     // of both, what is more than over memory; null: that was not measured
	JoulesPerGB  *float64  `json:"joules_per_gb"`
	Phases       []Phase   `json:"phases"`
	Costs        []Length  `json:"lengths"`
	Line         FitReport `json:"fit"`
	BreakEven    *int      `json:"break_even_tokens"`
	EvenKnown    bool      `json:"break_even_within"` // it is a length that the engines' times are known of
	If           []IfRates `json:"break_even_if"`     // with engines of these rates, where none are known
	Measurements []Run     `json:"runs"`
}

// Phase is the part of a transfer's time that a phase took. Each moment counts once at an
// end, so that an end's shares, that of rest too, are 1 together.
type Phase struct {
	Phase string  `json:"phase"`
	End   string  `json:"end"`
	Share float64 `json:"share"` // 0 to 1
	Busy  float64 `json:"busy"`  // 0 to 1: it was going on, whatever else was
}

// rest is the phase in which no other one was going on.
const rest = "rest"

// Length is what a prompt of a length costs over a link.
type Length struct {
	Tokens   int      `json:"tokens"`
	Measured bool     `json:"measured"`      // Seconds is; else it is of the link's fit
	Basis    string   `json:"basis"`         // measured, interpolated, extrapolated or far
	Factor   float64  `json:"factor"`        // Tokens, in longest prompts that were measured
	Seconds  float64  `json:"seconds"`       // the link alone, as fast as it goes
	Least    *float64 `json:"seconds_least"` // of the runs, or of the fit's interval of 95 %; null: too few runs to tell
	Most     *float64 `json:"seconds_most"`
	Bridged  *Time    `json:"bridged"`        // with the engines
	Gain     *float64 `json:"gain"`           // native / bridged
	Known    bool     `json:"engines_within"` // Tokens is a length that the engines' times are known of
}

// Run is one transfer that was measured.
type Run struct {
	Tokens      int                `json:"tokens"`
	Blocks      int                `json:"blocks"`
	Bytes       uint64             `json:"bytes"`
	Paced       bool               `json:"paced"`
	Seconds     float64            `json:"seconds"`
	Tail        float64            `json:"tail_seconds"`
	SenderCPU   float64            `json:"sender_cpu_seconds"`
	ReceiverCPU float64            `json:"receiver_cpu_seconds"`
	Joules      *float64           `json:"joules"`
	Busy        map[string]float64 `json:"busy_seconds"`  // by phase; they overlap
	Spent       map[string]float64 `json:"spent_seconds"` // the same, each moment of an end counted once
}

// Missing is a link that could not be measured.
type Missing struct {
	Link string `json:"link"`
	Why  string `json:"why"`
}

// EngineReport is what is taken for the engines' times.
type EngineReport struct {
	Prefill Series  `json:"prefill"`
	Native  Series  `json:"native"`
	Cached  Series  `json:"cached"`
	Source  Source  `json:"source"`
	Origins Origins `json:"origins"`
}

// Native is the decoder alone.
type Native struct {
	Tokens  int     `json:"tokens"`
	Seconds float64 `json:"seconds"`
}

// CableCost is what a physical link would make of the best measured link.
type CableCost struct {
	Cable     string  `json:"cable"`
	Rate      float64 `json:"payload_bytes_per_second"`
	MsToken   float64 `json:"ms_per_token"`
	Tokens    int     `json:"tokens"`
	Seconds   float64 `json:"seconds"` // the link alone
	Bridged   *Time   `json:"bridged"`
	BreakEven *int    `json:"break_even_tokens"`
	Saves     float64 `json:"saves_seconds"` // of the time to the first token, against the cable before
}

// Replaced is a row of a published table with what was measured here in place of what its
// system did between the engine and the decoder.
type Replaced struct {
	Row
	Model float64 `json:"model"` // what Engines.Bridged says of the row's own parts
	Ours  Time    `json:"ours"`
	Link  string  `json:"link"`
	Cable string  `json:"cable"`
}

// OursBetween is what is left of Between.
func (r Replaced) OursBetween() float64 { return r.Ours.Exposed + r.Ours.Tail }

// Assumption is something that a report's numbers hold with only.
type Assumption struct {
	What   string `json:"what"`
	Source Source `json:"source"`
}

// Measured is what Make turns into a link's part of a report.
type Measured struct {
	Link      string
	Processes int
	Runs      []Run
}

// UnmarshalReport reads a report. Errors are ErrReport.
func UnmarshalReport(b []byte) (*Report, error) {
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReport, err)
	}
	if r.Schema != SchemaName {
		return nil, fmt.Errorf("%w: its schema is %.40q, want %q", ErrReport, r.Schema, SchemaName)
	}
	return &r, nil
}

// Make completes a report that says what was measured on what: links, rows, cables and
// headline. lengths are those that each link has a row for.
func Make(r *Report, e Engines, measured []Measured, lengths []int) error {
	r.Schema = SchemaName
	e.Block = r.BlockTokens
	r.Engines.Prefill, r.Engines.Native, r.Engines.Cached = e.Prefill, e.Native, e.Cached
	r.Engines.Origins.settle(e)
	if r.At = usualAt; len(lengths) > 0 && !slices.Contains(lengths, usualAt) {
		r.At = slices.Max(lengths)
	}
	for _, n := range lengths {
		if len(e.Native) > 0 {
			r.Native = append(r.Native, Native{n, e.Native.At(n)})
		}
	}
	for _, m := range measured {
		l, err := summarise(m, e, lengths)
		if err != nil {
			return err
		}
		r.Links = append(r.Links, l)
	}
	if len(r.Links) == 0 {
		return fmt.Errorf("%w: no link was measured", ErrReport)
	}
	r.linkCPU()
	best := r.Usual()
	if v, ok := e.Slowest(best.model(), r.At, r.BytesPerToken); ok {
		r.Slowest = &v
	}
	r.cables(e, best)
	r.published(e, best)
	r.assume(e)
	r.Headline = r.headline(e, best)
	return nil
}

// model is the link as the model takes it.
func (l *LinkReport) model() Link { return Link{l.Fixed, l.MsPerToken / 1e3, l.Tail} }

// longest is the runs of the longest prompt that was measured as fast as it goes.
func longest(runs []Run) (list []Run) {
	most := 0
	for _, r := range runs {
		if !r.Paced {
			most = max(most, r.Tokens)
		}
	}
	for _, r := range runs {
		if !r.Paced && r.Tokens == most {
			list = append(list, r)
		}
	}
	return list
}

// summarise makes a link's part of the report.
func summarise(m Measured, e Engines, lengths []int) (LinkReport, error) {
	l := LinkReport{Link: m.Link, Processes: m.Processes, Measurements: m.Runs}
	top := longest(m.Runs)
	if len(top) == 0 || top[0].Tokens < 1 {
		return l, fmt.Errorf("%w: nothing was measured of %s", ErrReport, m.Link)
	}
	f := Fit(m.Runs)
	each := func(r Run) float64 { return max(0, r.Seconds-f.Fixed) / float64(r.Tokens) * 1e3 }
	l.Fixed, l.MsPerToken = f.Fixed, f.PerToken*1e3
	_, l.MsLeast, l.MsMost = spread(top, each)
	l.MsLeast, l.MsMost = min(l.MsLeast, l.MsPerToken), max(l.MsMost, l.MsPerToken)
	l.BytesRate, _, _ = spread(top, func(r Run) float64 { return float64(r.Bytes) / r.Seconds })
	perGB := func(v float64, r Run) float64 { return v / (float64(r.Bytes) / 1e9) }
	l.SenderCPU, _, _ = spread(top, func(r Run) float64 { return perGB(r.SenderCPU, r) })
	l.ReceiverCPU, _, _ = spread(top, func(r Run) float64 { return perGB(r.ReceiverCPU, r) })
	if !slices.ContainsFunc(top, func(r Run) bool { return r.Joules == nil }) {
		j, _, _ := spread(top, func(r Run) float64 { return perGB(*r.Joules, r) })
		l.JoulesPerGB = &j
	}
	tails := slices.DeleteFunc(slices.Clone(m.Runs), func(r Run) bool { return !r.Paced })
	if l.Paced = len(tails) > 0; !l.Paced {
		tails = top
	}
	l.Tail, l.TailLeast, l.TailMost = spread(tails, func(r Run) float64 { return r.Tail })
	l.Phases = phases(top)
	line := fitOf(f, m.Runs)
	l.Line = line.FitReport
	for _, n := range lengths {
		l.Costs = append(l.Costs, l.at(n, m.Runs, e, &line))
	}
	if n, ok := e.BreakEven(l.model()); ok {
		l.BreakEven, l.EvenKnown = &n, e.Known(n)
	}
	if l.If = []IfRates{}; len(e.Native) == 0 || len(e.Prefill) == 0 {
		l.If = ifRates(l.model(), e.Block)
	}
	return l, nil
}

// linkCPU takes from each link's processor time what the same takes over memory.
func (r *Report) linkCPU() {
	i := slices.IndexFunc(r.Links, func(l LinkReport) bool { return l.Link == "mem" })
	if i < 0 {
		return
	}
	for j := range r.Links {
		if l := &r.Links[j]; j != i {
			v := l.SenderCPU + l.ReceiverCPU - r.Links[i].SenderCPU - r.Links[i].ReceiverCPU
			l.LinkCPU = &v
		}
	}
}

// nearLength is how far a measured prompt's whole blocks may be from a row's length to be
// that row's measurement.
const nearLength = 0.03

// at is the row of a length.
func (l *LinkReport) at(tokens int, runs []Run, e Engines, line *fit) Length {
	c := Length{Tokens: tokens, Known: e.Known(tokens)}
	same := slices.DeleteFunc(slices.Clone(runs), func(r Run) bool {
		return r.Paced || math.Abs(float64(r.Tokens)-float64(tokens)) > nearLength*float64(tokens)
	})
	c.Basis, c.Factor = l.Line.basis(tokens)
	if c.Measured = len(same) > 0; c.Measured {
		var least, most float64
		c.Seconds, least, most = spread(same, func(r Run) float64 { return r.Seconds })
		c.Basis, c.Least, c.Most = BasisMeasured, &least, &most
	} else {
		c.Seconds = l.model().Stream(tokens)
		if half, ok := line.half(tokens); ok {
			least, most := max(0, c.Seconds-half), c.Seconds+half
			c.Least, c.Most = &least, &most
		}
	}
	if len(e.Native) > 0 && len(e.Prefill) > 0 {
		t := e.Bridged(l.model(), tokens)
		gain := e.Native.At(tokens) / t.Total
		c.Bridged, c.Gain = &t, &gain
	}
	return c
}

// phaseOrder is how bytes come through the phases, and at which end each is.
func phaseOrder() []Phase {
	return []Phase{
		{Phase: "project", End: "sender"}, {Phase: "lease", End: "sender"}, {Phase: "grant", End: "sender"}, {Phase: "wire out", End: "sender"}, {Phase: rest, End: "sender"},
		{Phase: "wire in", End: "receiver"}, {Phase: "verify", End: "receiver"}, {Phase: "write", End: "receiver"}, {Phase: "fsync", End: "receiver"},
		{Phase: "adopt", End: "receiver"}, {Phase: rest, End: "receiver"},
	}
}

// phases are the shares of runs, of all of them together: medians would not sum up.
func phases(runs []Run) []Phase {
	order, list := phaseOrder(), []Phase{}
	whole, left := map[string]float64{}, map[string]float64{} // by end
	lasted := map[string][]float64{}                          // likewise, of each run
	for _, r := range runs {
		for _, end := range []string{"sender", "receiver"} {
			all := 0.0
			for _, p := range order {
				if p.End == end {
					all += r.Spent[p.Phase]
				}
			}
			// A receiver reads what comes before the transfer's first open, too.
			lasted[end] = append(lasted[end], max(r.Seconds, all))
			whole[end] += max(r.Seconds, all)
			left[end] += max(0, r.Seconds-all)
		}
	}
	for _, p := range order {
		took, busy, known := left[p.End], left[p.End], len(runs) > 0
		if p.Phase != rest {
			took, busy, known = 0, 0, false
			for i, r := range runs {
				_, ok := r.Busy[p.Phase]
				known = known || ok
				took, busy = took+r.Spent[p.Phase], busy+min(lasted[p.End][i], r.Busy[p.Phase])
			}
		}
		if known && whole[p.End] > 0 {
			p.Share, p.Busy = took/whole[p.End], min(1, busy/whole[p.End])
			list = append(list, p)
		}
	}
	return list
}

// Fit is the line through the medians of runs as fast as they go, by their lengths, least
// squares of the relative error; a fixed part that would be less than nothing is none.
// With one length everything is for each token.
func Fit(runs []Run) Link {
	byLength := map[int][]Run{}
	for _, r := range runs {
		if !r.Paced && r.Tokens > 0 {
			byLength[r.Tokens] = append(byLength[r.Tokens], r)
		}
	}
	// Weighted by 1/y²: sums of w, w·x, w·x², w·y, w·x·y.
	var w, wx, wxx, wy, wxy float64
	for n, list := range byLength {
		x := float64(n)
		y, _, _ := spread(list, func(r Run) float64 { return r.Seconds })
		q := 1 / (y * y)
		w, wx, wxx, wy, wxy = w+q, wx+q*x, wxx+q*x*x, wy+q*y, wxy+q*x*y
	}
	if det := w*wxx - wx*wx; len(byLength) > 1 && det > 0 {
		l := Link{Fixed: (wy*wxx - wx*wxy) / det, PerToken: (w*wxy - wx*wy) / det}
		if l.Fixed >= 0 && l.PerToken >= 0 {
			return l
		}
	}
	if wxx == 0 {
		return Link{}
	}
	return Link{PerToken: wxy / wxx}
}

// spread is the median, least and most of a value of runs; zeros where there are none.
func spread(runs []Run, of func(Run) float64) (median, least, most float64) {
	v := make([]float64, len(runs))
	for i, r := range runs {
		v[i] = of(r)
	}
	if len(v) == 0 {
		return 0, 0, 0
	}
	slices.SortFunc(v, cmp.Compare[float64])
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2, v[0], v[len(v)-1]
}
