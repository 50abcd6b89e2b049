package replay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/bridge/replay"
	"pdlink/kernels/safetensors"
	"pdlink/transport"
)

const casesDir = "../../tools/pdlink/testdata/cases"

func load(t testing.TB, name string) *replay.Case {
	t.Helper()
	c, err := replay.Load(filepath.Join(casesDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func layoutOf(t testing.TB, c *replay.Case) *omlx.Layout {
	t.Helper()
	spec, err := c.Spec(replay.Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := omlx.NewLayout(spec)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// keeper is a sink that keeps every block's data and demands each byte once.
type keeper struct {
	t      testing.TB
	blocks [][]byte
	cov    []transport.Coverage
	skip   map[int]bool
	pushed int
}

func newKeeper(t testing.TB, blocks int, size int64) *keeper {
	k := &keeper{t: t, blocks: make([][]byte, blocks), cov: make([]transport.Coverage, blocks)}
	for i := range k.blocks {
		k.blocks[i] = make([]byte, size)
	}
	return k
}

func (k *keeper) Wants(block int) bool { return block >= 0 && block < len(k.blocks) && !k.skip[block] }

func (k *keeper) Put(_ context.Context, block int, off int64, p []byte) error {
	if !k.Wants(block) {
		k.t.Errorf("block %d was made although nobody wants it", block)
		return nil
	}
	if n := k.cov[block].Add(transport.Range{Begin: uint64(off), End: uint64(off) + uint64(len(p))}); n != uint64(len(p)) {
		k.t.Errorf("block %d: bytes at %d made twice", block, off)
	}
	copy(k.blocks[block][off:], p)
	return nil
}

func (k *keeper) Push(context.Context) error { k.pushed++; return nil }

// whole demands that every byte of the wanted blocks was made.
func (k *keeper) whole() {
	k.t.Helper()
	for i, b := range k.blocks {
		if !k.skip[i] && k.cov[i].Bytes() != uint64(len(b)) {
			k.t.Errorf("block %d: %d of %d bytes made", i, k.cov[i].Bytes(), len(b))
		}
	}
}

// equal compares the data with the decoder's own block files.
func (k *keeper) equal(c *replay.Case, l *omlx.Layout) {
	k.t.Helper()
	for i, h := range c.Plan(l.Spec()).Hashes {
		if k.skip[i] {
			continue
		}
		f, err := safetensors.Open(filepath.Join(c.Dir, "expected", h.String()[:1], h.String()+".safetensors"))
		if err != nil {
			k.t.Fatal(err)
		}
		for off := int64(0); off < l.WireSize(); {
			at, n := l.Locate(i, off, l.WireSize()-off)
			want := make([]byte, n)
			if _, err := f.ReadAt(want, at); err != nil {
				k.t.Fatal(err)
			}
			if !slices.Equal(want, k.blocks[i][off:off+n]) {
				k.t.Errorf("block %d: data at %d differs", i, off)
			}
			off += n
		}
		f.Close()
	}
}

func run(t testing.TB, c *replay.Case, l *omlx.Layout, to bridge.Sink, o replay.Options) {
	t.Helper()
	s, err := replay.NewSource(c, l, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context(), to); err != nil {
		t.Fatal(err)
	}
}

func TestEveryByteOnceForAnyChunkAndShare(t *testing.T) {
	for _, name := range []string{"kv-qwen3", "dsv4-a"} {
		c := load(t, name)
		l := layoutOf(t, c)
		for _, chunk := range []int{replay.OneShot, 0, 3, 255, 256, 257, 511, 600} {
			for _, parts := range []int{1, 2, 4} {
				k := newKeeper(t, c.Blocks(), l.WireSize())
				for part := range parts {
					run(t, c, l, k, replay.Options{Chunk: chunk, Share: replay.Share{Part: part, Parts: parts}})
				}
				k.whole()
				k.equal(c, l)
				if k.pushed == 0 {
					t.Error("nothing was pushed: the last frame would wait for ever")
				}
			}
		}
	}
}

func TestUnwantedBlocksAreLeftOut(t *testing.T) {
	for _, name := range []string{"kv-qwen3", "dsv4-a"} {
		c := load(t, name)
		l := layoutOf(t, c)
		k := newKeeper(t, c.Blocks(), l.WireSize())
		k.skip = map[int]bool{0: true}
		run(t, c, l, k, replay.Options{Chunk: 100})
		k.whole()
		k.equal(c, l)
		none := newKeeper(t, c.Blocks(), l.WireSize())
		none.skip = map[int]bool{0: true, 1: true, 2: true, 3: true, 4: true}
		run(t, c, l, none, replay.Options{})
	}
}

func TestSharesArePartsOfAllLayers(t *testing.T) {
	for _, name := range []string{"kv-qwen3", "dsv4-a"} {
		c := load(t, name)
		all := c.Layers(replay.Share{})
		for parts := 1; parts <= 8; parts++ {
			var got []int
			for part := range parts {
				got = append(got, c.Layers(replay.Share{Part: part, Parts: parts})...)
			}
			slices.Sort(got)
			if !slices.Equal(got, all) {
				t.Errorf("%s in %d parts: layers %v", name, parts, got)
			}
		}
	}
}

func TestProgressReachesTheEnd(t *testing.T) {
	c := load(t, "dsv4-a")
	l := layoutOf(t, c)
	var last, of int64
	run(t, c, l, newKeeper(t, c.Blocks(), l.WireSize()), replay.Options{Chunk: 300, Progress: func(done, total int64) {
		if done <= last {
			t.Errorf("%d after %d", done, last)
		}
		last, of = done, total
	}})
	if last != of || of == 0 {
		t.Errorf("ended at %d of %d", last, of)
	}
}

func TestSinkErrorsAndCancelEndASource(t *testing.T) {
	for _, name := range []string{"kv-qwen3", "dsv4-a"} {
		c := load(t, name)
		s, err := replay.NewSource(c, layoutOf(t, c), replay.Options{Chunk: 64})
		if err != nil {
			t.Fatal(err)
		}
		full := errors.New("full")
		for after := range 3 {
			if err := s.Run(t.Context(), &failing{c.Blocks(), after * 5, full}); !errors.Is(err, full) {
				t.Errorf("%s: %v", name, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Run(ctx, &failing{c.Blocks(), 1 << 20, full}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type failing struct {
	blocks, left int
	err          error
}

func (f *failing) Wants(b int) bool { return b < f.blocks }
func (f *failing) Put(context.Context, int, int64, []byte) error {
	f.left--
	if f.left < 0 {
		return f.err
	}
	return nil
}
func (f *failing) Push(context.Context) error { return nil }

func TestSynthetic(t *testing.T) {
	for model, want := range map[string]struct {
		tokens, blocks int
		size           int64
	}{"deepseek-v4-flash": {5000, 2, 20_156_416}, "qwen3-32b": {600, 2, 67_108_864}} {
		y := replay.Synthetic{Model: model, Tokens: want.tokens}
		plan, err := y.Plan()
		if err != nil {
			t.Fatal(err)
		}
		l, err := plan.Check()
		if err != nil {
			t.Fatal(err)
		}
		if len(plan.Hashes) != want.blocks || l.WireSize() != want.size {
			t.Errorf("%s: %d blocks of %d bytes", model, len(plan.Hashes), l.WireSize())
		}
		k := newKeeper(t, want.blocks, l.WireSize())
		for part := range 3 {
			s, err := replay.NewSynthetic(plan, replay.Options{Share: replay.Share{Part: part, Parts: 3}})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Run(t.Context(), k); err != nil {
				t.Fatal(err)
			}
		}
		k.whole()
		other, err := replay.Synthetic{Model: model, Tokens: want.tokens, Seed: 1}.Plan()
		if err != nil || other.Hashes[0] == plan.Hashes[0] {
			t.Errorf("%s: another seed gives the same blocks (%v)", model, err)
		}
	}
}

func TestCasesThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		from   string
		change func(dir string) error
		say    string
	}{
		"no capture":  {"kv-qwen3", func(d string) error { return os.Remove(filepath.Join(d, "capture.safetensors")) }, "capture.safetensors"},
		"cut capture": {"kv-qwen3", func(d string) error { return os.Truncate(filepath.Join(d, "capture.safetensors"), 1000) }, "capture.safetensors"},
		"no weights":  {"dsv4-a", func(d string) error { return os.Remove(filepath.Join(d, "weights.safetensors")) }, "weights.safetensors"},
		"foreign capture": {"dsv4-a", func(d string) error {
			return copyFile(filepath.Join(casesDir, "kv-qwen3", "capture.safetensors"), filepath.Join(d, "capture.safetensors"))
		}, "layer_0.x"},
		"foreign weights": {"dsv4-a", func(d string) error {
			return copyFile(filepath.Join(d, "capture.safetensors"), filepath.Join(d, "weights.safetensors"))
		}, "weights"},
	} {
		dir := filepath.Join(t.TempDir(), c.from)
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(casesDir, c.from))); err != nil {
			t.Fatal(err)
		}
		if err := c.change(dir); err != nil {
			t.Fatal(err)
		}
		cs, err := replay.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		_, err = replay.NewSource(cs, layoutOf(t, cs), replay.Options{})
		if !errors.Is(err, replay.ErrCase) || !strings.Contains(fmt.Sprint(err), c.say) {
			t.Errorf("%s: %v, want %q in it", name, err, c.say)
		}
	}
	for name, text := range map[string]string{
		"no JSON": "{", "another type": `[1]`, "empty": `{}`,
		"token too large": `{"kind":"kv","model":"m","tokens":[4294967296]}`, "negative token": `{"kind":"kv","model":"m","tokens":[-1]}`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "case.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := replay.Load(dir); !errors.Is(err, replay.ErrCase) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}
