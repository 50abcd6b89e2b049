#include "handle.cuh"

namespace pd {

namespace {

// One call worked out: what the kernels get and what they complete.
struct Call {
	Epilogue e;
	Kept kept;
	int64_t first_block;
	int blocks;
	Range range[max_blocks * arrays];
	int ranges;
};

struct Span {
	int64_t from, to; // bytes of the array that the call completes in a block
};

// Which bytes of array a of that block the call completes.
Span completed(const pdproj *h, const pdproj_placed &p, const Epilogue &e, int64_t block, int a) {
	const int64_t begin = block * h->block, end = begin + h->block, last = e.first + e.n;
	const int64_t row = 2ll * (a == idx_pooled ? h->index_dim : h->dim);
	switch (a) {
	case window_rows:
	case window_pre: {
		const int64_t w = end - h->window, from = w > e.first ? w : e.first, to = end < last ? end : last;
		return from < to ? Span{(from - w) * row, (to - w) * row} : Span{0, 0};
	}
	case pooled:
	case idx_pooled: {
		const int64_t zero = begin / p.ratio, most = end / p.ratio;
		int64_t from = (e.first + e.windows_at) / p.ratio, to = from + e.windows;
		if (from < zero) from = zero;
		if (to > most) to = most;
		return from < to ? Span{(from - zero) * row, (to - zero) * row} : Span{0, 0};
	}
	default: // the previous window's rows, whole with the block's last token
		if (e.first >= end || last < end) return {0, 0};
		return {0, 16ll * (a >= idx_prev_kv ? h->index_dim : h->dim)};
	}
}

// Arrays in the order of their offsets.
void order(const pdproj_placed &p, int (&out)[arrays], int *n) {
	*n = 0;
	for (int a = 0; a < arrays; a++) {
		if (p.offset[a] < 0) continue;
		int i = (*n)++;
		for (; i > 0 && p.offset[out[i - 1]] > p.offset[a]; i--) out[i] = out[i - 1];
		out[i] = a;
	}
}

uint64_t stride(const pdproj_placed &p) { return ((uint64_t)p.span + 255) / 256 * 256; }

// Lists the completed ranges and, for the caller, the pieces.
int list(const pdproj *h, const pdproj_placed &p, Call *c, const uint8_t *staging, void *const *dst, pdproj_piece *pieces, int most,
	int *count, pdproj_error *err) {
	int in_order[arrays], n, listed = 0;
	order(p, in_order, &n);
	c->ranges = 0;
	for (int i = 0; i < c->blocks; i++) {
		uint8_t *at = (uint8_t *)dst[i];
		c->e.dst[i] = at && staging ? (uint8_t *)staging + i * stride(p) : at;
		if (!at) continue;
		int64_t packed = 0;
		for (int j = 0; j < n; j++) {
			const int a = in_order[j];
			const Span s = completed(h, p, c->e, c->first_block + i, a);
			if (s.from >= s.to) continue;
			const int64_t o = p.offset[a] + s.from;
			uint8_t *const to = at + (h->packed ? packed : o);
			packed += s.to - s.from;
			c->range[c->ranges++] = {to, c->e.dst[i] + o, s.to - s.from};
			if (!pieces) continue;
			if (listed > 0 && pieces[listed - 1].block == c->first_block + i &&
				pieces[listed - 1].offset + pieces[listed - 1].length == p.base + o) {
				pieces[listed - 1].length += s.to - s.from;
				continue;
			}
			if (listed >= most) return fail(err, PDPROJ_EARG, "room for %d pieces is not enough", most);
			pieces[listed++] = {c->first_block + i, p.base + o, s.to - s.from, to};
		}
	}
	if (count) *count = listed;
	return PDPROJ_OK;
}

int check_call(pdproj *h, pdproj_request *r, int layer, const void *x, int n, int64_t first, void *const *dst, int dsts, pdproj_error *err) {
	if (!h || !r || !r->used || layer < 0 || layer >= h->layers) return fail(err, PDPROJ_EARG, "no such handle, request or layer");
	if (!x || (uintptr_t)x % 16 || n < 1 || n > h->max_tokens) {
		return fail(err, PDPROJ_EARG, "%d rows: want 1 to %d, aligned to 16 bytes", n, h->max_tokens);
	}
	if (first != r->position[layer]) {
		return fail(err, PDPROJ_ESTATE, "rows from %lld on, but layer %d stands at %lld", (long long)first, layer, (long long)r->position[layer]);
	}
	if (first + n > h->max_positions) return fail(err, PDPROJ_ESTATE, "rows beyond the model's %lld positions", (long long)h->max_positions);
	const int blocks = (int)((first + n - 1) / h->block - first / h->block) + 1;
	if (!dst || dsts != blocks) return fail(err, PDPROJ_EARG, "%d destinations for %d blocks", dsts, blocks);
	for (int i = 0; i < blocks; i++) {
		if ((uintptr_t)dst[i] % 8) return fail(err, PDPROJ_EARG, "destination %d is not aligned to 8 bytes", i);
	}
	return PDPROJ_OK;
}

} // namespace

} // namespace pd

