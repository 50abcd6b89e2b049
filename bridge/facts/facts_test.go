package facts

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func read(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func parsed(tb testing.TB, name string) *Facts {
	tb.Helper()
	f, err := Parse(read(tb, name))
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// refuses returns the findings that refuse, as texts.
func refuses(list []Finding) (out []string) {
	for _, f := range list {
		if f.Refuses {
			out = append(out, f.String())
		}
	}
	return out
}

// TestRealEngines: what real engines said of the same weights is the same.
func TestRealEngines(t *testing.T) {
	for decoder, engines := range map[string][]string{
		"tiny-qwen3/flyto-mlx-0.7.0.json": {"tiny-qwen3/vllm-0.32.0.json", "tiny-qwen3/vllm-0.28.0.json", "tiny-qwen3/vllm-0.21.0.json"},
		"tiny-qwen3/omlx-0.5.3.json":      {"tiny-qwen3/vllm-0.32.0.json", "tiny-qwen3/vllm-0.28.0.json", "tiny-qwen3/vllm-0.21.0.json"},
		"tiny-dsv4/flyto-mlx-0.7.0.json":  {"tiny-dsv4/vllm-0.32.0.json"},
		"tiny-dsv4/omlx-0.5.3.json":       {"tiny-dsv4/vllm-0.32.0.json"},
	} {
		for _, engine := range engines {
			d, e := parsed(t, decoder), parsed(t, engine)
			list := Compare(d, e)
			if got := refuses(list); len(got) > 0 {
				t.Errorf("%s, %s: %q", decoder, engine, got)
			}
			for _, f := range list {
				if f.Differs {
					t.Errorf("%s, %s: %v", decoder, engine, f)
				}
			}
			// Neither says less than it can: every tensor of the one has its fellow.
			if len(d.Unknown)+len(e.Unknown) > 0 || len(e.Tensors) < 10 || len(d.Tensors) != len(e.Tensors) || !reflect.DeepEqual(keys(d.Rope), keys(e.Rope)) {
				t.Errorf("%s, %s: unknown %v and %v, %d and %d tensors, layers %v and %v", decoder, engine, d.Unknown, e.Unknown,
					len(d.Tensors), len(e.Tensors), keys(d.Rope), keys(e.Rope))
			}
		}
	}
}

func keys(m map[string]Rope) map[string]bool {
	out := map[string]bool{}
	for k := range m {
		out[k] = true
	}
	return out
}

// clone is a copy that shares nothing.
func clone(tb testing.TB, f *Facts) *Facts {
	tb.Helper()
	b, err := json.Marshal(f)
	if err != nil {
		tb.Fatal(err)
	}
	var c Facts
	if err := json.Unmarshal(b, &c); err != nil {
		tb.Fatal(err)
	}
	return &c
}

// inverse is the angles per position of a base, with yarn's factor or without.
func inverse(n int, base, factor float64) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(1 / math.Pow(base, float64(i)/float64(n)))
		if factor > 1 && i > n/2 { // as yarn slows the slow pairs
			out[i] /= float32(factor)
		}
	}
	return out
}

