// What a call enqueues: the pool's product of all rows, the window's of the rows that
// are kept, and the kernel, one by one or as a graph that was prepared.
#include "handle.cuh"

#include <string.h>

namespace pd {

Kept kept_rows(const pdproj *h, const pdproj_placed &p, int64_t first, int n) {
	const int64_t end = first + n, w = h->window, b = h->block;
	Kept k = {first / b, 0, 0, 0, 0};
	if (p.offset[window_rows] < 0 && p.offset[window_pre] < 0) return k;
	for (int64_t block = first / b; block * b < end; block++) {
		int64_t from = (block + 1) * b - w, to = (block + 1) * b;
		if (from < first) from = first;
		if (to > end) to = end;
		if (from >= to) continue;
		if (k.rows == 0) {
			k.block = block;
			k.before = (int)(to - from);
			k.skipped = (int)(from - ((block + 1) * b - w));
			k.first = (int)(from - first);
		}
		k.rows += (int)(to - from);
	}
	return k;
}

namespace {

// The window's product, compact in yw: whole windows in one batch, cut ones alone.
cublasStatus_t multiply_kept(pdproj *h, const pdproj_placed &p, const Kept &k, const uint16_t *x, int side, cudaStream_t s) {
	Gemm *g = &h->window_gemm;
	int rows = k.rows, at = 0;
	int64_t row = k.first;
	cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
	if (k.before < h->window) {
		e = multiply(&h->blas, g, p.kv, x + row * h->hidden, h->yw, k.before, 1, 0, side, s);
		rows -= k.before, at = k.before;
		row += k.before + h->block - h->window;
	}
	const int whole = rows / h->window;
	if (!e && whole > 0) {
		e = multiply(&h->blas, g, p.kv, x + row * h->hidden, h->yw + (int64_t)at * h->dim, h->window, whole, h->block, side, s);
		rows -= whole * h->window, at += whole * h->window;
		row += (int64_t)whole * h->block;
	}
	if (!e && rows > 0) e = multiply(&h->blas, g, p.kv, x + row * h->hidden, h->yw + (int64_t)at * h->dim, rows, 1, 0, side, s);
	return e;
}

// The window's product is small and slow, so it runs beside the pool's. The side joins whatever came of the products:
// calls to come use the same workspace, and the caller's stream goes on to overwrite x. *apart is why it could not.
int one_by_one(pdproj *h, const pdproj_placed &p, const Kept &k, const Epilogue &c, const uint16_t *x, cudaStream_t s, cudaError_t *apart,
	pdproj_error *err) {
	const bool beside = !h->serial && k.rows > 0 && p.ratio;
	cudaError_t e = cudaSuccess;
	if (beside) {
		e = cudaEventRecord(h->fork, s);
		if (!e) e = cudaStreamWaitEvent(h->side, h->fork, 0);
	}
	const bool forked = beside && !e;
	cublasStatus_t b = CUBLAS_STATUS_SUCCESS;
	if (!e && p.ratio) b = multiply(&h->blas, p.gemm, p.pool, x, h->y, c.n, 1, 0, 0, s);
	if (!e && !b && k.rows) b = multiply_kept(h, p, k, x, 1, beside ? h->side : s);
	if (forked) {
		e = cudaEventRecord(h->join, h->side);
		if (!e) e = cudaStreamWaitEvent(s, h->join, 0);
		*apart = e;
	}
	if (b) {
		cudaGetLastError();
		return fail(err, PDPROJ_ECUDA, "multiply: cuBLASLt status %d", (int)b);
	}
	if (!e) e = launch(c, p.ratio, s);
	return e ? fail_cuda(err, e, "project a layer") : PDPROJ_OK;
}

// Which products a call needs follows from these.
const pdproj_prepared *find(const pdproj *h, const pdproj_placed &p, const uint16_t *x, int n, int64_t first) {
	for (int i = 0; i < p.prepared; i++) {
		const pdproj_prepared *q = p.graph + i;
		if (q->x == x && q->n == n && q->phase == first % h->block) return q;
	}
	return nullptr;
}

} // namespace

void describe(const pdproj *h, const pdproj_placed &p, const Kept &k, int n, int64_t first, Epilogue *e) {
	memset(e, 0, sizeof *e);
	e->y = h->y, e->yw = h->yw, e->raw = h->raw, e->tickets = h->tickets;
	e->window_norm = p.kv_norm, e->inv = h->inv[p.ratio ? 1 : 0];
	e->comp = p.comp, e->index = p.index;
	e->first = first, e->n = n;
	if (p.ratio) {
		const int64_t window = first / p.ratio;
		e->windows = (int)((first + n) / p.ratio - window);
		e->windows_at = (int)(window * p.ratio - first);
		e->windows_each = h->block / p.ratio;
		e->windows_row = (int)(window % e->windows_each);
	}
	e->width = p.width, e->dim = h->dim, e->window = h->window, e->block_tokens = h->block, e->rope = h->rope, e->eps = h->eps;
	e->window_part = 1.0 / h->dim;
	e->kept = k.rows, e->kept_before = k.before, e->kept_skipped = k.skipped, e->kept_block = (int)(k.block - first / h->block);
	for (int i = 0; i < powers; i++) e->powers[i] = power(i);
	for (int a = 0; a < arrays; a++) e->offset[a] = p.offset[a];
}

int enqueue(pdproj *h, const pdproj_placed &p, const Kept &k, const Epilogue &c, const uint16_t *x, cudaStream_t s, pdproj_error *err) {
	const pdproj_prepared *q = find(h, p, x, c.n, c.first);
	if (!q) {
		cudaError_t apart = cudaSuccess;
		const int code = one_by_one(h, p, k, c, x, s, &apart, err);
		if (apart) h->ring.lost = apart;
		return code;
	}
	const Launch l = launch_of(c, p.ratio);
	void *args[] = {(void *)&c};
	cudaKernelNodeParams node = {};
	node.func = (void *)l.kernel, node.gridDim = dim3(l.blocks), node.blockDim = dim3(l.threads), node.kernelParams = args;
	cudaError_t e = cudaGraphExecKernelNodeSetParams(q->ready, q->kernel, &node);
	if (!e) e = cudaGraphLaunch(q->ready, s);
	return e ? fail_cuda(err, e, "project a layer by graph") : PDPROJ_OK;
}

void release_graphs(pdproj *h) {
	for (int i = 0; i < h->layers; i++) {
		for (int j = 0; j < h->layer[i].prepared; j++) {
			cudaGraphExecDestroy(h->layer[i].graph[j].ready);
			cudaGraphDestroy(h->layer[i].graph[j].graph);
		}
	}
}

namespace {

// Records a call's work instead of doing it. The kernel is what the stream would wait
// for next.
int record(pdproj *h, const pdproj_placed &p, const Kept &k, const Epilogue &c, pdproj_prepared *q, cudaStream_t s, pdproj_error *err) {
	cudaError_t e = cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
	if (e) return fail_cuda(err, e, "prepare a graph");
	cudaError_t apart = cudaSuccess; // the end of the recording takes the side out again
	const int code = one_by_one(h, p, k, c, q->x, s, &apart, err);
	cudaStreamCaptureStatus status;
	const cudaGraphNode_t *last = nullptr;
	size_t n = 0;
	e = cudaStreamGetCaptureInfo(s, &status, nullptr, nullptr, &last, nullptr, &n);
	if (!e && n == 1) q->kernel = last[0];
	const cudaError_t end = cudaStreamEndCapture(s, &q->graph);
	if (code) return code;
	if (!e) e = end;
	if (!e && !q->kernel) e = cudaErrorUnknown;
	if (!e) e = cudaGraphInstantiate(&q->ready, q->graph, 0);
	if (!e) e = cudaGraphUpload(q->ready, h->side);
	return e ? fail_cuda(err, e, "prepare a graph") : PDPROJ_OK;
}

} // namespace

} // namespace pd

