// What follows a layer's GEMMs: pooling, norm, rotation, the carry, and the
// arrays at their places in the blocks. One launch a call.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "numerics.cuh"

namespace pd {

// Most blocks that one call may touch. The destinations travel as a kernel
// parameter, which may have 4 KB.
constexpr int max_blocks = 96;
// Widest row that the kernels have registers for.
constexpr int max_dim = 1024;

// Arrays of a block, as in pdproj.h.
enum Array { window_rows, pooled, prev_kv, prev_gate, idx_pooled, idx_prev_kv, idx_prev_gate, window_pre, arrays };

struct Pool {
	const float *ape;     // ratio 128: [128, dim]
	const uint16_t *bias; // ratio 4: the same as bf16, [4, 2*dim]
	const uint16_t *norm; // [dim]
	int32_t dim;
	int32_t kv, gate; // first columns in a row of the GEMM's result
	int32_t rows, previous_kv, previous_gate; // Array
	double part; // 1/dim
};

struct Epilogue {
	const uint16_t *y;  // [n, width], the pools' projections of this call's rows
	const uint16_t *yw; // [kept, dim], the window's of the kept rows
	uint16_t *carry;    // [slots, width], row of token t at t mod slots
	uint16_t *next;     // ratio 4: the carry that the call leaves; ratio 128: carry
	uint16_t *raw;      // ratio 128: [windows, dim], pooled before the norm
	unsigned *tickets;  // ratio 128: [windows], zero between calls
	const uint16_t *window_norm;
	const float *inv; // [rope/2]
	Pool comp, index;
	int64_t first;       // token position of row 0
	double window_part;  // 1/dim
	int64_t offset[arrays];                // relative to dst; negative: not wanted
	int32_t n, width, dim, window, block_tokens, rope;
	// Pooled rows that the call completes; where the first one's tokens begin, in rows from
	// row 0; its row in its block, which is row 0's; and how many a block has.
	int32_t windows, windows_at, windows_row, windows_each;
	// Rows that belong to windows; how many of them to the first one; that one's block,
	// counted as dst is; and how many rows of it came earlier.
	int32_t kept, kept_before, kept_block, kept_skipped;
	int32_t without_previous;  // the first pooled row has no window before it
	float eps;
	Power powers[8];          // the exponential's table
	uint8_t *dst[max_blocks]; // by block, from the one of row 0 on; NULL: dropped
};

// The kernel for a layer of that ratio and its size; no blocks: nothing to do.
struct Launch {
	const void *kernel;
	int blocks, threads;
};

Launch launch_of(const Epilogue &e, int ratio);

// Starts the kernel for a layer of that ratio. Returns the launch's error.
cudaError_t launch(const Epilogue &e, int ratio, cudaStream_t stream);

// Columns that one thread block pools for ratio 128, whose blocks of a window count
// themselves with a ticket each.
constexpr int slice = 64;

} // namespace pd
