package cost_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pdlink/bridge/cost"
)

// schema checks documents against cost.Schema: the part of JSON Schema that it uses.
type schema struct {
	root map[string]any
	bad  []string
}

func newSchema(t *testing.T) *schema {
	t.Helper()
	s := &schema{}
	if err := json.Unmarshal([]byte(cost.Schema), &s.root); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *schema) failf(path, format string, args ...any) {
	s.bad = append(s.bad, path+": "+fmt.Sprintf(format, args...))
}

func (s *schema) check(path string, m map[string]any, x any) {
	if ref, ok := m["$ref"].(string); ok {
		m = s.root["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	}
	if either, ok := m["anyOf"].([]any); ok {
		var all []string
		for _, e := range either {
			w := &schema{root: s.root}
			if w.check(path, e.(map[string]any), x); len(w.bad) == 0 {
				return
			}
			all = append(all, w.bad...)
		}
		s.bad = append(s.bad, all...)
		return
	}
	if c, ok := m["const"]; ok && c != x {
		s.failf(path, "%v, want %v", x, c)
	}
	if e, ok := m["enum"].([]any); ok && !slices.Contains(e, x) {
		s.failf(path, "%v, want one of %v", x, e)
	}
	ok := true
	switch m["type"] {
	case "null":
		ok = x == nil
	case "string":
		_, ok = x.(string)
	case "boolean":
		_, ok = x.(bool)
	case "number":
		_, ok = x.(float64)
	case "integer":
		f, is := x.(float64)
		ok = is && f == math.Trunc(f)
	case "array":
		list, is := x.([]any)
		ok = is
		for i, e := range list {
			s.check(fmt.Sprintf("%s[%d]", path, i), m["items"].(map[string]any), e)
		}
	case "object":
		o, is := x.(map[string]any)
		ok = is
		s.object(path, m, o)
	}
	if !ok {
		s.failf(path, "%T, want %v", x, m["type"])
	}
}

func (s *schema) object(path string, m, o map[string]any) {
	props, _ := m["properties"].(map[string]any)
	if props == nil {
		for name, x := range o {
			s.check(path+"."+name, m["additionalProperties"].(map[string]any), x)
		}
		return
	}
	for _, name := range m["required"].([]any) {
		if _, ok := o[name.(string)]; !ok {
			s.failf(path, "%v is missing", name)
		}
	}
	for name, x := range o {
		p, ok := props[name].(map[string]any)
		if !ok {
			s.failf(path, "%q is not in the schema", name)
			continue
		}
		s.check(path+"."+name, p, x)
	}
}

// runs are measurements of a link that takes fixed + each·tokens, and is a little faster
// in every other run.
func runs(fixed, each float64, lengths ...int) (list []cost.Run) {
	for i := range 4 {
		for _, n := range lengths {
			s := fixed + each*float64(n)*(1+0.01*float64(i%2))
			list = append(list, cost.Run{
				Tokens: n, Blocks: n / 2048, Bytes: uint64(n) * 10_000, Seconds: s, Tail: s, SenderCPU: 0.3 * float64(n) / 1e5, ReceiverCPU: 0.6 * float64(n) / 1e5,
				Busy:  map[string]float64{"write": s / 2, "wire in": 2 * s, "project": s / 4, "grant": s},
				Spent: map[string]float64{"write": s / 2, "wire in": s / 4, "project": s / 4, "grant": s / 2},
			})
		}
	}
	return append(list, cost.Run{Tokens: 8192, Blocks: 4, Bytes: 81_920_000, Paced: true, Seconds: 5, Tail: 0.04, Busy: map[string]float64{}})
}

func made(t *testing.T) *cost.Report {
	t.Helper()
	k, _ := cost.KnownEngines("deepseek-v4-flash")
	r := &cost.Report{
		Model: "DeepSeek-V4-Flash", BytesPerToken: 10_000, BlockTokens: 2048, Layers: 43, Chunk: 8192, Store: "durable", Repeats: 4,
		Missing: []cost.Missing{{Link: "rdma", Why: "no card"}}, Published: []cost.Replaced{}, Native: []cost.Native{},
	}
	r.Engines.Source, r.Engines.Origins = k.Source, k.Origins
	j := 3.0
	sealed := runs(0.02, 2e-5, 6144, 24_576)
	for i := range sealed {
		sealed[i].Joules = &j
	}
	err := cost.Make(r, k.Engines, []cost.Measured{
		{Link: "mem", Processes: 1, Runs: runs(0.01, 8e-6, 6144, 24_576)}, {Link: "tcp+tls", Processes: 2, Runs: sealed},
	}, cost.Lengths())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestMake(t *testing.T) {
	r := made(t)
	l := r.Links[1]
	if !near(l.MsPerToken, 2.01e-2, 0.01) || !near(l.Fixed, 0.02, 0.2) || l.MsLeast > l.MsPerToken || l.MsMost < l.MsPerToken {
		t.Errorf("a token: %g (%g to %g) ms, fixed %g s", l.MsPerToken, l.MsLeast, l.MsMost, l.Fixed)
	}
	if l.Tail != 0.04 || !l.Paced || !near(l.SenderCPU, 0.3, 1e-9) || !near(l.ReceiverCPU, 0.6, 1e-9) || l.JoulesPerGB == nil || r.Links[0].JoulesPerGB != nil {
		t.Errorf("%+v", l)
	}
	if c := l.Costs[0]; !c.Measured || !near(c.Seconds, 0.02+2e-5*24_576, 0.02) {
		t.Errorf("25K tokens: %+v", c)
	}
	for _, c := range l.Costs[1:] {
		want := l.Fixed + l.MsPerToken/1e3*float64(c.Tokens)
		if c.Measured || !near(c.Seconds, want, 1e-9) || *c.Least >= c.Seconds || *c.Most <= c.Seconds || c.Bridged == nil || *c.Gain < 2 {
			t.Errorf("%+v", c)
		}
	}
	if l.BreakEven == nil || *l.BreakEven < 2049 || *l.BreakEven > 4096 {
		t.Errorf("break-even: %v", l.BreakEven)
	}
	if len(r.Published) != len(cost.Reference()) || r.Slowest == nil || *r.Slowest < 1e6 || *r.Slowest > 2e7 {
		t.Errorf("%d published rows, slowest link %v", len(r.Published), r.Slowest)
	}
	for _, p := range r.Published {
		if !near(p.Model, p.Bridged, cost.ReferenceError) || !near(p.Ours.Total, p.Engine+p.OursBetween()+p.Decoder, 1e-9) || p.OursBetween() > 0.2 {
			t.Errorf("%+v", p)
		}
	}
	// 10 GbE carries 0.12 ms of a token's bytes a token less than 1 GbE, and both less than the prefill.
	if c := r.Cables; c[0].Bridged.Exposed != 0 || !(c[0].Saves == 0 && c[1].Saves > 0) || c[0].MsToken <= c[2].MsToken {
		t.Errorf("%+v", c)
	}
	for _, want := range []string{"sealed TCP", "DeepSeek-V4-Flash", "82,000 tokens", "tokens on", "as somebody else published"} {
		if !strings.Contains(r.Headline, want) {
			t.Errorf("headline %q lacks %q", r.Headline, want)
		}
	}
	if !strings.HasPrefix(r.CableText(), "A faster cable buys next to nothing") {
		t.Errorf("%s", r.CableText())
	}
}

// TestSharesAreTheWhole: at each end, whatever overlaps, and also where an end did more
// than the transfer lasted.
func TestSharesAreTheWhole(t *testing.T) {
	r := made(t)
	for _, l := range r.Links {
		sums, busy := map[string]float64{}, map[string]float64{}
		for _, p := range l.Phases {
			sums[p.End] += p.Share
			if p.Busy < p.Share {
				t.Errorf("%+v: it was going on for less than its share", p)
			}
			if want := map[string]float64{"write": 0.5, "wire in": 0.25, "project": 0.25, "grant": 0.5}[p.Phase]; p.Phase != "rest" && !near(p.Share, want, 1e-9) {
				t.Errorf("%+v", p)
			}
			busy[p.Phase] = p.Busy
		}
		if !near(sums["sender"], 1, 1e-9) || !near(sums["receiver"], 1, 1e-9) || len(sums) != 2 || busy["wire in"] != 1 {
			t.Errorf("%s: sums %v, busy %v", l.Link, sums, busy)
		}
	}
	long := []cost.Run{{Tokens: 4096, Blocks: 2, Bytes: 1e7, Seconds: 1, Busy: map[string]float64{"wire in": 3}, Spent: map[string]float64{"wire in": 3}}}
	if err := cost.Make(r, cost.Engines{}, []cost.Measured{{Link: "tcp", Runs: long}}, nil); err != nil {
		t.Fatal(err)
	}
	if p := r.Links[len(r.Links)-1].Phases; len(p) != 3 || p[1].Share != 1 || p[1].Busy != 1 || p[0].Share != 1 || p[2].Share != 0 {
		t.Errorf("%+v", p)
	}
}

// TestWhereTimesAreFrom: nobody takes published times for their own.
func TestWhereTimesAreFrom(t *testing.T) {
	k, _ := cost.KnownEngines("deepseek-v4-flash")
	rates := cost.Engines{Prefill: cost.Rate(2000), Native: cost.Rate(400)}
	for name, c := range map[string]struct {
		e        cost.Engines
		o        cost.Origins
		want     cost.Origins
		headline string
		say      string
	}{
		"published": {k.Engines, k.Origins, cost.Origins{Prefill: cost.Elsewhere, Native: cost.Elsewhere, Cached: cost.Elsewhere}, "With engines as fast as somebody else published", "not measured here, but published by pd-bridge"},
		"given": {rates, cost.Origins{Prefill: cost.Given, Native: cost.Given}, cost.Origins{Prefill: cost.Given, Native: cost.Given, Cached: cost.Computed},
			"With engines as fast as you say", "are given on the command line; what the links take is measured here"},
		"asked": {rates, cost.Origins{Prefill: cost.Here, Native: cost.Here}, cost.Origins{Prefill: cost.Here, Native: cost.Here, Cached: cost.Computed}, "With your engines as measured", "are measured in this run"},
		"mixed": {cost.Engines{Prefill: k.Prefill, Native: k.Native, Cached: cost.Rate(1e5)}, cost.Origins{Prefill: cost.Elsewhere, Native: cost.Elsewhere, Cached: cost.Given},
			cost.Origins{Prefill: cost.Elsewhere, Native: cost.Elsewhere, Cached: cost.Given}, "somebody else published", "with all blocks are given on the command line"},
		"nobody": {cost.Engines{}, cost.Origins{}, cost.Origins{Prefill: cost.Unknown, Native: cost.Unknown, Cached: cost.Unknown}, "is not known", ""},
		"silent": {rates, cost.Origins{}, cost.Origins{Prefill: cost.Unknown, Native: cost.Unknown, Cached: cost.Computed}, "With such engines", "of an origin that nobody says"},
	} {
		r := &cost.Report{Model: "m", BytesPerToken: 10_000, BlockTokens: 2048, Layers: 43, Chunk: 8192}
		r.Engines.Source, r.Engines.Origins = k.Source, c.o
		if err := cost.Make(r, c.e, []cost.Measured{{Link: "tcp", Runs: runs(0.02, 2e-5, 6144, 24_576)}}, cost.Lengths()); err != nil {
			t.Fatal(err)
		}
		if r.Engines.Origins != c.want || !strings.Contains(r.Headline, c.headline) || !strings.Contains(r.EnginesText(), c.say) || (c.say == "") != (r.EnginesText() == "") {
			t.Errorf("%s: %+v, %q, %q", name, r.Engines.Origins, r.Headline, r.EnginesText())
		}
	}
}

// TestHowFarALineGoes: its basis, how many times as long, and an interval that grows.
func TestHowFarALineGoes(t *testing.T) {
	r := made(t)
	l := r.Links[1]
	last := 0.0
	for i, want := range []string{"measured", "extrapolated", "extrapolated", "extrapolated", "far"} {
		c := l.Costs[i]
		wide := *c.Most - *c.Least
		if c.Basis != want || !near(c.Factor, float64(c.Tokens)/24_576, 1e-9) || i > 1 && wide <= last {
			t.Errorf("%d tokens: %+v, %g wide after %g", c.Tokens, c, wide, last)
		}
		last = wide
	}
	if l.Line.Shortest != 6144 || l.Line.Longest != 24_576 || l.Line.Runs != 8 || l.Line.Lengths != 2 || l.Line.Residual == nil || *l.Line.Residual > 0.01 {
		t.Errorf("%+v", l.Line)
	}
	if s := r.FarText(); !strings.Contains(s, "700,000 tokens (28 times as long)") || strings.Contains(s, "241,000") || !strings.Contains(r.FitText(), "6,144 to 24,576 tokens") {
		t.Errorf("%q, %q", s, r.FitText())
	}
	if s := r.KnownText(); !strings.Contains(s, "from 24,924 to 241,155 tokens") || (&cost.Report{}).KnownText() != "" {
		t.Errorf("%q", s)
	}
	for want, e := range map[string][2]cost.Series{ // the native times, and those with all blocks
		"known of no common length": {{{Tokens: 2000, Seconds: 5}, {Tokens: 8000, Seconds: 20}}},
		"from 30,000 to 60,000":     {cost.Rate(400), {{Tokens: 30_000, Seconds: 1}, {Tokens: 60_000, Seconds: 2}}},
		"from 24,600 to 25,000":     {{{Tokens: 24_600, Seconds: 60}}},
	} {
		x := &cost.Report{Engines: cost.EngineReport{Prefill: cost.Series{{Tokens: 25_000, Seconds: 17}, {Tokens: 82_000, Seconds: 42}}, Native: e[0], Cached: e[1]}}
		if s := x.KnownText(); !strings.Contains(s, want) {
			t.Errorf("%q, not %s", s, want)
		}
	}
	if l.EvenKnown || r.EvenText(&l)[0] != '~' || !strings.Contains(r.Headline, "from about") || l.Costs[4].Known || !l.Costs[1].Known {
		t.Errorf("nobody has measured those engines at %d tokens: %+v", *l.BreakEven, l)
	}
	few := &cost.Report{BytesPerToken: 10_000, BlockTokens: 2048, Layers: 43, Chunk: 8192}
	one := []cost.Run{{Tokens: 4096, Blocks: 2, Bytes: 1e7, Seconds: 1}}
	if err := cost.Make(few, cost.Engines{}, []cost.Measured{{Link: "tcp", Runs: one}}, []int{8192, 2048}); err != nil {
		t.Fatal(err)
	}
	if c := few.Links[0].Costs[0]; c.Least != nil || c.Basis != "extrapolated" || few.At != 8192 || !strings.Contains(few.FitText(), "too few runs") || few.FarText() != "" {
		t.Errorf("%+v, at %d, %q", c, few.At, few.FitText())
	}
	if !strings.HasPrefix(few.SmallText(), "The transfers are of 10 MB only") || r.SmallText() != "" || !strings.Contains(r.BlockText(), "(2,048 tokens)") {
		t.Errorf("%q, %q, %q", few.SmallText(), r.SmallText(), r.BlockText())
	}
	if list := few.Links[0].If; len(list) != 3 || list[0].BreakEven == nil || *list[0].BreakEven < 2049 || few.EvenText(&few.Links[0]) != "?" || len(l.If) != 0 {
		t.Errorf("%+v", list)
	}
}

// TestIntervalOfALine: of runs that lie off it by as much as noise of a known size, the
// interval has a new one in nearly all of many tries.
func TestIntervalOfALine(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const tries = 400
	in := 0
	for range tries {
		run := func(n int) cost.Run {
			return cost.Run{Tokens: n, Blocks: 1, Bytes: 1, Seconds: (0.05 + 2e-5*float64(n)) * (1 + 0.1*rng.NormFloat64())}
		}
		var list []cost.Run
		for range 5 {
			list = append(list, run(6144), run(24_576))
		}
		r := &cost.Report{BytesPerToken: 10_000, BlockTokens: 2048}
		if err := cost.Make(r, cost.Engines{}, []cost.Measured{{Link: "tcp", Runs: list}}, []int{82_000}); err != nil {
			t.Fatal(err)
		}
		if s, c := run(82_000).Seconds, r.Links[0].Costs[0]; s >= *c.Least && s <= *c.Most {
			in++
		}
	}
	if share := float64(in) / tries; share < 0.90 || share > 0.99 {
		t.Errorf("%.3f of new runs are in an interval of 95 %%", share)
	}
}

// TestWhatALinkAdds to the processors' time is what is more than over memory.
func TestWhatALinkAdds(t *testing.T) {
	r := made(t)
	if l := r.Links[1]; l.LinkCPU == nil || math.Abs(*l.LinkCPU) > 1e-9 || r.Links[0].LinkCPU != nil {
		t.Errorf("%+v", l.LinkCPU)
	}
}

func TestNoiseText(t *testing.T) {
	r := made(t)
	if s := r.NoiseText(); s != "" {
		t.Errorf("runs within a percent: %s", s)
	}
	top := slices.IndexFunc(r.Links[1].Measurements, func(m cost.Run) bool { return m.Tokens == 24_576 })
	r.Links[1].Measurements[top].Seconds *= 2
	if s := r.NoiseText(); !strings.Contains(s, "sealed TCP (") || strings.Contains(s, "memory") {
		t.Errorf("%q", s)
	}
	r.Links[0].Measurements = nil // as a file may have it
	if s := r.NoiseText(); !strings.Contains(s, "sealed TCP (") {
		t.Errorf("%q", s)
	}
}

// TestWhereALinkIsTooSlow: and where nothing is known of the engines.
func TestWhereALinkIsTooSlow(t *testing.T) {
	r := &cost.Report{BytesPerToken: 262_144, BlockTokens: 256, Layers: 64, Chunk: 8192}
	e := cost.Engines{Prefill: cost.Rate(800), Native: cost.Rate(170)}
	slow := []cost.Measured{{Link: "tcp", Runs: runs(0, 0.02, 512, 1024)}}
	if err := cost.Make(r, e, slow, []int{25_000}); err != nil {
		t.Fatal(err)
	}
	if r.Links[0].BreakEven != nil || *r.Links[0].Costs[0].Gain > 1 || !strings.Contains(r.Headline, "does not pay") || r.Cables[0].BreakEven != nil {
		t.Errorf("%+v", r)
	}
	quick := &cost.Report{BytesPerToken: 262_144, BlockTokens: 256, Layers: 64, Chunk: 8192}
	if err := cost.Make(quick, e, []cost.Measured{{Link: "tcp", Runs: runs(0, 1e-4, 512, 1024)}}, []int{25_000}); err != nil {
		t.Fatal(err)
	}
	if s := quick.CableText(); !strings.HasPrefix(s, "2.5 GbE is enough") {
		t.Errorf("%s", s)
	}
	unknown := &cost.Report{BytesPerToken: 10_000, BlockTokens: 2048, Layers: 43, Chunk: 8192}
	if err := cost.Make(unknown, cost.Engines{}, slow, []int{25_000}); err != nil {
		t.Fatal(err)
	}
	if _, err := json.Marshal(unknown); err != nil || unknown.Links[0].BreakEven != nil || unknown.Slowest != nil || unknown.CableText() != "" ||
		!strings.Contains(unknown.Headline, "not known") || len(unknown.Published) > 0 {
		t.Errorf("%v: %+v", err, unknown)
	}
	if err := cost.Make(&cost.Report{}, e, nil, nil); !errors.Is(err, cost.ErrReport) {
		t.Errorf("no link: %v", err)
	}
	if err := cost.Make(&cost.Report{}, e, []cost.Measured{{Link: "tcp"}}, nil); !errors.Is(err, cost.ErrReport) {
		t.Errorf("no run: %v", err)
	}
}

func TestFit(t *testing.T) {
	for name, c := range map[string]struct {
		runs []cost.Run
		want cost.Link
	}{
		"a line":        {[]cost.Run{{Tokens: 100, Seconds: 2}, {Tokens: 200, Seconds: 3}}, cost.Link{Fixed: 1, PerToken: 0.01}},
		"one length":    {[]cost.Run{{Tokens: 100, Seconds: 2}, {Tokens: 100, Seconds: 4}}, cost.Link{PerToken: 0.03}},
		"less than no":  {[]cost.Run{{Tokens: 100, Seconds: 1}, {Tokens: 200, Seconds: 4}}, cost.Link{PerToken: 0.012}},
		"paced is none": {[]cost.Run{{Tokens: 100, Seconds: 2}, {Tokens: 900, Seconds: 99, Paced: true}}, cost.Link{PerToken: 0.02}},
		"nothing":       {nil, cost.Link{}},
	} {
		if got := cost.Fit(c.runs); math.Abs(got.Fixed-c.want.Fixed) > 1e-9 || math.Abs(got.PerToken-c.want.PerToken) > 1e-9 {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestSchema(t *testing.T) {
	text, err := json.Marshal(made(t))
	if err != nil {
		t.Fatal(err)
	}
	check := func(change func(map[string]any)) []string {
		var doc map[string]any
		if err := json.Unmarshal(text, &doc); err != nil {
			t.Fatal(err)
		}
		change(doc)
		s := newSchema(t)
		s.check("", s.root, doc)
		return s.bad
	}
	if bad := check(func(map[string]any) {}); len(bad) > 0 {
		t.Fatalf("a good report: %v", bad)
	}
	link := func(m map[string]any) map[string]any { return m["links"].([]any)[0].(map[string]any) }
	for name, change := range map[string]func(map[string]any){
		"missing":  func(m map[string]any) { delete(m, "headline") },
		"unknown":  func(m map[string]any) { m["speed"] = 1.0 },
		"version":  func(m map[string]any) { m["schema"] = "pdlink-cost/1" },
		"type":     func(m map[string]any) { link(m)["ms_per_token"] = "1" },
		"enum":     func(m map[string]any) { link(m)["link"] = "pigeon" },
		"fraction": func(m map[string]any) { link(m)["processes"] = 1.5 },
		"phase":    func(m map[string]any) { link(m)["phases"].([]any)[0].(map[string]any)["end"] = "middle" },
		"busy": func(m map[string]any) {
			link(m)["runs"].([]any)[0].(map[string]any)["busy_seconds"] = map[string]any{"x": "y"}
		},
		"time": func(m map[string]any) { link(m)["lengths"].([]any)[0].(map[string]any)["bridged"] = 1.0 },
	} {
		if bad := check(change); len(bad) == 0 {
			t.Errorf("%s: accepted", name)
		}
	}
	again, err := cost.UnmarshalReport(text)
	if err != nil || again.Headline == "" || !reflect.DeepEqual(again.Links, made(t).Links) {
		t.Errorf("read again: %v", err)
	}
	for _, bad := range []string{"", "{}", `{"schema":"pdlink-cost/1"}`, "[1]"} {
		if _, err := cost.UnmarshalReport([]byte(bad)); !errors.Is(err, cost.ErrReport) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestSchemaDescribesEveryField: with a description each.
func TestSchemaDescribesEveryField(t *testing.T) {
	s := newSchema(t)
	defs := s.root["$defs"].(map[string]any)
	for name, v := range map[string]any{
		"": cost.Report{}, "link": cost.LinkReport{}, "phase": cost.Phase{}, "length": cost.Length{}, "run": cost.Run{}, "missing": cost.Missing{},
		"engines": cost.EngineReport{}, "native": cost.Native{}, "cable": cost.CableCost{}, "replaced": cost.Replaced{}, "assumption": cost.Assumption{},
		"time": cost.Time{}, "point": cost.Point{}, "origins": cost.Origins{}, "fit": cost.FitReport{}, "if": cost.IfRates{},
	} {
		m := s.root
		if name != "" {
			m = defs[name].(map[string]any)
		}
		props := m["properties"].(map[string]any)
		var want []string
		for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
			if tag := f.Tag.Get("json"); tag != "" {
				want = append(want, tag)
			}
		}
		for _, w := range want {
			if p, ok := props[w].(map[string]any); !ok || p["description"] == nil {
				t.Errorf("%q: %s is not described", name, w)
			}
		}
		if len(props) != len(want) || len(m["required"].([]any)) != len(want) {
			t.Errorf("%q: %d properties, %d required, of %d fields", name, len(props), len(m["required"].([]any)), len(want))
		}
	}
	if len(defs) != 15 {
		t.Errorf("%d definitions", len(defs))
	}
}

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		cost.Seconds(28.21): "28.2 s", cost.Seconds(0.0471): "47.1 ms", cost.Seconds(732.3): "12 min 12 s", cost.Seconds(-0.5): "−500 ms", cost.Seconds(math.NaN()): "?",
		cost.Seconds(204.4): "204 s", cost.Milliseconds(0.0261): "26.1 µs", cost.Milliseconds(0.354): "354 µs", cost.Milliseconds(2.2): "2.20 ms",
		cost.Number(1_234_567): "1,234,567", cost.Number(999): "999", cost.Number(-1000): "-1,000", cost.Bytes(9842): "9.84 kB", cost.Bytes(3e13): "30 TB",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