// TestDifferences: each that makes answers wrong is found, and named.
func TestDifferences(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *Facts)
		says   string
	}{
		"another base": {func(f *Facts) { f.Rope["0"] = RopeOf(0, PairsHalves, inverse(32, 1e6, 1)) }, "rope of layer 0: pair 3 turned by 0.422 radians at position 1 at the decoder, pair 3 turned by 0.274"},
		"yarn lost":    {func(f *Facts) { f.Rope["1"] = RopeOf(0, PairsHalves, inverse(32, 1e4, 4)) }, "rope of layer 1: pair 19"},
		"half yarn": {func(f *Facts) { f.Rope["2"] = RopeOf(0, PairsHalves, inverse(32, 1e4, 1.02)) },
			"rope of layer 2: pair 19"},
		"yarn's scale": {func(f *Facts) {
			for _, row := range append(f.Rope["0"].Cos, f.Rope["0"].Sin...) {
				for i := range row {
					row[i] *= 1.1386
				}
			}
		}, "and scaled by 1.139"},
		"neighbours":       {func(f *Facts) { r := f.Rope["0"]; r.Pairs = PairsNeighbours; f.Rope["0"] = r }, "64 features from 0 in pairs of halves at the decoder, 64 features from 0 in pairs of neighbours"},
		"part of the head": {func(f *Facts) { f.Rope["0"] = RopeOf(0, PairsHalves, inverse(16, 1e4, 1)) }, "32 features from 0"},
		"no rotation":      {func(f *Facts) { f.Rope["0"] = Rope{} }, "none at the engine"},
		"other weights": {func(f *Facts) {
			x := f.Tensors["layers.1.self_attn.k_norm"]
			x.Hash = "0011223344556677"
			f.Tensors["layers.1.self_attn.k_norm"] = x
		}, "tensors layers.1.self_attn.k_norm: [64] "},
		"another width":  {func(f *Facts) { x := f.Tensors["norm"]; x.Shape = []int{256}; f.Tensors["norm"] = x }, "[256]"},
		"kind":           {func(f *Facts) { f.Kind = KindDSV4 }, "kind: kv at the decoder, dsv4 at the engine"},
		"dtype":          {func(f *Facts) { f.DType = "F16" }, "dtype: BF16 at the decoder, F16 at the engine"},
		"layers":         {func(f *Facts) { f.Layers = 4 }, "layers: 3 at the decoder, 4 at the engine"},
		"kv_heads":       {func(f *Facts) { f.KVHeads = 4 }, "kv_heads: 2"},
		"head_dim":       {func(f *Facts) { f.HeadDim = 128 }, "head_dim: 64"},
		"hidden":         {func(f *Facts) { f.Hidden = 1 }, "hidden: 128"},
		"heads":          {func(f *Facts) { f.Heads = 1 }, "heads: 4"},
		"vocab":          {func(f *Facts) { f.Vocab = 1 }, "vocab: 768"},
		"eps":            {func(f *Facts) { f.Eps = 1e-5 }, "eps: 1e-06 at the decoder, 1e-05 at the engine"},
		"nothing told":   {func(f *Facts) { *f = Facts{Unknown: map[string]string{"": "the model is not held"}} }, "unknown at the engine (engine: the model is not held)"},
		"no rope":        {func(f *Facts) { f.Rope, f.Unknown = nil, map[string]string{"rope": "no table"} }, "rope: 3 layers at the decoder, unknown at the engine (engine: no table)"},
		"rope of others": {func(f *Facts) { f.Rope = map[string]Rope{"7": f.Rope["0"]} }, "nothing of them is told at both ends"},
		"all other": {func(f *Facts) {
			for n, x := range f.Tensors {
				x.Hash = "0011223344556677"
				f.Tensors[n] = x
			}
		}, "(12 tensors more like this)"},
		"no tensors":    {func(f *Facts) { f.Tensors = nil }, "tensors: "},
		"other tensors": {func(f *Facts) { f.Tensors = map[string]Tensor{"x": {Hash: "0011223344556677"}} }, "none of them has the same name"},
	} {
		t.Run(name, func(t *testing.T) {
			d := parsed(t, "tiny-qwen3/omlx-0.5.3.json")
			e := clone(t, d)
			c.change(e)
			got := refuses(Compare(d, e))
			if len(got) == 0 || !strings.Contains(strings.Join(got, "\n"), c.says) {
				t.Errorf("%q, want %q", got, c.says)
			}
		})
	}
}

// TestDSV4Differences: what only its models have.
func TestDSV4Differences(t *testing.T) {
	d := parsed(t, "tiny-dsv4/omlx-0.5.3.json")
	with := func(p *Projection) *Facts { e := clone(t, d); e.Projection = p; return e }
	rope := map[string]Rope{}
	for layer, r := range d.Rope {
		rope[layer] = r
	}
	if got := Compare(d, with(&Projection{Layers: d.Projection.Layers, Rope: rope})); len(got) != 0 {
		t.Errorf("the same: %v", got)
	}
	if got := Compare(d, with(nil)); len(refuses(got)) != 0 || len(got) != 1 || !strings.HasPrefix(got[0].String(), "projection: 4 layers at the decoder, unknown") {
		t.Errorf("no weights: %v", got)
	}
	other := append([]string{}, d.Projection.Layers...)
	other[2] = "0011223344556677"
	if got := Compare(d, with(&Projection{Layers: other})); len(refuses(got)) != 1 || !strings.Contains(got[0].String(), "projection weights of layer 2") ||
		!strings.Contains(got[0].String(), "weights export") {
		t.Errorf("other weights: %v", got)
	}
	rope["1"] = RopeOf(448, PairsNeighbours, inverse(32, 1e4, 1)) // the compressed layers' yarn is lost
	if got := refuses(Compare(d, with(&Projection{Layers: d.Projection.Layers, Rope: rope}))); len(got) != 1 || !strings.HasPrefix(got[0], "projection's rope of layer 1: ") {
		t.Errorf("kernels that rotate otherwise: %v", got)
	}
	e := clone(t, d)
	e.Ratios[3] = 128
	if got := refuses(Compare(d, e)); len(got) != 1 || got[0] != "ratios of layer 3: 4 at the decoder, 128 at the engine" {
		t.Errorf("ratios: %v", got)
	}
	e = clone(t, d)
	e.Window, e.Ratios = 64, nil
	if got := refuses(Compare(d, e)); len(got) != 2 {
		t.Errorf("window and ratios: %v", got)
	}
}

