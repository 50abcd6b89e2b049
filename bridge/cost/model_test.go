package cost_test

import (
	"errors"
	"math"
	"testing"

	"pdlink/bridge/cost"
)

func near(a, b, part float64) bool { return math.Abs(a-b) <= part*math.Abs(b) }

func TestSeries(t *testing.T) {
	s := cost.Series{{1000, 1}, {2000, 4}, {4000, 12}} // 1, 2 and 3 ms each
	for tokens, want := range map[int]float64{
		0: 0, 500: 0.5, 1000: 1, 1500: 1500 * 1.5e-3, 2000: 4, 3000: 3000 * 2.5e-3, 4000: 12, 6000: 6000 * 4e-3,
	} {
		if got := s.At(tokens); !near(got, want, 1e-9) {
			t.Errorf("%d tokens: %g s, want %g", tokens, got, want)
		}
	}
	falling := cost.Series{{1000, 2}, {2000, 3}}
	if got := falling.At(10_000); !near(got, 15, 1e-9) {
		t.Errorf("a time of a token that falls at the end stays: %g", got)
	}
	if got := cost.Rate(423).At(82_000); !near(got, 82_000/423.0, 1e-9) {
		t.Errorf("a rate: %g", got)
	}
	if !math.IsNaN(cost.Series(nil).At(5)) {
		t.Error("an unknown time is known")
	}
}

func TestParseSeries(t *testing.T) {
	for text, want := range map[string]string{
		"423": "423", " 1500.5 ": "1500.5", "2000:4, 1000:1": "1000:1,2000:4", "7:0.5": "7:0.5",
	} {
		s, err := cost.ParseSeries(text)
		if err != nil || s.String() != want {
			t.Errorf("%q: %q, %v", text, s, err)
		}
		if again, err := cost.ParseSeries(s.String()); err != nil || again.String() != want {
			t.Errorf("%q again: %q, %v", s, again, err)
		}
	}
	for _, text := range []string{
		"", "0", "-1", "NaN", "Inf", "1e300", "fast", "1:", ":1", "0:1", "1:0", "1:-1", "1:NaN", "1:Inf", "1:1,1:2", "5:1,", "1.5:2", "999999999:1",
	} {
		if s, err := cost.ParseSeries(text); !errors.Is(err, cost.ErrSeries) {
			t.Errorf("%q: %v, %v", text, s, err)
		}
	}
}

func FuzzParseSeries(f *testing.F) {
	f.Add("423")
	f.Add("25000:17.1,82000:42.2")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := cost.ParseSeries(text)
		if err != nil {
			return
		}
		for _, tokens := range []int{1, 2048, 1_000_000} {
			if v := s.At(tokens); !(v > 0) || math.IsInf(v, 0) {
				t.Errorf("%q: %d tokens take %g s", text, tokens, v)
			}
		}
	})
}

// TestPublishedRows: their parts are the whole, and the model, made of the parts, says the
// same as was published.
func TestPublishedRows(t *testing.T) {
	for _, r := range cost.Reference() {
		if !near(r.Sum(), r.Bridged, cost.ReferenceError) {
			t.Errorf("%d tokens: parts of %.1f s, published %.1f", r.Tokens, r.Sum(), r.Bridged)
		}
	}
	k, ok := cost.KnownEngines("DeepSeek-V4-Flash")
	if !ok {
		t.Fatal("not known")
	}
	k.Block = 2048
	for _, c := range []struct {
		rows []cost.Row
		part float64
	}{{cost.Reference(), cost.ReferenceError}, {cost.HeldOut()[1:], cost.HeldOutError}, {cost.HeldOut()[:1], 0.21}} {
		for i, r := range c.rows {
			got := k.Bridged(cost.Link{Tail: r.Between()}, r.Tokens)
			t.Logf("%d tokens: model %.1f s, published %.1f (%+.1f %%)", r.Tokens, got.Total, r.Bridged, 100*(got.Total/r.Bridged-1))
			native := r
			if c.part != cost.ReferenceError { // theirs are of other prompts
				native = cost.Reference()[i]
			}
			if !near(got.Total, r.Bridged, c.part) || !near(k.Native.At(native.Tokens), native.Native, 0.01) {
				t.Errorf("%d tokens: model %.1f s bridged and %.1f native, published %.1f and %.1f", r.Tokens, got.Total, k.Native.At(native.Tokens), r.Bridged, native.Native)
			}
		}
	}
	// A row that is wrong by a part of a percent more would be seen.
	r := cost.Reference()[0]
	if near(k.Bridged(cost.Link{Tail: r.Between() + 0.3}, r.Tokens).Total, r.Bridged, cost.ReferenceError) {
		t.Error("the check sees nothing")
	}
}

