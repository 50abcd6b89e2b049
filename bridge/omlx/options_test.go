package omlx

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/kernels/safetensors"
)

// everySpec calls visit for every layout that a combination of kind, format, pool
// state and options gives. Extra keys change hashes only, so every other one has some.
func everySpec(visit func(s Spec)) (specs int) {
	bools := []bool{false, true}
	seen := make(layouts)
	settings := []string{Auto, On, Off}
	for _, kind := range []string{KindKV, KindDSV4} {
		for _, format := range []string{Format3, Format4, Format5} {
			for _, pool := range []int{0, 3, 5} {
				for i := range 2 * 2 * 4 * 3 * 3 * 3 {
					pick := func(n int) int { v := i % n; i /= n; return v }
					s := Spec{Kind: kind, Model: "m", BlockTokens: 128, Format: format, PoolState: pool, HeadDim: 2, Options: Options{
						NoBlockSize: bools[pick(2)], NoSignature: bools[pick(2)],
						PayloadLayout: []string{Auto, LayoutNone, LayoutEmbedded, LayoutSplit}[pick(4)],
						Subtypes:      settings[pick(3)], ClassNames: settings[pick(3)],
						ZeroDimDType: []string{"", "F32", "BF16"}[pick(3)],
					}}
					if kind == KindKV {
						s.Layers, s.KVHeads = 2, 1
					} else {
						s.IndexHeadDim, s.Window, s.Ratios = 2, 4, []int{0, 4, 128}
					}
					if s.Validate() != nil || !seen.add(s) {
						continue
					}
					if specs++; specs%2 == 0 {
						s.Options.ExtraKeys = []string{"salt"}
					}
					visit(s)
				}
			}
		}
	}
	return specs
}

// layouts are specs that are told apart by their layout.
type layouts map[string]struct{}

// add reports whether s was not there before.
func (l layouts) add(s Spec) bool {
	key := fmt.Sprintf("%+v", s.normalised())
	_, was := l[key]
	l[key] = struct{}{}
	return !was
}

// TestEverySpecChecks writes two blocks of every layout that there is and finds
// nothing wrong with them, except that decoders want the keys which a fork leaves out.
func TestEverySpecChecks(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	tokens := make([]uint32, 2*128+1)
	specs := everySpec(func(spec Spec) {
		p := Plan{Spec: spec, Tokens: tokens, Hashes: Chain(spec.Model, spec.BlockTokens, tokens, spec.Options.ExtraKeys)}
		j := mustBegin(t, s, p)
		for k := range p.Hashes {
			if err := j.Write(k, 0, make([]byte, j.WireSize())); err != nil {
				t.Fatal(err)
			}
			sealAndPublish(t, j, k)
			_, found := CheckFile(j.Path(k), CheckOptions{Layout: j.Layout(), Tokens: tokens, Finite: true})
			_, alone := CheckFile(j.Path(k), CheckOptions{})
			for _, f := range append(found, alone...) {
				left := (spec.Options.NoBlockSize && strings.Contains(f.Detail, keyBlockSize)) || (spec.Options.NoSignature && strings.Contains(f.Detail, keySignature))
				if !f.Warn || f.Check != "metadata" || !left {
					t.Fatalf("%+v: block %d: %v", spec, k, f)
				}
			}
		}
		if err := errors.Join(os.Remove(j.Path(0)), os.Remove(j.Path(1))); err != nil {
			t.Fatal(err)
		}
	})
	if specs < 500 {
		t.Errorf("only %d layouts", specs)
	}
	t.Logf("%d layouts", specs)
}

// TestHeaderLimit: a header that no layout can have is refused before it is parsed,
// and the longest that one can have is not.
func TestHeaderLimit(t *testing.T) {
	s := Spec{Kind: KindDSV4, Model: strings.Repeat("\x01", maxText), BlockTokens: 128, Format: Format5, PoolState: 5, HeadDim: 2,
		IndexHeadDim: 2, Window: 4, Ratios: make([]int, maxLayers)}
	for i := range s.Ratios {
		s.Ratios[i] = 4
	}
	l, err := NewLayout(s)
	if err != nil {
		t.Fatal(err)
	}
	head, err := l.Header(maxBlocks-1, Hash{}, strings.Repeat("1", 32))
	if err != nil || len(head) > maxHeaderBytes {
		t.Errorf("a header of %d bytes, limit %d, %v", len(head), maxHeaderBytes, err)
	}
	t.Logf("%d bytes", len(head))
	e := takeApart(t, loadCase(t, "kv-qwen3").expected(1))
	hash := e.get(keyHash)
	e.set("colour", strings.Repeat("x", maxHeaderBytes))
	path := filepath.Join(t.TempDir(), hash+blockSuffix)
	if err := os.WriteFile(path, e.bytes(t), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadBlock(path); !errors.Is(err, safetensors.ErrHeader) {
		t.Errorf("read: %v", err)
	}
	if _, err := Compare(path, path); !errors.Is(err, safetensors.ErrHeader) {
		t.Errorf("compare: %v", err)
	}
}
