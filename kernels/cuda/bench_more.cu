#include "bench.cuh"
#include "epilogue.cuh"

#include <string.h>

#include <algorithm>

// Of the CUDA runtime; the header that declares them is a package of its own.
extern "C" {
cudaError_t CUDARTAPI cudaProfilerStart(void);
cudaError_t CUDARTAPI cudaProfilerStop(void);
}

namespace bench {

// What a layer's call costs the host, with results to each block's own place or packed
// into slots as the engine's connector does, prepared or not; and until all has landed.
void host_cost() {
	pdproj_error err = {};
	const int most = 8192;
	cudaStream_t s;
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	uint16_t *x = random_rows((size_t)most * hidden, 1, 0, 9);
	for (unsigned flags : {0u, (unsigned)PDPROJ_PACKED}) {
		Model m = make_model(all_ratios(), most, 4, flags);
		for (int n : {2048, most}) {
			const int blocks = n / block;
			Slots slots = make_slots(m, blocks);
			int64_t at = 0;
			for (int i = 0; i < layers && flags; at += m.span[i++] * blocks) {
				for (int b = 0; b < blocks; b++) slots.dst[i][b] = slots.at + at + b * m.span[i];
			}
			for (bool prepared : {false, true}) {
				for (int i = 0; i < layers && prepared; i++) CHECK(pdproj_prepare(m.h, i, x, n, 0, &err));
				std::vector<double> host, landed;
				for (int round = 0; round < 35; round++) {
					pdproj_request *r;
					CHECK(pdproj_request_create(m.h, &r, &err));
					uint64_t ticket = 0;
					CHECK(cudaStreamSynchronize(s));
					const double begin = now_us();
					for (int i = 0; i < layers; i++) {
						CHECK(pdproj_project(m.h, r, i, x, n, 0, slots.dst[i].data(), blocks, nullptr, 0, nullptr, &ticket, s, &err));
					}
					const double enqueued = now_us();
					CHECK(pdproj_wait(m.h, ticket, &err));
					if (round >= 5) host.push_back((enqueued - begin) / layers), landed.push_back((now_us() - begin) / 1e3);
					pdproj_request_free(m.h, r);
				}
				std::sort(host.begin(), host.end());
				printf("cost, %s, %d tokens, %s: %.2f us a call (quartiles %.2f to %.2f, best %.2f), landed %.3f ms\n", flags ? "packed" : "placed", n,
					prepared ? "prepared" : "one by one", median(host), host[host.size() / 4], host[host.size() * 3 / 4], host[0], median(landed));
			}
			free_slots(&slots);
		}
		free_model(&m);
	}
	CHECK(cudaFree(x));
	CHECK(cudaStreamDestroy(s));
}

// Keys and values of a usual model: 8 heads of 128, pages of 16 tokens, against the
// plain copy of as many bytes to pinned memory.
void measure_kv() {
	pdproj_error err = {};
	const int heads = 8, dim = 128, page = 16, kv_block = 256, tokens = 8192, blocks = 8, kv_layers = 16;
	const int64_t pages = tokens / page, run = 2 * dim, each = (int64_t)heads * kv_block * run;
	const int64_t layer_bytes = 2ll * tokens * heads * run;
	uint8_t *cache, *host;
	CHECK(cudaMalloc(&cache, layer_bytes * kv_layers));
	CHECK(cudaMemset(cache, 7, layer_bytes * kv_layers));
	CHECK(pdproj_alloc(0, layer_bytes * kv_layers, 1, (void **)&host, &err));
	std::vector<int32_t> order(pages);
	for (int64_t i = 0; i < pages; i++) order[i] = (int32_t)(i * 181 % pages);
	int32_t *table;
	CHECK(cudaMalloc(&table, 4 * pages));
	CHECK(cudaMemcpy(table, order.data(), 4 * pages, cudaMemcpyHostToDevice));
	cudaStream_t s;
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	pdproj_kv *h;
	CHECK(pdproj_kv_create(0, 256 << 20, 0, &h, &err));
	std::vector<double> plain, gathered;
	for (int round = 0; round < 25; round++) {
		CHECK(cudaStreamSynchronize(s));
		double begin = now_us();
		for (int i = 0; i < kv_layers; i++) CHECK(cudaMemcpyAsync(host + i * layer_bytes, cache + i * layer_bytes, layer_bytes, cudaMemcpyDeviceToHost, s));
		CHECK(cudaStreamSynchronize(s));
		const double copy = now_us() - begin;
		begin = now_us();
		uint64_t ticket = 0;
		for (int i = 0; i < kv_layers; i++) {
			pdproj_paged src[2];
			for (int w = 0; w < 2; w++) {
				// [pages, heads, page, 2*dim]: K and V beside each other.
				src[w] = {cache + i * layer_bytes + w * run, 2 * page * heads * run, 2 * run, 2 * page * run, page, (int32_t)pages, heads, (int32_t)run};
			}
			for (int b = 0; b < tokens / kv_block; b += blocks) {
				void *dst[2 * blocks];
				for (int j = 0; j < 2 * blocks; j++) dst[j] = host + i * layer_bytes + (2 * b + j) * each;
				CHECK(pdproj_kv_gather(h, src, 2, table, (int64_t)b * kv_block, kv_block, blocks, dst, &ticket, s, &err));
			}
		}
		CHECK(pdproj_kv_wait(h, ticket, &err));
		const double ours = now_us() - begin;
		if (round >= 5) plain.push_back(copy), gathered.push_back(ours);
	}
	const double gb = layer_bytes * kv_layers / 1e3;
	printf("\nkv gather, %d layers, %d tokens, %.0f MB: plain copy to pinned memory %.2f GB/s, gathered %.2f GB/s, %.3f\n", kv_layers, tokens,
		layer_bytes * kv_layers / 1e6, gb / median(plain), gb / median(gathered), median(plain) / median(gathered));
	pdproj_kv_destroy(h);
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaFree(cache));
	CHECK(cudaFree(table));
	CHECK(pdproj_free(host, 1, &err));
}

