// Measures libpdproj on the device it runs on: bench [speed|cost|kv|small|alone|profile|all|soak MINUTES].
// Printed are medians of interleaved runs in one process.
#include "bench.cuh"

#include <dlfcn.h>
#include <string.h>
#include <time.h>

#include <algorithm>

namespace bench {

double now_us() {
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return 1e6 * t.tv_sec + 1e-3 * t.tv_nsec;
}

double median(std::vector<double> v) {
	std::sort(v.begin(), v.end());
	return v[v.size() / 2];
}

static __global__ void fill(uint16_t *x, size_t n, float std, float mean, uint64_t seed) {
	const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	if (i >= n) return;
	unsigned long long u = (i + 1 + (seed << 40)) * 0x9E3779B97F4A7C15ull;
	u = (u ^ (u >> 30)) * 0xBF58476D1CE4E5B9ull;
	u = (u ^ (u >> 27)) * 0x94D049BB133111EBull;
	u ^= u >> 31;
	const int sum = (int)(u & 0xffff) + (int)(u >> 16 & 0xffff) + (int)(u >> 32 & 0xffff) + (int)(u >> 48) - 131070;
	x[i] = (uint16_t)(__float_as_uint(sum * std / 37837.0f + mean) >> 16);
}

uint16_t *random_rows(size_t n, float std, float mean, uint64_t seed) {
	pdproj_error err = {};
	uint16_t *p;
	CHECK(cudaMalloc(&p, 2 * n));
	fill<<<(unsigned)((n + 255) / 256), 256>>>(p, n, std, mean, seed);
	CHECK(cudaDeviceSynchronize());
	return p;
}

Model make_model(const std::vector<int> &ratios, int max_tokens, int max_requests, uint32_t flags) {
	pdproj_error err = {};
	Model m;
	m.ratio = ratios;
	// Weights are uploaded from device memory here: create takes any address.
	uint16_t *matrix = random_rows((size_t)3072 * hidden * 3, 1 / 64.0f, 0, 5), *norm = random_rows(4096, 0.2f, 1, 6);
	std::vector<float> ape(128 * 1024);
	for (size_t i = 0; i < ape.size(); i++) ape[i] = 0.7f * (float)((int)(i * 2654435761u >> 20 & 2047) - 1024) / 1024;
	for (size_t i = 0; i < ratios.size(); i++) {
		pdproj_layer l = {};
		const int r = ratios[i];
		uint16_t *w = matrix + (i * 512 % 6144) * hidden;
		l.ratio = r, l.kv = w, l.kv_norm = norm;
		const int64_t rows = r ? block / r : 0;
		const int64_t size[PDPROJ_ARRAYS] = {2 * 128 * 512, 2 * rows * 512, 8192, 8192, 2 * rows * 128, 2048, 2048, 0};
		int64_t at = 0;
		for (int a = 0; a < PDPROJ_ARRAYS; a++) {
			const bool has = a == 0 || (r && a == 1) || (r == 4 && a < 7);
			l.offset[a] = has ? at : -1;
			if (has) at += size[a];
		}
		if (r) l.comp_kv = w + 512 * hidden, l.comp_gate = w + 1536 * hidden, l.comp_norm = norm, l.comp_ape = ape.data();
		if (r == 4) l.idx_kv = w + 2560 * hidden, l.idx_gate = w + 2816 * hidden, l.idx_norm = norm, l.idx_ape = ape.data();
		m.layer.push_back(l);
		m.span.push_back(at);
	}
	pdproj_config c = {};
	c.size = sizeof c, c.flags = flags, c.layers = (int)ratios.size(), c.layer = m.layer.data();
	c.hidden = hidden, c.head_dim = 512, c.index_dim = 128, c.rope_dim = 64, c.window = 128, c.block_tokens = block;
	c.max_tokens = max_tokens, c.max_requests = max_requests, c.max_positions = 1 << 20;
	c.norm_eps = 1e-6, c.rope_theta = 10000, c.compress_rope_theta = 160000;
	c.yarn_factor = 16, c.yarn_original = 65536, c.yarn_beta_fast = 32, c.yarn_beta_slow = 1;
	const double begin = now_us();
	CHECK(pdproj_create(&c, &m.h, &err));
	pdproj_usage u;
	u.size = sizeof u;
	CHECK(pdproj_used(m.h, &u, &err));
	printf("create: %.0f ms; weights %.1f MB, carries %.1f, workspace %.1f, staging %.1f; %s; cuBLASLt %llu\n%s", (now_us() - begin) / 1e3,
		u.weights / 1e6, u.carries / 1e6, u.workspace / 1e6, u.staging / 1e6, u.direct ? "direct" : "staged", (unsigned long long)u.cublaslt, u.gemm);
	CHECK(cudaFree(matrix));
	CHECK(cudaFree(norm));
	return m;
}

void free_model(Model *m) { pdproj_destroy(m->h); }

Slots make_slots(const Model &m, int blocks) {
	pdproj_error err = {};
	Slots s;
	s.bytes = 0;
	for (int64_t v : m.span) s.bytes += v;
	CHECK(pdproj_alloc(0, s.bytes * blocks, 1, (void **)&s.at, &err));
	int64_t at = 0;
	for (size_t i = 0; i < m.ratio.size(); i++) {
		std::vector<void *> d;
		for (int b = 0; b < blocks; b++) d.push_back(s.at + b * s.bytes + at);
		s.dst.push_back(d);
		at += m.span[i];
	}
	return s;
}

void free_slots(Slots *s) {
	pdproj_error err = {};
	CHECK(pdproj_free(s->at, 1, &err));
}

// The library that libpdproj computes with, so that both are measured on the same.
static void *blas() {
	void *f = dlopen("libcublasLt.so.13", RTLD_NOW);
	if (!f) f = dlopen("libcublasLt.so.12", RTLD_NOW);
	if (!f) {
		printf("%s\n", dlerror());
		exit(1);
	}
	return f;
}

#define LT(name) ((decltype(&name))dlsym(blas(), #name))

Floor::Floor() {
	pdproj_error err = {};
	matmul_ = LT(cublasLtMatmul);
	CHECK(LT(cublasLtCreate)(&lt_));
	CHECK(LT(cublasLtMatmulDescCreate)(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
	const cublasOperation_t t = CUBLAS_OP_T;
	CHECK(LT(cublasLtMatmulDescSetAttribute)(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t));
	CHECK(cudaMalloc(&ws_, 64 << 20));
	x_ = random_rows((size_t)16384 * hidden, 1, 0, 1), w_ = random_rows((size_t)layers * 3072 * hidden, 1 / 64.0f, 0, 2);
	CHECK(cudaMalloc(&y_, 2ull * 16384 * 3072));
}

Floor::Plan &Floor::plan(int cols, int rows, bool pinned) {
	for (Plan &p : plans_) {
		if (p.cols == cols && p.rows == rows && p.pinned == pinned) return p;
	}
	pdproj_error err = {};
	Plan p;
	p.cols = cols, p.rows = rows, p.pinned = pinned;
	CHECK(LT(cublasLtMatrixLayoutCreate)(&p.a, CUDA_R_16BF, hidden, cols, hidden));
	CHECK(LT(cublasLtMatrixLayoutCreate)(&p.b, CUDA_R_16BF, hidden, rows, hidden));
	CHECK(LT(cublasLtMatrixLayoutCreate)(&p.c, CUDA_R_16BF, cols, rows, cols));
	cublasLtMatmulPreference_t pref;
	CHECK(LT(cublasLtMatmulPreferenceCreate)(&pref));
	const size_t ws = 64 << 20;
	CHECK(LT(cublasLtMatmulPreferenceSetAttribute)(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws, sizeof ws));
	cublasLtMatmulHeuristicResult_t r[1];
	int got;
	// Pinned: what the library proposes for 8,192 rows.
	cublasLtMatrixLayout_t b = p.b, c = p.c;
	if (pinned) {
		CHECK(LT(cublasLtMatrixLayoutCreate)(&b, CUDA_R_16BF, hidden, 8192, hidden));
		CHECK(LT(cublasLtMatrixLayoutCreate)(&c, CUDA_R_16BF, cols, 8192, cols));
	}
	CHECK(LT(cublasLtMatmulAlgoGetHeuristic)(lt_, desc_, p.a, b, c, c, pref, 1, r, &got));
	CHECK(LT(cublasLtMatmulPreferenceDestroy)(pref));
	p.algo = r[0].algo;
	plans_.push_back(p);
	return plans_.back();
}

void Floor::one(int cols, int rows, bool pinned, cudaStream_t s) {
	pdproj_error err = {};
	const Plan p = plan(cols, rows, pinned);
	const float one = 1, zero = 0;
	CHECK(matmul_(lt_, desc_, &one, w_, p.a, x_, p.b, &zero, y_, p.c, y_, p.c, &p.algo, ws_, 64 << 20, s));
}

void Floor::run(int rows, bool pinned, cudaStream_t s) {
	pdproj_error err = {};
	const float one = 1, zero = 0;
	for (int i = 0; i < layers; i++) {
		const Plan &p = plan(columns(ratio_of(i)), rows, pinned);
		CHECK(matmul_(lt_, desc_, &one, w_ + (size_t)i * 3072 * hidden, p.a, x_, p.b, &zero, y_, p.c, y_, p.c, &p.algo, ws_, 64 << 20, s));
	}
}

std::vector<int> all_ratios() {
	std::vector<int> v;
	for (int i = 0; i < layers; i++) v.push_back(ratio_of(i));
	return v;
}

namespace {

struct Timer {
	cudaEvent_t a, b;
	Timer() {
		cudaEventCreate(&a);
		cudaEventCreate(&b);
	}
	template <typename F> double ms(cudaStream_t s, F f) {
		cudaEventRecord(a, s);
		f();
		cudaEventRecord(b, s);
		cudaEventSynchronize(b);
		float t = 0;
		cudaEventElapsedTime(&t, a, b);
		return t;
	}
};

// All layers of a chunk; returns the last ticket.
uint64_t project_all(const Model &m, const Slots &slots, pdproj_request *r, const uint16_t *x, int n, int64_t first, cudaStream_t s) {
	pdproj_error err = {};
	uint64_t ticket = 0;
	for (size_t i = 0; i < m.ratio.size(); i++) {
		CHECK(pdproj_project(m.h, r, (int)i, x, n, first, slots.dst[i].data(), (n + block - 1) / block, nullptr, 0, nullptr, &ticket, s, &err));
	}
	return ticket;
}

// Time of the calls, until the results are in the slots, and what a call costs the host.
void chunk_times(const Model &m, Floor *floor, bool prepared, cudaStream_t s) {
	pdproj_error err = {};
	Timer timer;
	uint16_t *x = random_rows((size_t)16384 * hidden, 1, 0, 9);
	printf("\nall 43 layers, ms, median of 25 interleaved runs\n%8s %8s %8s %9s %9s %9s | %7s %7s | %8s %7s %8s\n", "tokens", "project", "landed", "pinned",
		"unpinned", "host/call", "/pinned", "/unpin.", "TFLOP/s", "of peak", "MB moved");
	for (int n : {2048, 4096, 8192, 16384}) {
		Slots slots = make_slots(m, n / block);
		for (int i = 0; i < layers && prepared; i++) CHECK(pdproj_prepare(m.h, i, x, n, 0, &err));
		std::vector<double> ours, landed, pinned, unpinned, host;
		for (int i = 0; i < 30; i++) {
			pdproj_request *r;
			CHECK(pdproj_request_create(m.h, &r, &err));
			uint64_t ticket = 0;
			CHECK(cudaStreamSynchronize(s));
			double enqueued = 0;
			const double begin = now_us();
			const double ms = timer.ms(s, [&] {
				ticket = project_all(m, slots, r, x, n, 0, s);
				enqueued = now_us();
			});
			CHECK(pdproj_wait(m.h, ticket, &err));
			const double end = now_us();
			pdproj_request_free(m.h, r);
			const double p = timer.ms(s, [&] { floor->run(n, true, s); }), u = timer.ms(s, [&] { floor->run(n, false, s); });
			if (i < 5) continue;
			ours.push_back(ms), landed.push_back((end - begin) / 1e3), pinned.push_back(p), unpinned.push_back(u);
			host.push_back((enqueued - begin) / layers);
		}
		const double t = median(ours), flop = 788.5e6 * n, kept = 619.4e6 * n;
		printf("%8d %8.3f %8.3f %9.3f %9.3f %7.2fus | %7.3f %7.3f | %8.0f %6.1f%% %8.1f\n", n, t, median(landed), median(pinned), median(unpinned), median(host),
			t / median(pinned), t / median(unpinned), flop / t / 1e9, 100 * kept / t / 1e9 / 989, slots.bytes * (n / block) / 1e6);
		free_slots(&slots);
	}
	printf("TFLOP/s counts all columns of all rows, as the floor computes them; share of peak counts what is computed, against 989 TFLOP/s\n");
	CHECK(cudaFree(x));
}

// One layer of each kind, beside its products alone.
void layer_times(const Model &m, Floor *floor, cudaStream_t s) {
	pdproj_error err = {};
	Timer timer;
	const int n = 8192;
	Slots slots = make_slots(m, n / block);
	uint16_t *x = random_rows((size_t)n * hidden, 1, 0, 9);
	printf("\none layer, 8,192 tokens, us (20 calls in a row)\n");
	for (int layer : {0, 2, 3}) {
		std::vector<double> ours, bare;
		for (int i = 0; i < 25; i++) {
			pdproj_request *r[20];
			for (auto &q : r) CHECK(pdproj_request_create(m.h, &q, &err));
			ours.push_back(timer.ms(s, [&] {
				for (auto q : r) CHECK(pdproj_project(m.h, q, layer, x, n, 0, slots.dst[layer].data(), n / block, nullptr, 0, nullptr, nullptr, s, &err));
			}) * 50);
			for (auto q : r) pdproj_request_free(m.h, q);
			bare.push_back(timer.ms(s, [&] {
				for (int j = 0; j < 20; j++) floor->one(columns(m.ratio[layer]), n, true, s);
			}) * 50);
		}
		printf("ratio %3d: %7.1f, bare product of all columns %7.1f, %.3f\n", m.ratio[layer], median(ours), median(bare), median(ours) / median(bare));
	}
	CHECK(cudaFree(x));
	free_slots(&slots);
}

// When the pieces of each layer are in host memory, against when layers are done.
void trace(const Model &m, cudaStream_t s) {
	pdproj_error err = {};
	const int n = 8192, first = 6;
	Slots slots = make_slots(m, n / block);
	uint16_t *x = random_rows((size_t)n * hidden, 1, 0, 9);
	cudaEvent_t begin[first], end[first];
	for (int i = 0; i < first; i++) {
		CHECK(cudaEventCreateWithFlags(begin + i, cudaEventDefault));
		CHECK(cudaEventCreateWithFlags(end + i, cudaEventDefault));
	}
	for (int round = 0; round < 3; round++) {
		pdproj_request *r;
		CHECK(pdproj_request_create(m.h, &r, &err));
		pdproj_piece pieces[64];
		int32_t count[first];
		uint64_t ticket[first];
		double seen[first] = {}, finished[first] = {};
		CHECK(cudaStreamSynchronize(s));
		memset(slots.at, 0xee, slots.bytes);
		const double t0 = now_us();
		for (int i = 0; i < first; i++) {
			CHECK(pdproj_project(m.h, r, i, x, n, 0, slots.dst[i].data(), n / block, pieces, 64, count + i, ticket + i, s, &err));
			CHECK(cudaEventRecord(end[i], s));
		}
		for (int left = 2 * first; left > 0;) {
			for (int i = 0; i < first; i++) {
				if (!seen[i] && pdproj_done(m.h, ticket[i], &err) == 1) seen[i] = now_us() - t0, left--;
				if (!finished[i] && cudaEventQuery(end[i]) == cudaSuccess) finished[i] = now_us() - t0, left--;
			}
		}
		cudaGetLastError();
		pdproj_request_free(m.h, r);
		if (round < 2) continue;
		printf("\npieces leave early: 8,192 tokens, us since the first call\n");
		for (int i = 0; i < first; i++) {
			printf("layer %d, ratio %3d: projected %7.0f, its %d pieces in host memory %7.0f\n", i, m.ratio[i], finished[i], count[i], seen[i]);
		}
		printf("first piece of layer 0 in host memory before layer 2 is projected: %s\n", seen[0] < finished[2] ? "yes" : "NO");
	}
	CHECK(cudaFree(x));
	free_slots(&slots);
}

void speed() {
	pdproj_error err = {};
	cudaStream_t s;
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	Floor floor;
	const char *const how[] = {"products prepared, window rows beside the pool's", "window rows beside the pool's product", "window rows in the caller's stream"};
	for (int i = 0; i < 3; i++) {
		printf("\n%s\n", how[i]);
		Model m = make_model(all_ratios(), 16384, 24, i == 2 ? PDPROJ_SERIAL : 0);
		chunk_times(m, &floor, i == 0, s);
		layer_times(m, &floor, s);
		trace(m, s);
		free_model(&m);
	}
	CHECK(cudaStreamDestroy(s));
}

} // namespace

} // namespace bench

int main(int argc, char **argv) {
	setvbuf(stdout, nullptr, _IOLBF, 0);
	const char *what = argc > 1 ? argv[1] : "all";
	const bool all = !strcmp(what, "all");
	pdproj_error err = {};
	pdproj_facts f;
	f.size = sizeof f;
	CHECK(pdproj_query(0, &f, &err));
	printf("%s, %d multiprocessors, driver %d, runtime %d\n", f.name, f.processors, f.driver, f.runtime);
	if (all || !strcmp(what, "speed")) bench::speed();
	if (all || !strcmp(what, "cost")) bench::host_cost();
	if (all || !strcmp(what, "kv")) bench::measure_kv();
	if (all || !strcmp(what, "small")) bench::small_cases();
	if (all || !strcmp(what, "alone")) bench::kernels_alone();
	if (!strcmp(what, "profile")) bench::profiled();
	if (!strcmp(what, "soak")) bench::soak(argc > 2 ? atof(argv[2]) : 6);
	return 0;
}
