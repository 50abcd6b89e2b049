#include "epilogue.cuh"

#include <cuda_bf16.h>

namespace pd {

namespace {

constexpr int threads = 256;
constexpr int warps = threads / 32;

__device__ __forceinline__ float low(uint32_t pair) { return value(pair << 16); }
__device__ __forceinline__ float high(uint32_t pair) { return value(pair & 0xffff0000u); }

// Pairs of bf16 in one register; each operation rounds once, which for bf16 is the
// same as rounding to float32 first.
__device__ __forceinline__ uint32_t pack(float a, float b) {
	uint32_t r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
	return r;
}

__device__ __forceinline__ __nv_bfloat162 pair_of(uint32_t v) { return *(__nv_bfloat162 *)&v; }
__device__ __forceinline__ uint32_t word_of(__nv_bfloat162 v) { return *(uint32_t *)&v; }
__device__ __forceinline__ uint32_t add2(uint32_t a, uint32_t b) { return word_of(__hadd2_rn(pair_of(a), pair_of(b))); }
__device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b) { return word_of(__hmul2_rn(pair_of(a), pair_of(b))); }
__device__ __forceinline__ uint32_t max2(uint32_t a, uint32_t b) { return word_of(__hmax2(pair_of(a), pair_of(b))); }

__device__ __forceinline__ double warp_sum(double v) {
#pragma unroll
	for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
	return v;
}

// The row that lies `at` rows from this call's first: this call's or, before it,
// the carry's.
__device__ __forceinline__ const uint16_t *row_of(const Epilogue &e, int at, int slots) {
	return at >= 0 ? e.y + (int64_t)at * e.width : e.carry + (((int)e.first + at) & (slots - 1)) * e.width;
}

__device__ __forceinline__ uint8_t *place(const Epilogue &e, int block, int array) {
	uint8_t *p = e.dst[block];
	return p && e.offset[array] >= 0 ? p + e.offset[array] : nullptr;
}

// Every block keeps the exponential's table at hand: lanes want different entries.
// A barrier must follow.
__device__ __forceinline__ void fill_powers(const Epilogue &e, Power *table) {
	if (threadIdx.x < powers) table[threadIdx.x] = e.powers[threadIdx.x];
}

// Where a pooled row goes.
struct Spot {
	int block, row;
	bool last; // of its block
};

__device__ __forceinline__ Spot spot_of(const Epilogue &e, int w) {
	const int q = e.windows_row + w, b = q / e.windows_each, row = q - b * e.windows_each;
	return {b, row, row == e.windows_each - 1};
}

// Eight candidates of two features: softmax, weights rounded, serial bf16 sum.
__device__ __forceinline__ uint32_t pooled8(const uint32_t (&kv)[8], const uint32_t (&g)[8], const Power *table) {
	uint32_t top = g[0];
#pragma unroll
	for (int j = 1; j < 8; j++) top = max2(top, g[j]);
	const float ta = low(top), tb = high(top);
	float a[8], b[8], sa = 0.0f, sb = 0.0f;
#pragma unroll
	for (int j = 0; j < 8; j++) {
		a[j] = exp0(low(g[j]) - ta, table);
		b[j] = exp0(high(g[j]) - tb, table);
		sa += a[j], sb += b[j];
	}
	const float ra = inverse(sa), rb = inverse(sb);
	uint32_t acc = 0;
#pragma unroll
	for (int j = 0; j < 8; j++) acc = add2(acc, mul2(kv[j], pack(quotient(a[j], sa, ra), quotient(b[j], sb, rb))));
	return acc;
}

// Copies the raw rows of a window that ends a block, four columns of each lane.
__device__ __noinline__ void copy_previous(const Epilogue &e, const Pool &p, int block, int at, int f) {
	uint8_t *kv = place(e, block, p.previous_kv), *gate = place(e, block, p.previous_gate);
	for (int j = 0; j < 8; j++) {
		const uint16_t *r = row_of(e, at + j / 2, 8);
		const int c = (j & 1) * p.dim + f, to = 2 * (j / 2 * 2 * p.dim + c);
		if (kv) *(uint2 *)(kv + to) = *(const uint2 *)(r + p.kv + c);
		if (gate) *(uint2 *)(gate + to) = *(const uint2 *)(r + p.gate + c);
	}
}

// Keeps the rows that the next call needs, the last complete window and what
// follows it, in the other of two carries: two windows read the one at hand.
__device__ __noinline__ void keep4(const Epilogue &e, const Pool &p, int f) {
	const int64_t end = e.first + e.n, begin = end / 4 * 4 - 4;
	for (int64_t t = begin > 0 ? begin : 0; t < end; t++) {
		const uint16_t *from = row_of(e, (int)(t - e.first), 8);
		uint16_t *to = e.next + (t & 7) * e.width;
		for (int c = f; c < 2 * p.dim; c += p.dim) {
			*(uint2 *)(to + p.kv + c) = *(const uint2 *)(from + p.kv + c);
			*(uint2 *)(to + p.gate + c) = *(const uint2 *)(from + p.gate + c);
		}
	}
}

// The candidates of one window of ratio 4 in four columns: keys and gates, with
// the bias.
struct Candidates {
	uint2 kv[8], gate[8];
};

// Where they may lie in the carry. Rare, so it must not cost the usual path.
__device__ __noinline__ void fetch_carried(const Epilogue &e, const Pool &p, int at, bool alone, int f, Candidates &v) {
	for (int j = 0; j < 8; j++) {
		const uint16_t *r = row_of(e, at + j, 8) + (j >> 2) * p.dim + f;
		v.kv[j] = j < 4 && alone ? make_uint2(0, 0) : *(const uint2 *)(r + p.kv);
		v.gate[j] = j < 4 && alone ? make_uint2(0xff80ff80u, 0xff80ff80u) : *(const uint2 *)(r + p.gate); // minus infinity: weight zero
	}
}

// Lane A of the window before, lane B of the window whose tokens begin at row at+4.
__device__ __forceinline__ void fetch4(const Epilogue &e, const Pool &p, int at, bool alone, int f, Candidates &v) {
	if (at < 0 || alone) {
		Candidates slow;
		fetch_carried(e, p, at, alone, f, slow);
		v = slow;
		return;
	}
	const uint16_t *kv = e.y + (int64_t)at * e.width + p.kv + f, *gate = kv + (p.gate - p.kv);
#pragma unroll
	for (int j = 0; j < 8; j++) {
		const int c = j * e.width + (j >> 2) * p.dim;
		v.kv[j] = __ldcs((const uint2 *)(kv + c));
		v.gate[j] = __ldcs((const uint2 *)(gate + c));
	}
}

__device__ __forceinline__ uint2 pool4(const Pool &p, int f, Candidates &v, const Power *table) {
	const uint16_t *bias = p.bias + f;
#pragma unroll
	for (int j = 0; j < 8; j++) {
		const uint2 b = __ldg((const uint2 *)(bias + (2 * (j & 3) + (j >> 2)) * p.dim));
		v.gate[j] = make_uint2(add2(v.gate[j].x, b.x), add2(v.gate[j].y, b.y));
	}
	uint2 out;
	uint32_t kv[8], g[8];
#pragma unroll
	for (int j = 0; j < 8; j++) kv[j] = v.kv[j].x, g[j] = v.gate[j].x;
	out.x = pooled8(kv, g, table);
#pragma unroll
	for (int j = 0; j < 8; j++) kv[j] = v.kv[j].y, g[j] = v.gate[j].y;
	out.y = pooled8(kv, g, table);
	return out;
}

__device__ __forceinline__ double squares(uint2 v) {
	const float a = low(v.x), b = high(v.x), c = low(v.y), d = high(v.y);
	return ((double)(a * a) + (double)(b * b)) + ((double)(c * c) + (double)(d * d));
}

// Norm, rotation and store of the columns f … f+3 of a row; pre, if not null, gets
// them before rotation.
__device__ __forceinline__ void finish4(const Epilogue &e, const uint16_t *norm, int dim, float scale, float position, int f, uint2 u,
	uint8_t *to, uint8_t *pre) {
	const uint2 w = __ldg((const uint2 *)(norm + f));
	u.x = mul2(pack(low(u.x) * scale, high(u.x) * scale), w.x);
	u.y = mul2(pack(low(u.y) * scale, high(u.y) * scale), w.y);
	if (pre) *(uint2 *)pre = u;
	const int pair = (f - (dim - e.rope)) >> 1;
	if (pair >= -1) {
#pragma unroll 1
		for (int q = 0; q < 2; q++) {
			uint32_t v = u.x;
			if (pair + q >= 0) {
				float a = low(v), b = high(v);
				rotated(&a, &b, position, __ldg(e.inv + pair + q));
				v = pack(a, b);
			}
			u = make_uint2(u.y, v); // twice: both pairs in their places again
		}
	}
	if (to) *(uint2 *)to = u;
}

// Shared memory of the ratio 4 pool.
struct Shared4 {
	double sums[warps];
	Power table[powers];
};

// A group of `per` threads computes one pooled row of ratio 4, four columns a
// thread. Groups share the thread block; all its threads come here together.
__device__ __forceinline__ void row4(const Epilogue &e, const Pool &p, int w, int per, Shared4 &sh) {
	const int f = 4 * (threadIdx.x % per), at = e.windows_at + 4 * w;
	const bool active = f < p.dim && w < e.windows;
	Candidates v;
	if (active) fetch4(e, p, at - 4, w == 0 && e.without_previous, f, v);
	fill_powers(e, sh.table);
	__syncthreads();
	const Spot spot = spot_of(e, w);
	uint2 u = make_uint2(0, 0);
	if (active) {
		u = pool4(p, f, v, sh.table);
		if (spot.last) copy_previous(e, p, spot.block, at, f);
	}
	if (w == 0 && f < p.dim) keep4(e, p, f);
	const double s = warp_sum(squares(u));
	if (threadIdx.x % 32 == 0) sh.sums[threadIdx.x / 32] = s;
	__syncthreads();
	if (!active) return;
	uint8_t *to = place(e, spot.block, p.rows);
	if (!to) return;
	const int warp0 = threadIdx.x / per * (per / 32);
	double sum = 0;
	for (int j = 0; j < per / 32; j++) sum += sh.sums[warp0 + j];
	finish4(e, p.norm, p.dim, scale_of(sum, p.part, e.eps), (float)(e.first + at), f, u, to + 2 * ((int64_t)spot.row * p.dim + f), nullptr);
}

// One warp finishes one kept row of the window.
__device__ __noinline__ void window_row(const Epilogue &e, int k) {
	if (k >= e.kept) return;
	int block = e.kept_block, r = k + e.kept_skipped;
	if (k >= e.kept_before) {
		block += 1 + (k - e.kept_before) / e.window;
		r = (k - e.kept_before) % e.window;
	}
	uint8_t *to = place(e, block, window_rows), *pre = place(e, block, window_pre);
	if (!to && !pre) return;
	const int64_t position = (e.first / e.block_tokens + block + 1) * e.block_tokens - e.window + r;
	const uint16_t *from = e.yw + (int64_t)k * e.dim;
	double sum = 0;
	for (int f = 4 * (threadIdx.x % 32); f < e.dim; f += 128) sum += squares(*(const uint2 *)(from + f));
	const float scale = scale_of(warp_sum(sum), e.window_part, e.eps);
#pragma unroll 1
	for (int f = 4 * (threadIdx.x % 32); f < e.dim; f += 128) {
		const int64_t at = 2 * ((int64_t)r * e.dim + f);
		finish4(e, e.window_norm, e.dim, scale, (float)position, f, *(const uint2 *)(from + f), to ? to + at : nullptr, pre ? pre + at : nullptr);
	}
}

// Shared memory of the ratio 128 pool: what each of 32 row groups has of 64 columns,
// the same of four groups of them, and the results.
struct Shared128 {
	float part[32][slice];
	double quarter[4][slice];
	float total[slice];
	double sums[warps];
	Power table[powers];
	bool last;
};

// Combines a value of each row group into one for each column, as a maximum or as a
// sum that is exact to double. All threads come here together; the result of column
// c is in sh.total[c] for all of them.
template <bool sum> __device__ __forceinline__ void combine(Shared128 &sh, const float (&v)[8], int row, int local) {
	*(float4 *)&sh.part[row][local] = make_float4(v[0], v[1], v[2], v[3]);
	*(float4 *)&sh.part[row][local + 4] = make_float4(v[4], v[5], v[6], v[7]);
	__syncthreads();
	const int column = threadIdx.x % slice, group = threadIdx.x / slice;
	if (sum) {
		double d = 0;
#pragma unroll
		for (int i = 0; i < 8; i++) d += (double)sh.part[8 * group + i][column];
		sh.quarter[group][column] = d;
	} else {
		float m = sh.part[8 * group][column];
#pragma unroll
		for (int i = 1; i < 8; i++) m = fmaxf(m, sh.part[8 * group + i][column]);
		sh.quarter[group][column] = (double)m;
	}
	__syncthreads();
	if (group == 0) {
		const double a = sh.quarter[0][column], b = sh.quarter[1][column], c = sh.quarter[2][column], d = sh.quarter[3][column];
		sh.total[column] = sum ? (float)((a + b) + (c + d)) : (float)fmax(fmax(a, b), fmax(c, d));
	}
	__syncthreads();
}

__device__ __noinline__ void keep128(const Epilogue &e, int f, int row) {
	const int64_t end = e.first + e.n;
	int64_t t = end / 128 * 128;
	if (t < e.first) t = e.first;
	// Each thread moves the slots that it alone has read.
	for (t += (row - t) & 31; t < end; t += 32) {
		const uint16_t *from = e.y + (t - e.first) * e.width;
		uint16_t *to = e.carry + (t & 127) * e.width;
		*(uint4 *)(to + e.comp.kv + f) = *(const uint4 *)(from + e.comp.kv + f);
		*(uint4 *)(to + e.comp.gate + f) = *(const uint4 *)(from + e.comp.gate + f);
	}
}

// Finishes a pooled row of ratio 128 whose columns are all there.
__device__ __forceinline__ void finish128(const Epilogue &e, int w, Shared128 &sh) {
	const Pool &p = e.comp;
	const int f = 4 * threadIdx.x;
	const bool active = f < p.dim;
	const uint2 u = active ? __ldcg((const uint2 *)(e.raw + (int64_t)w * p.dim + f)) : make_uint2(0, 0);
	double sum = warp_sum(squares(u));
	if (threadIdx.x % 32 == 0) sh.sums[threadIdx.x / 32] = sum;
	__syncthreads();
	const Spot spot = spot_of(e, w);
	uint8_t *to = place(e, spot.block, p.rows);
	if (!active || !to) return;
	sum = 0;
	for (int j = 0; j < warps; j++) sum += sh.sums[j];
	const float position = (float)(e.first + e.windows_at + 128 * w);
	finish4(e, p.norm, p.dim, scale_of(sum, p.part, e.eps), position, f, u, to + 2 * ((int64_t)spot.row * p.dim + f), nullptr);
}

// Pools 64 columns of one window of 128 rows. A thread holds 8 columns of the rows
// j, j+32, j+64, j+96: one of the 32 partial sums of the decoder's order.
__device__ __forceinline__ void pool128(const Epilogue &e, int w, int f, int row, int local, Shared128 &sh) {
	const Pool &p = e.comp;
	const bool active = f < p.dim;
	const int at = e.windows_at + 128 * w + row;
	uint4 kv[4];
	float g[4][8];
#pragma unroll
	for (int i = 0; i < 4; i++) {
		uint4 u = make_uint4(0, 0, 0, 0);
		float4 a = make_float4(0, 0, 0, 0), b = a;
		kv[i] = u;
		if (active) {
			const uint16_t *r = row_of(e, at + 32 * i, 128);
			kv[i] = __ldcs((const uint4 *)(r + p.kv + f));
			u = __ldcs((const uint4 *)(r + p.gate + f));
			const float4 *bias = (const float4 *)(p.ape + (row + 32 * i) * p.dim + f);
			a = __ldg(bias), b = __ldg(bias + 1);
		}
		g[i][0] = low(u.x) + a.x, g[i][1] = high(u.x) + a.y, g[i][2] = low(u.y) + a.z, g[i][3] = high(u.y) + a.w;
		g[i][4] = low(u.z) + b.x, g[i][5] = high(u.z) + b.y, g[i][6] = low(u.w) + b.z, g[i][7] = high(u.w) + b.w;
	}
	fill_powers(e, sh.table); // combine has the barrier
	float v[8], t[8];
#pragma unroll
	for (int k = 0; k < 8; k++) v[k] = fmaxf(fmaxf(g[0][k], g[1][k]), fmaxf(g[2][k], g[3][k]));
	combine<false>(sh, v, row, local);
	*(float4 *)t = *(const float4 *)&sh.total[local], *(float4 *)(t + 4) = *(const float4 *)&sh.total[local + 4];
#pragma unroll
	for (int k = 0; k < 8; k++) {
		v[k] = 0.0f;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			g[i][k] = exp0(g[i][k] - t[k], sh.table);
			v[k] += g[i][k];
		}
	}
	combine<true>(sh, v, row, local);
	*(float4 *)t = *(const float4 *)&sh.total[local], *(float4 *)(t + 4) = *(const float4 *)&sh.total[local + 4];
#pragma unroll
	for (int k = 0; k < 8; k += 2) {
		const float ra = inverse(t[k]), rb = inverse(t[k + 1]);
		uint32_t acc = 0;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint32_t q = k == 0 ? kv[i].x : k == 2 ? kv[i].y : k == 4 ? kv[i].z : kv[i].w;
			acc = add2(acc, mul2(q, pack(quotient(g[i][k], t[k], ra), quotient(g[i][k + 1], t[k + 1], rb))));
		}
		v[k] = low(acc), v[k + 1] = high(acc);
	}
	combine<true>(sh, v, row, local);
}

