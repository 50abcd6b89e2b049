package bench

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// node is a part of the schema.
type node struct {
	Ref        string           `json:"$ref"`
	Type       any              `json:"type"`
	Const      any              `json:"const"`
	Enum       []any            `json:"enum"`
	Minimum    *float64         `json:"minimum"`
	Required   []string         `json:"required"`
	Properties map[string]*node `json:"properties"`
	More       any              `json:"additionalProperties"`
	Items      *node            `json:"items"`
	Defs       map[string]*node `json:"$defs"`
	About      string           `json:"description"`
}

// closed reports that an object has no other properties.
func (n *node) closed() bool {
	more, ok := n.More.(bool)
	return ok && !more
}

func parsedSchema(t *testing.T) *node {
	t.Helper()
	var n node
	if err := json.Unmarshal([]byte(Schema()), &n); err != nil {
		t.Fatal(err)
	}
	return &n
}

// errors says what of a value does not fit.
func (n *node) errors(root *node, v any, at string) (errs []string) {
	if n.Ref != "" {
		return root.Defs[strings.TrimPrefix(n.Ref, "#/$defs/")].errors(root, v, at)
	}
	bad := func(format string, args ...any) { errs = append(errs, at+": "+fmt.Sprintf(format, args...)) }
	kinds, _ := n.Type.([]any)
	if n.Type != nil && kinds == nil {
		kinds = []any{n.Type}
	}
	kind := map[bool]string{}
	switch x := v.(type) {
	case nil:
		kind[true] = "null"
	case string:
		kind[true] = "string"
	case bool:
		kind[true] = "boolean"
	case float64:
		kind[true] = "number"
		if x == float64(int64(x)) && slices.Contains(kinds, any("integer")) {
			kind[true] = "integer"
		}
		if n.Minimum != nil && x < *n.Minimum {
			bad("%v is less than %v", x, *n.Minimum)
		}
	case []any:
		kind[true] = "array"
		for i, e := range x {
			errs = append(errs, n.Items.errors(root, e, fmt.Sprintf("%s[%d]", at, i))...)
		}
	case map[string]any:
		kind[true] = "object"
		for _, name := range n.Required {
			if _, ok := x[name]; !ok {
				bad("no %s", name)
			}
		}
		for name, e := range x {
			if sub := n.Properties[name]; sub != nil {
				errs = append(errs, sub.errors(root, e, at+"."+name)...)
			} else if n.closed() {
				bad("%s is not in the schema", name)
			}
		}
	}
	if n.Type != nil && !slices.Contains(kinds, any(kind[true])) {
		bad("%v is no %v", v, n.Type)
	}
	if n.Const != nil && n.Const != v || n.Enum != nil && !slices.Contains(n.Enum, v) {
		bad("%v is not among %v%v", v, n.Const, n.Enum)
	}
	return errs
}

// valid demands that a report fits the schema.
func valid(t *testing.T, r *Report) {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	root := parsedSchema(t)
	for _, e := range root.errors(root, v, "report") {
		t.Error(e)
	}
}

// TestSchemaIsOfTheTypes: every field is in it and no other, with what it means; those that
// are never left out are required.
func TestSchemaIsOfTheTypes(t *testing.T) {
	root := parsedSchema(t)
	for name, v := range map[string]any{
		"report": Report{}, "row": Row{}, "length": Length{}, "figures": Figures{}, "spread": Spread{}, "check": Check{}, "host": Host{}, "sample": Sample{},
	} {
		var fields, required []string
		for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
			field, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
			fields = append(fields, field)
			if rest != "omitempty" {
				required = append(required, field)
			}
		}
		def := root.Defs[name]
		slices.Sort(fields)
		slices.Sort(required)
		if known := slices.Sorted(maps.Keys(def.Properties)); !slices.Equal(known, fields) || !slices.Equal(slices.Sorted(slices.Values(def.Required)), required) || !def.closed() {
			t.Errorf("%s: schema has %v, type %v; required %v and %v", name, known, fields, def.Required, required)
		}
		for field, n := range def.Properties {
			if n.About == "" && n.Ref == "" && n.Items == nil {
				t.Errorf("%s.%s is not explained", name, field)
			}
		}
	}
	if errs := root.errors(root, map[string]any{"schema": 2.0, "what": 1.0}, "x"); len(errs) < 10 {
		t.Errorf("%q", errs)
	}
}

