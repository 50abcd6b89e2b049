#include "handle.cuh"
#include "numerics.cuh"

#include <new>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace pd {

namespace {

int place_layer(const pdproj_config *c, int i, pdproj_placed *p, pdproj_error *err) {
	const pdproj_layer &l = c->layer[i];
	int64_t end = 0;
	p->base = INT64_MAX;
	for (int a = 0; a < arrays; a++) {
		const int64_t n = array_bytes(c, l.ratio, a);
		p->offset[a] = n && l.offset[a] >= 0 ? l.offset[a] : -1;
		if (p->offset[a] < 0) continue;
		if (l.offset[a] < p->base) p->base = l.offset[a];
		if (l.offset[a] + n > end) end = l.offset[a] + n;
	}
	if (end == 0) p->base = 0;
	p->span = end - p->base;
	if (p->span > PDPROJ_SPAN) return fail(err, PDPROJ_EARG, "layer %d: arrays lie %lld bytes apart, at most %d", i, (long long)p->span, PDPROJ_SPAN);
	for (int64_t &o : p->offset) o = o < 0 ? -1 : o - p->base;
	return PDPROJ_OK;
}

void place_pool(Arena *a, Pool *p, int ratio, int dim, int first, Array rows) {
	const int w = projected(ratio, dim);
	p->dim = dim, p->part = 1.0 / dim;
	p->kv = first, p->gate = first + w;
	p->rows = rows, p->previous_kv = rows + 1, p->previous_gate = rows + 2;
	if (ratio == 4) p->bias = a->take<uint16_t>(4ull * w);
	else p->ape = a->take<float>((uint64_t)ratio * w);
	p->norm = a->take<uint16_t>(dim);
}

// Lays out the weights; called twice, first to count.
void place_weights(const pdproj_config *c, pdproj *h, Arena *a) {
	h->inv[0] = a->take<float>(c->rope_dim / 2);
	h->inv[1] = a->take<float>(c->rope_dim / 2);
	for (int i = 0; i < c->layers; i++) {
		pdproj_placed *p = h->layer + i;
		const int ratio = c->layer[i].ratio;
		p->ratio = ratio;
		p->slots = ratio == 4 ? 8 : ratio;
		p->width = ratio ? 2 * projected(ratio, c->head_dim) : 0;
		if (ratio == 4) p->width += 2 * projected(4, c->index_dim);
		p->kv = a->take<uint16_t>((uint64_t)c->head_dim * c->hidden);
		p->kv_norm = a->take<uint16_t>(c->head_dim);
		p->pool = a->take<uint16_t>((uint64_t)p->width * c->hidden);
		if (ratio) place_pool(a, &p->comp, ratio, c->head_dim, 0, pooled);
		if (ratio == 4) place_pool(a, &p->index, ratio, c->index_dim, 2 * projected(4, c->head_dim), idx_pooled);
	}
}

cudaError_t upload(void *to, const void *from, uint64_t bytes, cudaStream_t s) {
	return bytes ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s) : cudaSuccess;
}

// The bias is rounded here where the decoder rounds it.
cudaError_t upload_bias(const Pool &p, int ratio, const float *ape, cudaStream_t s) {
	const uint64_t n = (uint64_t)ratio * projected(ratio, p.dim);
	if (ratio != 4) return upload((void *)p.ape, ape, n * sizeof(float), s);
	uint16_t v[4 * 2 * max_dim];
	for (uint64_t i = 0; i < n; i++) v[i] = (uint16_t)pattern(ape[i]);
	const cudaError_t e = upload((void *)p.bias, v, n * sizeof *v, s);
	return e ? e : cudaStreamSynchronize(s);
}

cudaError_t upload_pool(const pdproj_config *c, uint16_t *rows, const Pool &p, int ratio, const uint16_t *kv,
	const uint16_t *gate, const uint16_t *norm, const float *ape, cudaStream_t s) {
	const uint64_t n = 2ull * projected(ratio, p.dim) * c->hidden;
	cudaError_t e = upload(rows + (uint64_t)p.kv * c->hidden, kv, n, s);
	if (!e) e = upload(rows + (uint64_t)p.gate * c->hidden, gate, n, s);
	if (!e) e = upload((void *)p.norm, norm, 2ull * p.dim, s);
	return e ? e : upload_bias(p, ratio, ape, s);
}

