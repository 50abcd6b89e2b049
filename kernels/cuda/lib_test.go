//go:build cudalib || cuda

package cuda

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"pdlink/kernels"
)

// built is the library under test, from PDLINK_PDPROJ or where the system's loader
// looks.
func built(tb testing.TB) *library {
	tb.Helper()
	l, err := load(os.Getenv("PDLINK_PDPROJ"))
	must(tb, err)
	return l
}

func (l *library) evaluate(tb testing.TB, op byte, in []float32) []float32 {
	tb.Helper()
	out := make([]float32, len(in))
	if code := l.leaf(int32(op), &in[0], &out[0], uint64(len(in))); code != 0 {
		tb.Fatalf("leaf %c: code %d", op, code)
	}
	return out
}

// TestLeafFunctions holds the kernels' leaf functions, run on this processor, to the
// definitions in float64.
func TestLeafFunctions(t *testing.T) {
	l := built(t)
	var exps, angles []float32
	for i := range 1 << 20 {
		exps = append(exps, -float32(i)*1e-4*(1+float32(i%97)*0.0103))
		angles = append(angles, float32(i)*kernels.Float32(draw(1, uint64(i), 0.3, 0.5)))
	}
	exps = append(exps, 0, float32(math.Inf(-1)), -200, -87.5, -103.9, -1e-30)
	differ, weights := 0, 0
	for i, got := range l.evaluate(t, 'e', exps) {
		want := float32(math.Exp(float64(exps[i])))
		if exps[i] < -87 {
			want = 0 // weights that small are left out
		}
		if got != want {
			differ++
		}
		if ulps := math.Abs(float64(int64(math.Float32bits(got)) - int64(math.Float32bits(want)))); ulps > 1 {
			t.Fatalf("exp(%g) is %g, want %g", exps[i], got, want)
		}
		if kernels.BF16(got) != kernels.BF16(want) {
			weights++
		}
	}
	t.Logf("exponential: %d of %d values differ in the last bit, %d after rounding to bf16", differ, len(exps), weights)
	if differ > len(exps)/50 || weights > 2 {
		t.Errorf("exponential: too many differ")
	}
	sines, cosines := l.evaluate(t, 's', angles), l.evaluate(t, 'c', angles)
	for i, a := range angles {
		s, c := math.Sincos(float64(a))
		if sines[i] != float32(s) || cosines[i] != float32(c) {
			t.Fatalf("sine and cosine of %g: %g %g, want %g %g", a, sines[i], cosines[i], float32(s), float32(c))
		}
	}
	for i, got := range l.evaluate(t, 'b', angles) {
		if got != kernels.Float32(kernels.BF16(angles[i])) {
			t.Fatalf("bf16 of %g is %g", angles[i], got)
		}
	}
	in := []float32{0, 1, 2, 3.5, 1e-9, 4097}
	for i, got := range l.evaluate(t, 'r', in) {
		if want := 1 / float32(math.Sqrt(float64(in[i]+1e-6))); got != want {
			t.Errorf("scale of %g is %g, want %g", in[i], got, want)
		}
	}
	for i, got := range l.evaluate(t, 'q', angles) {
		if want := angles[i] / 3; got != want {
			t.Fatalf("%g / 3 is %g, want %g", angles[i], got, want)
		}
	}
	if l.leaf('?', &in[0], &in[0], 1) == 0 {
		t.Error("an unknown leaf function was accepted")
	}
}

func TestFrequencies(t *testing.T) {
	l := built(t)
	plain := smallGeometry(4)
	plain.Yarn = nil
	odd := realGeometry(4)
	odd.Yarn = &kernels.Yarn{Factor: 32, OriginalMaxPositions: 4096, BetaFast: 16, BetaSlow: 2}
	for _, g := range []kernels.Geometry{plain, realGeometry(4), smallGeometry(128), odd} {
		d := &device{g: g, block: 2048, o: Options{}.withDefaults()}
		for i, compressed := range []bool{false, true} {
			want := g.InverseFrequencies(compressed)
			got := make([]float32, len(want))
			var e cError
			must(t, e.check(l.frequencies(d.config(), int32(i), &got[0], &e), "frequencies"))
			for j := range want {
				if got[j] != want[j] {
					t.Errorf("pair %d, compressed %v: %g, want %g", j, compressed, got[j], want[j])
				}
			}
		}
	}
}

