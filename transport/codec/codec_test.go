package codec_test

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"pdlink/transport/codec"
)

// block is how much the bf16 codec codes with one table, see section 12.1.
const block = 128 << 10

// normal returns numbers of a normal distribution as bf16, cut to n bytes; bits of
// the mantissa below keep are zero.
func normal(n int, keep uint) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 0, n+1)
	for len(b) < n {
		v := uint16(math.Float32bits(float32(r.NormFloat64()))>>16) >> keep << keep
		b = append(b, byte(v), byte(v>>8))
	}
	return b[:n]
}

// noise returns bytes that nothing makes smaller.
func noise(n int) []byte {
	r := rand.New(rand.NewPCG(3, 4))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// special returns every bf16 there is: all infinities, NaNs with all their bits,
// subnormal numbers.
func special() []byte {
	b := make([]byte, 0, 2<<16)
	for v := range 1 << 16 {
		b = append(b, byte(v), byte(v>>8))
	}
	return b
}

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// golden returns the block files that a decoder wrote for a recorded case, whole.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "tools", "pdlink", "testdata", "cases", name, "expected", "*", "*.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no block files of case %s: %v", name, err)
	}
	var all []byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	return all
}

func TestRoundTrip(t *testing.T) {
	tests := map[string][]byte{
		"nothing": {}, "one byte": {7}, "16 bytes": make([]byte, 16), "17 bytes": make([]byte, 17),
		"zeros": make([]byte, 300001), "noise": noise(300000), "every number": special(),
		"normal": normal(1<<20, 0), "normal, 4 bits": normal(1<<20, 3), "odd length": normal(1<<20+1, 0),
		"numbers at odd places": cat([]byte{1}, normal(1<<19, 0)), "odd places and length": cat([]byte{1}, normal(1<<19, 0), []byte{2}),
		"a block":            normal(block, 0),
		"a block and a byte": normal(block+1, 0),
		"two kinds":          cat(normal(block/2, 0), noise(block), make([]byte, 3*block), normal(block, 2)),
		"kv":                 golden(t, "kv-qwen3"), "dsv4": golden(t, "dsv4-b"),
		"short tail": normal(block+24, 0),
	}
	var e codec.Encoder
	var d codec.Decoder
	for name, src := range tests {
		for _, id := range codec.All() {
			dst := make([]byte, len(src))
			n := e.Encode(id, dst, src)
			if n > len(src)-len(src)/32 {
				t.Errorf("%s, %v: %d bytes for %d", name, id, n, len(src))
			}
			if n == 0 {
				continue
			}
			back := bytes.Repeat([]byte{0xa5}, len(src)+64)
			if err := d.Decode(id, back[:len(src)], dst[:n]); err != nil {
				t.Errorf("%s, %v: %v", name, id, err)
			}
			if !bytes.Equal(back[:len(src)], src) {
				t.Errorf("%s, %v: other bytes came back", name, id)
			}
			if !bytes.Equal(back[len(src):], bytes.Repeat([]byte{0xa5}, 64)) {
				t.Errorf("%s, %v: bytes behind the payload were written", name, id)
			}
		}
	}
}

// TestRatio holds what the codecs are for: figures that the README gives.
func TestRatio(t *testing.T) {
	tests := []struct {
		name  string
		id    codec.ID
		src   []byte
		least float64 // 0: nothing is gained
	}{
		{"normal", codec.BF16, normal(1<<20, 0), 1.45},
		{"normal at odd places", codec.BF16, cat([]byte{1}, normal(1<<20, 0)), 1.45},
		{"normal, 4 bits", codec.BF16, normal(1<<20, 3), 2},
		{"kv", codec.BF16, golden(t, "kv-qwen3"), 1.4},
		{"noise", codec.BF16, noise(1 << 20), 0},
		{"normal", codec.LZ4, normal(1<<20, 0), 0},
		{"zeros", codec.LZ4, make([]byte, 1<<20), 100},
		{"zeros", codec.BF16, make([]byte, 1<<20), 100},
		{"noise", codec.LZ4, noise(1 << 20), 0},
		{"nothing is known", 77, make([]byte, 1<<20), 0},
	}
	var e codec.Encoder
	for _, tt := range tests {
		n := e.Encode(tt.id, make([]byte, len(tt.src)), tt.src)
		switch {
		case tt.least == 0 && n != 0:
			t.Errorf("%s, %v: %d bytes of %d, want none", tt.name, tt.id, n, len(tt.src))
		case tt.least > 0 && (n == 0 || float64(len(tt.src))/float64(n) < tt.least):
			t.Errorf("%s, %v: %d bytes of %d, want a ratio of %.2f", tt.name, tt.id, n, len(tt.src), tt.least)
		}
	}
}

