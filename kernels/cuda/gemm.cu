#include "gemm.cuh"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

namespace pd {

namespace {

const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};

template <typename F> bool load(void *file, const char *name, F *f) {
	*(void **)f = dlsym(file, name);
	return *f != nullptr;
}

bool load_all(Lib *l) {
	void *f = l->file;
	return load(f, "cublasLtGetVersion", &l->version) && load(f, "cublasLtCreate", &l->create) &&
		load(f, "cublasLtDestroy", &l->destroy) && load(f, "cublasLtMatmulDescCreate", &l->desc_create) &&
		load(f, "cublasLtMatmulDescDestroy", &l->desc_destroy) && load(f, "cublasLtMatmulDescSetAttribute", &l->desc_set) &&
		load(f, "cublasLtMatrixLayoutCreate", &l->layout_create) && load(f, "cublasLtMatrixLayoutDestroy", &l->layout_destroy) &&
		load(f, "cublasLtMatrixLayoutSetAttribute", &l->layout_set) &&
		load(f, "cublasLtMatmulPreferenceCreate", &l->pref_create) &&
		load(f, "cublasLtMatmulPreferenceDestroy", &l->pref_destroy) &&
		load(f, "cublasLtMatmulPreferenceSetAttribute", &l->pref_set) &&
		load(f, "cublasLtMatmulAlgoGetHeuristic", &l->heuristic) &&
		load(f, "cublasLtMatmulAlgoConfigGetAttribute", &l->algo_get) && load(f, "cublasLtMatmul", &l->matmul);
}

// SplitMix64: test rows need no more than to look unlike each other.
__global__ void pdproj_random(uint16_t *x, size_t n) {
	const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	if (i >= n) return;
	unsigned long long u = (i + 1) * 0x9E3779B97F4A7C15ull;
	u = (u ^ (u >> 30)) * 0xBF58476D1CE4E5B9ull;
	u = (u ^ (u >> 27)) * 0x94D049BB133111EBull;
	u ^= u >> 31;
	const int sum = (int)(u & 0xffff) + (int)(u >> 16 & 0xffff) + (int)(u >> 32 & 0xffff) + (int)(u >> 48) - 131070;
	x[i] = (uint16_t)(__float_as_uint(sum / 37837.0f) >> 16);
}

__global__ void pdproj_differ(const uint16_t *a, const uint16_t *b, size_t n, unsigned long long *count) {
	const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	if (i < n && a[i] != b[i]) atomicAdd(count, 1ull);
}

unsigned grid(size_t n) { return (unsigned)((n + 255) / 256); }

// Of an own kernel: without this a kernel that cannot start leaves what it should have written as it was.
cudaError_t started(Blas *blas) {
	const cudaError_t e = cudaGetLastError();
	if (e) blas->failed = e;
	return e;
}

int range_of(const Gemm *g, int rows) {
	int r = 0;
	for (int top = first_range; rows > top && r + 1 < g->algos; top *= 2) r++;
	return r;
}

bool shape(Blas *blas, Gemm *g, int rows, int runs, int64_t stride) {
	if (g->rows == rows && g->runs == runs && g->stride == stride) return true;
	const Lib &l = blas->lib;
	g->rows = 0; // until all is set
	const uint64_t r = rows;
	const int32_t batch = runs;
	const int64_t none = 0, from = runs > 1 ? stride * g->k : 0, to = runs > 1 ? (int64_t)rows * g->cols : 0;
	const auto count = CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
	const auto step = CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
	if (l.layout_set(g->b, CUBLASLT_MATRIX_LAYOUT_COLS, &r, sizeof r) || l.layout_set(g->c, CUBLASLT_MATRIX_LAYOUT_COLS, &r, sizeof r) ||
		l.layout_set(g->a, count, &batch, sizeof batch) || l.layout_set(g->b, count, &batch, sizeof batch) ||
		l.layout_set(g->c, count, &batch, sizeof batch) || l.layout_set(g->a, step, &none, sizeof none) ||
		l.layout_set(g->b, step, &from, sizeof from) || l.layout_set(g->c, step, &to, sizeof to)) {
		return false;
	}
	g->rows = rows, g->runs = runs, g->stride = stride;
	return true;
}

cublasStatus_t run(Blas *blas, Gemm *g, const cublasLtMatmulAlgo_t *algo, const uint16_t *w, const uint16_t *x, uint16_t *y,
	int rows, int runs, int64_t stride, int side, cudaStream_t stream) {
	if (!shape(blas, g, rows, runs, stride)) return CUBLAS_STATUS_INVALID_VALUE;
	const float one = 1.0f, zero = 0.0f;
	return blas->lib.matmul(blas->lt, blas->desc, &one, w, g->a, x, g->b, &zero, y, g->c, y, g->c, algo, blas->workspace[side],
		gemm_workspace, stream);
}

// How many algorithms are asked for and tried.
constexpr int proposals = 16;

// The algorithms that the library proposes for a shape, best first, without those
// that split the sum.
int propose(Blas *blas, Gemm *g, int rows, int runs, int64_t stride, cublasLtMatmulAlgo_t *out, int most) {
	const Lib &l = blas->lib;
	cublasLtMatmulPreference_t p;
	if (!shape(blas, g, rows, runs, stride) || l.pref_create(&p)) return 0;
	const size_t ws = gemm_workspace;
	const uint32_t whole = CUBLASLT_REDUCTION_SCHEME_NONE;
	cublasLtMatmulHeuristicResult_t found[proposals];
	int n = 0, kept = 0;
	if (l.pref_set(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws, sizeof ws) ||
		l.pref_set(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &whole, sizeof whole) ||
		l.heuristic(blas->lt, blas->desc, g->a, g->b, g->c, g->c, p, most, found, &n)) {
		n = 0;
	}
	l.pref_destroy(p);
	for (int i = 0; i < n; i++) {
		int32_t split = 0;
		uint32_t scheme = 0;
		size_t wrote;
		if (found[i].state || l.algo_get(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &wrote) || split > 1 ||
			l.algo_get(&found[i].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &wrote) || scheme) {
			continue;
		}
		out[kept++] = found[i].algo;
	}
	return kept;
}

void describe(Blas *blas, const cublasLtMatmulAlgo_t *algo, char *out, size_t n) {
	int32_t id = 0, tile = 0, stages = 0;
	size_t wrote;
	blas->lib.algo_get(algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &wrote);
	blas->lib.algo_get(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &wrote);
	blas->lib.algo_get(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages, sizeof stages, &wrote);
	snprintf(out, n, "%d/%d/%d", id, tile, stages);
}

// Everything that a proof works with.
struct Proof {
	Blas *blas;
	Gemm *g;
	const uint16_t *w, *x;
	uint16_t *y, *z;
	unsigned long long *differing;
	cudaStream_t stream;