namespace {

uint64_t digest(uint64_t h, const void *at, size_t n) {
	const uint8_t *p = (const uint8_t *)at;
	for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001B3ull;
	return h;
}

// A handle with its eight requests. Each has slots of its own, so that what lands there can be compared.
struct Job {
	pdproj_request *r;
	Slots slots;
	int64_t position;
	bool even; // chunks of a block, which are prepared
};

struct Handle {
	Model m;
	Job jobs[8];
	uint64_t last, want; // newest ticket; digest of the first block
};

Handle open_handle(const std::vector<int> &ratios, int most, const uint16_t *x, unsigned flags) {
	pdproj_error err = {};
	Handle h = {make_model(ratios, most, 8, flags), {}, 0, 0};
	for (int i = 0; i < (int)ratios.size(); i++) CHECK(pdproj_prepare(h.m.h, i, x, block, 0, &err));
	for (Job &j : h.jobs) {
		j.slots = make_slots(h.m, most / block + 1);
		memset(j.slots.at, 0, j.slots.bytes * (most / block + 1));
	}
	return h;
}

void close_handle(Handle *h) {
	for (Job &j : h->jobs) {
		if (j.r) pdproj_request_free(h->m.h, j.r);
	}
	free_model(&h->m); // which ends the copies to the slots
	for (Job &j : h->jobs) free_slots(&j.slots);
}

size_t free_memory() {
	pdproj_error err = {};
	size_t f, total;
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaMemGetInfo(&f, &total));
	return f;
}

// Of this process on the host, in KiB; 0 where the system does not say.
long resident() {
	char line[256];
	long kib = 0;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f)) sscanf(line, "VmRSS: %ld", &kib);
	if (f) fclose(f);
	return kib;
}

struct Soak {
	const uint16_t *x;
	int most, layers;
	cudaStream_t s[3];
	uint64_t seed, calls, finished, aborted, compared, wrong;

