// The handle: weights, carries and workspace of some layers on one device.
#pragma once

#include "epilogue.cuh"
#include "gemm.cuh"
#include "pdproj.h"
#include "ring.cuh"

namespace pd {

// Most graphs that can be prepared for one layer.
constexpr int max_prepared = 8;

} // namespace pd

// The products and the kernel of calls with these rows, ready to launch.
struct pdproj_prepared {
	const uint16_t *x;
	int n;
	int64_t phase; // first row's place in its block
	cudaGraph_t graph;
	cudaGraphExec_t ready;
	cudaGraphNode_t kernel; // its parameters change from call to call
};

// One layer's place in device memory.
struct pdproj_placed {
	int ratio;
	int width;           // columns of the pools' product; 0 without pools
	int slots;           // rows of the carry
	uint16_t *kv, *pool; // weights [head_dim, hidden], [width, hidden]
	uint16_t *kv_norm;
	pd::Pool comp, index;
	int64_t base;               // lowest wanted offset
	int64_t span;               // bytes from there to the end of the last wanted array
	int64_t offset[pd::arrays]; // relative to base; negative: not wanted
	uint64_t carry;             // bytes from a request's carry on; ratio 4 has two
	pd::Gemm *gemm;             // of width
	pdproj_prepared graph[pd::max_prepared];
	int prepared;
};

struct pdproj_request {
	bool used;
	uint8_t *carry;    // device
	int64_t *position; // [layers]
	bool *previous;    // [layers]: the window before the next one is known
	bool *second;      // [layers], ratio 4: which of two carries is the one at hand
};

struct pdproj {
	pthread_mutex_t lock;
	int device, layers, hidden, dim, index_dim, rope, window, block, max_tokens, requests;
	int64_t max_positions;
	float eps;
	bool serial, packed;
	pdproj_placed *layer;
	pdproj_request *request;
	pd::Blas blas;
	pd::Gemm window_gemm, pool_gemm[2]; // ratio 4, ratio 128
	uint8_t *weights, *carries, *work;
	uint64_t weights_bytes, carry_bytes, work_bytes;
	float *inv[2]; // plain, compressed
	uint16_t *y, *yw, *raw;
	unsigned *tickets;
	pd::Ring ring;
	cudaStream_t side;
	cudaEvent_t fork, join;
};

namespace pd {

// Hands out pieces of one allocation, each aligned for the copy engine and vector
// loads. With a null base it only counts.
struct Arena {
	uint8_t *base;
	uint64_t used;

	template <typename T> T *take(uint64_t n) {
		T *p = base ? (T *)(base + used) : nullptr;
		used += (n * sizeof(T) + 255) / 256 * 256;
		return p;
	}
};

// The columns of a pool's two products.
inline int projected(int ratio, int dim) { return ratio == 4 ? 2 * dim : dim; }

// A layer's carry of a request: the one at hand, or the other of ratio 4.
inline uint16_t *carry_of(const pdproj_placed &p, const pdproj_request *r, int layer, bool next) {
	const bool other = p.ratio == 4 && r->second[layer] != next;
	return (uint16_t *)(r->carry + p.carry) + (other ? (int64_t)p.slots * p.width : 0);
}

// The rows of a call that belong to some block's window.
struct Kept {
	int64_t block;    // of the first kept row
	int rows, before; // all of them; those of that block
	int skipped;      // rows of its window that came earlier
	int first;        // row of x where they begin
};

Kept kept_rows(const pdproj *h, const pdproj_placed &p, int64_t first, int n);
// Works out what the kernel of a call gets, but for carry and destinations.
void describe(const pdproj *h, const pdproj_placed &p, const Kept &k, int n, int64_t first, Epilogue *e);
// Enqueues products and kernel.
int enqueue(pdproj *h, const pdproj_placed &p, const Kept &k, const Epilogue &e, const uint16_t *x, cudaStream_t s, pdproj_error *err);
void release_graphs(pdproj *h);

int check(const pdproj_config *c, pdproj_error *err);
// Bytes of an array of one block, 0 where the ratio has none.
int64_t array_bytes(const pdproj_config *c, int ratio, int a);
void inverse_frequencies(const pdproj_config *c, bool compressed, float *out);

} // namespace pd