// TestDecodeRefuses cuts coded payloads short, asks for other lengths and changes
// every byte: each gives an error or some bytes, in their place.
func TestDecodeRefuses(t *testing.T) {
	var e codec.Encoder
	var d codec.Decoder
	src := cat(normal(3000, 0), make([]byte, 400))
	for _, id := range codec.All() {
		whole := make([]byte, len(src))
		whole = whole[:e.Encode(id, whole, src)]
		if id == codec.LZ4 {
			src := cat(noise(50), make([]byte, 3350))
			whole = make([]byte, len(src))
			whole = whole[:e.Encode(id, whole, src)]
		}
		if len(whole) == 0 {
			t.Fatalf("%v: nothing to damage", id)
		}
		back := make([]byte, len(src))
		for n := range whole {
			if err := d.Decode(id, back, whole[:n]); !errors.Is(err, codec.ErrMalformed) {
				t.Fatalf("%v: %d of %d bytes: %v", id, n, len(whole), err)
			}
		}
		for _, n := range []int{0, 1, len(back) - 1, len(back) + 1} {
			if err := d.Decode(id, make([]byte, n), whole); !errors.Is(err, codec.ErrMalformed) {
				t.Errorf("%v: decoded to %d bytes: %v", id, n, err)
			}
		}
		if err := d.Decode(id, back, append(bytes.Clone(whole), 0)); !errors.Is(err, codec.ErrMalformed) {
			t.Errorf("%v: with a byte more: %v", id, err)
		}
		for i := range whole {
			damaged := bytes.Clone(whole)
			damaged[i] ^= 0x5a
			if err := d.Decode(id, back, damaged); err != nil && !errors.Is(err, codec.ErrMalformed) {
				t.Fatalf("%v: byte %d changed: %v", id, i, err)
			}
		}
	}
	for _, id := range []codec.ID{codec.None, 77} {
		if err := d.Decode(id, make([]byte, 8), make([]byte, 8)); !errors.Is(err, codec.ErrMalformed) {
			t.Errorf("%v: %v", id, err)
		}
	}
}

// TestNoAllocation: what is warm allocates nothing.
func TestNoAllocation(t *testing.T) {
	var e codec.Encoder
	var d codec.Decoder
	for _, id := range codec.All() {
		src := cat(normal(1<<19, 0), make([]byte, 1<<18))
		dst, back := make([]byte, len(src)), make([]byte, len(src))
		n := 0
		if got := testing.AllocsPerRun(20, func() { n = e.Encode(id, dst, src) }); got > 0 {
			t.Errorf("%v: %v allocations a payload coded", id, got)
		}
		if n == 0 {
			t.Fatalf("%v: nothing was gained", id)
		}
		if got := testing.AllocsPerRun(20, func() {
			if err := d.Decode(id, back, dst[:n]); err != nil {
				t.Fatal(err)
			}
		}); got > 0 {
			t.Errorf("%v: %v allocations a payload decoded", id, got)
		}
	}
}