// One thread block's part of ratio 128: 64 columns of a window, the carry, and the
// row's end if it is the last to come.
__device__ __forceinline__ void columns128(const Epilogue &e, int w, int part, Shared128 &sh) {
	const Pool &p = e.comp;
	const int row = threadIdx.x >> 3, local = 8 * (threadIdx.x & 7), f = part * slice + local;
	if (w < e.windows) {
		pool128(e, w, f, row, local, sh);
		const int column = part * slice + threadIdx.x;
		if (threadIdx.x < slice && column < p.dim) e.raw[(int64_t)w * p.dim + column] = (uint16_t)(pack(sh.total[threadIdx.x], 0) & 0xffffu);
	}
	if (w == 0 && f < p.dim) keep128(e, f, row);
	if (w >= e.windows) return;
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0) {
		const unsigned parts = (p.dim + slice - 1) / slice;
		sh.last = atomicAdd(e.tickets + w, 1u) == parts - 1;
		if (sh.last) e.tickets[w] = 0;
	}
	__syncthreads();
	if (!sh.last) return;
	__threadfence();
	finish128(e, w, sh);
}

__host__ __device__ __forceinline__ int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Threads of a group that covers a row four columns a thread: whole warps, and a
// divisor of the thread block.
__host__ __device__ __forceinline__ int group_threads(int dim) {
	int per = 32;
	while (4 * per < dim) per *= 2;
	return per;
}

