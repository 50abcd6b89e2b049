package kernels

import (
	"bytes"
	"errors"
	"testing"
)

// naiveGather moves element by element, as the definition reads.
func naiveGather(src []byte, l KVLayout, firstToken, tokens int) []byte {
	run := l.HeadDim * l.ElemSize
	headStride, tokenStride, end := l.HeadStride, l.TokenStride, l.EndHead
	if headStride == 0 {
		headStride = run
	}
	if tokenStride == 0 {
		tokenStride = l.Heads * headStride
	}
	if end == 0 {
		end = l.Heads
	}
	var dst []byte
	for h := l.FirstHead; h < end; h++ {
		for t := firstToken; t < firstToken+tokens; t++ {
			for b := range run {
				dst = append(dst, src[t*tokenStride+h*headStride+b])
			}
		}
	}
	return dst
}

func numbered(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func TestGatherKV(t *testing.T) {
	for name, c := range map[string]struct {
		l             KVLayout
		first, tokens int
	}{
		"bf16":             {KVLayout{Heads: 2, HeadDim: 64, ElemSize: 2}, 0, 256},
		"fp8":              {KVLayout{Heads: 8, HeadDim: 128, ElemSize: 1}, 256, 256},
		"f32, odd":         {KVLayout{Heads: 3, HeadDim: 5, ElemSize: 4}, 7, 33},
		"one token":        {KVLayout{Heads: 4, HeadDim: 16, ElemSize: 2}, 99, 1},
		"none":             {KVLayout{Heads: 4, HeadDim: 16, ElemSize: 2}, 5, 0},
		"head range":       {KVLayout{Heads: 8, HeadDim: 16, ElemSize: 2, FirstHead: 3, EndHead: 6}, 10, 40},
		"last head":        {KVLayout{Heads: 8, HeadDim: 16, ElemSize: 2, FirstHead: 7, EndHead: 8}, 0, 17},
		"token stride":     {KVLayout{Heads: 2, HeadDim: 16, ElemSize: 2, TokenStride: 200}, 3, 50},
		"heads interleave": {KVLayout{Heads: 2, HeadDim: 4, ElemSize: 2, HeadStride: 8 * 100, TokenStride: 8}, 20, 70},
	} {
		src := numbered(600 * 1024)
		want := naiveGather(src, c.l, c.first, c.tokens)
		got := make([]byte, len(want))
		if err := GatherKV(got, src, c.l, c.first, c.tokens); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: wrong bytes, %v", name, err)
		}
	}
}

// TestGatherKVShards holds that ranks that write their own ranges make up the whole
// block.
func TestGatherKVShards(t *testing.T) {
	l := KVLayout{Heads: 8, HeadDim: 16, ElemSize: 2}
	src := numbered(100 * 8 * 32)
	whole, union := make([]byte, 64*8*32), make([]byte, 64*8*32)
	must(t, GatherKV(whole, src, l, 36, 64))
	for _, cut := range [][2]int{{0, 3}, {3, 4}, {4, 8}} {
		l.FirstHead, l.EndHead = cut[0], cut[1]
		off, n, err := l.BlockRange(64)
		must(t, err)
		must(t, GatherKV(union[off:off+n], src, l, 36, 64))
	}
	if !bytes.Equal(union, whole) {
		t.Error("the shards' ranges do not make up the block")
	}
}

func TestGatherKVRefuses(t *testing.T) {
	good := KVLayout{Heads: 2, HeadDim: 4, ElemSize: 2}
	src := make([]byte, 10*16)
	for name, c := range map[string]struct {
		l             KVLayout
		first, tokens int
		dst           int
	}{
		"zero layout":       {KVLayout{}, 0, 0, 0},
		"element size":      {KVLayout{Heads: 2, HeadDim: 4, ElemSize: 3}, 0, 1, 24},
		"negative heads":    {KVLayout{Heads: -2, HeadDim: 4, ElemSize: 2}, 0, 1, 16},
		"head range":        {KVLayout{Heads: 2, HeadDim: 4, ElemSize: 2, FirstHead: 1, EndHead: 3}, 0, 1, 16},
		"empty range":       {KVLayout{Heads: 2, HeadDim: 4, ElemSize: 2, FirstHead: 1, EndHead: 1}, 0, 1, 0},
		"overlapping runs":  {KVLayout{Heads: 2, HeadDim: 4, ElemSize: 2, HeadStride: 4}, 0, 1, 16},
		"negative stride":   {KVLayout{Heads: 2, HeadDim: 4, ElemSize: 2, TokenStride: -16}, 0, 1, 16},
		"past the source":   {good, 9, 2, 32},
		"negative first":    {good, -1, 1, 16},
		"negative tokens":   {good, 0, -1, 0},
		"short destination": {good, 0, 2, 31},
		"long destination":  {good, 0, 2, 33},
	} {
		dst := make([]byte, c.dst)
		if err := GatherKV(dst, src, c.l, c.first, c.tokens); !errors.Is(err, ErrKVLayout) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := GatherKV(make([]byte, 160), src, good, 0, 10); err != nil {
		t.Errorf("the whole source: %v", err)
	}
	if _, _, err := good.BlockRange(-1); !errors.Is(err, ErrKVLayout) {
		t.Errorf("range of -1 tokens: %v", err)
	}
	if _, _, err := (KVLayout{}).BlockRange(1); !errors.Is(err, ErrKVLayout) {
		t.Errorf("range of no layout: %v", err)
	}
}

func FuzzGatherKV(f *testing.F) {
	f.Add(2, 64, 2, 0, 0, 0, 0, 3, 40, uint16(20000))
	f.Add(8, 16, 1, 300, 20, 2, 5, 0, 17, uint16(9000))
	f.Add(1, 1, 4, 1<<40, -1, 0, 1<<62, 1<<61, 1<<62, uint16(10))
	f.Fuzz(func(t *testing.T, heads, dim, elem, tokenStride, headStride, h0, h1, first, tokens int, size uint16) {
		l := KVLayout{Heads: heads, HeadDim: dim, ElemSize: elem, TokenStride: tokenStride, HeadStride: headStride, FirstHead: h0, EndHead: h1}
		src := numbered(int(size))
		_, n, err := l.BlockRange(tokens)
		if err != nil || n > 1<<20 {
			if err != nil && !errors.Is(err, ErrKVLayout) {
				t.Fatalf("error without sentinel: %v", err)
			}
			n = 64
		}
		dst := make([]byte, n)
		if err := GatherKV(dst, src, l, first, tokens); err != nil {
			if !errors.Is(err, ErrKVLayout) || !bytes.Equal(dst, make([]byte, n)) {
				t.Fatalf("refused with %v after writing", err)
			}
			return
		}
		if !bytes.Equal(dst, naiveGather(src, l, first, tokens)) {
			t.Fatal("bytes differ from the naive copy")
		}
	})
}

func TestGatherKVAllocatesNothing(t *testing.T) {
	l := KVLayout{Heads: 8, HeadDim: 128, ElemSize: 2}
	src, dst := make([]byte, 256*2048), make([]byte, 256*2048)
	if n := testing.AllocsPerRun(10, func() { must(t, GatherKV(dst, src, l, 0, 256)) }); n > 0 {
		t.Errorf("%v allocations a call", n)
	}
}