// TestInformation: what decides nothing is told, and refuses nothing.
func TestInformation(t *testing.T) {
	d := parsed(t, "tiny-qwen3/omlx-0.5.3.json")
	e := clone(t, d)
	e.Text, e.Template, d.Template = TextOf([]int32{1, 2}), "0011223344556677", "7766554433221100"
	got := Compare(d, e)
	if len(got) != 2 || len(refuses(got)) != 0 || !got[0].Differs || !strings.Contains(got[0].String(), "2 ids of the probe text") {
		t.Errorf("%v", got)
	}
	if got := Compare(nil, nil); len(refuses(got)) == 0 || !strings.Contains(got[0].Why, "update pdlink-omlx") || !strings.Contains(got[0].Why, "update pdlink-vllm") {
		t.Errorf("nothing at all: %v", got)
	}
}

// TestPrecision: tables in bf16 and f16 are not taken for another rotation, at any
// position, of any base.
func TestPrecision(t *testing.T) {
	bf16 := func(v float64) float64 {
		b := math.Float32bits(float32(v))
		return float64(math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff))
	}
	f16 := func(v float64) float64 { return math.Round(v*(1<<24)) / (1 << 24) } // its step near zero; coarser is bf16 above
	for _, base := range []float64{1e4, 5e5, 1e6, 1e7} {
		for name, round := range map[string]func(float64) float64{"bf16": bf16, "f16": f16} {
			a := RopeOf(0, PairsHalves, inverse(64, base, 1))
			b := RopeOf(0, PairsHalves, inverse(64, base, 1))
			for _, row := range append(b.Cos, b.Sin...) {
				for i := range row {
					row[i] = round(row[i])
				}
			}
			if one, other, ok := a.difference(&b); !ok {
				t.Errorf("base %g, %s: %s, %s", base, name, one, other)
			}
			for _, other := range []float64{base * 1.1, base * 2} {
				c := RopeOf(0, PairsHalves, inverse(64, other, 1))
				if _, _, ok := b.difference(&c); ok {
					t.Errorf("%s: base %g is taken for %g", name, base, other)
				}
			}
		}
	}
}

