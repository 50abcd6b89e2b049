//go:build cuda

package cuda

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"pdlink/kernels"
)

// cPaged is the struct of pdproj.h.
type cPaged struct {
	base                                unsafe.Pointer
	pageStride, tokenStride, headStride int64
	pageTokens, pages, heads, run       int32
}

// gatherer is the part of the library that only engines use, which call it from
// Python.
type gatherer struct {
	*library
	kvCreate  func(device int32, staging uint64, flags uint32, out *uintptr, err *cError) int32
	kvDestroy func(h uintptr)
	kvGather  func(h uintptr, src *cPaged, sources int32, table uintptr, first int64, blockTokens, blocks int32, dst *uintptr, ticket *uint64, stream uintptr, err *cError) int32
	kvWait    func(h uintptr, ticket uint64, err *cError) int32
}

func builtGatherer(tb testing.TB) *gatherer {
	tb.Helper()
	g := &gatherer{library: built(tb)}
	handle, err := purego.Dlopen(os.Getenv("PDLINK_PDPROJ"), purego.RTLD_NOW|purego.RTLD_LOCAL)
	must(tb, err)
	for name, f := range map[string]any{
		"pdproj_kv_create": &g.kvCreate, "pdproj_kv_destroy": &g.kvDestroy, "pdproj_kv_gather": &g.kvGather, "pdproj_kv_wait": &g.kvWait,
	} {
		must(tb, bind(handle, name, f))
	}
	return g
}

// paged is a way in which an engine keeps keys and values: strides in elements of
// one page, K or V, head, token.
type paged struct {
	name                     string
	page, which, head, token func(pages, block, heads, dim int) int
}

// layouts of vLLM: the per-layer view [blocks, heads, block, 2·dim] in both physical
// orders, and the two older five-dimensional ones.
func pagedLayouts() []paged {
	return []paged{
		{name: "LBHNC", page: func(_, b, h, d int) int { return b * h * 2 * d }, which: func(_, _, _, d int) int { return d },
			head: func(_, b, _, d int) int { return b * 2 * d }, token: func(_, _, _, d int) int { return 2 * d }},
		{name: "LBNHC", page: func(_, b, h, d int) int { return b * h * 2 * d }, which: func(_, _, _, d int) int { return d },
			head: func(_, _, _, d int) int { return 2 * d }, token: func(_, _, h, d int) int { return h * 2 * d }},
		{name: "2 first", page: func(_, b, h, d int) int { return b * h * d }, which: func(p, b, h, d int) int { return p * b * h * d },
			head: func(_, _, _, d int) int { return d }, token: func(_, _, h, d int) int { return h * d }},
		{name: "2 second", page: func(_, b, h, d int) int { return 2 * b * h * d }, which: func(_, b, h, d int) int { return b * h * d },
			head: func(_, _, _, d int) int { return d }, token: func(_, _, h, d int) int { return h * d }},
	}
}

// TestGatherAgainstReference gathers from shuffled pages of every layout, several
// element sizes and head ranges, and compares with kernels.GatherKV: through staging,
// where results that lie together leave together, and straight to the destination.
func TestGatherAgainstReference(t *testing.T) {
	l := builtGatherer(t)
	var e cError
	if code := l.kvGather(0, nil, 0, 0, 0, 0, 0, nil, nil, 0, &e); code != codeArgument {
		t.Errorf("gather without a handle: code %d", code)
	}
	for name, flags := range map[string]uint32{"direct": 1, "staged": 2} {
		t.Run(name, func(t *testing.T) {
			var h uintptr
			must(t, e.check(l.kvCreate(0, 8<<20, flags, &h, &e), "create"))
			defer l.kvDestroy(h)
			gatherAll(t, l, h)
		})
	}
}