func ptr[T any](v T) *T { return &v }

// made is a report of rows that nobody measured: native at 10 s, bridged at 3 s, its engine at 2 s.
func made(change func(*Report)) *Report {
	r := &Report{Front: "x", Native: "y", Finds: true, Whole: true}
	for run := 1; run <= 3; run++ {
		off := float64(run-2) / 1000
		r.Rows = append(r.Rows,
			Row{Arm: Native, Want: 8000, Run: run, Counted: true, Tokens: 8000, First: 10 + off, Total: 12, Said: 100, Rate: 20 + off, Cached: ptr(0), Marker: MarkerFound},
			Row{Arm: Bridged, Want: 8000, Run: run, Counted: true, Tokens: 8000, First: 3 + off, Total: 5, Said: 100, Rate: 19.9 + off, Cached: ptr(7936), Promised: 7936,
				Outcome: "complete", Verdict: "complete 7936/8000 tokens", Overhead: ptr(1 + off), Pair: (19.9 + off) / (20 + off), Marker: MarkerFound},
			Row{Arm: Engine, Want: 8000, Run: run, Counted: true, Tokens: 7936, Total: 2, Cached: ptr(0)},
			Row{Arm: Warm, Want: 8000, Run: run, Counted: true, Tokens: 8000, First: 0.5, Total: 2, Cached: ptr(7936), Outcome: "bypass", Marker: MarkerFound},
		)
	}
	if change != nil {
		change(r)
	}
	r.judge()
	r.Lengths = lengths(r.Rows)
	r.Checks = r.checks()
	return r
}

// TestMedians: over what can be compared only.
func TestMedians(t *testing.T) {
	r := made(func(r *Report) {
		r.Rows[1].Outcome, r.Rows[1].First = "partial", 9
		r.Rows[0].Counted, r.Rows[0].First = false, 99
		r.Rows[4].Error, r.Rows[4].First = "cut", 1
	})
	l := r.Lengths[0]
	if n := l.Arms[Native].First; n.N != 1 || n.Median != 10.001 {
		t.Errorf("%+v", n)
	}
	if b := l.Arms[Bridged].First; b.N != 2 || math.Abs(b.Median-3.0005) > 1e-9 || b.Least != 3 || b.Most != 3.001 {
		t.Errorf("%+v", b)
	}
	if l.Overhead.N != 2 || l.Arms[Engine].First.Median != 2 || l.Arms[Engine].Rate != nil || l.Tokens != 8000 {
		t.Errorf("%+v", l)
	}
	if l := made(nil).Lengths[0]; math.Abs(l.Sooner-10.0/3) > 1e-9 || math.Abs(l.Rate-19.9/20) > 1e-9 || l.Overhead.Median != 1 {
		t.Errorf("%+v", l)
	}
	if spreadOf(nil) != nil || spreadOf([]float64{4, 1, 3, 2}).Median != 2.5 {
		t.Error("medians")
	}
}

