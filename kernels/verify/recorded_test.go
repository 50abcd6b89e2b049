package verify

import (
	"errors"
	"strings"
	"testing"

	"pdlink/kernels/cuda"
	"pdlink/kernels/safetensors"
)

// TestAPartOfThePrompt: what is too short for anything to compare is left out and told;
// what the part makes is compared.
func TestAPartOfThePrompt(t *testing.T) {
	rec := recording(t, "dsv4-a", "")
	for _, c := range []struct {
		tokens int
		layers []int
		want   string
		check  string
		detail string
	}{
		{127, nil, "left out/passed/passed/left out", Pooled, "pooled 128 left out: 127 tokens complete no row"},
		{128, nil, "left out/passed/passed/left out", Pooled, ""},
		{127, []int{2}, "left out/left out/passed/left out", Pooled, "127 tokens complete no row of a pool"},
		{127, []int{0}, "left out/left out/passed/left out", Pooled, "these layers have no pools"},
		{127, []int{0}, "left out/left out/passed/left out", Arrays, "127 tokens end no block of 512, and not the prompt"},
		{2, []int{0}, "left out/left out/passed/left out", SelfTest, "1 runs in chunks of [[1 2 3 130 131 515]] gave the bits of one"},
		{1, []int{0}, strings.Repeat("left out/", 3) + "left out", SelfTest, "a prompt of one token cannot be cut"},
	} {
		r, err := Run(t.Context(), rec, Options{Engine: cuda.Reference, Tokens: c.tokens, Layers: c.layers})
		must(t, err)
		if got := results(r); got != c.want || check(t, r, c.check).Detail != c.detail {
			t.Errorf("%d tokens of layers %v: %s, want %s: %s: %q, want %q", c.tokens, c.layers, got, c.want, c.check, check(t, r, c.check).Detail, c.detail)
		}
		for _, class := range check(t, r, Pooled).Classes {
			if class.Elements == 0 {
				t.Errorf("%d tokens: %s of nothing", c.tokens, class.Name)
			}
		}
		if r.Good() != (c.tokens > 1) {
			t.Errorf("%d tokens: good %v", c.tokens, r.Good())
		}
	}
}

// TestMissingRows: of the whole prompt all recorded rows have to be made, and all that a
// part makes have to be recorded.
func TestMissingRows(t *testing.T) {
	longer := func(x *safetensors.Tensor, data []byte) []byte {
		x.Shape[1]++
		return append(data, data[:int(x.Shape[2])*2]...)
	}
	fewer := func(x *safetensors.Tensor, data []byte) []byte {
		n := len(data) / int(x.Shape[1]) * 20
		x.Shape[1] = 20
		return data[:n]
	}
	for name, c := range map[string]struct {
		tensor string
		change func(*safetensors.Tensor, []byte) []byte
		tokens int
		want   string
	}{
		"more are recorded":                {"layer_1.pooled", longer, 0, "layer 1: pooled has 20800 elements, not 20864 as recorded"},
		"more are recorded of the indexer": {"layer_1.idx_pooled", longer, 0, "layer 1: idx_pooled has 10400 elements, not 10432 as recorded"},
		"fewer are recorded, in a part":    {"layer_1.pooled", fewer, 700, "layer 1: pooled has 11200 elements, not 1280 as recorded"},
		"more are recorded, in a part":     {"layer_1.pooled", longer, 700, ""},
	} {
		r, err := Run(t.Context(), recording(t, "dsv4-a", changed(t, c.tensor, c.change)), Options{Engine: cuda.Reference, Tokens: c.tokens, Layers: []int{1}})
		must(t, err)
		if got := check(t, r, Pooled); got.Detail != c.want || (got.Result == Passed) != (c.want == "") || check(t, r, Arrays).Result != Passed {
			t.Errorf("%s: %+v, want %q", name, got, c.want)
		}
	}
}