// flagsOf is the config's second word, which Go leaves 0.
func flagsOf(c *cConfig) *uint32 { return (*uint32)(unsafe.Add(unsafe.Pointer(c), 4)) }

// TestCreateRefuses: configurations that cannot be are refused before a device is
// looked for.
func TestCreateRefuses(t *testing.T) {
	l := built(t)
	for name, c := range map[string]struct {
		change func(*cConfig)
		want   string
	}{
		"size":      {func(c *cConfig) { c.size-- }, "another size"},
		"layers":    {func(c *cConfig) { c.layers = 0 }, "layers"},
		"no layers": {func(c *cConfig) { c.layer = nil }, "no layers"},
		"hidden":    {func(c *cConfig) { c.hidden = 100 }, "hidden"},
		"head":      {func(c *cConfig) { c.headDim = 2048 }, "head_dim"},
		"rope":      {func(c *cConfig) { c.ropeDim = 3 }, "rope_dim"},
		"window":    {func(c *cConfig) { c.window = 4096 }, "block_tokens"},
		"tokens":    {func(c *cConfig) { c.maxTokens = 0 }, "max_tokens"},
		"blocks":    {func(c *cConfig) { c.maxTokens, c.blockTokens = 1<<17, 128 }, "blocks of one call"},
		"yarn":      {func(c *cConfig) { c.yarnFactor = math.NaN() }, "yarn"},
		"eps":       {func(c *cConfig) { c.normEps = -1 }, "norm_eps"},
		"ratio":     {func(c *cConfig) { c.layer.ratio = 5 }, "ratio"},
		"weights":   {func(c *cConfig) { c.layer.kv = nil }, "weights"},
		"offset":    {func(c *cConfig) { c.layer.offset[0] = 4 }, "offset"},
		"overlap":   {func(c *cConfig) { c.layer.offset[aWindowPre] = 2*128*512 - 8 }, "overlap"},
		"covered":   {func(c *cConfig) { c.layer.offset[aWindow], c.layer.offset[aWindowPre] = 8, 0 }, "overlap"},
		"flags":     {func(c *cConfig) { *flagsOf(c) = 1 << 4 }, "flags"},
		"both":      {func(c *cConfig) { *flagsOf(c) = 1 | 2 }, "direct excludes"},
	} {
		d := &device{g: realGeometry(0), block: 2048, o: Options{}.withDefaults()}
		config, word := d.config(), uint16(0)
		config.layers, config.layer = 1, &cLayer{kv: &word, kvNorm: &word}
		c.change(config)
		var h uintptr
		var e cError
		err := e.opening(l.create(config, &h, &e), "create")
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), c.want) || h != 0 {
			t.Errorf("%s: %v, want one about %q", name, err, c.want)
		}
	}
	var e cError
	if code := l.used(0, &cUsage{size: uint32(unsafe.Sizeof(cUsage{}))}, &e); code != codeArgument {
		t.Errorf("usage of no handle: code %d", code)
	}
	for name, code := range map[string]int32{
		"project": l.project(0, 0, 0, 0, 1, 0, nil, 0, 0, 0, nil, nil, 0, &e),
		"wait":    l.wait(0, 1, &e),
		"request": l.requestCreate(0, nil, &e),
		"seed":    l.seed(0, 0, 0, 0, nil, nil, nil, nil, 0, &e),
		"carry":   l.carry(0, 0, 0, nil, 0, 0, &e),
	} {
		if code != codeArgument {
			t.Errorf("%s without a handle: code %d", name, code)
		}
	}
	l.destroy(0)
	l.requestFree(0, 0)
}

// TestCutLibrary: of a library that was cut short anywhere, loading fails; it does not
// end the process.
func TestCutLibrary(t *testing.T) {
	path := os.Getenv("PDLINK_PDPROJ")
	if path == "" {
		t.Fatal("PDLINK_PDPROJ names no library to cut")
	}
	built, err := os.ReadFile(path)
	must(t, err)
	for _, n := range []int{0, 63, 4096, len(built) / 3, len(built) / 2, len(built) - 5000, len(built) - 1} {
		cut := filepath.Join(t.TempDir(), "libpdproj.so")
		must(t, os.WriteFile(cut, built[:n], 0o600))
		_, err := load(cut)
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), cut) || !strings.Contains(err.Error(), "make cuda") {
			t.Errorf("%d of %d bytes: %v, want one that names the file and the cure", n, len(built), err)
		}
	}
}
