package kernels

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"testing"
)

func TestBF16Rounding(t *testing.T) {
	for _, c := range []struct {
		in   uint32
		want uint16
	}{
		{0x00000000, 0x0000}, {0x80000000, 0x8000},
		{0x3f800000, 0x3f80},                       // 1
		{0x3f807fff, 0x3f80}, {0x3f808001, 0x3f81}, // below and above the middle
		{0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, // ties go to even
		{0xbf808000, 0xbf80}, {0xbf818000, 0xbf82},
		{0x3fffffff, 0x4000}, // carries into the exponent
		{0x7f7fffff, 0x7f80}, // overflows to infinity
		{0x7f800000, 0x7f80}, {0xff800000, 0xff80},
		{0x7f800001, 0x7fc0}, {0xffffffff, 0x7fc0}, // NaN stays NaN
		{0x00000001, 0x0000}, {0x00018000, 0x0002}, // subnormal
	} {
		if got := BF16(math.Float32frombits(c.in)); got != c.want {
			t.Errorf("BF16(%08x) = %04x, want %04x", c.in, got, c.want)
		}
	}
	for b := range 1 << 16 {
		v := Float32(uint16(b))
		if v == v && BF16(v) != uint16(b) {
			t.Fatalf("pattern %04x does not survive", b)
		}
	}
}

func TestNumericsNames(t *testing.T) {
	for _, n := range []Numerics{MLXMetal, MLXCPU, Ideal} {
		if got, err := ParseNumerics(n.String()); err != nil || got != n {
			t.Errorf("%v: parsed as %v, %v", n, got, err)
		}
	}
	for _, bad := range []string{"", "exact", "MLX-CPU", "Numerics(7)"} {
		if _, err := ParseNumerics(bad); !errors.Is(err, ErrNumerics) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if s := Numerics(7).String(); s != "Numerics(7)" {
		t.Errorf("unknown profile prints as %q", s)
	}
}

// float32Digest is the first 16 hex digits of the SHA-256 of the values.
func float32Digest(a []float32) string {
	b := make([]byte, 0, 4*len(a))
	for _, v := range a {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:8])
}

// TestInverseFrequencies compares whole tables with the reference, which equals
// the decoder's bit for bit, and the published entries of the stored table.
func TestInverseFrequencies(t *testing.T) {
	g := fullGeometry(4)
	tiny := g
	tiny.RopeDim = 16
	for _, c := range []struct {
		name string
		got  []float32
		want string
	}{
		{"compressed", g.InverseFrequencies(true), "dd4ff6d6bfdee656"},
		{"plain", g.InverseFrequencies(false), "734f9e6b629f7bac"},
		{"16 features", tiny.InverseFrequencies(true), "bfceb121a374d3d3"},
	} {
		if d := float32Digest(c.got); d != c.want {
			t.Errorf("%s table: digest %s, want %s", c.name, d, c.want)
		}
	}
	for i, want := range map[int]float32{0: 1, 1: 1.4542154, 15: 275.06241, 16: 441.37933, 20: 3367.2551, 25: 186139.58, 31: 1760399.2} {
		if got := frequency(i, 64, 160000, g.Yarn); got != want {
			t.Errorf("frequency %d is %v, want %v", i, got, want)
		}
	}
	for i, want := range map[int]float32{1: 1.3335215, 31: 7498.9419} {
		if got := frequency(i, 64, 10000, nil); got != want {
			t.Errorf("plain frequency %d is %v, want %v", i, got, want)
		}
	}
}

// TestYarnDegenerateRamp covers equal ends of the ramp, which must not divide by
// zero.
func TestYarnDegenerateRamp(t *testing.T) {
	y := &Yarn{Factor: 4, OriginalMaxPositions: 1, BetaFast: 1e6, BetaSlow: 1e6}
	for i := range 4 {
		if f := frequency(i, 8, 10000, y); f <= 0 || math.IsInf(float64(f), 0) || f != f {
			t.Errorf("frequency %d is %v", i, f)
		}
	}
}

// TestPoolPositionScaling holds the identity that lets one table serve pools: the
// decoder divides the frequency by the ratio and uses the row index.
func TestPoolPositionScaling(t *testing.T) {
	g := fullGeometry(4)
	for i, inv := range g.InverseFrequencies(true) {
		f := frequency(i, g.RopeDim, g.CompressRopeTheta, g.Yarn)
		for _, ratio := range []int{4, 128} {
			scaled := 1 / float32(f/float32(ratio))
			for p := 0; p < 8000; p += 37 {
				if a, b := float32(float32(p)*scaled), float32(float32(p*ratio)*inv); a != b {
					t.Fatalf("pair %d ratio %d row %d: %v and %v", i, ratio, p, a, b)
				}
			}
		}
	}
}

func TestVectorSinCos(t *testing.T) {
	g := fullGeometry(4)
	inv := g.InverseFrequencies(true)
	var sin, cos []float32
	for p := range 4096 {
		for _, f := range inv {
			s, c := vectorSinCos(float32(float32(p*251) * f))
			sin, cos = append(sin, s), append(cos, c)
		}
	}
	if d := float32Digest(sin); d != "56a0b2944d57ef84" {
		t.Errorf("131,072 sines: digest %s", d)
	}
	if d := float32Digest(cos); d != "031b17b724d51713" {
		t.Errorf("131,072 cosines: digest %s", d)
	}
	// The first table entries where a library sine would round to the other bf16 value.
	for _, c := range []struct {
		pos, pair int
		inv       []float32
		sin, cos  uint32
		vector    uint16
		library   uint16
	}{
		{11999, 5, inv, 0xbf498000, 0xbf1de77d, 0xbf4a, 0xbf49},
		{2954, 6, g.InverseFrequencies(false), 0xbf1c8001, 0xbf4a97b2, 0xbf1d, 0xbf1c},
	} {
		angle := float32(float32(c.pos) * c.inv[c.pair])
		s, co := vectorSinCos(angle)
		if math.Float32bits(s) != c.sin || math.Float32bits(co) != c.cos {
			t.Errorf("position %d pair %d: %08x %08x", c.pos, c.pair, math.Float32bits(s), math.Float32bits(co))
		}
		l, _ := librarySinCos(angle)
		if BF16(s) != c.vector || BF16(l) != c.library {
			t.Errorf("position %d pair %d: %04x, library %04x", c.pos, c.pair, BF16(s), BF16(l))
		}
	}
	s, c := vectorSinCos(-1.25)
	if sp, cp := vectorSinCos(1.25); s != -sp || c != cp {
		t.Error("sine is not odd or cosine not even")
	}
}

func TestPolyExp(t *testing.T) {
	var all []float32
	for i := range 90001 {
		all = append(all, polyExp(-float32(i)/1000))
	}
	if d := float32Digest(all); d != "363e312d541032b8" {
		t.Errorf("90,001 exponentials: digest %s", d)
	}
	inf := float32(math.Inf(1))
	for _, c := range []struct{ in, want float32 }{
		{0, 1}, {-1, math.Float32frombits(0x3ebc5ab2)}, {-3.25, math.Float32frombits(0x3d1ed1b4)},
		{1.5, math.Float32frombits(0x408f69ff)}, {-87.9, 0}, {-88.5, 0}, {-inf, 0}, {88.5, inf}, {inf, inf},
	} {
		if got := polyExp(c.in); got != c.want {
			t.Errorf("polyExp(%v) = %08x, want %08x", c.in, math.Float32bits(got), math.Float32bits(c.want))
		}
	}
	if v := polyExp(float32(math.NaN())); v == v {
		t.Errorf("polyExp(NaN) = %v", v)
	}
}

// TestFusedDiffersFromUnfused makes sure that the fused form is not two roundings.
func TestFusedDiffersFromUnfused(t *testing.T) {
	a, b, c := float32(1+1.0/(1<<12)), float32(1+1.0/(1<<12)), float32(-1)
	if fused(a, b, c) == float32(a*b)+c {
		t.Error("fused rounds the product")
	}
}

// TestPoolingOrders checks each profile's order of the pooling sum on values whose
// sum depends on it.
func TestPoolingOrders(t *testing.T) {
	// Row 0 holds 256, all others 1: in bf16 256 + 1 = 256, so a serial bf16 sum stays at
	// 256; 32 partials in f32 give 256 (row 0's partial: 256) + 31·4; exact is 383 → 384.
	kv, w := make([]float32, 128), make([]float32, 128)
	for i := range kv {
		kv[i], w[i] = 1, 1
	}
	kv[0] = 256
	for n, want := range map[Numerics]float32{MLXCPU: 256, MLXMetal: 380, Ideal: 384} {
		r := newReducer(n, 1)
		var out [1]uint16
		r.weightedSum(out[:], kv, w)
		if got := Float32(out[0]); got != want {
			t.Errorf("%v: sum over 128 rows is %v, want %v", n, got, want)
		}
		r.weightedSum(out[:], kv[:8], w[:8])
		want8 := float32(256)
		if n == Ideal {
			want8 = 264
		}
		if got := Float32(out[0]); got != want8 {
			t.Errorf("%v: sum over 8 rows is %v, want %v", n, got, want8)
		}
	}
}

func TestSoftmaxWeights(t *testing.T) {
	never := float32(math.Inf(-1))
	for _, n := range []Numerics{MLXCPU, MLXMetal, Ideal} {
		r := newReducer(n, 2)
		g := []float32{never, 1, 0, 1, 0, 1, never, 1}
		r.softmax(g)
		for i, want := range []float32{0, 0.25, 0.5, 0.25, 0.5, 0.25, 0, 0.25} {
			if g[i] != want {
				t.Errorf("%v: weight %d is %v, want %v", n, i, g[i], want)
			}
		}
	}
}