cudaError_t upload_layer(const pdproj_config *c, const pdproj_placed &p, const pdproj_layer &l, cudaStream_t s) {
	cudaError_t e = upload(p.kv, l.kv, 2ull * c->head_dim * c->hidden, s);
	if (!e) e = upload(p.kv_norm, l.kv_norm, 2ull * c->head_dim, s);
	if (!e && l.ratio) e = upload_pool(c, p.pool, p.comp, l.ratio, l.comp_kv, l.comp_gate, l.comp_norm, l.comp_ape, s);
	if (!e && l.ratio == 4) e = upload_pool(c, p.pool, p.index, 4, l.idx_kv, l.idx_gate, l.idx_norm, l.idx_ape, s);
	return e;
}

int take_weights(const pdproj_config *c, pdproj *h, pdproj_error *err) {
	Arena a = {nullptr, 0};
	place_weights(c, h, &a);
	h->weights_bytes = a.used;
	cudaError_t e = cudaMalloc(&h->weights, a.used);
	if (e) return fail_cuda(err, e, "take memory for the weights");
	a = {h->weights, 0};
	place_weights(c, h, &a);
	float inv[max_dim];
	for (int i = 0; i < 2 && !e; i++) {
		inverse_frequencies(c, i == 1, inv);
		e = upload(h->inv[i], inv, c->rope_dim / 2 * sizeof(float), h->side);
		if (!e) e = cudaStreamSynchronize(h->side);
	}
	for (int i = 0; i < c->layers && !e; i++) e = upload_layer(c, h->layer[i], c->layer[i], h->side);
	if (!e) e = cudaStreamSynchronize(h->side);
	return e ? fail_cuda(err, e, "upload the weights") : PDPROJ_OK;
}

int take_carries(const pdproj_config *c, pdproj *h, pdproj_error *err) {
	uint64_t each = 0;
	for (int i = 0; i < c->layers; i++) {
		pdproj_placed *p = h->layer + i;
		p->carry = each;
		each += (2ull * p->slots * p->width * (p->ratio == 4 ? 2 : 1) + 255) / 256 * 256;
	}
	h->carry_bytes = each * c->max_requests;
	cudaError_t e = h->carry_bytes ? cudaMalloc(&h->carries, h->carry_bytes) : cudaSuccess;
	if (e) return fail_cuda(err, e, "take memory for the requests' carries");
	for (int i = 0; i < c->max_requests; i++) {
		pdproj_request *r = h->request + i;
		r->carry = h->carries + i * each;
		r->position = (int64_t *)calloc(c->layers, sizeof *r->position);
		r->previous = (bool *)calloc(c->layers, sizeof *r->previous);
		r->second = (bool *)calloc(c->layers, sizeof *r->second);
		if (!r->position || !r->previous || !r->second) return fail(err, PDPROJ_EMEM, "no memory for requests");
	}
	return PDPROJ_OK;
}

// Most kept rows of a call: whole windows and two that are cut.
uint64_t most_kept(const pdproj_config *c) {
	const uint64_t n = ((uint64_t)c->max_tokens / c->block_tokens + 2) * c->window;
	return n < (uint64_t)c->max_tokens ? n : c->max_tokens;
}

int take_workspace(const pdproj_config *c, pdproj *h, pdproj_error *err) {
	int width = 0;
	for (int i = 0; i < c->layers; i++) width = h->layer[i].width > width ? h->layer[i].width : width;
	const uint64_t windows = c->max_tokens / 128 + 2;
	Arena a = {nullptr, 0};
	cudaError_t e = cudaSuccess;
	for (int pass = 0; pass < 2 && !e; pass++) {
		h->y = a.take<uint16_t>((uint64_t)c->max_tokens * width);
		h->yw = a.take<uint16_t>(most_kept(c) * c->head_dim);
		h->raw = a.take<uint16_t>(windows * c->head_dim);
		h->tickets = a.take<unsigned>(windows);
		h->blas.workspace[0] = a.take<uint8_t>(gemm_workspace);
		h->blas.workspace[1] = a.take<uint8_t>(gemm_workspace);
		if (pass) break;
		h->work_bytes = a.used;
		e = cudaMalloc(&h->work, a.used);
		a = {h->work, 0};
	}
	if (!e) e = cudaMemsetAsync(h->tickets, 0, windows * sizeof(unsigned), h->side);
	return e ? fail_cuda(err, e, "take the workspace") : PDPROJ_OK;
}