func TestBridged(t *testing.T) {
	e := cost.Engines{Prefill: cost.Rate(1000), Native: cost.Rate(100), Block: 100}
	for _, c := range []struct {
		name   string
		l      cost.Link
		tokens int
		want   cost.Time
	}{
		{"no block", cost.Link{Tail: 9}, 100, cost.Time{Decoder: 1, Total: 1}},
		{"a block, and a token left", cost.Link{}, 101, cost.Time{Prefill: 0.101, Decoder: 0.01, Total: 0.111}},
		{"the last block is withheld", cost.Link{}, 200, cost.Time{Prefill: 0.2, Decoder: 1, Total: 1.2}},
		{"the link is faster", cost.Link{Fixed: 0.1, PerToken: 1e-4, Tail: 0.05}, 1050, cost.Time{Prefill: 1.05, Tail: 0.05, Decoder: 0.5, Total: 1.6}},
		{"the link is slower", cost.Link{Fixed: 0.1, PerToken: 2e-3}, 1050, cost.Time{Prefill: 1.05, Exposed: 1.05, Decoder: 0.5, Total: 2.6}},
	} {
		got := e.Bridged(c.l, c.tokens)
		if !near(got.Total, c.want.Total, 1e-9) || !near(got.Prefill, c.want.Prefill, 1e-9) || math.Abs(got.Exposed-c.want.Exposed) > 1e-9 ||
			got.Tail != c.want.Tail || !near(got.Decoder, c.want.Decoder, 1e-9) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	e.Cached = cost.Rate(10_000)
	if got := e.Bridged(cost.Link{}, 1050); !near(got.Decoder, 0.105, 1e-9) {
		t.Errorf("with the decoder's own time: %+v", got)
	}
}

func TestBreakEven(t *testing.T) {
	e := cost.Engines{Prefill: cost.Rate(2000), Native: cost.Rate(400), Block: 80} // 2 ms of each token are won
	for _, c := range []struct {
		name   string
		l      cost.Link
		lo, hi int
		ok     bool
	}{
		{"nothing is free", cost.Link{}, 80, 240, true},
		{"a second of tail", cost.Link{Tail: 1}, 500, 620, true}, // 1 s / 2 ms, and what the decoder reads of the last block
		{"ten seconds of tail", cost.Link{Tail: 10}, 5000, 5120, true},
		{"slower than reading", cost.Link{PerToken: 3e-3}, 0, 0, false},
		{"an hour of tail", cost.Link{Tail: 3600}, 0, 0, false},
	} {
		got, ok := e.BreakEven(c.l)
		if ok != c.ok || got < c.lo || got > c.hi {
			t.Errorf("%s: %d, %v", c.name, got, ok)
		}
		if ok && !(e.Bridged(c.l, got).Total < e.Native.At(got)) {
			t.Errorf("%s: it is not won at %d", c.name, got)
		}
	}
	if got, ok := (cost.Engines{Block: 80}).BreakEven(cost.Link{}); ok {
		t.Errorf("of engines that nobody knows: %d", got)
	}
}

func TestOverACable(t *testing.T) {
	shape := cost.Shape{BytesPerToken: 10_000, Layers: 40, Chunk: 8000} // 2 MB of the last layer
	fast := cost.Link{Fixed: 0.01, PerToken: 1e-6, Tail: 0.005}
	slow := fast.Over(cost.Cable{Rate: 1e8}, shape)
	if !near(slow.PerToken, 1e-4, 1e-9) || !near(slow.Tail, 0.025, 1e-9) || slow.Fixed != fast.Fixed {
		t.Errorf("%+v", slow)
	}
	if same := fast.Over(cost.Cable{Rate: 1e12}, shape); same.PerToken != fast.PerToken {
		t.Errorf("a cable made a host faster: %+v", same)
	}
	cables := cost.Cables()
	if r := cables[2].Rate; !near(r, 1.177e9, 0.001) {
		t.Errorf("10 GbE carries %g", r)
	}
	for i := range cables[1:] {
		if cables[i].Rate >= cables[i+1].Rate {
			t.Errorf("%v is not before %v", cables[i], cables[i+1])
		}
	}
}
