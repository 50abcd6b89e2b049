package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"pdlink/kernels"
)

// TestFallsBackToTheReference: without a library there is the reference, it says
// why, and it is package kernels bit for bit.
func TestFallsBackToTheReference(t *testing.T) {
	m := model{g: smallGeometry(4, 128, 0)}
	o := Options{Library: filepath.Join(t.TempDir(), "none.so"), WithPre: true}
	p, err := Open(m.g, m, 256, o)
	must(t, err)
	defer closeIt(t, p)
	if c := p.Choice(); c.Engine != Reference || !strings.Contains(c.Why, ErrUnavailable.Error()) {
		t.Errorf("choice %+v does not name the reason", c)
	}
	for i := range m.g.Layers() {
		q, err := p.Request()
		must(t, err)
		x := draws(uint64(i), 700*m.g.Hidden, 1, 0)
		var got sequence
		got.feed(t, q, i, m.g.Hidden, x, 300)
		w, _ := m.Layer(i)
		l, err := kernels.NewLayer(m.g, i, w, kernels.MLXMetal, 256, 1)
		must(t, err)
		out := kernels.Output{WithPre: true}
		must(t, l.Feed(x, &out))
		want := sequence{arrays: map[string][]uint16{"pooled": out.Pooled.Data, "idx_pooled": out.Index.Data}}
		for _, b := range out.Boundaries {
			want.keep(&b.State, map[int]string{256: "256", 512: "512"}[b.Pos])
		}
		var st kernels.State
		l.State(&st)
		st.Win, st.WinPre = nil, nil
		want.keep(&st, "end")
		identical(t, "reference", got.arrays, want.arrays)
		must(t, q.Close())
	}
}

func TestOpenRefuses(t *testing.T) {
	m := model{g: smallGeometry(4, 128)}
	none := filepath.Join(t.TempDir(), "none.so")
	for name, c := range map[string]struct {
		g     kernels.Geometry
		block int
		o     Options
		want  error
	}{
		"gpu required":   {m.g, 256, Options{Engine: GPU, Library: none}, ErrUnavailable},
		"unknown engine": {m.g, 256, Options{Engine: 9}, ErrUnavailable},
		"geometry":       {kernels.Geometry{}, 256, Options{}, kernels.ErrGeometry},
		"block":          {m.g, 200, Options{}, kernels.ErrGeometry},
		"layers":         {m.g, 256, Options{Layers: []int{1, 0}}, kernels.ErrGeometry},
		"no layers":      {m.g, 256, Options{Layers: []int{}}, kernels.ErrGeometry},
		"none, by name":  {m.g, 256, Options{Engine: Reference, Layers: []int{}}, kernels.ErrGeometry},
		"layer":          {m.g, 256, Options{Layers: []int{2}}, kernels.ErrGeometry},
		"tokens":         {m.g, 256, Options{MaxTokens: 1 << 20}, kernels.ErrGeometry},
		"requests":       {m.g, 256, Options{MaxRequests: -1}, kernels.ErrGeometry},
	} {
		if p, err := Open(c.g, m, c.block, c.o); !errors.Is(err, c.want) || p != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	not := filepath.Join(t.TempDir(), "text.so")
	must(t, os.WriteFile(not, []byte("not a library"), 0o600))
	if _, err := Open(m.g, m, 256, Options{Engine: GPU, Library: not}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a file that is no library: %v", err)
	}
}

func TestReferenceRequests(t *testing.T) {
	m := model{g: smallGeometry(0, 0)}
	p, err := Open(m.g, m, 256, Options{Engine: Reference, Layers: []int{1}, MaxRequests: 1})
	must(t, err)
	q, err := p.Request()
	must(t, err)
	if _, err := p.Request(); !errors.Is(err, ErrFull) {
		t.Errorf("second request: %v", err)
	}
	var out kernels.Output
	if err := q.Feed(0, draws(1, 64, 1, 0), &out); !errors.Is(err, kernels.ErrGeometry) {
		t.Errorf("layer of another host: %v", err)
	}
	must(t, q.Feed(1, draws(1, 64, 1, 0), &out))
	must(t, q.Close())
	must(t, q.Close())
	if err := q.Feed(1, draws(1, 64, 1, 0), &out); !errors.Is(err, ErrClosed) {
		t.Errorf("closed request: %v", err)
	}
	q, err = p.Request()
	must(t, err)
	must(t, p.Close())
	must(t, p.Close())
	if err := q.Seed(1, 0, kernels.State{}); !errors.Is(err, ErrClosed) {
		t.Errorf("request of a closed projector: %v", err)
	}
	if _, err := p.Request(); !errors.Is(err, ErrClosed) {
		t.Errorf("request after close: %v", err)
	}
}

// TestStructSizes holds the Go structs to pdproj.h, whose sizes the library checks
// again when it is there.
func TestStructSizes(t *testing.T) {
	for name, c := range map[string][2]uintptr{
		"error":  {unsafe.Sizeof(cError{}), 4 + 256},
		"layer":  {unsafe.Sizeof(cLayer{}), 8 + 10*8 + 8*8},
		"config": {unsafe.Sizeof(cConfig{}), 16 + 8 + 8*4 + 8 + 3*8 + 4*8 + 8 + 8},
		"facts":  {unsafe.Sizeof(cFacts{}), 32 + 16 + 64},
		"usage":  {unsafe.Sizeof(cUsage{}), 8 + 5*8 + 512},
	} {
		if c[0] != c[1] {
			t.Errorf("%s has %d bytes, want %d", name, c[0], c[1])
		}
	}
}

func TestEngineNames(t *testing.T) {
	for e, want := range map[Engine]string{Auto: "auto", GPU: "cuda", Reference: "reference", 7: "Engine(7)"} {
		if e.String() != want {
			t.Errorf("%d is %q, want %q", e, e.String(), want)
		}
	}
}

func closeIt(tb testing.TB, c interface{ Close() error }) {
	tb.Helper()
	must(tb, c.Close())
}
