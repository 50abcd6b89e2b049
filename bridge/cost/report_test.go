package cost_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
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
				Busy: map[string]float64{"write": s / 2, "wire in": 2 * s, "project": 0},
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
	r.Engines.Source = k.Source
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
		if c.Measured || !near(c.Seconds, want, 1e-9) || c.Least > c.Seconds || c.Most < c.Seconds || c.Bridged == nil || *c.Gain < 2 {
			t.Errorf("%+v", c)
		}
	}
	for _, p := range l.Phases {
		if want := map[string]float64{"write": 0.5, "wire in": 1}[p.Phase]; !near(p.Share, want, 1e-9) {
			t.Errorf("%+v", p)
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
	for _, want := range []string{"sealed TCP", "DeepSeek-V4-Flash", "82,000 tokens", "tokens on"} {
		if !strings.Contains(r.Headline, want) {
			t.Errorf("headline %q lacks %q", r.Headline, want)
		}
	}
	if !strings.HasPrefix(r.CableText(), "A faster cable buys next to nothing") {
		t.Errorf("%s", r.CableText())
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
		"version":  func(m map[string]any) { m["schema"] = "pdlink-cost/2" },
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
	for _, bad := range []string{"", "{}", `{"schema":"pdlink-cost/2"}`, "[1]"} {
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
		"time": cost.Time{}, "point": cost.Point{},
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
	if len(defs) != 12 {
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
