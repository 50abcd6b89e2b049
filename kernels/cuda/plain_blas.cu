// Stands in for cuBLASLt under compute-sanitizer's racecheck, which fails on Hopper's products with an internal error of
// its own: the functions that libpdproj loads, with one thread for each element. Named libcublasLt.so.13 and found first
// by the loader (LD_LIBRARY_PATH), it lets the tool see whole calls. Its sums are in order, so bits differ from the real one's.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <string.h>

namespace {

struct Layout {
	int64_t rows, cols, ld, step;
	int32_t batch;
};

__global__ void plain_product(const uint16_t *w, const uint16_t *x, uint16_t *y, Layout a, Layout b, Layout c) {
	const int64_t col = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, row = blockIdx.y;
	if (col >= a.cols) return;
	w += col * a.ld, x += blockIdx.z * b.step + row * b.ld;
	float sum = 0;
	for (int64_t k = 0; k < a.rows; k++) sum += __uint_as_float((unsigned)w[k] << 16) * __uint_as_float((unsigned)x[k] << 16);
	const unsigned bits = __float_as_uint(sum);
	y[blockIdx.z * c.step + row * c.ld + col] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

Layout *of(cublasLtMatrixLayout_t l) { return (Layout *)l; }

} // namespace

#define PLAIN extern "C" __attribute__((visibility("default")))

PLAIN size_t cublasLtGetVersion() { return 1; }

PLAIN cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) {
	*h = (cublasLtHandle_t) new char;
	return CUBLAS_STATUS_SUCCESS;
}

PLAIN cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
	delete (char *)h;
	return CUBLAS_STATUS_SUCCESS;
}

PLAIN cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t, cudaDataType_t) {
	*d = (cublasLtMatmulDesc_t) new char;
	return CUBLAS_STATUS_SUCCESS;
}

PLAIN cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
	delete (char *)d;
	return CUBLAS_STATUS_SUCCESS;
}

PLAIN cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t) {
	return CUBLAS_STATUS_SUCCESS;
}

PLAIN cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType, uint64_t rows, uint64_t cols, int64_t ld) {
	*l = (cublasLtMatrixLayout_t) new Layout{(int64_t)rows, (int64_t)cols, ld, 0, 1};
	return CUBLAS_STATUS_SUCCESS;
}

PLAIN cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
	delete of(l);
	return CUBLAS_STATUS_SUCCESS;
}

PLAIN cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a, const void *v, size_t n) {
	void *to = a == CUBLASLT_MATRIX_LAYOUT_COLS                   ? (void *)&of(l)->cols
		: a == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET ? (void *)&of(l)->step
		: a == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT          ? (void *)&of(l)->batch
														   : nullptr;
	if (!to || n != (a == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? 4 : 8)) return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(to, v, n);
	return CUBLAS_STATUS_SUCCESS;
}

PLAIN cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
	*p = (cublasLtMatmulPreference_t) new char;
	return CUBLAS_STATUS_SUCCESS;
}

PLAIN cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
	delete (char *)p;
	return CUBLAS_STATUS_SUCCESS;
}

PLAIN cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t) {
	return CUBLAS_STATUS_SUCCESS;
}

PLAIN cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
	cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *r, int *n) {
	memset(r, 0, sizeof *r);
	*n = 1;
	return CUBLAS_STATUS_SUCCESS;
}

PLAIN cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t, void *to, size_t n,
	size_t *wrote) {
	memset(to, 0, n);
	*wrote = n;
	return CUBLAS_STATUS_SUCCESS;
}

PLAIN cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *w, cublasLtMatrixLayout_t a, const void *x,
	cublasLtMatrixLayout_t b, const void *, const void *, cublasLtMatrixLayout_t, void *y, cublasLtMatrixLayout_t c, const cublasLtMatmulAlgo_t *,
	void *, size_t, cudaStream_t stream) {
	const dim3 grid((unsigned)((of(a)->cols + 255) / 256), (unsigned)of(b)->cols, (unsigned)of(b)->batch);
	plain_product<<<grid, 256, 0, stream>>>((const uint16_t *)w, (const uint16_t *)x, (uint16_t *)y, *of(a), *of(b), *of(c));
	return cudaPeekAtLastError() ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