const char *prove_all(const pdproj_config *c, pdproj *h, uint16_t *x, uint16_t *y, uint16_t *z, unsigned long long *count) {
	// Full windows of a call lie a block apart.
	const int runs = c->max_tokens < c->window ? 1 : (c->max_tokens - c->window) / c->block_tokens + 1;
	const int rows = c->window < c->max_tokens ? c->window : c->max_tokens;
	const char *why = open_gemm(&h->blas, &h->window_gemm, c->head_dim, c->hidden);
	if (!why) why = prove(&h->blas, &h->window_gemm, h->layer[0].kv, runs > 1 ? (runs - 1) * c->block_tokens + rows : rows, runs, rows,
		c->block_tokens, x, y, z, count, h->side);
	for (int i = 0; i < c->layers && !why; i++) {
		pdproj_placed *p = h->layer + i;
		if (p->ratio == 0) continue;
		p->gemm = h->pool_gemm + (p->ratio == 4 ? 0 : 1);
		if (p->gemm->cols) continue;
		why = open_gemm(&h->blas, p->gemm, p->width, c->hidden);
		if (!why) why = prove(&h->blas, p->gemm, p->pool, c->max_tokens, 1, c->max_tokens, 0, x, y, z, count, h->side);
	}
	return why;
}

// Scratch of the proof is given back: it is larger than the workspace.
int settle(const pdproj_config *c, pdproj *h, pdproj_error *err) {
	int width = c->head_dim;
	for (int i = 0; i < c->layers; i++) width = h->layer[i].width > width ? h->layer[i].width : width;
	Arena a = {nullptr, 0};
	uint16_t *x = nullptr, *y = nullptr, *z = nullptr;
	unsigned long long *count = nullptr;
	for (int pass = 0; pass < 2; pass++) {
		x = a.take<uint16_t>((uint64_t)c->max_tokens * c->hidden);
		y = a.take<uint16_t>((uint64_t)c->max_tokens * width);
		z = a.take<uint16_t>((uint64_t)c->max_tokens * width);
		count = a.take<unsigned long long>(1);
		if (pass) break;
		uint8_t *base = nullptr;
		const cudaError_t e = cudaMalloc(&base, a.used);
		if (e) return fail_cuda(err, e, "take scratch to prove the GEMMs");
		a = {base, 0};
	}
	const char *why = prove_all(c, h, x, y, z, count);
	cudaError_t e = cudaStreamSynchronize(h->side);
	if (!e) e = h->blas.failed;
	cudaFree(a.base);
	if (e) return fail_cuda(err, e, "prove the GEMMs");
	return why ? fail(err, PDPROJ_EALGO, "%s", why) : PDPROJ_OK;
}

int fill(const pdproj_config *c, pdproj *h, pdproj_error *err) {
	cudaError_t e = cudaStreamCreateWithFlags(&h->side, cudaStreamNonBlocking);
	if (!e) e = cudaEventCreateWithFlags(&h->fork, cudaEventDisableTiming);
	if (!e) e = cudaEventCreateWithFlags(&h->join, cudaEventDisableTiming);
	int integrated = 0;
	if (!e) e = cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, c->device);
	if (e) return fail_cuda(err, e, "start on the device");
	const bool direct = c->flags & PDPROJ_DIRECT || (integrated && !(c->flags & (PDPROJ_STAGED | PDPROJ_PACKED)));
	uint64_t span = 256;
	for (int i = 0; i < c->layers; i++) {
		if (const int code = place_layer(c, i, h->layer + i, err)) return code;
		if ((uint64_t)h->layer[i].span > span) span = h->layer[i].span;
	}
	const uint64_t call = (span + 255) / 256 * 256 * ((uint64_t)c->max_tokens / c->block_tokens + 2);
	const uint64_t staging = c->staging > 2 * call ? c->staging : (c->staging ? 2 : 3 * copies_together) * call;
	if (const char *why = open_blas(&h->blas, c->cublaslt)) return fail(err, PDPROJ_ELIB, "%s", why);
	int code = open_ring(&h->ring, staging, direct, copies_together, err);
	if (!code) code = take_weights(c, h, err);
	if (!code) code = take_carries(c, h, err);
	if (!code) code = take_workspace(c, h, err);
	return code ? code : settle(c, h, err);
}

