package omlx

import (
	"strconv"
	"strings"
	"testing"
)

func span(from, to uint32) []uint32 {
	var out []uint32
	for t := from; t < to; t++ {
		out = append(out, t)
	}
	return out
}

// chainHash hashes one block of any length behind any parent.
func chainHash(model string, parent *Hash, tokens []uint32, extra []string) Hash {
	return newChain(model, extra).next(parent, tokens)
}

func TestHashVectors(t *testing.T) {
	const ds = "DeepSeek-V4-Flash"
	var prev *Hash
	for _, c := range []struct {
		model  string
		chain  bool // parent is the row before
		tokens []uint32
		extra  []string
		want   string
	}{
		{"", false, []uint32{1, 2, 3}, nil, "bbae1d7b58b0342987ac2fc87c5c3a190f737d0357d739d9c3fb1f65b2df8d4f"},
		{"", false, []uint32{5}, nil, "e3e98de3a1e4df0df19a4ef372d4f5f5bf928e88752846f60c90c07dfe8e0d7d"},
		{ds, false, []uint32{0, 129279}, nil, "7738f83253c96e99c9e88593fb71deda7214dc0d3a66cda019f1eb8a262b577f"},
		{ds, false, span(0, 2048), nil, "7960fa79215f6f4dacafc30c87f05842c34cd14d7030a38fd73885f00802dcb6"},
		{ds, true, span(2048, 4096), nil, "d6d11be458049371d672d7abec2972dee299d4e79c1dadc30e85611958e951f2"},
		{ds, true, []uint32{7, 8, 9}, []string{"omlx-tail-v1"}, "e09106c9b3e5a8196ab0beb60f3b5cc20741882e346abd42899c69455c2d0d4c"},
	} {
		parent := prev
		if !c.chain {
			parent = nil
		}
		got := chainHash(c.model, parent, c.tokens, c.extra)
		if got.String() != c.want {
			t.Errorf("%q %d tokens: %s, want %s", c.model, len(c.tokens), got, c.want)
		}
		prev = &got
	}
	blocks := Chain(ds, 2048, span(0, 5000), nil)
	if len(blocks) != 2 || blocks[1].String() != "d6d11be458049371d672d7abec2972dee299d4e79c1dadc30e85611958e951f2" {
		t.Errorf("chain of 5,000 tokens: %v", blocks)
	}
	if h := TailHash(ds, blocks[1], []uint32{7, 8, 9}); h.String() != "e09106c9b3e5a8196ab0beb60f3b5cc20741882e346abd42899c69455c2d0d4c" {
		t.Errorf("hash of a tail: %s", h)
	}
	if Chain(ds, 0, span(0, 5), nil) != nil {
		t.Error("blocks of no tokens")
	}
}

// TestHashAgainstPython compares texts that need escapes, and long blocks that
// leave the buffer, with Python's own tuple and string texts.
func TestHashAgainstPython(t *testing.T) {
	const script = `
import hashlib, sys
model = "modèle-模型"
parent = b"omlx-root"
extras = [("it's",), ('say "x"',), ("both ' and \"", "b"), ("tab\tnl\n\r\\", "\x00\x7f\x85\xa0"), ("é€😀", "\u200b\u2028\ue000\U000e0001"), ("\ufeff\xad",)]
for extra in extras:
    ids = tuple(range(4_000_000_000, 4_000_010_000))
    h = hashlib.sha256(model.encode() + parent + str(ids).encode() + str(extra).encode())
    parent = h.digest()
    print(h.hexdigest())
`
	recorded := openRecord(t, "testdata/py/hashes.json")
	extras := [][]string{{"it's"}, {`say "x"`}, {"both ' and \"", "b"}, {"tab\tnl\n\r\\", "\x00\x7f\u0085\u00a0"},
		{"é€😀", "\u200b\u2028\ue000\U000e0001"}, {"\ufeff\u00ad"}}
	var parent *Hash
	var theirs []string
	if havePython(t) {
		theirs = strings.Fields(python(t, script))
	}
	for i := range extras {
		h := chainHash("modèle-模型", parent, span(4_000_000_000, 4_000_010_000), extras[i])
		if theirs != nil {
			if want := theirs[i]; h.String() != want {
				t.Errorf("extra keys %q: %s, want %s", extras[i], h, want)
			}
		}
		recorded.check(t, strconv.Itoa(i), h.String())
		parent = &h
	}
}

func TestParseHash(t *testing.T) {
	good := strings.Repeat("0123456789abcdef", 4)
	h, err := ParseHash(good)
	if err != nil || h.String() != good {
		t.Fatalf("%v, %v", h, err)
	}
	for _, s := range []string{"", good[1:], good + "0", strings.ToUpper(good), "g" + good[1:], "/" + good[1:]} {
		if _, err := ParseHash(s); err == nil {
			t.Errorf("%q accepted", s)
		}
	}
	var back Hash
	if err := back.UnmarshalText([]byte("x")); err == nil || back != (Hash{}) {
		t.Error("bad text accepted")
	}
}

// TestChainAllocations holds the bound on memory: the result and a constant.
func TestChainAllocations(t *testing.T) {
	tokens := span(0, 200_000)
	if n := testing.AllocsPerRun(3, func() { Chain("m", 256, tokens, nil) }); n > 12 {
		t.Errorf("%v allocations for 200,000 tokens", n)
	}
}

func BenchmarkChain(b *testing.B) {
	tokens := span(0, 1_000_000)
	b.ReportAllocs()
	for b.Loop() {
		Chain("DeepSeek-V4-Flash", 2048, tokens, nil)
	}
}
