// Plain key/value caches: from pages, as the engine keeps them, to the decoder's
// [heads, tokens, element] order. Bytes are only moved.
#include "ring.cuh"

#include <stdlib.h>
#include <string.h>

struct pdproj_kv {
	pthread_mutex_t lock;
	int device;
	pd::Ring ring;
};

namespace pd {

namespace {

// Most blocks of one call: their destinations travel as a kernel parameter.
constexpr int kv_blocks = 32;
constexpr int kv_threads = 256;

struct Gather {
	const int32_t *table;
	int64_t first;
	int32_t block_tokens, sources;
	pdproj_paged source[PDPROJ_SOURCES];
	uint8_t *dst[kv_blocks * PDPROJ_SOURCES];
};

// Every thread moves units of a head's run: 16 bytes where the layout allows. A
// grid row is one block of one source.
template <typename Unit> __global__ void __launch_bounds__(kv_threads) pdproj_gather(const __grid_constant__ Gather g) {
	uint8_t *to = g.dst[blockIdx.y];
	if (!to) return;
	const pdproj_paged &s = g.source[blockIdx.y % g.sources];
	const int units = s.run / (int)sizeof(Unit);
	const int64_t begin = g.first + (int64_t)(blockIdx.y / g.sources) * g.block_tokens;
	const int64_t n = (int64_t)s.heads * g.block_tokens * units;
	for (int64_t i = blockIdx.x * (int64_t)kv_threads + threadIdx.x; i < n; i += (int64_t)gridDim.x * kv_threads) {
		const int u = (int)(i % units);
		const int64_t row = i / units;
		const int t = (int)(row % g.block_tokens), head = (int)(row / g.block_tokens);
		const int64_t token = begin + t, entry = token / s.page_tokens;
		const int32_t page = __ldg(g.table + entry);
		Unit v;
		memset(&v, 0, sizeof v);
		if (page >= 0 && page < s.pages) {
			v = *(const Unit *)((const uint8_t *)s.base + page * s.page_stride + (token - entry * s.page_tokens) * s.token_stride +
				head * s.head_stride + u * (int64_t)sizeof(Unit));
		}
		((Unit *)to)[i] = v;
	}
}

template <typename Unit> cudaError_t start(const Gather &g, int blocks, int64_t bytes, cudaStream_t s) {
	int64_t x = (bytes / (int64_t)sizeof(Unit) + kv_threads - 1) / kv_threads;
	if (x > 512) x = 512;
	pdproj_gather<Unit><<<dim3((unsigned)x, blocks * g.sources), kv_threads, 0, s>>>(g);
	return cudaGetLastError();
}

int check_source(const pdproj_paged &s, int i, pdproj_error *err) {
	const int64_t most = 1ll << 40;
	if (!s.base || s.page_tokens < 1 || s.page_tokens > 1 << 20 || s.pages < 1 || s.heads < 1 || s.heads > 1 << 14 || s.run < 1 ||
		s.run > 1 << 20 || s.page_stride < 0 || s.page_stride > most || s.token_stride < 0 || s.token_stride > most || s.head_stride < 0 ||
		s.head_stride > most) {
		return fail(err, PDPROJ_EARG, "source %d describes no paged memory", i);
	}
	return PDPROJ_OK;
}

// The widest unit that base, strides and runs of all sources and destinations allow.
int unit_of(const Gather &g, int blocks) {
	uint64_t any = 16;
	for (int i = 0; i < g.sources; i++) {
		const pdproj_paged &s = g.source[i];
		any |= (uint64_t)s.base | s.page_stride | s.token_stride | s.head_stride | s.run;
	}
	for (int i = 0; i < blocks * g.sources; i++) any |= (uint64_t)g.dst[i];
	return (int)(any & -any);
}

} // namespace

} // namespace pd

using namespace pd;

int pdproj_kv_create(int32_t device, uint64_t staging, uint32_t flags, pdproj_kv **out, pdproj_error *err) {
	if (!out) return fail(err, PDPROJ_EARG, "no place for the handle");
	*out = nullptr;
	if (flags & ~(uint32_t)(PDPROJ_DIRECT | PDPROJ_STAGED) || flags == (PDPROJ_DIRECT | PDPROJ_STAGED)) {
		return fail(err, PDPROJ_EARG, "flags %#x: want direct or staged, or 0", flags);
	}
	pdproj_facts facts;
	facts.size = sizeof facts;
	if (const int code = pdproj_query(device, &facts, err)) return code;
	pdproj_kv *h = (pdproj_kv *)calloc(1, sizeof *h);
	if (!h) return fail(err, PDPROJ_EMEM, "no memory for a handle");
	pthread_mutex_init(&h->lock, nullptr);
	h->device = device;
	On on(device);
	const bool direct = flags & PDPROJ_DIRECT || (facts.integrated && !(flags & PDPROJ_STAGED));
	const int code = open_ring(&h->ring, staging ? staging : 64u << 20, direct, 1, err);
	if (code) {
		pthread_mutex_destroy(&h->lock);
		free(h);
		return code;
	}
	*out = h;
	return PDPROJ_OK;
}