func gatherAll(t *testing.T, l *gatherer, h uintptr) {
	t.Helper()
	rng := rand.New(rand.NewPCG(11, 13))
	for _, layout := range pagedLayouts() {
		for _, c := range []struct{ heads, dim, elem, page, block, first, end int }{
			{8, 128, 2, 16, 256, 0, 8}, {2, 64, 2, 128, 256, 1, 2}, {4, 128, 1, 32, 256, 0, 4}, {3, 5, 4, 16, 64, 0, 3}, {1, 7, 1, 16, 32, 0, 1}, {8, 128, 2, 256, 512, 2, 7},
		} {
			const blocks = 3
			tokens := blocks*c.block + c.block
			pages := tokens/c.page + 5
			src := make([]byte, pages*2*c.page*c.heads*c.dim*c.elem)
			for i := range src {
				src[i] = byte(rng.Uint32())
			}
			table := make([]int32, tokens/c.page)
			for i, p := range rng.Perm(pages)[:len(table)] {
				table[i] = int32(p)
			}
			name := fmt.Sprintf("%s %+v", layout.name, c)
			gatherOnce(t, l, h, name, layout, c.heads, c.dim, c.elem, c.page, c.block, blocks, c.first, c.end, pages, src, table)
		}
	}
}

func gatherOnce(t *testing.T, l *gatherer, h uintptr, name string, layout paged, heads, dim, elem, page, block, blocks, first, end, pages int, src []byte, table []int32) {
	t.Helper()
	stride := func(f func(int, int, int, int) int) int { return elem * f(pages, page, heads, dim) }
	var e cError
	var at, tab, out uintptr
	size := blocks * 2 * (end - first) * block * dim * elem
	must(t, e.check(l.alloc(0, uint64(len(src)), 0, &at, &e), "alloc"))
	must(t, e.check(l.alloc(0, uint64(4*len(table)), 0, &tab, &e), "alloc"))
	must(t, e.check(l.alloc(0, uint64(size), 1, &out, &e), "alloc"))
	must(t, e.check(l.copyIn(0, at, unsafe.Pointer(&src[0]), uint64(len(src)), &e), "copy"))
	must(t, e.check(l.copyIn(0, tab, unsafe.Pointer(&table[0]), uint64(4*len(table)), &e), "copy"))
	defer func() {
		must(t, e.check(l.free(at, 0, &e), "free"))
		must(t, e.check(l.free(tab, 0, &e), "free"))
		must(t, e.check(l.free(out, 1, &e), "free"))
	}()
	sources := make([]cPaged, 2)
	dst := make([]uintptr, 2*blocks)
	each := (end - first) * block * dim * elem
	for w := range sources {
		sources[w] = cPaged{
			base:       pointer(at + uintptr(w*stride(layout.which)+first*stride(layout.head))),
			pageStride: int64(stride(layout.page)), tokenStride: int64(stride(layout.token)), headStride: int64(stride(layout.head)),
			pageTokens: int32(page), pages: int32(pages), heads: int32(end - first), run: int32(dim * elem),
		}
	}
	for i := range dst {
		dst[i] = out + uintptr(i*each)
	}
	var ticket uint64
	must(t, e.check(l.kvGather(h, &sources[0], 2, tab, int64(block), int32(block), int32(blocks), &dst[0], &ticket, 0, &e), "gather"))
	must(t, e.check(l.kvWait(h, ticket, &e), "wait"))
	got := unsafe.Slice((*byte)(pointer(out)), size)
	for b := range blocks {
		for w := range 2 {
			// Token-major, as the reference takes it.
			flat := make([]byte, block*heads*dim*elem)
			for tok := range block {
				global := (b+1)*block + tok
				from := w*stride(layout.which) + int(table[global/page])*stride(layout.page) + global%page*stride(layout.token)
				for hd := range heads {
					copy(flat[(tok*heads+hd)*dim*elem:][:dim*elem], src[from+hd*stride(layout.head):])
				}
			}
			want := make([]byte, each)
			must(t, kernels.GatherKV(want, flat, kernels.KVLayout{Heads: heads, HeadDim: dim, ElemSize: elem, FirstHead: first, EndHead: end}, 0, block))
			if i := 2*b + w; !bytes.Equal(got[i*each:(i+1)*each], want) {
				t.Errorf("%s: block %d, source %d differs", name, b, w)
			}
		}
	}
}