	uint64_t random(uint64_t n) {
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		return (seed >> 33) % n;
	}

	// The next chunk of one of the handle's requests, which is begun, ended or given up there.
	void turn(Handle *h) {
		pdproj_error err = {};
		Job &j = h->jobs[random(8)];
		bool compare = false;
		if (!j.r) {
			CHECK(pdproj_request_create(h->m.h, &j.r, &err));
			j.position = 0, j.even = random(2);
			compare = j.even && (!h->want || random(40) == 0);
			// What an earlier user of these slots began may still be on its way there.
			if (compare && h->last) CHECK(pdproj_wait(h->m.h, h->last, &err));
		}
		const int n = j.even ? block : 1 + (int)random(most);
		const int blocks = (int)((j.position + n - 1) / block - j.position / block) + 1;
		const cudaStream_t on = s[random(3)];
		int layer = 0;
		for (; layer < layers; layer++) {
			CHECK(pdproj_project(h->m.h, j.r, layer, x, n, j.position, j.slots.dst[layer].data(), blocks, nullptr, 0, nullptr, &h->last, on, &err));
			calls++;
			if (!compare && random(200) == 0) break; // given up between layers
		}
		j.position += n;
		if (compare) {
			CHECK(pdproj_wait(h->m.h, h->last, &err));
			const uint64_t got = digest(0xcbf29ce484222325ull, j.slots.at, j.slots.bytes);
			if (!h->want) h->want = got;
			compared++, wrong += got != h->want;
		}
		const bool gone = layer < layers;
		if (gone || j.position > 60000) {
			pdproj_request_free(h->m.h, j.r);
			j.r = nullptr;
			(gone ? aborted : finished)++;
		}
		if (random(4) == 0) CHECK(pdproj_wait(h->m.h, h->last, &err));
	}

	void print(double seconds, size_t free) const {
		printf("%5.0f s: %llu calls, %llu requests finished, %llu given up, %llu blocks compared, %llu wrong, %zu bytes of device memory free, %ld KiB resident\n",
			seconds, (unsigned long long)calls, (unsigned long long)finished, (unsigned long long)aborted, (unsigned long long)compared,
			(unsigned long long)wrong, free, resident());
	}
};

} // namespace

// Eight requests of each of two handles, placed and packed, take turns in three streams with chunks of
// a block or of random length; some are given up between layers. Device memory must not move after the
// first six seconds, and now and then the first block of a request must be the bits that the first one had.
void soak(double minutes) {
	pdproj_error err = {};
	const std::vector<int> ratios = {0, 4, 128, 4, 128, 0};
	Soak k = {};
	k.most = 4096, k.layers = (int)ratios.size(), k.seed = 1;
	for (auto &v : k.s) CHECK(cudaStreamCreateWithFlags(&v, cudaStreamNonBlocking));
	uint16_t *x = random_rows((size_t)k.most * hidden, 1, 0, 3);
	k.x = x;
	// What loads with the first handle stays, and is no leak.
	Handle first = open_handle(ratios, k.most, x, 0);
	close_handle(&first);
	const size_t before = free_memory();
	Handle handles[2] = {open_handle(ratios, k.most, x, 0), open_handle(ratios, k.most, x, PDPROJ_PACKED)};
	const double begin = now_us(), end = begin + minutes * 60e6;
	size_t least = 0, free0 = 0;
	double next = begin;
	for (double t = begin; t < end; t = now_us()) {
		k.turn(&handles[k.random(2)]);
		if (t < next) continue;
		next = t + 10e6;
		const size_t f = free_memory();
		if (free0 == 0 && t > begin + 6e6) free0 = least = f;
		if (f < least) least = f;
		k.print((t - begin) / 1e6, f);
	}
	const size_t f = free_memory();
	if (f < least) least = f;
	const bool flat = free0 && least == free0;
	printf("soak: %s (least free %zu, at first %zu, at last %zu); %llu of %llu blocks wrong; %s\n", flat ? "flat" : "NOT FLAT", least, free0, f,
		(unsigned long long)k.wrong, (unsigned long long)k.compared, handles[0].want == handles[1].want ? "packed as placed" : "PACKED OTHER THAN PLACED");
	for (Handle &h : handles) close_handle(&h);
	const size_t after = free_memory();
	printf("soak: free before the handles %zu, after them %zu: %s\n", before, after, after == before ? "equal" : "DIFFERENT");
	CHECK(cudaFree(x));
	for (auto v : k.s) CHECK(cudaStreamDestroy(v));
	if (!flat || k.wrong) exit(1);
}