void pdproj_kv_destroy(pdproj_kv *h) {
	if (!h) return;
	On on(h->device);
	if (h->ring.used) cudaEventSynchronize(h->ring.produced);
	close_ring(&h->ring);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

int pdproj_kv_gather(pdproj_kv *h, const pdproj_paged *source, int32_t sources, const int32_t *table, int64_t first, int32_t block_tokens,
	int32_t blocks, void *const *dst, uint64_t *ticket, void *stream, pdproj_error *err) {
	if (!h || !source || !table || !dst) return fail(err, PDPROJ_EARG, "no handle, sources, table or destinations");
	if (sources < 1 || sources > PDPROJ_SOURCES || blocks < 1 || blocks > kv_blocks || block_tokens < 1 || block_tokens > 1 << 20 ||
		first < 0 || first > 1 << 27) {
		return fail(err, PDPROJ_EARG, "%d sources (at most %d), %d blocks (at most %d) of %d tokens", sources, PDPROJ_SOURCES, blocks,
			kv_blocks, block_tokens);
	}
	Locked locked(&h->lock);
	On on(h->device);
	Gather g;
	g.table = table, g.first = first, g.block_tokens = block_tokens, g.sources = sources;
	int64_t call = 0, widest = 0, size[PDPROJ_SOURCES];
	for (int i = 0; i < sources; i++) {
		if (const int code = check_source(source[i], i, err)) return code;
		g.source[i] = source[i];
		size[i] = (int64_t)source[i].heads * block_tokens * source[i].run;
		call += (size[i] + 15) / 16 * 16 * blocks;
		if (size[i] > widest) widest = size[i];
	}
	if (h->ring.copies && (uint64_t)call > h->ring.size / 2) {
		return fail(err, PDPROJ_EARG, "%lld bytes of one call do not fit half the staging of %llu: fewer blocks, or more staging",
			(long long)call, (unsigned long long)h->ring.size);
	}
	const cudaStream_t s = (cudaStream_t)stream;
	cudaError_t e = follow(&h->ring, s);
	uint8_t *staging = nullptr;
	if (!e && h->ring.copies) e = take(&h->ring, call, s, &staging);
	Range range[kv_blocks * PDPROJ_SOURCES];
	int ranges = 0;
	for (int i = 0; i < blocks * sources; i++) {
		uint8_t *at = (uint8_t *)dst[i];
		const int64_t n = size[i % sources];
		g.dst[i] = staging && at ? staging : at;
		if (!at) continue;
		range[ranges++] = {at, g.dst[i], n};
		if (staging) staging += (n + 15) / 16 * 16;
	}
	if (!e) {
		switch (unit_of(g, blocks)) {
		case 16: e = start<uint4>(g, blocks, widest, s); break;
		case 8: e = start<uint2>(g, blocks, widest, s); break;
		case 4: e = start<uint32_t>(g, blocks, widest, s); break;
		case 2: e = start<uint16_t>(g, blocks, widest, s); break;
		default: e = start<uint8_t>(g, blocks, widest, s); break;
		}
		if (e) mark(&h->ring, s); // an error that was there before is reported of a kernel that started
	}
	if (!e) e = finish(&h->ring, range, ranges, false, s, ticket);
	return e ? fail_call(&h->ring, err, e, "gather keys and values") : PDPROJ_OK;
}

int pdproj_kv_done(pdproj_kv *h, uint64_t ticket, pdproj_error *err) {
	if (!h) return -fail(err, PDPROJ_EARG, "no handle");
	Locked locked(&h->lock);
	On on(h->device);
	return done(&h->ring, ticket, err);
}

int pdproj_kv_wait(pdproj_kv *h, uint64_t ticket, pdproj_error *err) {
	if (!h) return fail(err, PDPROJ_EARG, "no handle");
	On on(h->device);
	return wait(&h->ring, &h->lock, ticket, err);
}