void release(pdproj *h) {
	On on(h->device);
	if (h->side) cudaStreamSynchronize(h->side);
	if (h->ring.used) cudaEventSynchronize(h->ring.produced);
	close_ring(&h->ring);
	if (h->layer) release_graphs(h);
	close_gemm(&h->blas, &h->window_gemm);
	for (Gemm &g : h->pool_gemm) close_gemm(&h->blas, &g);
	close_blas(&h->blas);
	if (h->fork) cudaEventDestroy(h->fork);
	if (h->join) cudaEventDestroy(h->join);
	if (h->side) cudaStreamDestroy(h->side);
	for (uint8_t *p : {h->weights, h->carries, h->work}) {
		if (p) cudaFree(p);
	}
	for (int i = 0; i < h->requests; i++) {
		free(h->request[i].position);
		free(h->request[i].previous);
		free(h->request[i].second);
	}
	cudaGetLastError();
	free(h->request);
	free(h->layer);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

} // namespace

} // namespace pd

using namespace pd;

int pdproj_create(const pdproj_config *c, pdproj **out, pdproj_error *err) {
	if (!out) return fail(err, PDPROJ_EARG, "no place for the handle");
	*out = nullptr;
	if (const int code = check(c, err)) return code;
	pdproj_facts facts;
	facts.size = sizeof facts;
	if (const int code = pdproj_query(c->device, &facts, err)) return code;
	pdproj *h = (pdproj *)calloc(1, sizeof *h);
	if (!h) return fail(err, PDPROJ_EMEM, "no memory for a handle");
	pthread_mutex_init(&h->lock, nullptr);
	h->device = c->device, h->layers = c->layers, h->hidden = c->hidden, h->dim = c->head_dim, h->index_dim = c->index_dim;
	h->rope = c->rope_dim, h->window = c->window, h->block = c->block_tokens, h->max_tokens = c->max_tokens;
	h->max_positions = c->max_positions, h->eps = (float)c->norm_eps, h->serial = c->flags & PDPROJ_SERIAL, h->packed = c->flags & PDPROJ_PACKED;
	h->layer = (pdproj_placed *)calloc(c->layers, sizeof *h->layer);
	h->request = (pdproj_request *)calloc(c->max_requests, sizeof *h->request);
	h->requests = h->request ? c->max_requests : 0;
	int code = h->layer && h->request ? PDPROJ_OK : fail(err, PDPROJ_EMEM, "no memory for a handle");
	On on(c->device);
	if (!code) code = fill(c, h, err);
	if (code) {
		release(h);
		return code;
	}
	*out = h;
	return PDPROJ_OK;
}

void pdproj_destroy(pdproj *h) {
	if (h) release(h);
}

int pdproj_used(pdproj *h, pdproj_usage *out, pdproj_error *err) {
	if (!h || !out || out->size != sizeof *out) return fail(err, PDPROJ_EARG, "usage has another size");
	out->direct = h->ring.copies == nullptr;
	out->weights = h->weights_bytes, out->carries = h->carry_bytes, out->workspace = h->work_bytes, out->staging = h->ring.size;
	out->cublaslt = h->blas.lib.version();
	size_t at = 0;
	out->gemm[0] = 0;
	for (const Gemm *g : {&h->window_gemm, &h->pool_gemm[0], &h->pool_gemm[1]}) {
		if (!g->cols || at >= sizeof out->gemm) continue;
		at += snprintf(out->gemm + at, sizeof out->gemm - at, "%d:", g->cols);
		for (int i = 0; i < g->algos && at < sizeof out->gemm; i++) at += snprintf(out->gemm + at, sizeof out->gemm - at, " %s", g->name[i]);
		if (at < sizeof out->gemm) at += snprintf(out->gemm + at, sizeof out->gemm - at, "\n");
	}
	return PDPROJ_OK;
}
