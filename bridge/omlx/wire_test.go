package omlx

import (
	"testing"

	"pdlink/kernels/safetensors"
)

// naive lists the file offset of every wire byte of block k, from the list of
// tensors and the naming rules alone.
func naive(t testing.TB, l *Layout, k int) []int64 {
	t.Helper()
	byName := make(map[string]safetensors.Tensor)
	for _, x := range l.Tensors(k) {
		byName[x.Name] = x
	}
	var out []int64
	for layer := range l.spec.Layers {
		for a := K; a < numArrays; a++ {
			w, ok := l.Wire(layer, a)
			if !ok {
				continue
			}
			x := byName[fileName(l.spec, layer, a)]
			if w.Off != int64(len(out)) || w.Size != w.RowBytes*int64(w.Rows) || w.Size > x.Size() || w.DType != x.DType {
				t.Fatalf("layer %d %s is %+v at %d, tensor %+v", layer, a, w, len(out), x)
			}
			for i := x.End - w.Size; i < x.End; i++ {
				out = append(out, i)
			}
		}
	}
	return out
}

func checkMap(t testing.TB, l *Layout, k int, step int64) {
	t.Helper()
	want := naive(t, l, k)
	if int64(len(want)) != l.WireSize() {
		t.Fatalf("%d wire bytes, want %d", l.WireSize(), len(want))
	}
	for off := int64(0); off < l.WireSize(); {
		n := min(step, l.WireSize()-off)
		for n > 0 {
			data, run := l.Locate(k, off, n)
			if run < 1 || run > n {
				t.Fatalf("run of %d for %d bytes", run, n)
			}
			for i := range run {
				if want[off+i] != data+i {
					t.Fatalf("block %d: wire byte %d at %d, want %d", k, off+i, data+i, want[off+i])
				}
			}
			off, n = off+run, n-run
		}
	}
}

func TestWireMap(t *testing.T) {
	for _, name := range caseNames {
		c := loadCase(t, name)
		for _, format := range []string{Format3, Format5} {
			c.spec.Format = format
			l, err := NewLayout(c.spec)
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range []int{0, 1, 5} {
				checkMap(t, l, k, 1000)
				checkMap(t, l, k, l.WireSize())
			}
		}
	}
}

func TestWireLookup(t *testing.T) {
	l, err := NewLayout(flash(Format5, 0))
	if err != nil {
		t.Fatal(err)
	}
	at := int64(0)
	for i := range 43 {
		off, size := l.LayerRange(i)
		if off != at {
			t.Errorf("layer %d begins at %d, want %d", i, off, at)
		}
		at += size
	}
	if at != l.WireSize() || at != 43*128*1024+21*(512+128+16+4)*1024+20*16*1024 {
		t.Errorf("%d wire bytes", at)
	}
	if w, ok := l.Wire(2, IdxPooled); !ok || w.Rows != 512 || w.RowBytes != 256 || w.Size != 128<<10 {
		t.Errorf("%+v", w)
	}
	for _, c := range []struct {
		layer int
		a     Array
	}{{-1, Window}, {43, Window}, {0, Pooled}, {3, IdxPooled}, {3, PrevKV}, {0, K}, {0, -1}, {0, numArrays}} {
		if w, ok := l.Wire(c.layer, c.a); ok {
			t.Errorf("layer %d %s: %+v", c.layer, c.a, w)
		}
	}
	if off, size := l.LayerRange(43); off != 0 || size != 0 {
		t.Error("range of a layer that does not exist")
	}
	if IdxPrevGate.String() != "idx_prev_gate" || Array(99).String() != "array(99)" {
		t.Error("names")
	}
}

// FuzzWireMap checks on many layouts that the map covers every wire byte once, at
// the place where the tensors say, and never touches a constant.
func FuzzWireMap(f *testing.F) {
	f.Add(uint8(0), uint8(5), uint8(3), uint8(1), []byte{0, 1, 2, 1}, uint16(100))
	f.Add(uint8(1), uint8(3), uint8(7), uint8(2), []byte{2, 2}, uint16(1))
	f.Add(uint8(2), uint8(5), uint8(2), uint8(0), []byte{1}, uint16(65535))
	f.Fuzz(func(t *testing.T, format, pool, width, k uint8, ratios []byte, step uint16) {
		s := Spec{Kind: KindDSV4, Model: "m", BlockTokens: 128, Format: []string{Format3, Format4, Format5}[format%3],
			PoolState: int(3 + 2*(pool&1)), HeadDim: 1 + int(width%8), IndexHeadDim: 1 + int(width/8%8), Window: 1 + int(width)%128}
		for _, r := range ratios[:min(len(ratios), 8)] {
			s.Ratios = append(s.Ratios, []int{0, 4, 128}[r%3])
		}
		l, err := NewLayout(s)
		if len(s.Ratios) == 0 {
			if err == nil {
				t.Fatal("no layers accepted")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		checkMap(t, l, int(k), 1+int64(step))
		seen := make(map[int64]bool)
		for _, at := range naive(t, l, int(k)) {
			if seen[at] {
				t.Fatalf("file byte %d has two wire bytes", at)
			}
			seen[at] = true
		}
		head, err := l.Header(int(k), Hash{}, "0.0")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := safetensors.ParseHeader(head[8:], l.DataLen(int(k))); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkHeader(b *testing.B) {
	l, err := NewLayout(flash(Format5, 0))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := l.Header(3, Hash{}, "1.5"); err != nil {
			b.Fatal(err)
		}
	}
}
