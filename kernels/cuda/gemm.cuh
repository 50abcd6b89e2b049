// The matrix products of a layer, by cuBLASLt, which is loaded at run time.
//
// A result row must not depend on how many other rows a call has, or chunks would
// decide bits. The library promises no such thing, so prove() tries it on the
// device: one algorithm for each range of row counts is accepted only if it gives
// the very bits of the widest range's algorithm, for whole ranges and for odd cuts.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace pd {

// What is used of the library, and nothing else.
struct Lib {
	void *file;
	size_t (*version)();
	cublasStatus_t (*create)(cublasLtHandle_t *);
	cublasStatus_t (*destroy)(cublasLtHandle_t);
	cublasStatus_t (*desc_create)(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t);
	cublasStatus_t (*desc_destroy)(cublasLtMatmulDesc_t);
	cublasStatus_t (*desc_set)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t);
	cublasStatus_t (*layout_create)(cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t, int64_t);
	cublasStatus_t (*layout_destroy)(cublasLtMatrixLayout_t);
	cublasStatus_t (*layout_set)(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void *, size_t);
	cublasStatus_t (*pref_create)(cublasLtMatmulPreference_t *);
	cublasStatus_t (*pref_destroy)(cublasLtMatmulPreference_t);
	cublasStatus_t (*pref_set)(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t);
	cublasStatus_t (*heuristic)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
		cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *, int *);
	cublasStatus_t (*algo_get)(const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t, void *, size_t, size_t *);
	cublasStatus_t (*matmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t,
		const void *, cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,
		const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t);
};

// Row counts fall into ranges of a power of two; each has its algorithm.
constexpr int ranges = 8;
constexpr int first_range = 256;
// Workspace of one product. No algorithm that splits the sum is taken, so little
// more than bookkeeping is needed.
constexpr size_t gemm_workspace = 4u << 20;

// The products y = x·wᵀ with one width of w: rows of x may come in one run, or in
// equal runs a fixed distance apart.
struct Gemm {
	int cols, k;
	cublasLtMatrixLayout_t a, b, c;
	int rows, runs; // what b and c are set to
	int64_t stride; // rows of x between runs
	int algos;      // ranges in use
	cublasLtMatmulAlgo_t algo[ranges];
	char name[ranges][40];
};

struct Blas {
	Lib lib;
	cublasLtHandle_t lt;
	cublasLtMatmulDesc_t desc;
	void *workspace[2]; // one for each stream that products run on
	cudaError_t failed; // of the last own kernel that could not start
};

// Whether this library has kernels that the current device can run.
cudaError_t own_kernels();

// All of these return nullptr, or what went wrong.
const char *open_blas(Blas *blas, const char *path);
void close_blas(Blas *blas);
const char *open_gemm(Blas *blas, Gemm *g, int cols, int k);
void close_gemm(Blas *blas, Gemm *g);

// Finds and proves the algorithms for up to max_rows rows. x [max_rows, k], y and z
// [max_rows, cols] and differing are scratch on the device; x is filled here. w are real weights.
// The kernels that fill and compare are held to a pair that must differ first; why one cannot start is in blas->failed.
// runs > 1 proves runs of `rows` rows, `stride` apart, and every shorter single run.
const char *prove(Blas *blas, Gemm *g, const uint16_t *w, int max_rows, int runs, int rows, int64_t stride, uint16_t *x,
	uint16_t *y, uint16_t *z, unsigned long long *differing, cudaStream_t stream);

// Enqueues the product. side selects the workspace. Not thread-safe.
cublasStatus_t multiply(Blas *blas, Gemm *g, const uint16_t *w, const uint16_t *x, uint16_t *y, int rows, int runs,
	int64_t stride, int side, cudaStream_t stream);

} // namespace pd