// TestChecks: each finds what it is for, and a report without faults has none.
func TestChecks(t *testing.T) {
	each := func(arm Arm, f func(*Row)) func(*Report) {
		return func(r *Report) {
			for i := range r.Rows {
				if r.Rows[i].Arm == arm {
					f(&r.Rows[i])
				}
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*Report)
		check  string
		level  Level
		say    string
	}{
		"nothing":       {nil, "decode rate", LevelOK, "8000 tokens: 19.9 tok/s bridged, 20.0 native, -0.5 %"},
		"slow":          {each(Bridged, func(r *Row) { r.Rate-- }), "decode rate", LevelFail, "-5.5 %"},
		"slow, perhaps": {func(r *Report) { each(Bridged, func(x *Row) { x.Rate-- })(r); r.Rows[1].Rate = 21 }, "decode rate", LevelWarn, "single runs overlap"},
		"slow, two":     {func(r *Report) { each(Bridged, func(x *Row) { x.Rate-- })(r); r.Rows[1].Rate = 0 }, "decode rate", LevelWarn, "fewer than 3 runs"},
		"pairs":         {func(r *Report) { r.Rows[1].Pair = 0.9 }, "decode rate", LevelOK, "(2 of 3 pairs within 2 %)"},
		"mute":          {each(Bridged, func(r *Row) { r.Outcome, r.Verdict = "", "" }), "bridged", LevelWarn, "3 of 3 have no verdict, so whether they were bridged is not known"},
		"few pairs":     {each(Bridged, func(r *Row) { r.Pair = 0.9 }), "decode rate", LevelWarn, "(0 of 3 pairs within 2 %), but in most rounds bridged decoding was slower"},
		"half of pairs": {func(r *Report) { r.Rows[1].Pair, r.Rows[5].Pair = 0, 0.9 }, "decode rate", LevelOK, "(1 of 2 pairs within 2 %)"},
		"one mute":      {func(r *Report) { r.Rows[1].Outcome, r.Rows[1].Verdict = "", "" }, "bridged", LevelFail, "1 of 3 were not wholly bridged; first bridged, 8000 tokens, run 1: no verdict"},
		"mute, partial": {func(r *Report) { r.Rows[1].Outcome, r.Rows[1].Verdict, r.Rows[5].Outcome = "", "", "partial" }, "bridged", LevelFail, "2 of 3 were not wholly bridged"},
		"warmed up": {func(r *Report) {
			each(Bridged, func(x *Row) { x.Outcome, x.Verdict = "", "" })(r)
			r.Rows[1].Counted, r.Rows[1].Verdict = false, "bypass"
		}, "bridged", LevelFail, "2 of 2 were"},
		"swaps": {func(r *Report) { r.Rows[0].Host.Available, r.Rows[2].Host = 1e9, Sample{Available: 1e9, Swapped: 3e9} }, "memory", LevelWarn, "1 of 12 requests; first engine, 8000 tokens, run 1: 3.0 GB were swapped out"},
		"swaps a bit": {func(r *Report) {
			r.Rows[0].Host.Available, r.Rows[2].Host = 1e9, Sample{Available: 1e9, Swapped: swappedMost}
		}, "memory", LevelOK, "no request swapped out more than 64 MiB"},
		"swapped long": {func(r *Report) { r.Rows[1].Host = Sample{Available: 1e9, Swapped: 3e9} }, "memory", LevelOK, "1.0 GB or more were left"},
		"not told": {func(r *Report) {
			r.Rows[0].Host = Sample{Available: 1e9, Swapped: 3e9}
			r.Rows[2].Host = r.Rows[0].Host
		}, "memory", LevelOK, "1.0 GB or more were left"},
		"scarce":        {func(r *Report) { r.Host.Memory = 64e9; r.Rows[0].Host.Available = 2e9 }, "memory", LevelWarn, "2.0 GB were left"},
		"few tokens":    {each(Bridged, func(r *Row) { r.Said = 3 }), "decode rate", LevelWarn, "fewer than 16 tokens"},
		"error":         {func(r *Report) { r.Rows[3].Error = "cut" }, "answered", LevelFail, "1 of 12 requests failed; first warm, 8000 tokens, run 1: cut"},
		"partial":       {func(r *Report) { r.Rows[1].Outcome, r.Rows[1].Verdict = "partial", "partial 5/9" }, "bridged", LevelFail, "run 1: partial 5/9"},
		"bypassed":      {func(r *Report) { r.Rows[1].Outcome, r.Rows[1].Verdict = "bypass", "bypass; short" }, "bridged", LevelWarn, "left to the decoder"},
		"less":          {func(r *Report) { r.Rows[1].Cached = ptr(5) }, "cached", LevelFail, "5 cached tokens of 7936"},
		"warm native":   {func(r *Report) { r.Rows[0].Cached = ptr(7000) }, "cold", LevelFail, "7000 cached tokens"},
		"warm engine":   {func(r *Report) { r.Rows[2].Cached = ptr(7000) }, "cold", LevelFail, "engine, 8000 tokens"},
		"template":      {func(r *Report) { r.Rows[0].Cached = ptr(16) }, "cold", LevelOK, ""},
		"cold warm":     {func(r *Report) { r.Rows[3].Cached = ptr(0) }, "warm", LevelWarn, "were not warm"},
		"lost marker":   {func(r *Report) { r.Rows[1].Marker = MarkerMissing }, "marker", LevelFail, "1 of 9 answers do not name"},
		"hard marker":   {func(r *Report) { r.Rows[1].Marker, r.Rows[0].Marker = MarkerMissing, MarkerMissing }, "marker", LevelWarn, "bridged, 8000"},
		"native marker": {func(r *Report) { r.Rows[0].Marker = MarkerMissing }, "marker", LevelWarn, "native, 8000"},
		"dumb":          {func(r *Report) { r.Finds = false }, "marker", LevelWarn, "no marker even of a short prompt"},
		"throttled":     {func(r *Report) { r.Rows[2].Throttled = 7 }, "heat", LevelWarn, "slowed down 7 times"},
		"hot":           {func(r *Report) { r.Rows[2].Host.Hot = "CPU limited to 80 %" }, "heat", LevelWarn, "first engine, 8000 tokens, run 1: CPU limited"},
		"a front":       {func(r *Report) { r.Rows[0].Verdict = "complete" }, "native", LevelFail, "leads to a front"},
		"not counted":   {func(r *Report) { r.Rows[0].Counted, r.Rows[0].Error = false, "cut" }, "answered", LevelOK, "11 of 11"},
	} {
		r := made(c.change)
		if got := check(r, c.check); got.Level != c.level || !strings.Contains(got.Text, c.say) {
			t.Errorf("%s: %+v", name, got)
		}
		for _, other := range r.Checks {
			if other.Check != c.check && other.Level == LevelFail {
				t.Errorf("%s: %+v", name, other)
			}
		}
	}
}

// TestWhatMakesARowGood: each thing that has to hold, alone, and that a row without it is in
// no median.
func TestWhatMakesARowGood(t *testing.T) {
	if l := made(nil).Lengths[0]; l.Pairs.N != 3 || l.Within != 3 || l.Arms[Warm].First.N != 3 {
		t.Fatalf("%+v", l)
	}
	const native, bridged, engine, warm = 0, 1, 2, 3 // rows of the first round
	for name, c := range map[string]struct {
		row    int
		change func(*Row)
		unfit  string // "": the row is good
	}{
		"failed":                    {native, func(r *Row) { r.Error = "answers 503" }, "it failed"},
		"a front for native":        {native, func(r *Row) { r.Verdict = "complete 1/2 tokens" }, "a front answered it"},
		"warm native":               {native, func(r *Row) { r.Cached = ptr(7000) }, "it was not cold"},
		"a template in the cache":   {native, func(r *Row) { r.Cached = ptr(16) }, ""},
		"native says nothing":       {native, func(r *Row) { r.Cached = nil }, ""},
		"partial":                   {bridged, func(r *Row) { r.Outcome = "partial" }, "it was not wholly bridged"},
		"a verdict of no word":      {bridged, func(r *Row) { r.Outcome, r.Verdict = "", "; id=r1" }, "it was not wholly bridged"},
		"bypass":                    {bridged, func(r *Row) { r.Outcome = "bypass" }, "it was not wholly bridged"},
		"fewer cached":              {bridged, func(r *Row) { r.Cached = ptr(7935) }, "fewer tokens were cached than promised"},
		"bridged says nothing":      {bridged, func(r *Row) { r.Cached = nil }, ""},
		"no verdict":                {bridged, func(r *Row) { r.Outcome, r.Verdict, r.Promised = "", "", 0 }, "it has no verdict, which others have"},
		"marker":                    {bridged, func(r *Row) { r.Marker = MarkerMissing }, "it does not name the marker, which native answers do"},
		"nobody looked for markers": {bridged, func(r *Row) { r.Marker = "" }, ""},
		"warm engine":               {engine, func(r *Row) { r.Cached = ptr(7000) }, "it was not cold"},
		"cold warm":                 {warm, func(r *Row) { r.Cached, r.Promised = ptr(10), 0 }, "it was not warm"},
		"marker, warm":              {warm, func(r *Row) { r.Marker = MarkerMissing }, "it does not name the marker, which native answers do"},
		"warmed up":                 {warm, func(r *Row) { r.Counted = false }, "it warmed up"},
	} {
		r := made(func(r *Report) { c.change(&r.Rows[c.row]) })
		x, want := r.Rows[c.row], 2
		if c.unfit == "" {
			want = 3
		}
		if n := r.Lengths[0].Arms[x.Arm].First.N; x.Unfit != c.unfit || n != want || x.good() != (c.unfit == "") {
			t.Errorf("%s: %q, %d in the median", name, x.Unfit, n)
		}
		line := fmt.Sprintf("not in a median: %s, 8000 tokens, run 1: %s\n", x.Arm, c.unfit)
		if c.unfit != "" && !strings.Contains(r.Markdown(), c.unfit) || strings.Contains(r.Text(), line) != (c.unfit != "" && x.Counted) {
			t.Errorf("%s: not said in\n%s", name, r.Text())
		}
	}
	// An endpoint that never sends a verdict is none of pdlink's fronts.
	mute := made(func(r *Report) {
		for i := range r.Rows {
			r.Rows[i].Outcome, r.Rows[i].Verdict, r.Rows[i].Promised = "", "", 0
		}
	})
	if l := mute.Lengths[0]; l.Arms[Bridged].First.N != 3 || strings.Contains(mute.Text(), "not in a median") {
		t.Errorf("%+v\n%s", l, mute.Text())
	}
	for want, r := range map[int]*Report{1: mute, 0: made(func(r *Report) { r.Rows[1].Verdict = "" })} {
		b := run{report: r, front: &target{name: "the front"}}
		if b.silent(); len(r.Lacks) != want {
			t.Errorf("%q", r.Lacks)
		}
	}
	// Where native answers lose markers of a length, too, it is the model that does.
	r := made(func(r *Report) { r.Rows[0].Marker, r.Rows[1].Marker = MarkerMissing, MarkerMissing })
	if r.Rows[1].Unfit != "" {
		t.Errorf("%q", r.Rows[1].Unfit)
	}
}

// TestMarkdownIsNoMarkup: what an endpoint says stays text.
func TestMarkdownIsNoMarkup(t *testing.T) {
	r := made(func(r *Report) { r.Rows[0].Error = "a | b <script> [x](y) `z`" })
	text := r.Markdown()
	if !strings.Contains(text, `a \| b &lt;script> \[x](y) 'z'`) || strings.Contains(text, "<script") {
		t.Errorf("%s", text)
	}
	width := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "|") {
			n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
			if width > 0 && n != width {
				t.Errorf("%d columns, not %d: %s", n, width, line)
			}
			width = n
		} else {
			width = 0
		}
	}
}

