#include "gemm.cuh"
#include "ring.cuh"

#include <stdio.h>
#include <string.h>

using namespace pd;

int32_t pdproj_abi(void) { return PDPROJ_ABI; }

int pdproj_query(int32_t device, pdproj_facts *out, pdproj_error *err) {
	if (!out || out->size != sizeof *out) return fail(err, PDPROJ_EARG, "facts have another size");
	memset(out, 0, sizeof *out);
	out->size = sizeof *out, out->abi = PDPROJ_ABI;
	int n = 0;
	cudaError_t e = cudaDriverGetVersion(&out->driver);
	if (!e) e = cudaRuntimeGetVersion(&out->runtime);
	if (e || out->driver == 0) return fail(err, PDPROJ_ENODEV, "no CUDA driver on this machine");
	e = cudaGetDeviceCount(&n);
	if (e) {
		cudaGetLastError();
		return fail(err, PDPROJ_ENODEV, "count the GPUs: %s", cudaGetErrorString(e));
	}
	if (device < 0 || device >= n) return fail(err, PDPROJ_ENODEV, "GPU %d of %d", device, n);
	cudaDeviceProp p;
	if ((e = cudaGetDeviceProperties(&p, device))) return fail_cuda(err, e, "ask the GPU");
	out->sm = 10 * p.major + p.minor, out->processors = p.multiProcessorCount, out->integrated = p.integrated;
	snprintf(out->name, sizeof out->name, "%.63s", p.name);
	if (out->sm < 80) return fail(err, PDPROJ_ENODEV, "%s has compute capability %d.%d, 8.0 is needed for bf16", p.name, p.major, p.minor);
	On on(device);
	if ((e = own_kernels())) return fail_cuda(err, e, "look for kernels that this GPU and driver can run");
	size_t free_bytes = 0, total = 0;
	if ((e = cudaMemGetInfo(&free_bytes, &total))) return fail_cuda(err, e, "ask for the GPU's memory");
	out->memory = total, out->memory_free = free_bytes;
	return PDPROJ_OK;
}

int pdproj_pin(int32_t device, void *at, uint64_t bytes, pdproj_error *err) {
	On on(device);
	const cudaError_t e = cudaHostRegister(at, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
	return e ? fail_cuda(err, e, "page-lock memory") : PDPROJ_OK;
}

int pdproj_unpin(void *at, pdproj_error *err) {
	const cudaError_t e = cudaHostUnregister(at);
	return e ? fail_cuda(err, e, "unlock memory") : PDPROJ_OK;
}

int pdproj_alloc(int32_t device, uint64_t bytes, int32_t pinned, void **out, pdproj_error *err) {
	On on(device);
	const cudaError_t e = pinned ? cudaHostAlloc(out, bytes, cudaHostAllocPortable | cudaHostAllocMapped) : cudaMalloc(out, bytes);
	return e ? fail_cuda(err, e, "take memory") : PDPROJ_OK;
}

int pdproj_free(void *at, int32_t pinned, pdproj_error *err) {
	const cudaError_t e = pinned ? cudaFreeHost(at) : cudaFree(at);
	return e ? fail_cuda(err, e, "give memory back") : PDPROJ_OK;
}

int pdproj_copy(int32_t device, void *to, const void *from, uint64_t bytes, pdproj_error *err) {
	On on(device);
	cudaError_t e = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread);
	if (!e) e = cudaStreamSynchronize(cudaStreamPerThread);
	return e ? fail_cuda(err, e, "copy") : PDPROJ_OK;
}