// Thread blocks that ratio 4 rows of that width take; one at least, for the carry.
__host__ __device__ __forceinline__ int blocks4(const Epilogue &e, int dim) {
	return ceil_div(e.windows > 0 ? e.windows : 1, threads / group_threads(dim));
}

__host__ __device__ __forceinline__ int blocks_window(const Epilogue &e) { return ceil_div(e.kept, warps); }

} // namespace

extern "C" __global__ void __launch_bounds__(threads) pdproj_window(const __grid_constant__ Epilogue e) {
	window_row(e, blockIdx.x * warps + threadIdx.x / 32);
}

extern "C" __global__ void __launch_bounds__(threads, 3) pdproj_ratio4(const __grid_constant__ Epilogue e) {
	__shared__ Shared4 sh;
	const int comp = blocks4(e, e.comp.dim), index = blocks4(e, e.index.dim), b = blockIdx.x;
	if (b >= comp + index) {
		window_row(e, (b - comp - index) * warps + threadIdx.x / 32);
		return;
	}
	const Pool &p = b < comp ? e.comp : e.index;
	const int per = group_threads(p.dim);
	row4(e, p, (b < comp ? b : b - comp) * (threads / per) + threadIdx.x / per, per, sh);
}

extern "C" __global__ void __launch_bounds__(threads, 3) pdproj_ratio128(const __grid_constant__ Epilogue e) {
	__shared__ Shared128 sh;
	const int parts = ceil_div(e.comp.dim, slice), pool = (e.windows > 0 ? e.windows : 1) * parts;
	const int b = blockIdx.x;
	if (b < pool) {
		columns128(e, b / parts, b % parts, sh);
		return;
	}
	window_row(e, (b - pool) * warps + threadIdx.x / 32);
}

Launch launch_of(const Epilogue &e, int ratio) {
	if (ratio == 0) return {(const void *)pdproj_window, blocks_window(e), threads};
	if (ratio == 4) return {(const void *)pdproj_ratio4, blocks4(e, e.comp.dim) + blocks4(e, e.index.dim) + blocks_window(e), threads};
	const int pool = (e.windows > 0 ? e.windows : 1) * ceil_div(e.comp.dim, slice);
	return {(const void *)pdproj_ratio128, pool + blocks_window(e), threads};
}

cudaError_t launch(const Epilogue &e, int ratio, cudaStream_t stream) {
	const Launch l = launch_of(e, ratio);
	void *args[] = {(void *)&e};
	return l.blocks > 0 ? cudaLaunchKernel(l.kernel, dim3(l.blocks), dim3(l.threads), args, 0, stream) : cudaSuccess;
}

} // namespace pd