// TestHostTexts: of tools and files of systems that are not here.
func TestHostTexts(t *testing.T) {
	cool := "Note: No thermal warning level has been recorded\nNote: No performance warning level has been recorded\nNote: No CPU power status has been recorded\n"
	for text, want := range map[string]string{
		cool: "",
		"2026-01-01 10:00:00 +0000 CPU Power notify\n\tCPU_Scheduler_Limit \t= 100\n\tCPU_Available_CPUs \t= 8\n\tCPU_Speed_Limit \t= 78\n": "CPU limited to 78 %",
		"\tCPU_Speed_Limit \t= 100\n":                         "",
		"Thermal warning level set to 5\n":                    "thermal warning level 5",
		"Note: Performance warning level has been set to 0\n": "",
		"": "",
	} {
		if got := macHeat(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	vm := "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:                               10.\nPages active: 99.\nPages inactive: 20.\nPages speculative: 3.\nPages purgeable: 2.\n"
	if got := macAvailable(vm); got != 35*16384 {
		t.Errorf("%d", got)
	}
	if got := gpuHeat("0, Active, Not Active, Not Active\n1, Not Active, Not Active, Active\nrubbish\n2, [N/A], [N/A], [N/A]\n"); got != "GPU 0 thermal slowdown, GPU 1 power brake" {
		t.Errorf("%q", got)
	}
	if got := meminfo("MemTotal:  16 kB\nMemAvailable:   5 kB\n", "MemAvailable"); got != 5<<10 || meminfo("", "x") != 0 || meminfo("x: y", "x") != 0 {
		t.Errorf("%d", got)
	}
	h, s := thisHost(), sample(t.Context())
	if h.Cores < 1 || h.System == "" || h.Memory > 0 && s.Available > h.Memory {
		t.Errorf("%+v, %+v", h, s)
	}
}