	// Are rows [at, at+rows) of y what the algorithm gives for these rows alone?
	bool same(const cublasLtMatmulAlgo_t *algo, int at, int rows, int runs, int64_t stride) const {
		const size_t n = (size_t)rows * runs * g->cols, k = g->k;
		unsigned long long d = ~0ull;
		if (cudaMemsetAsync(z, 0xff, 2 * n, stream) || cudaMemsetAsync(differing, 0, sizeof d, stream) ||
			run(blas, g, algo, w, x + at * k, z, rows, runs, stride, 0, stream)) {
			cudaGetLastError();
			return false;
		}
		cudaGetLastError(); // of products that were tried
		for (int i = 0; i < runs; i++) {
			const size_t m = (size_t)rows * g->cols;
			pdproj_differ<<<grid(m), 256, 0, stream>>>(y + (size_t)(at + i * stride) * g->cols, z + i * m, m, differing);
			if (started(blas)) return false;
		}
		return counted(&d) && d == 0;
	}

	bool counted(unsigned long long *d) const {
		return !cudaMemcpyAsync(d, differing, sizeof *d, cudaMemcpyDeviceToHost, stream) && !cudaStreamSynchronize(stream);
	}

	// Fills x, and sees that the kernels that fill and compare do so: no pattern of x is 0xffff.
	bool begin(uint16_t *fill, size_t n, size_t both) const {
		unsigned long long d = 0;
		cudaGetLastError();
		if (cudaMemsetAsync(fill, 0xff, 2 * n, stream) || cudaMemsetAsync(z, 0xff, 2 * both, stream) ||
			cudaMemsetAsync(differing, 0, sizeof d, stream)) {
			return started(blas), false;
		}
		pdproj_random<<<grid(n), 256, 0, stream>>>(fill, n);
		if (started(blas)) return false;
		pdproj_differ<<<grid(both), 256, 0, stream>>>(fill, z, both, differing);
		return !started(blas) && counted(&d) && d == both;
	}

	// Odd cuts up to that many rows, at odd places.
	bool cuts(const cublasLtMatmulAlgo_t *algo, int from, int rows, int max_rows) const {
		const int sizes[] = {1, 3, 8, 77, 128, 130, from + 1, (from + rows) / 2 | 1, rows};
		for (int n : sizes) {
			if (n <= from || n > rows) continue;
			const int at = (max_rows - n) * 5 / 8;
			if (!same(algo, at, n, 1, 0)) return false;
		}
		return true;
	}
};

} // namespace

cudaError_t own_kernels() {
	cudaFuncAttributes a;
	return cudaFuncGetAttributes(&a, (const void *)pdproj_differ);
}

