package kernels

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

const smallBlock = 256

// smallGeometry has one layer of the given ratio; the window is shorter than a
// segment, the widths are odd on purpose.
func smallGeometry(ratio int) Geometry {
	g, err := ParseGeometry([]byte(smallConfig))
	if err != nil {
		panic(err)
	}
	g.HeadDim, g.IndexDim, g.Window = 9, 7, 50
	g.Ratios = []int{ratio}
	return g
}

func smallLayer(tb testing.TB, ratio int, n Numerics, workers int) *Layer {
	tb.Helper()
	g := smallGeometry(ratio)
	l, err := NewLayer(g, 0, sampleWeights(g, ratio), n, smallBlock, workers)
	must(tb, err)
	return l
}

func smallInput(ratio, tokens int) []uint16 { return samplePatterns(ratio, 0, tokens*16, 1, 0) }

// forAllLayers runs f for every kind of layer under every profile.
func forAllLayers(t *testing.T, f func(t *testing.T, ratio int, n Numerics)) {
	for _, ratio := range []int{0, 4, 128} {
		for _, n := range []Numerics{MLXMetal, MLXCPU, Ideal} {
			t.Run(fmt.Sprintf("ratio %d %v", ratio, n), func(t *testing.T) { f(t, ratio, n) })
		}
	}
}

// TestChunksEqualOneShot includes windows longer than a block, worker counts and
// chunks that cross several boundaries.
func TestChunksEqualOneShot(t *testing.T) {
	forAllLayers(t, func(t *testing.T, ratio int, n Numerics) {
		x := smallInput(ratio, 1100)
		want := newRun()
		want.feed(t, smallLayer(t, ratio, n, 1), x, 1100)
		if len(want.arrays["win@1024"]) != 50*9 || len(want.arrays["win_pre@end"]) != 50*9 {
			t.Fatalf("windows missing: %v", slices.Sorted(maps.Keys(want.arrays)))
		}
		for _, cuts := range [][]int{{1}, {3}, {97}, {256}, {600}, {1, 255, 1, 300}} {
			for _, workers := range []int{0, 1, 5} {
				got := newRun()
				got.feed(t, smallLayer(t, ratio, n, workers), x, cuts...)
				equalRuns(t, fmt.Sprint(cuts, workers), got.arrays, want.arrays)
			}
		}
	})
}

// TestWindowLongerThanBlock covers windows that span boundaries.
func TestWindowLongerThanBlock(t *testing.T) {
	g := smallGeometry(4)
	g.Window = 150
	w, x := sampleWeights(g, 4), smallInput(4, 333)
	build := func() *Layer {
		l, err := NewLayer(g, 0, w, MLXMetal, 64, 2)
		must(t, err)
		return l
	}
	want, got := newRun(), newRun()
	want.feed(t, build(), x, 1)
	got.feed(t, build(), x, 333)
	equalRuns(t, "one shot", got.arrays, want.arrays)
	if n := len(want.arrays["win@128"]); n != 128*9 {
		t.Errorf("window at 128 has %d elements, want all 128 rows", n)
	}
	if !slices.Equal(want.arrays["win@320"][20*9:], want.arrays["win@end"][7*9:137*9]) {
		t.Error("windows at 320 and 333 disagree about the rows they share")
	}
}

func FuzzCuts(f *testing.F) {
	f.Add(uint8(0), uint8(0), []byte{1, 2, 3, 130, 131, 255})
	f.Add(uint8(1), uint8(1), []byte{4, 128, 0, 5})
	f.Add(uint8(2), uint8(2), []byte{127, 1, 128, 129, 255, 255})
	f.Fuzz(func(t *testing.T, kind, profile uint8, cuts []byte) {
		if len(cuts) > 64 {
			cuts = cuts[:64]
		}
		ratio, n := []int{0, 4, 128}[kind%3], Numerics(profile%3)
		tokens, chunks := 0, []int{}
		for _, c := range cuts {
			if tokens+int(c)+1 > 800 {
				break
			}
			tokens += int(c) + 1
			chunks = append(chunks, int(c)+1)
		}
		if tokens == 0 {
			return
		}
		x := smallInput(ratio, tokens)
		want, got := newRun(), newRun()
		want.feed(t, smallLayer(t, ratio, n, 1), x, tokens)
		got.feed(t, smallLayer(t, ratio, n, 2), x, chunks...)
		equalRuns(t, fmt.Sprint(chunks), got.arrays, want.arrays)
	})
}