// FuzzRoundTrip: whatever is coded comes back, bit for bit.
func FuzzRoundTrip(f *testing.F) {
	for _, b := range [][]byte{{}, {1}, make([]byte, 400), noise(500), special()[:4000], normal(2000, 0), cat([]byte{1}, normal(2001, 0)), normal(4000, 3)} {
		f.Add(b, uint8(1))
		f.Add(b, uint8(40))
	}
	var e codec.Encoder
	var d codec.Decoder
	f.Fuzz(func(t *testing.T, b []byte, times uint8) {
		src := bytes.Repeat(b, min(int(times)+1, 1+(1<<19)/(len(b)+1)))
		dst := make([]byte, len(src))
		for _, id := range codec.All() {
			n := e.Encode(id, dst, src)
			if n == 0 {
				continue
			}
			back := make([]byte, len(src))
			if err := d.Decode(id, back, dst[:n]); err != nil || !bytes.Equal(back, src) {
				t.Fatalf("%v: %d bytes coded to %d, came back: %v, equal: %v", id, len(src), n, err, bytes.Equal(back, src))
			}
		}
	})
}

// FuzzDecode: whatever arrives gives an error or bytes, nothing is written behind
// them, and a decoder that has seen it decodes what is right afterwards.
func FuzzDecode(f *testing.F) {
	var e codec.Encoder
	var d codec.Decoder
	good := cat(normal(1500, 0), make([]byte, 501))
	coded := map[codec.ID][]byte{}
	for _, id := range codec.All() {
		b := make([]byte, len(good))
		coded[id] = b[:e.Encode(id, b, good)]
		f.Add(uint8(id), uint32(len(good)), coded[id])
		f.Add(uint8(id), uint32(3*len(good)), bytes.Repeat(coded[id], 3))
	}
	f.Add(uint8(codec.BF16), uint32(17), []byte{7, 1, 2})
	f.Add(uint8(codec.BF16), uint32(1), []byte{1, 1, 1, 0, 0, 9})
	f.Fuzz(func(t *testing.T, codecID uint8, n uint32, b []byte) {
		id := codec.ID(codecID % 4)
		size := int(n % (1 << 18))
		dst := bytes.Repeat([]byte{0xa5}, size+32)
		if err := d.Decode(id, dst[:size], b); err != nil && !errors.Is(err, codec.ErrMalformed) {
			t.Errorf("%v: error %v has no kind", id, err)
		}
		if !bytes.Equal(dst[size:], bytes.Repeat([]byte{0xa5}, 32)) {
			t.Errorf("%v: bytes behind the payload were written", id)
		}
		if c := coded[id]; len(c) > 0 {
			back := make([]byte, len(good))
			if err := d.Decode(id, back, c); err != nil || !bytes.Equal(back, good) {
				t.Errorf("%v: afterwards: %v, equal: %v", id, err, bytes.Equal(back, good))
			}
		}
	})
}

func BenchmarkCodec(b *testing.B) {
	const frame = 1 << 20
	data := map[string][]byte{
		"normal": normal(frame, 0), "kv": golden(b, "kv-qwen3")[:frame], "dsv4": golden(b, "dsv4-b"), "noise": noise(frame),
	}
	for _, name := range []string{"normal", "kv", "dsv4", "noise"} {
		src := data[name]
		for _, id := range codec.All() {
			b.Run("encode/"+id.String()+"/"+name, func(b *testing.B) {
				var e codec.Encoder
				dst := make([]byte, len(src))
				b.SetBytes(int64(len(src)))
				n := 0
				for b.Loop() {
					n = e.Encode(id, dst, src)
				}
				b.ReportMetric(float64(len(src))/float64(max(n, 1)), "ratio")
			})
			b.Run("decode/"+id.String()+"/"+name, func(b *testing.B) {
				var e codec.Encoder
				var d codec.Decoder
				dst, back := make([]byte, len(src)), make([]byte, len(src))
				n := e.Encode(id, dst, src)
				if n == 0 {
					return
				}
				b.SetBytes(int64(len(src)))
				for b.Loop() {
					if err := d.Decode(id, back, dst[:n]); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