namespace {

// All rows of a small model in chunks of that length, and the digest of both blocks. Packed results are put in their
// places by what the library says that it wrote where.
uint64_t small_run(const Model &m, const uint16_t *x, int n, int cut, bool packed, cudaStream_t s) {
	pdproj_error err = {};
	for (int layer = 0; layer < 3; layer++) CHECK(pdproj_prepare(m.h, layer, x, cut, 0, &err));
	Slots slots = make_slots(m, 2), scratch = make_slots(m, 2);
	memset(slots.at, 0, 2 * slots.bytes);
	pdproj_request *r;
	CHECK(pdproj_request_create(m.h, &r, &err));
	uint64_t ticket = 0;
	pdproj_piece pieces[2 * PDPROJ_ARRAYS];
	for (int layer = 0; layer < 3; layer++) {
		for (int at = 0; at < n; at += cut) {
			const int rows = at + cut > n ? n - at : cut;
			const int b = at / block, blocks = (at + rows - 1) / block - b + 1;
			int32_t count = 0;
			CHECK(pdproj_project(m.h, r, layer, x + (size_t)at * hidden, rows, at, (packed ? scratch : slots).dst[layer].data() + b, blocks, pieces,
				2 * PDPROJ_ARRAYS, &count, &ticket, s, &err));
			if (!packed) continue;
			CHECK(pdproj_wait(m.h, ticket, &err));
			const pdproj_piece *const end = pieces + count;
			for (const pdproj_piece *p = pieces; p < end; p++) memcpy((uint8_t *)slots.dst[layer][p->block] + p->offset, p->at, p->length);
		}
	}
	CHECK(pdproj_wait(m.h, ticket, &err));
	const uint64_t h = digest(0xcbf29ce484222325ull, slots.at, 2 * slots.bytes);
	pdproj_request_free(m.h, r);
	free_slots(&slots);
	free_slots(&scratch);
	return h;
}

} // namespace

// Cases small enough for compute-sanitizer: every kernel, whole and cut, staged,
// direct and packed; the digests must agree.
void small_cases() {
	pdproj_error err = {};
	cudaStream_t s;
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	const int n = 2048 + 300;
	uint16_t *x = random_rows((size_t)n * hidden, 1, 0, 3);
	uint64_t want = 0;
	for (uint32_t flags : {0u, (unsigned)PDPROJ_SERIAL, (unsigned)PDPROJ_DIRECT, (unsigned)PDPROJ_PACKED}) {
		Model m = make_model({0, 4, 128}, n, 2, flags);
		for (int cut : {n, 700, 133}) {
			const uint64_t h = small_run(m, x, n, cut, flags == PDPROJ_PACKED, s);
			if (!want) want = h;
			printf("small, flags %u, chunks of %d: %016llx %s\n", flags, cut, (unsigned long long)h, h == want ? "equal" : "DIFFERENT");
			if (h != want) exit(1);
		}
		free_model(&m);
	}
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaFree(x));
}

