package omlx

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestCoverage(t *testing.T) {
	var c coverage
	for _, s := range []struct {
		begin, end int64
		reason     string // of ErrCall; empty if the claim succeeds
		want       []wireSpan
	}{
		{10, 20, "", []wireSpan{{10, 20}}},
		{10, 20, "bytes 10 to 20", []wireSpan{{10, 20}}},
		{5, 11, "bytes 10 to 11", []wireSpan{{10, 20}}},
		{19, 25, "bytes 19 to 20", []wireSpan{{10, 20}}},
		{0, 100, "bytes 10 to 20", []wireSpan{{10, 20}}},
		{12, 13, "bytes 12 to 13", []wireSpan{{10, 20}}},
		{30, 40, "", []wireSpan{{10, 20}, {30, 40}}},
		{0, 5, "", []wireSpan{{0, 5}, {10, 20}, {30, 40}}},
		{5, 7, "", []wireSpan{{0, 7}, {10, 20}, {30, 40}}},
		{8, 10, "", []wireSpan{{0, 7}, {8, 20}, {30, 40}}},
		{20, 31, "bytes 30 to 31", []wireSpan{{0, 7}, {8, 20}, {30, 40}}},
		{20, 30, "", []wireSpan{{0, 7}, {8, 40}}},
		{7, 8, "", []wireSpan{{0, 40}}},
		{50, 51, "", []wireSpan{{0, 40}, {50, 51}}},
	} {
		err := c.claim(s.begin, s.end)
		if (s.reason == "") != (err == nil) || (err != nil && (!errors.Is(err, ErrCall) || !strings.Contains(err.Error(), s.reason))) {
			t.Errorf("claim %d to %d: %v; want ErrCall with %q", s.begin, s.end, err, s.reason)
		}
		if !slices.Equal(c.spans, s.want) {
			t.Fatalf("after %d to %d: %v, want %v", s.begin, s.end, c.spans, s.want)
		}
	}
}

// TestUnclaim: a range that is given back can be claimed again, and nothing else
// changes.
func TestUnclaim(t *testing.T) {
	for _, give := range []wireSpan{{10, 40}, {10, 12}, {38, 40}, {20, 21}, {50, 60}} {
		c := coverage{spans: []wireSpan{{0, 5}, {10, 40}, {50, 60}}, bytes: 45}
		before := slices.Clone(c.spans)
		c.unclaim(give.begin, give.end)
		if c.count() != 45-(give.end-give.begin) {
			t.Errorf("%v: %d bytes", give, c.count())
		}
		if give.begin > 10 && give.end < 40 && !slices.Equal(c.spans, []wireSpan{{0, 5}, {10, give.begin}, {give.end, 40}, {50, 60}}) {
			t.Errorf("%v: %v", give, c.spans)
		}
		if err := c.claim(give.begin, give.end); err != nil || !slices.Equal(c.spans, before) || c.count() != 45 {
			t.Errorf("%v: claimed again: %v, %v", give, c.spans, err)
		}
	}
}

// TestCoverageLimit: the record of a block does not grow with what a peer invents.
func TestCoverageLimit(t *testing.T) {
	var c coverage
	for i := range int64(maxSpans) {
		if err := c.claim(2*i, 2*i+1); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.claim(2*maxSpans, 2*maxSpans+1); !errors.Is(err, ErrCall) || len(c.spans) != maxSpans || c.bytes != maxSpans {
		t.Errorf("%v, %d ranges", err, len(c.spans))
	}
	if err := errors.Join(c.claim(1, 2), c.claim(2*maxSpans, 2*maxSpans+1)); err != nil {
		t.Errorf("after a gap was filled: %v", err)
	}
}

// FuzzCoverage compares with one flag for each byte.
func FuzzCoverage(f *testing.F) {
	f.Add([]byte{0, 10, 20, 10, 10, 10, 5, 1})
	f.Add([]byte{0, 255, 0, 1})
	f.Fuzz(func(t *testing.T, ops []byte) {
		const size = 256
		var c coverage
		var taken [size]bool
		for ; len(ops) >= 2; ops = ops[2:] {
			begin := int(ops[0])
			end := min(begin+max(int(ops[1]), 1), size)
			free := !slices.Contains(taken[begin:end], true)
			if err := c.claim(int64(begin), int64(end)); free != (err == nil) {
				t.Fatalf("claim %d to %d: %v, free is %v", begin, end, err, free)
			}
			for i := begin; free && i < end; i++ {
				taken[i] = true
			}
			checkCoverage(t, &c, taken[:])
		}
	})
}

// checkCoverage compares the ranges, the count and the first gap with flags.
func checkCoverage(t *testing.T, c *coverage, taken []bool) {
	t.Helper()
	var want []wireSpan
	missing := int64(len(taken))
	for i, on := range taken {
		if !on {
			continue
		}
		missing--
		if n := len(want); n > 0 && want[n-1].end == int64(i) {
			want[n-1].end++
		} else {
			want = append(want, wireSpan{int64(i), int64(i) + 1})
		}
	}
	if !slices.Equal(c.spans, want) {
		t.Fatalf("ranges %v, want %v", c.spans, want)
	}
	gap, n := c.missing(int64(len(taken)))
	begin := slices.Index(taken, false)
	if n != missing || (n == 0) != (begin < 0) {
		t.Fatalf("%d missing, want %d", n, missing)
	}
	if n == 0 {
		return
	}
	end := begin
	for end < len(taken) && !taken[end] {
		end++
	}
	if gap != (wireSpan{int64(begin), int64(end)}) {
		t.Fatalf("gap %v, want %d to %d", gap, begin, end)
	}
}

// TestOverlapAtOnce: of writers of overlapping ranges exactly one is taken, whole,
// also at the same time.
func TestOverlapAtOnce(t *testing.T) {
	const writers = 8
	s := mustOpen(t, t.TempDir())
	for round := range 20 {
		plan := tiny(Format5, 1)
		plan.Hashes[0] = chainHash("m", nil, []uint32{uint32(round)}, nil)
		j := mustBegin(t, s, plan)
		size := j.WireSize()
		var wg sync.WaitGroup
		var taken, mark atomic.Int64
		for g := range writers {
			wg.Go(func() {
				p := bytes.Repeat([]byte{byte(g + 1)}, int(size)-2)
				switch err := j.Write(0, 1, p[:len(p)-g]); {
				case err == nil:
					taken.Add(1)
					mark.Store(int64(g + 1))
				case !errors.Is(err, ErrCall):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if taken.Load() != 1 {
			t.Fatalf("%d writers were taken", taken.Load())
		}
		end := size - mark.Load() // where the winner stopped
		if err := errors.Join(j.Write(0, 0, make([]byte, 1)), j.Write(0, end, make([]byte, size-end))); err != nil {
			t.Fatal(err)
		}
		sealAndPublish(t, j, 0)
		got := wireOf(t, j.Layout(), j.Path(0))
		want := slices.Concat([]byte{0}, bytes.Repeat([]byte{byte(mark.Load())}, int(end)-1), make([]byte, size-end))
		if !bytes.Equal(got, want) {
			t.Fatal("bytes of two writers are mixed")
		}
	}
}
