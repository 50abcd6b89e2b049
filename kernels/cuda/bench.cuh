// What the parts of the bench program share.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <utility>
#include <vector>

#include "pdproj.h"

namespace bench {

constexpr int hidden = 4096, layers = 43, block = 2048;

// Any failure ends the program: a bench that goes on measures something else.
#define CHECK(call)                                                                  \
	do {                                                                             \
		const int code_ = (int)(call);                                               \
		if (code_) {                                                                 \
			printf("%s:%d: %s: %d %s\n", __FILE__, __LINE__, #call, code_, err.text); \
			exit(1);                                                                 \
		}                                                                            \
	} while (0)

// DeepSeek-V4-Flash: two layers without a pool, then 4 and 128 in turn.
inline int ratio_of(int layer) { return layer < 2 ? 0 : layer % 2 ? 128 : 4; }
inline int columns(int ratio) { return ratio == 4 ? 3072 : ratio == 128 ? 1536 : 512; }

double now_us();
double median(std::vector<double> v);

// Random bf16 of about normal distribution on the device.
uint16_t *random_rows(size_t n, float std, float mean, uint64_t seed);

// A handle with random weights for all layers of the model or a choice of them.
struct Model {
	pdproj *h;
	std::vector<int> ratio;
	std::vector<pdproj_layer> layer;
	std::vector<int64_t> span;
};

Model make_model(const std::vector<int> &ratios, int max_tokens, int max_requests, uint32_t flags);
void free_model(Model *m);

// Pinned memory that the results of one chunk land in: block by block, layer by layer.
struct Slots {
	uint8_t *at;
	std::vector<std::vector<void *>> dst; // [layer][block of the chunk]
	int64_t bytes;
};

Slots make_slots(const Model &m, int blocks);
void free_slots(Slots *s);

// The bare products of all layers on the same weights' shapes, by cuBLASLt with one
// algorithm for each width (pinned) or the library's choice for each size.
class Floor {
public:
	Floor();
	void run(int rows, bool pinned, cudaStream_t s);
	void one(int cols, int rows, bool pinned, cudaStream_t s);

private:
	struct Plan {
		int cols, rows;
		bool pinned;
		cublasLtMatrixLayout_t a, b, c;
		cublasLtMatmulAlgo_t algo;
	};
	Plan &plan(int cols, int rows, bool pinned);
	decltype(&cublasLtMatmul) matmul_;
	cublasLtHandle_t lt_;
	cublasLtMatmulDesc_t desc_;
	void *ws_;
	uint16_t *x_, *w_, *y_;
	std::vector<Plan> plans_;
};

std::vector<int> all_ratios();

void host_cost();
void measure_kv();
void soak(double minutes);
void small_cases();
void kernels_alone();
void profiled();

} // namespace bench