// TestSeedContinues seeds a fresh layer from each boundary of an unbroken run.
func TestSeedContinues(t *testing.T) {
	forAllLayers(t, func(t *testing.T, ratio int, n Numerics) {
		x := smallInput(ratio, 900)
		l := smallLayer(t, ratio, n, 1)
		whole := newRun()
		whole.feed(t, l, x, 900)
		var out Output
		out.WithPre = true
		must(t, l.Seed(0, State{}))
		must(t, l.Feed(x[:800*16], &out))
		if len(out.Boundaries) != 3 {
			t.Fatalf("%d boundaries, want 3", len(out.Boundaries))
		}
		for _, b := range out.Boundaries {
			next := smallLayer(t, ratio, n, 1)
			must(t, next.Seed(b.Pos, b.State))
			if next.Pos() != b.Pos {
				t.Fatalf("position %d after seeding at %d", next.Pos(), b.Pos)
			}
			var seeded State
			next.State(&seeded)
			if !slices.Equal(seeded.Win, b.Win) || !slices.Equal(seeded.WinPre, b.WinPre) || !slices.Equal(seeded.Comp.PrevGate, b.Comp.PrevGate) {
				t.Errorf("state at %d does not survive seeding", b.Pos)
			}
			got := newRun()
			got.arrays["pooled"], got.arrays["idx_pooled"] = head(whole, "pooled", b.Pos, ratio, 9), head(whole, "idx_pooled", b.Pos, ratio, 7)
			got.feed(t, next, x[b.Pos*16:], 77)
			want := maps.Clone(whole.arrays)
			maps.DeleteFunc(want, func(name string, _ []uint16) bool {
				return got.arrays[name] == nil && !strings.HasSuffix(name, "end")
			})
			equalRuns(t, fmt.Sprint("seeded at ", b.Pos), got.arrays, want)
		}
	})
}

// head returns the pooled rows of an earlier run before position pos.
func head(r *run, name string, pos, ratio, dim int) []uint16 {
	if ratio == 0 || len(r.arrays[name]) == 0 {
		return nil
	}
	return slices.Clone(r.arrays[name][:pos/ratio*dim])
}

// TestSeedWithoutPrevious holds what is known of three-element states: exactly the
// first pooled row differs.
func TestSeedWithoutPrevious(t *testing.T) {
	x := smallInput(4, 600)
	l := smallLayer(t, 4, MLXCPU, 1)
	var out Output
	must(t, l.Feed(x[:256*16], &out))
	three := State{Win: slices.Clone(out.Boundaries[0].Win)}
	if len(out.Boundaries[0].WinPre) != 0 {
		t.Error("WinPre was not asked for")
	}
	must(t, l.Feed(x[256*16:], &out))
	want := slices.Clone(out.Pooled.Data)

	if err := l.Seed(256, three); !errors.Is(err, ErrNoPrevious) {
		t.Fatalf("seed without previous rows: %v", err)
	}
	if l.Pos() != 600 {
		t.Error("a refused seed moved the layer")
	}
	three.WithoutPrevious = true
	must(t, l.Seed(256, three))
	var st State
	l.State(&st)
	if len(st.WinPre) != 0 || len(st.Comp.PrevKV) != 0 {
		t.Error("state holds rows that nobody gave")
	}
	must(t, l.Feed(x[256*16:], &out))
	if out.Pooled.First != 64 || out.Pooled.Count() != 86 {
		t.Errorf("rows from %d, %d of them", out.Pooled.First, out.Pooled.Count())
	}
	got := out.Pooled.Data
	if slices.Equal(got[:9], want[:9]) || !slices.Equal(got[9:], want[9:]) {
		t.Errorf("want only the first row to differ: %s", difference(got, want))
	}
	if l.State(&st); len(st.WinPre) != 50*9 {
		t.Error("a renewed window is known before rotation too")
	}
}