// TestMerge: stages of one engine make one model; two models make none.
func TestMerge(t *testing.T) {
	whole := parsed(t, "tiny-qwen3/vllm-0.32.0.json")
	a, b := clone(t, whole), clone(t, whole)
	a.Rope, b.Rope = map[string]Rope{"0": whole.Rope["0"]}, map[string]Rope{"1": whole.Rope["1"], "2": whole.Rope["2"]}
	for name := range whole.Tensors {
		if strings.HasPrefix(name, "layers.0.") {
			delete(b.Tensors, name)
		} else {
			delete(a.Tensors, name)
		}
	}
	b.Hidden, b.Unknown = 0, map[string]string{"hidden": "no norm here"}
	got, err := Merge([]*Facts{a, b})
	if err != nil {
		t.Fatal(err)
	}
	got.Unknown = nil
	if !reflect.DeepEqual(got, whole) {
		t.Errorf("%+v", got)
	}
	if len(a.Rope) != 1 || len(b.Rope) != 2 {
		t.Error("what was put together is changed")
	}
	if got, err := Merge(nil); got != nil || err != nil {
		t.Errorf("of nobody: %v, %v", got, err)
	}
	for name, change := range map[string]func(f *Facts){
		"dtype":  func(f *Facts) { f.DType = "F16" },
		"tensor": func(f *Facts) { f.Tensors["norm"] = Tensor{Shape: []int{1}, Hash: "0011223344556677"} },
		"rope":   func(f *Facts) { f.Rope["0"] = Rope{} },
	} {
		c := clone(t, whole)
		change(c)
		if _, err := Merge([]*Facts{whole, c}); !errors.Is(err, ErrWorkers) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRefusal: one text names what matters.
func TestRefusal(t *testing.T) {
	list := []Finding{
		{Field: "a", Decoder: "1", Engine: "2", Refuses: true, Differs: true}, {Field: "b", Refuses: true, Decoder: unknown, Engine: "x"},
		{Field: "c", Differs: true}, {Field: "d", Refuses: true, Differs: true}, {Field: "e", Refuses: true, Differs: true},
	}
	if got := Refusal(list, false); !strings.HasPrefix(got, "a: 1 at the decoder, 2 at the engine; b: ") || !strings.HasSuffix(got, "; and 1 more") {
		t.Error(got)
	}
	if got := Refusal(list[1:3], true); got != "" {
		t.Error(got)
	}
}

// TestEncode: a document comes back as it was, within its limits.
func TestEncode(t *testing.T) {
	f := parsed(t, "tiny-dsv4/omlx-0.5.3.json")
	b, err := f.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if back, err := Parse(b); err != nil || !reflect.DeepEqual(back, f) {
		t.Errorf("%v", err)
	}
	for name, bad := range map[string]string{
		"no object": "[]", "another version": `{"version":2}`, "kind": `{"version":1,"kind":"x"}`, "negative": `{"version":1,"layers":-1}`,
		"hash": `{"version":1,"tensors":{"a":{"hash":"x"}}}`, "layer": `{"version":1,"rope":{"a":{}}}`,
		"no samples":  `{"version":1,"rope":{"0":{"dims":2}}}`,
		"few samples": `{"version":1,"rope":{"0":{"dims":2,"index":[0],"at":[1],"cos":[[]],"sin":[[]]}}}`,
		"projection":  `{"version":1,"projection":{"rope":{"0":{"dims":2}}}}`,
		"text":        `{"version":1,"text":{"hash":""}}`,
		"too long":    `{"version":1,"template":"` + strings.Repeat("x", MaxSize) + `"}`,
	} {
		if _, err := Parse([]byte(bad)); !errors.Is(err, ErrDocument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	big := clone(t, f)
	big.Unknown = map[string]string{"x": strings.Repeat("x", MaxSize)}
	if _, err := big.Encode(); !errors.Is(err, ErrDocument) {
		t.Errorf("too long: %v", err)
	}
}

// TestProbe: the text is that of the specification, which both engines' ends read.
func TestProbe(t *testing.T) {
	if got := strings.TrimSuffix(string(read(t, "probe.txt")), "\n"); got != ProbeText() {
		t.Errorf("%q", got)
	}
	if got := TextOf([]int32{1, 2, 3}); got.Count != 3 || len(got.Hash) != 16 || len(got.First) != 3 {
		t.Errorf("%+v", got)
	}
}

// TestSampling: what is looked at is that of the specification, which both engines'
// ends are held to as well.
func TestSampling(t *testing.T) {
	var want struct {
		Positions []int
		Pairs     []struct {
			Of    int
			Index []int
		}
		Layers []struct {
			Layers         int
			Ratios, Looked []int
		}
	}
	if err := json.Unmarshal(read(t, "sampling.json"), &want); err != nil {
		t.Fatal(err)
	}
	if got := sampledPositions(); !slices.Equal(got, want.Positions) {
		t.Errorf("positions %v, want %v", got, want.Positions)
	}
	for _, w := range want.Pairs {
		if got := sampledPairs(w.Of); !slices.Equal(got, w.Index) {
			t.Errorf("pairs of %d: %v, want %v", w.Of, got, w.Index)
		}
	}
	for _, w := range want.Layers {
		if got := SampledLayers(w.Layers, w.Ratios); !slices.Equal(got, w.Looked) {
			t.Errorf("layers of %d, %v: %v, want %v", w.Layers, w.Ratios, got, w.Looked)
		}
	}
}

// TestEveryField: what Facts has, Merge carries and holds the workers to, and Compare
// sees where two ends differ in it.
func TestEveryField(t *testing.T) {
	rope := func(cos float64) map[string]Rope {
		return map[string]Rope{"0": {Dims: 2, Index: []int{0}, At: []int{1}, Cos: [][]float64{{cos}}, Sin: [][]float64{{0}}}}
	}
	values := map[string][2]Facts{
		"Kind":       {{Kind: KindKV}, {Kind: KindDSV4}},
		"DType":      {{DType: "BF16"}, {DType: "F16"}},
		"Layers":     {{Layers: 1}, {Layers: 2}},
		"Hidden":     {{Hidden: 1}, {Hidden: 2}},
		"Vocab":      {{Vocab: 1}, {Vocab: 2}},
		"Heads":      {{Heads: 1}, {Heads: 2}},
		"KVHeads":    {{KVHeads: 1}, {KVHeads: 2}},
		"HeadDim":    {{HeadDim: 1}, {HeadDim: 2}},
		"Window":     {{Window: 1}, {Window: 2}},
		"Ratios":     {{Ratios: []int{0}}, {Ratios: []int{4}}},
		"Eps":        {{Eps: 1e-6}, {Eps: 1e-5}},
		"Rope":       {{Rope: rope(1)}, {Rope: rope(0.5)}},
		"Tensors":    {{Tensors: map[string]Tensor{"a": {Hash: "1"}}}, {Tensors: map[string]Tensor{"a": {Hash: "2"}}}},
		"Text":       {{Text: &Text{Hash: "1"}}, {Text: &Text{Hash: "2"}}},
		"Template":   {{Template: "1"}, {Template: "2"}},
		"Projection": {{Kind: KindDSV4, Projection: &Projection{Layers: []string{"1"}}}, {Kind: KindDSV4, Projection: &Projection{Layers: []string{"2"}}}},
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Facts]()) {
		if field.Name == "Version" || field.Name == "Unknown" { // not of the model
			continue
		}
		v, ok := values[field.Name]
		if !ok {
			t.Errorf("%s: no two values are known here, so nothing shows that Merge and Compare know it", field.Name)
			continue
		}
		got, err := Merge([]*Facts{{}, &v[0], {}})
		if err != nil || !reflect.DeepEqual(reflect.ValueOf(got).Elem().FieldByName(field.Name).Interface(), reflect.ValueOf(v[0]).FieldByName(field.Name).Interface()) {
			t.Errorf("%s: merged to %+v, %v", field.Name, got, err)
		}
		if _, err := Merge([]*Facts{&v[0], &v[1]}); !errors.Is(err, ErrWorkers) {
			t.Errorf("%s: workers that differ: %v", field.Name, err)
		}
		if list := Compare(&v[0], &v[1]); !slices.ContainsFunc(list, func(f Finding) bool { return f.Differs }) {
			t.Errorf("%s: ends that differ: %v", field.Name, list)
		}
	}
}

// TestNothingInCommon: rotations that tell nothing of the same turn are unknown, not
// equal, and samples without a rotation are no document.
func TestNothingInCommon(t *testing.T) {
	rope := func(f *Facts, change func(r *Rope)) {
		for layer, r := range f.Rope {
			change(&r)
			f.Rope[layer] = r
		}
	}
	for name, change := range map[string]func(r *Rope){
		"other pairs":     func(r *Rope) { r.Index = []int{1000, 1001}; r.Cos, r.Sin = rows(r, 2), rows(r, 2) },
		"other positions": func(r *Rope) { r.At = []int{2, 3, 5, 7} },
	} {
		d := parsed(t, "tiny-qwen3/omlx-0.5.3.json")
		e := clone(t, d)
		rope(e, change)
		list := Compare(d, e)
		if got := Refusal(list, false); !strings.Contains(got, "rope") {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, text := range []string{
		`{"version":1,"kind":"kv","rope":{"0":{"dims":0,"index":[0],"at":[1]}}}`,
		`{"version":1,"kind":"kv","rope":{"0":{"dims":0,"cos":[[1]]}}}`,
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), "samples of no rotation") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// rows are n zeros for each of a rotation's positions.
func rows(r *Rope, n int) [][]float64 {
	out := make([][]float64, len(r.At))
	for i := range out {
		out[i] = make([]float64, n)
	}
	return out
}

// FuzzCompare: whatever two documents say, the comparison ends, and a document is
// like itself.
func FuzzCompare(f *testing.F) {
	for _, name := range []string{"tiny-qwen3/omlx-0.5.3.json", "tiny-dsv4/vllm-0.32.0.json"} {
		f.Add(read(f, name), read(f, "tiny-qwen3/vllm-0.32.0.json"))
	}
	bare := []byte(`{"version":1,"kind":"kv","rope":{"0":{"dims":0,"index":[0],"at":[1]}}}`)
	f.Add(bare, bare)
	f.Add([]byte(`{"version":1,"rope":{"0":{"dims":2,"index":[0],"at":[1],"cos":[[1]],"sin":[[0]]}}}`), []byte(`{"version":1,"ratios":[1,2]}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		x, err := Parse(a)
		if err != nil {
			return
		}
		for _, d := range Compare(x, x) {
			if d.Differs {
				t.Errorf("unlike itself: %v", d)
			}
		}
		y, err := Parse(b)
		if err != nil {
			return
		}
		Refusal(Compare(x, y), false)
		Merge([]*Facts{x, y})
	})
}