const char *open_blas(Blas *blas, const char *path) {
	Lib *l = &blas->lib;
	if (path) {
		l->file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	} else {
		// What the process has already is what its other parts compute with.
		for (const char *n : names) {
			if (!l->file) l->file = dlopen(n, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
		}
		for (const char *n : names) {
			if (!l->file) l->file = dlopen(n, RTLD_NOW | RTLD_LOCAL);
		}
	}
	if (!l->file) return "cuBLASLt is not found: name its path, or install it where the loader looks";
	if (!load_all(l)) return "cuBLASLt lacks functions: use version 12 or later";
	if (l->create(&blas->lt)) return "cuBLASLt does not start on this device";
	const cublasOperation_t transpose = CUBLAS_OP_T;
	if (l->desc_create(&blas->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
		l->desc_set(blas->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose)) {
		return "cuBLASLt refuses a product with float32 sums";
	}
	return nullptr;
}

void close_blas(Blas *blas) {
	if (blas->desc) blas->lib.desc_destroy(blas->desc);
	if (blas->lt) blas->lib.destroy(blas->lt);
	if (blas->lib.file) dlclose(blas->lib.file);
	memset(blas, 0, sizeof *blas);
}

const char *open_gemm(Blas *blas, Gemm *g, int cols, int k) {
	g->cols = cols, g->k = k, g->rows = 0;
	const Lib &l = blas->lib;
	if (l.layout_create(&g->a, CUDA_R_16BF, k, cols, k) || l.layout_create(&g->b, CUDA_R_16BF, k, 1, k) ||
		l.layout_create(&g->c, CUDA_R_16BF, cols, 1, cols)) {
		return "cuBLASLt refuses a matrix layout";
	}
	return nullptr;
}

void close_gemm(Blas *blas, Gemm *g) {
	if (g->a) blas->lib.layout_destroy(g->a);
	if (g->b) blas->lib.layout_destroy(g->b);
	if (g->c) blas->lib.layout_destroy(g->c);
	memset(g, 0, sizeof *g);
}

const char *prove(Blas *blas, Gemm *g, const uint16_t *w, int max_rows, int runs, int rows, int64_t stride, uint16_t *x,
	uint16_t *y, uint16_t *z, unsigned long long *differing, cudaStream_t stream) {
	const char *const none = "no algorithm of cuBLASLt gives rows that are independent of the number of rows";
	const size_t n = (size_t)max_rows * g->k, most = (size_t)max_rows * g->cols;
	const Proof proof = {blas, g, w, x, y, z, differing, stream};
	if (!proof.begin(x, n, n < most ? n : most)) return "the kernels that prove the products do not run on this GPU";
	cublasLtMatmulAlgo_t found[proposals], reference;
	// The reference: the best proposal for the most rows that stands by itself. For few
	// rows the library proposes little but split sums, so more rows are asked about too.
	bool good = false;
	for (int ask : {max_rows, 512, 2048}) {
		const int m = runs > 1 && ask == max_rows ? propose(blas, g, rows, runs, stride, found, proposals)
												  : propose(blas, g, ask, 1, 0, found, proposals);
		for (int i = 0; i < m && !good; i++) {
			if (run(blas, g, &found[i], w, x, y, max_rows, 1, 0, 0, stream)) continue;
			good = proof.cuts(&found[i], 0, runs > 1 ? rows : max_rows, max_rows);
			for (int r = 2; good && r <= runs; r++) good = proof.same(&found[i], max_rows - (r - 1) * (int)stride - rows, rows, r, stride);
			if (good) reference = found[i]; // y has its rows
		}
		if (good) break;
	}
	if (!good) return none;
	g->algos = 1;
	if (runs <= 1) {
		for (int top = first_range; top < max_rows && g->algos < ranges; top *= 2) g->algos++;
	}
	for (int r = 0, from = 0, top = first_range; r < g->algos; r++, from = top, top *= 2) {
		g->algo[r] = reference;
		const int most = r + 1 == g->algos || top > max_rows ? max_rows : top;
		const int m = runs > 1 ? 0 : propose(blas, g, most, 1, 0, found, proposals);
		for (int i = 0; i < m; i++) {
			if (!proof.cuts(&found[i], from, most, max_rows)) continue;
			g->algo[r] = found[i];
			break;
		}
		describe(blas, &g->algo[r], g->name[r], sizeof g->name[r]);
	}
	return nullptr;
}

cublasStatus_t multiply(Blas *blas, Gemm *g, const uint16_t *w, const uint16_t *x, uint16_t *y, int rows, int runs,
	int64_t stride, int side, cudaStream_t stream) {
	return run(blas, g, &g->algo[range_of(g, rows)], w, x, y, rows, runs, stride, side, stream);
}

} // namespace pd