using namespace pd;

int pdproj_project(pdproj *h, pdproj_request *r, int32_t layer, const void *x, int32_t n, int64_t first, void *const *dst, int32_t dsts,
	pdproj_piece *pieces, int32_t most, int32_t *count, uint64_t *ticket, void *stream, pdproj_error *err) {
	if (!h) return fail(err, PDPROJ_EARG, "no handle");
	Locked locked(&h->lock);
	if (const int code = check_call(h, r, layer, x, n, first, dst, dsts, err)) return code;
	On on(h->device);
	const pdproj_placed &p = h->layer[layer];
	const cudaStream_t s = (cudaStream_t)stream;
	Call c;
	c.kept = kept_rows(h, p, first, n);
	describe(h, p, c.kept, n, first, &c.e);
	c.e.carry = carry_of(p, r, layer, false), c.e.next = carry_of(p, r, layer, true);
	c.e.without_previous = p.ratio == 4 && !r->previous[layer];
	c.first_block = first / h->block;
	c.blocks = (int)((first + n - 1) / h->block - c.first_block) + 1;
	cudaError_t e = follow(&h->ring, s);
	uint8_t *staging = nullptr;
	if (!e && h->ring.copies) e = take(&h->ring, stride(p) * c.blocks, s, &staging);
	if (e) return fail_call(&h->ring, err, e, "take staging memory");
	int32_t listed = 0;
	int code = list(h, p, &c, staging, dst, pieces, most, &listed, err);
	if (!code) code = enqueue(h, p, c.kept, c.e, (const uint16_t *)x, s, err);
	if (code) {
		mark(&h->ring, s);
		return h->ring.lost ? fail_call(&h->ring, err, h->ring.lost, "order what a call began") : code;
	}
	// A chunk's first layer leaves at once, so that the receiver has work while the next ones are projected.
	e = finish(&h->ring, c.range, c.ranges, layer == 0, s, ticket);
	if (e) return fail_call(&h->ring, err, e, "send finished rows on");
	r->position[layer] += n;
	if (c.e.windows > 0) r->previous[layer] = true;
	r->second[layer] ^= p.ratio == 4;
	if (count) *count = listed;
	return PDPROJ_OK;
}

int pdproj_done(pdproj *h, uint64_t ticket, pdproj_error *err) {
	if (!h) return -fail(err, PDPROJ_EARG, "no handle");
	Locked locked(&h->lock);
	On on(h->device);
	return done(&h->ring, ticket, err);
}

int pdproj_wait(pdproj *h, uint64_t ticket, pdproj_error *err) {
	if (!h) return fail(err, PDPROJ_EARG, "no handle");
	On on(h->device);
	return wait(&h->ring, &h->lock, ticket, err);
}
