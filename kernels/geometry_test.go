package kernels

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const smallConfig = `{"hidden_size":16,"num_hidden_layers":3,"head_dim":8,"qk_rope_head_dim":4,"index_head_dim":6,
"sliding_window":10,"rms_norm_eps":1e-6,"rope_theta":10000,"compress_rope_theta":160000.0,
"rope_scaling":{"type":"yarn","factor":16,"original_max_position_embeddings":65536},
"compress_ratios":[0,4,128],"max_position_embeddings":100000,"model_type":"other keys are ignored"}`

// altered returns smallConfig with one key replaced; a nil value removes it.
func altered(tb testing.TB, key string, value any) []byte {
	tb.Helper()
	var m map[string]any
	must(tb, json.Unmarshal([]byte(smallConfig), &m))
	if m[key] = value; value == nil {
		delete(m, key)
	}
	b, err := json.Marshal(m)
	must(tb, err)
	return b
}

func TestParseGeometry(t *testing.T) {
	g, err := ParseGeometry([]byte(smallConfig))
	must(t, err)
	want := Geometry{
		Hidden: 16, HeadDim: 8, IndexDim: 6, RopeDim: 4, Window: 10, MaxPositions: 100000, NormEps: 1e-6, RopeTheta: 10000, CompressRopeTheta: 160000,
		Yarn: &Yarn{Factor: 16, OriginalMaxPositions: 65536, BetaFast: 32, BetaSlow: 1}, Ratios: []int{0, 4, 128},
	}
	if !reflect.DeepEqual(g, want) {
		t.Errorf("got %+v, want %+v", g, want)
	}
	if g, err = ParseGeometry(altered(t, "compress_ratios", []int{0, 4, 128, 0})); err != nil || len(g.Ratios) != 3 {
		t.Errorf("a draft entry must be cut: %v, %v", g.Ratios, err)
	}
	for _, scaling := range []any{nil, json.RawMessage("null")} {
		if g, err = ParseGeometry(altered(t, "rope_scaling", scaling)); err != nil || g.Yarn != nil {
			t.Errorf("rope_scaling %v: %v, %v", scaling, g.Yarn, err)
		}
	}
	named := map[string]any{"rope_type": "yarn", "factor": 32, "original_max_position_embeddings": 4096, "beta_fast": 16, "beta_slow": 2}
	if g, err = ParseGeometry(altered(t, "rope_scaling", named)); err != nil || *g.Yarn != (Yarn{32, 4096, 16, 2}) {
		t.Errorf("rope_type: %v, %v", g.Yarn, err)
	}
}

func TestParseGeometryRefuses(t *testing.T) {
	yarn := func(key string, value any) map[string]any {
		m := map[string]any{"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
		if m[key] = value; value == nil {
			delete(m, key)
		}
		return m
	}
	for _, c := range []struct {
		key   string
		value any
		says  string
	}{
		{"compress_ratios", nil, "cannot be derived"}, {"compress_ratios", json.RawMessage("null"), "cannot be derived"},
		{"compress_ratios", []int{0, 4}, "2 entries for 3 layers"}, {"compress_ratios", []int{0, 4, 128, 0, 0}, "5 entries"},
		{"compress_ratios", []int{0, 4, 64}, "want 0, 4 or 128"}, {"compress_ratios", []int{0, -4, 128}, "want 0, 4 or 128"},
		{"compress_ratios", "0,4,128", "read configuration"},
		{"num_hidden_layers", 0, "num_hidden_layers"}, {"num_hidden_layers", nil, "num_hidden_layers"}, {"num_hidden_layers", 1 << 40, "num_hidden_layers"},
		{"hidden_size", nil, "hidden_size is missing"}, {"hidden_size", 0, "hidden_size"}, {"hidden_size", 1 << 40, "hidden_size"},
		{"head_dim", -8, "head_dim"}, {"head_dim", 1 << 20, "head_dim"}, {"head_dim", 2, "qk_rope_head_dim is 4, want 1 to 2"},
		{"index_head_dim", nil, "index_head_dim"}, {"index_head_dim", 2, "qk_rope_head_dim is 4, want 1 to 2"},
		{"qk_rope_head_dim", 3, "pairs"}, {"qk_rope_head_dim", 0, "qk_rope_head_dim"},
		{"sliding_window", 0, "sliding_window"}, {"sliding_window", 1 << 30, "sliding_window"},
		{"max_position_embeddings", 1<<24 + 1, "max_position_embeddings"}, {"max_position_embeddings", nil, "max_position_embeddings"},
		{"rms_norm_eps", 0, "rms_norm_eps"}, {"rms_norm_eps", nil, "rms_norm_eps is missing"},
		{"rope_theta", 1, "rope_theta"}, {"compress_rope_theta", -1, "compress_rope_theta"}, {"compress_rope_theta", nil, "compress_rope_theta"},
		{"rope_scaling", yarn("type", "linear"), "no other scaling"}, {"rope_scaling", yarn("type", nil), "no other scaling"},
		{"rope_scaling", yarn("factor", nil), "lacks factor"}, {"rope_scaling", yarn("factor", 0.5), "factor"},
		{"rope_scaling", yarn("beta_fast", 0), "beta_fast"}, {"rope_scaling", yarn("beta_slow", -1), "beta_slow"},
		{"rope_scaling", yarn("original_max_position_embeddings", nil), "lacks"}, {"rope_scaling", "yarn", "read rope_scaling"},
	} {
		_, err := ParseGeometry(altered(t, c.key, c.value))
		if !errors.Is(err, ErrGeometry) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s = %v: error %v, want %q", c.key, c.value, err, c.says)
		}
	}
	for _, text := range []string{"", "null", "[]", "{", smallConfig + "x"} {
		if _, err := ParseGeometry([]byte(text)); !errors.Is(err, ErrGeometry) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	if err := (Geometry{}).Validate(); !errors.Is(err, ErrGeometry) {
		t.Errorf("zero geometry: %v", err)
	}
}

func FuzzGeometry(f *testing.F) {
	f.Add([]byte(smallConfig))
	for _, name := range []string{"dsv4-a", "dsv4-b"} {
		text, err := os.ReadFile(filepath.Join("..", "tools", "pdlink", "testdata", "cases", name, "case.json"))
		must(f, err)
		var c goldenCase
		must(f, json.Unmarshal(text, &c))
		f.Add([]byte(c.Config))
	}
	f.Add([]byte(`{"num_hidden_layers":1e3,"compress_ratios":[]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		g, err := ParseGeometry(text)
		if err != nil {
			if !errors.Is(err, ErrGeometry) {
				t.Fatalf("error without sentinel: %v", err)
			}
			return
		}
		must(t, g.Validate())
		for _, compressed := range []bool{false, true} {
			for i, v := range g.InverseFrequencies(compressed) {
				if !(v >= 0 && v <= 1) || math.IsNaN(float64(v)) {
					t.Fatalf("pair %d of %+v has factor %v", i, g, v)
				}
			}
		}
	})
}