using namespace pd;

int pdproj_prepare(pdproj *h, int32_t layer, const void *x, int32_t n, int64_t first, pdproj_error *err) {
	if (!h || layer < 0 || layer >= h->layers || !x || (uintptr_t)x % 16 || n < 1 || n > h->max_tokens || first < 0 ||
		first > h->max_positions - n) {
		return fail(err, PDPROJ_EARG, "no such handle or layer, or rows that no call could have");
	}
	Locked locked(&h->lock);
	On on(h->device);
	pdproj_placed *p = h->layer + layer;
	const Kept k = kept_rows(h, *p, first, n);
	if (find(h, *p, (const uint16_t *)x, n, first) || (!p->ratio && !k.rows)) return PDPROJ_OK;
	if (p->prepared == max_prepared) return fail(err, PDPROJ_EFULL, "%d graphs are prepared for layer %d", max_prepared, layer);
	cudaStream_t s;
	const cudaError_t e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
	if (e) return fail_cuda(err, e, "prepare a graph");
	Epilogue c;
	describe(h, *p, k, n, first, &c);
	pdproj_prepared q = {(const uint16_t *)x, n, first % h->block, nullptr, nullptr, nullptr};
	const int code = record(h, *p, k, c, &q, s, err);
	cudaStreamDestroy(s);
	if (!code) {
		p->graph[p->prepared++] = q;
		return PDPROJ_OK;
	}
	if (q.ready) cudaGraphExecDestroy(q.ready);
	if (q.graph) cudaGraphDestroy(q.graph);
	cudaGetLastError();
	return code;
}
