#include "handle.cuh"

using namespace pd;

int pdproj_request_create(pdproj *h, pdproj_request **out, pdproj_error *err) {
	if (!h || !out) return fail(err, PDPROJ_EARG, "no handle, or no place for a request");
	Locked locked(&h->lock);
	for (int i = 0; i < h->requests; i++) {
		pdproj_request *r = h->request + i;
		if (r->used) continue;
		r->used = true;
		for (int j = 0; j < h->layers; j++) r->position[j] = 0, r->previous[j] = false;
		*out = r;
		return PDPROJ_OK;
	}
	*out = nullptr;
	return fail(err, PDPROJ_EFULL, "%d requests are open: free one, or create the handle for more", h->requests);
}

void pdproj_request_free(pdproj *h, pdproj_request *r) {
	if (!h || !r) return;
	Locked locked(&h->lock);
	r->used = false;
}

namespace {

// Rows of the window before a boundary, into their slots of the carry: they are
// the first or the last four of eight.
cudaError_t seed_pool(const pdproj_placed &p, const Pool &pool, uint16_t *carry, int64_t position, const uint16_t *kv,
	const uint16_t *gate, cudaStream_t s) {
	const size_t pitch = 2ull * p.width, row = 4ull * pool.dim;
	uint16_t *to = carry + ((position - 4) & 7) * p.width;
	cudaError_t e = cudaMemcpy2DAsync(to + pool.kv, pitch, kv, row, row, 4, cudaMemcpyDefault, s);
	return e ? e : cudaMemcpy2DAsync(to + pool.gate, pitch, gate, row, row, 4, cudaMemcpyDefault, s);
}

} // namespace

int pdproj_seed(pdproj *h, pdproj_request *r, int32_t layer, int64_t position, const uint16_t *prev_kv, const uint16_t *prev_gate,
	const uint16_t *idx_prev_kv, const uint16_t *idx_prev_gate, void *stream, pdproj_error *err) {
	if (!h || !r) return fail(err, PDPROJ_EARG, "no handle or request");
	Locked locked(&h->lock);
	if (!r->used || layer < 0 || layer >= h->layers) return fail(err, PDPROJ_EARG, "no such request or layer");
	const pdproj_placed &p = h->layer[layer];
	if (position < 0 || position > h->max_positions || position % h->block) {
		return fail(err, PDPROJ_ESTATE, "position %lld is not a boundary of blocks of %d", (long long)position, h->block);
	}
	const bool any = prev_kv || prev_gate || idx_prev_kv || idx_prev_gate, all = prev_kv && prev_gate && idx_prev_kv && idx_prev_gate;
	if (any && (!all || p.ratio != 4 || position == 0)) {
		return fail(err, PDPROJ_ESTATE, "layer %d of ratio %d at %lld: give all four arrays of the previous window or none", layer, p.ratio, (long long)position);
	}
	On on(h->device);
	if (all) {
		const cudaStream_t s = (cudaStream_t)stream;
		uint16_t *carry = carry_of(p, r, layer, false);
		cudaError_t e = follow(&h->ring, s);
		if (!e) {
			e = seed_pool(p, p.comp, carry, position, prev_kv, prev_gate, s);
			if (!e) e = seed_pool(p, p.index, carry, position, idx_prev_kv, idx_prev_gate, s);
			const cudaError_t m = mark(&h->ring, s); // after half of the copies, too
			if (!e) e = m;
		}
		if (e) return fail_call(&h->ring, err, e, "seed a carry");
	}
	r->position[layer] = position;
	r->previous[layer] = all;
	return PDPROJ_OK;
}

int pdproj_carry(pdproj *h, pdproj_request *r, int32_t layer, void *out, uint64_t bytes, void *stream, pdproj_error *err) {
	if (!h || !r) return fail(err, PDPROJ_EARG, "no handle or request");
	Locked locked(&h->lock);
	if (!r->used || layer < 0 || layer >= h->layers) return fail(err, PDPROJ_EARG, "no such request or layer");
	const pdproj_placed &p = h->layer[layer];
	if (bytes != 2ull * p.slots * p.width || (bytes && !out)) {
		return fail(err, PDPROJ_EARG, "carry of %llu bytes, want %d rows of %d", (unsigned long long)bytes, p.slots, p.width);
	}
	if (!bytes) return PDPROJ_OK;
	On on(h->device);
	const cudaStream_t s = (cudaStream_t)stream;
	cudaError_t e = follow(&h->ring, s);
	if (!e) e = cudaMemcpyAsync(out, carry_of(p, r, layer, false), bytes, cudaMemcpyDefault, s);
	if (!e) e = cudaStreamSynchronize(s);
	return e ? fail_call(&h->ring, err, e, "read a carry") : PDPROJ_OK;
}