// TestBadRecordings: what no run can make is refused by its name, whatever part is asked
// for.
func TestBadRecordings(t *testing.T) {
	for to, why := range map[string]string{
		"layer_0.win@51200":   "beyond the prompt's 1303 tokens",
		"layer_0.win@1536":    "beyond the prompt's 1303 tokens",
		"layer_0.win@-512":    "is no end of a block of 512 tokens",
		"layer_0.win@0":       "is no end of a block of 512 tokens",
		"layer_0.win@513":     "is no end of a block of 512 tokens",
		"layer_0.win@0x200":   "is no end of a block of 512 tokens",
		"layer_0.win@+512":    "is no end of a block of 512 tokens",
		"layer_0.win":         "which a layer of ratio 0 does not make",
		"layer_0.quux":        "which a layer of ratio 0 does not make",
		"layer_0.pooled":      "which a layer of ratio 0 does not make",
		"layer_0.prev_kv@512": "which a layer of ratio 0 does not make",
		"layer_2.idx_pooled":  "which a layer of ratio 128 does not make",
		"layer_77.win@512":    "is of no layer of the model's 5",
		"layer_00.win@512":    "is of no layer of the model's 5",
		"layer_-1.win@512":    "is of no layer of the model's 5",
		"win@512":             "is of no layer of the model's 5",
		"0.win@512":           "is of no layer of the model's 5",
	} {
		rename := func(x *safetensors.Tensor, data []byte) []byte {
			x.Name = to
			return data
		}
		_, err := Run(t.Context(), recording(t, "dsv4-a", changed(t, "layer_0.win@512", rename)), Options{Engine: cuda.Reference, Tokens: 10, Layers: []int{4}})
		if !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), to+",") || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", to, err)
		}
	}
	retype := func(x *safetensors.Tensor, data []byte) []byte {
		x.DType = safetensors.F16
		return data
	}
	if _, err := Run(t.Context(), recording(t, "dsv4-a", changed(t, "layer_0.win@512", retype)), Options{Engine: cuda.Reference, Tokens: 10, Layers: []int{4}}); !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), "layer_0.win@512 is F16") {
		t.Errorf("another type: %v", err)
	}
}

// TestPartlyRecorded: how much is recorded is told of each check, and one that lacks
// everything is left out.
func TestPartlyRecorded(t *testing.T) {
	const all = "passed/passed/passed/passed"
	for what, c := range map[string]struct {
		keep           func(name string) bool
		want           string
		arrays, pooled string
	}{
		"all but the windows before rotation": {func(n string) bool { return !strings.Contains(n, "win_pre") }, all, "", ""},
		"one layer":                           {func(n string) bool { return strings.HasPrefix(n, "layer_1.") }, all, "1 of 3 layers recorded", "1 of 2 layers recorded"},
		"no pools":                            {func(n string) bool { return strings.Contains(n, "@") }, "passed/left out/passed/passed", "", "0 of 2 layers recorded: nothing to hold the reference against"},
		"only pools":                          {func(n string) bool { return !strings.Contains(n, "@") }, "left out/passed/passed/passed", "0 of 3 layers recorded: nothing to hold the reference against", ""},
		"no indexer, and one boundary less":   {func(n string) bool { return n != "layer_1.idx_pooled" && n != "layer_2.win@512" }, all, "3 of 3 layers recorded, 1 of them in part", "2 of 2 layers recorded, 1 of them in part"},
	} {
		state := kept(t, c.keep)
		r, err := Run(t.Context(), recording(t, "dsv4-a", state), Options{Engine: cuda.Reference, Layers: []int{0, 1, 2}})
		must(t, err)
		if arrays, pooled := check(t, r, Arrays).Detail, check(t, r, Pooled).Detail; results(r) != c.want || arrays != c.arrays || pooled != c.pooled {
			t.Errorf("%s: %s, want %s: %q and %q, want %q and %q", what, results(r), c.want, arrays, pooled, c.arrays, c.pooled)
		}
	}
}

// kept writes dsv4-a's recorded state with some of its tensors.
func kept(tb testing.TB, keep func(name string) bool) string {
	tb.Helper()
	return written(tb, func(x *safetensors.Tensor, data []byte) ([]byte, bool) { return data, keep(x.Name) })
}