// The kernels alone, for racecheck: the tool fails on the products of cuBLASLt. Rows
// follow each other in three cuts, so that the carries are read and written.
void kernels_alone() {
	pdproj_error err = {};
	const int most = 2048 + 300;
	uint16_t *y = random_rows((size_t)most * 2560, 1, 0, 1), *yw = random_rows(256 * 512, 1, 0, 2), *norm = random_rows(4096, 0.2f, 1, 3);
	uint16_t *bias = random_rows(4 * 2048, 0.7f, 0, 4);
	uint8_t *memory, *out;
	CHECK(cudaMalloc(&memory, 4 << 20));
	CHECK(cudaMemset(memory, 0, 4 << 20));
	CHECK(cudaMalloc(&out, 2 << 20));
	for (int ratio : {4, 128, 0}) {
		uint16_t *carry = (uint16_t *)memory, *next = carry + 128 * 2560;
		for (int first = 0, n = 133; first + n <= most; first += n, n = first < 400 ? 301 : block - 434) {
			pd::Epilogue e;
			memset(&e, 0, sizeof e);
			e.y = y, e.yw = yw, e.carry = carry, e.next = ratio == 4 ? next : carry;
			e.raw = (uint16_t *)(memory + (2 << 20)), e.tickets = (unsigned *)(memory + (3 << 20)), e.window_norm = norm;
			e.inv = (const float *)(memory + (3 << 20) + 4096);
			e.comp = {(const float *)(memory + (3 << 20) + 8192), bias, norm, 512, 0, ratio == 4 ? 1024 : 512, pd::pooled, pd::prev_kv, pd::prev_gate, 1.0 / 512};
			e.index = {nullptr, bias, norm, 128, 2048, 2304, pd::idx_pooled, pd::idx_prev_kv, pd::idx_prev_gate, 1.0 / 128};
			e.first = first, e.n = n, e.width = ratio == 4 ? 2560 : 1024, e.dim = 512, e.window = 128, e.block_tokens = block, e.rope = 64, e.eps = 1e-6f;
			e.window_part = 1.0 / 512;
			if (ratio) {
				e.windows = (first + n) / ratio - first / ratio, e.windows_at = first / ratio * ratio - first;
				e.windows_row = first / ratio % (block / ratio), e.windows_each = block / ratio;
			}
			if (first + n >= block) e.kept = e.kept_before = 128;
			for (int i = 0; i < pd::powers; i++) e.powers[i] = pd::power(i);
			const int64_t at[pd::arrays] = {0, 131072, 655360, 663552, 671744, 802816, 804864, 806912};
			for (int a = 0; a < pd::arrays; a++) e.offset[a] = at[a];
			e.dst[0] = out, e.dst[1] = out + (1 << 20);
			CHECK(pd::launch(e, ratio, nullptr));
			CHECK(cudaDeviceSynchronize());
			if (ratio == 4) std::swap(carry, next);
			printf("alone, ratio %d: rows %d to %d, %d pooled\n", ratio, first, first + n, e.windows);
		}
	}
	for (void *p : {(void *)y, (void *)yw, (void *)norm, (void *)bias, (void *)memory, (void *)out}) CHECK(cudaFree(p));
}

// One call for a layer of each kind, 8,192 tokens, in the range that `ncu --profile-from-start off` looks at.
void profiled() {
	pdproj_error err = {};
	const int n = 8192;
	cudaStream_t s;
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	uint16_t *x = random_rows((size_t)n * hidden, 1, 0, 9);
	Model m = make_model({0, 4, 128}, n, 2, 0);
	Slots slots = make_slots(m, n / block);
	for (int round = 0; round < 2; round++) {
		pdproj_request *r;
		CHECK(pdproj_request_create(m.h, &r, &err));
		if (round) CHECK(cudaProfilerStart());
		uint64_t ticket = 0;
		for (int i = 0; i < 3; i++) CHECK(pdproj_project(m.h, r, i, x, n, 0, slots.dst[i].data(), n / block, nullptr, 0, nullptr, &ticket, s, &err));
		CHECK(pdproj_wait(m.h, ticket, &err));
		if (round) CHECK(cudaProfilerStop());
		pdproj_request_free(m.h, r);
	}
	free_slots(&slots);
	free_model(&m);
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaFree(x));
}

} // namespace bench