func TestSeedRefuses(t *testing.T) {
	l := smallLayer(t, 4, MLXMetal, 1)
	var out Output
	must(t, l.Feed(smallInput(4, 256), &out))
	good := out.Boundaries[0].State
	cut := func(f func(*State)) State { s := good; f(&s); return s }
	for name, c := range map[string]struct {
		pos int
		s   State
	}{
		"negative":            {-256, good},
		"not a boundary":      {100, good},
		"beyond the model":    {100096, good},
		"window too short":    {256, cut(func(s *State) { s.Win = s.Win[:9] })},
		"pre of other length": {256, cut(func(s *State) { s.WinPre = s.Win[:9] })},
		"remainder":           {256, cut(func(s *State) { s.Index.BufGate = s.Win[:7] })},
		"half previous":       {256, cut(func(s *State) { s.Comp.PrevKV = nil })},
		"short previous":      {256, cut(func(s *State) { s.Index.PrevKV = s.Index.PrevKV[1:] })},
		"rows at the start":   {0, good},
		"previous at 0":       {0, State{Comp: good.Comp}},
	} {
		if err := l.Seed(c.pos, c.s); !errors.Is(err, ErrState) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := l.Seed(256, cut(func(s *State) { s.Index = PoolState{} })); !errors.Is(err, ErrNoPrevious) {
		t.Errorf("indexer without previous rows: %v", err)
	}
	window := smallLayer(t, 0, MLXMetal, 1)
	if err := window.Seed(256, good); !errors.Is(err, ErrState) {
		t.Errorf("pool rows for a layer without a pool: %v", err)
	}
}

func TestFeedRefuses(t *testing.T) {
	g := smallGeometry(0)
	g.MaxPositions = 300
	l, err := NewLayer(g, 0, sampleWeights(g, 0), MLXMetal, smallBlock, 1)
	must(t, err)
	var out Output
	x := smallInput(0, 301)
	for name, bad := range map[string][]uint16{"empty": nil, "half a row": x[:8], "too many": x} {
		if err := l.Feed(bad, &out); !errors.Is(err, ErrInput) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := l.Feed(x[:16], nil); !errors.Is(err, ErrInput) {
		t.Errorf("no output: %v", err)
	}
	must(t, l.Feed(x[:300*16], &out))
	if err := l.Feed(x[:16], &out); !errors.Is(err, ErrInput) || l.Pos() != 300 {
		t.Errorf("past the last position: %v at %d", err, l.Pos())
	}
	l.busy.Store(true)
	if err := l.Feed(x[:16], &out); !errors.Is(err, ErrConcurrent) {
		t.Errorf("second user: %v", err)
	}
	if err := l.Seed(0, State{}); !errors.Is(err, ErrConcurrent) {
		t.Errorf("second user seeds: %v", err)
	}
}

func TestNewLayerRefuses(t *testing.T) {
	g := smallGeometry(4)
	w := sampleWeights(g, 4)
	short := w
	short.Index.APE = short.Index.APE[1:]
	extra := w
	for name, c := range map[string]struct {
		g       Geometry
		i       int
		w       LayerWeights
		n       Numerics
		block   int
		workers int
		want    error
	}{
		"geometry":     {Geometry{}, 0, w, MLXCPU, 256, 1, ErrGeometry},
		"index":        {g, 1, w, MLXCPU, 256, 1, ErrGeometry},
		"block":        {g, 0, w, MLXCPU, 255, 1, ErrGeometry},
		"no block":     {g, 0, w, MLXCPU, 0, 1, ErrGeometry},
		"workers":      {g, 0, w, MLXCPU, 256, -1, ErrGeometry},
		"many workers": {g, 0, w, MLXCPU, 256, 1 << 20, ErrGeometry},
		"profile":      {g, 0, w, 3, 256, 1, ErrNumerics},
		"short bias":   {g, 0, short, MLXCPU, 256, 1, ErrWeights},
		"other ratio":  {smallGeometry(0), 0, extra, MLXCPU, 256, 1, ErrWeights},
	} {
		if _, err := NewLayer(c.g, c.i, c.w, c.n, c.block, c.workers); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestFeedAllocatesNothing holds the steady state, with helpers and without.
func TestFeedAllocatesNothing(t *testing.T) {
	for _, ratio := range []int{0, 4, 128} {
		for _, workers := range []int{1, 3} {
			l := smallLayer(t, ratio, MLXMetal, workers)
			x := smallInput(ratio, 700)
			out, st := Output{WithPre: true}, State{}
			feed := func() {
				must(t, l.Seed(0, State{}))
				must(t, l.Feed(x, &out))
				l.State(&st)
			}
			feed()
			if n := testing.AllocsPerRun(10, feed); n > 0 {
				t.Errorf("ratio %d, %d workers: %v allocations a call", ratio, workers, n)
			}
		}
	}
}

// TestLayersAreIndependent runs layers that share weights at once; the race
// detector watches.
func TestLayersAreIndependent(t *testing.T) {
	g := smallGeometry(4)
	w, x := sampleWeights(g, 4), smallInput(4, 300)
	want := newRun()
	want.feed(t, smallLayer(t, 4, MLXMetal, 1), x, 300)
	errs := make(chan error, 4)
	for range cap(errs) {
		go func() {
			l, err := NewLayer(g, 0, w, MLXMetal, smallBlock, 3)
			var out Output
			if err == nil {
				err = l.Feed(x, &out)
			}
			if err == nil && !slices.Equal(out.Pooled.Data, want.arrays["pooled"]) {
				err = errors.New("pooled rows differ")
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		must(t, <-errs)
	}
}
