// Whatever fails of a call, what it began comes before what later calls do: build.sh OUT order.
//
// The runtime here does nothing but keep book of what each stream's next work comes behind. Products, kernels and copies name
// the memory that they read and write, and two that touch the same, of which one writes, must be in order. Each step of
// a call fails in its turn: then later calls, in the same stream or another, are in order, or all are refused.
#include "handle.cuh"

#include <bitset>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using Past = std::bitset<256>;

struct CUevent_st {
	Past at;
};
struct CUstream_st {
	Past past;
};

namespace {

struct Touch {
	const uint8_t *begin;
	int64_t bytes;
	bool writes;
};

} // namespace

struct CUgraphExec_st {
	std::vector<Touch> products, kernel;
};

namespace {

constexpr int hidden = 8, dim = 8, window = 8, block = 128, most = 256, layers = 3;
constexpr int ratios[layers] = {4, 0, 128};
constexpr int most_turns = 10; // calls with destinations of their own

struct Book {
	std::vector<std::vector<Touch>> done;
	int left = -1; // steps until one fails; -1: none does
	bool synchronized = false;

	bool fails() { return left >= 0 && left-- == 0; }
	void work(cudaStream_t s, const std::vector<Touch> &t) {
		for (size_t i = 0; i < done.size(); i++) {
			if (s->past[i]) continue;
			for (const Touch &a : done[i]) {
				for (const Touch &b : t) {
					if ((!a.writes && !b.writes) || a.begin + a.bytes <= b.begin || b.begin + b.bytes <= a.begin) continue;
					throw "two works on the same memory are in no order";
				}
			}
		}
		s->past[done.size()] = true;
		done.push_back(t);
		if (done.size() == s->past.size()) throw "the book is full";
	}
};

Book book;

Touch reads(const void *p, int64_t n) { return {(const uint8_t *)p, n, false}; }
Touch writes(const void *p, int64_t n) { return {(const uint8_t *)p, n, true}; }

int slots_of(int ratio) { return ratio == 4 ? 8 : ratio; }

// What the kernel of a layer touches; dst are the destinations of a call, or their staging.
std::vector<Touch> of_kernel(const pd::Epilogue &e) {
	std::vector<Touch> t = {reads(e.yw, 2 * e.kept * e.dim)};
	if (e.width) {
		const int64_t carry = 2ll * slots_of(e.carry == e.next ? 128 : 4) * e.width;
		t.push_back(reads(e.y, 2ll * e.n * e.width));
		t.push_back(reads(e.carry, carry));
		t.push_back(writes(e.next, carry));
		if (e.carry == e.next) t.push_back(writes(e.raw, 64)), t.push_back(writes(e.tickets, 64));
	}
	for (uint8_t *d : e.dst) {
		if (d) t.push_back(writes(d, 128));
	}
	return t;
}

cudaError_t step() { return book.fails() ? cudaErrorUnknown : cudaSuccess; }

} // namespace

namespace pd {

cublasStatus_t multiply(Blas *blas, Gemm *g, const uint16_t *w, const uint16_t *x, uint16_t *y, int rows, int runs, int64_t stride, int side,
	cudaStream_t s) {
	if (book.fails()) return CUBLAS_STATUS_EXECUTION_FAILED;
	book.work(s, {reads(w, 2), reads(x, 2 * hidden * ((runs - 1) * stride + rows)), writes(y, 2ll * rows * runs * g->cols), writes(blas->workspace[side], 64)});
	return CUBLAS_STATUS_SUCCESS;
}

Launch launch_of(const Epilogue &, int) { return {nullptr, 1, 32}; }

cudaError_t launch(const Epilogue &e, int, cudaStream_t s) {
	if (book.fails()) return cudaErrorLaunchFailure;
	book.work(s, of_kernel(e));
	return cudaSuccess;
}

} // namespace pd

extern "C" {
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t) { return "simulated"; }
cudaError_t cudaGetDevice(int *d) { return *d = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return book.synchronized = true, cudaSuccess; }
cudaError_t cudaMalloc(void **p, size_t n) { return *p = malloc(n), cudaSuccess; }
cudaError_t cudaFree(void *p) { return free(p), cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { return *e = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) { return *s = new CUstream_st, cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return delete s, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return step(); }
cudaError_t cudaEventQuery(cudaEvent_t) { return step(); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return step(); }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
	if (book.fails()) return cudaErrorUnknown;
	e->at = s->past;
	return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
	if (book.fails()) return cudaErrorUnknown;
	s->past |= e->at;
	return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind, cudaStream_t s) {
	if (book.fails()) return cudaErrorInvalidValue;
	book.work(s, {reads(from, n), writes(to, n)});
	return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t t, const void *from, size_t f, size_t n, size_t rows, cudaMemcpyKind, cudaStream_t s) {
	if (book.fails()) return cudaErrorInvalidValue;
	book.work(s, {reads(from, f * (rows - 1) + n), writes(to, t * (rows - 1) + n)});
	return cudaSuccess;
}
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t g, cudaGraphNode_t, const cudaKernelNodeParams *p) {
	if (book.fails()) return cudaErrorInvalidValue;
	g->kernel = of_kernel(*(const pd::Epilogue *)p->kernelParams[0]);
	return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s) {
	if (book.fails()) return cudaErrorUnknown;
	std::vector<Touch> t = g->products;
	t.insert(t.end(), g->kernel.begin(), g->kernel.end());
	book.work(s, t);
	return cudaSuccess;
}
// Nothing is recorded here.
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { abort(); }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *) { abort(); }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus *, unsigned long long *, cudaGraph_t *, const cudaGraphNode_t **,
	const cudaGraphEdgeData **, size_t *) {
	abort();
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long) { abort(); }
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { abort(); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { abort(); }
cudaError_t cudaGraphDestroy(cudaGraph_t) { abort(); }
}

namespace {

// A handle of three layers with one place for a request, so that the next one has the carries of the one before, and its caller.
struct Play {
	pdproj h = {};
	pdproj_placed placed[layers] = {};
	pdproj_request place = {};
	int64_t position[layers];
	bool previous[layers], second[layers];
	alignas(16) uint16_t x[most * hidden], later[most * hidden], y[most * 64], yw[most * dim], raw[64], weights[64], seed[4 * 16];
	unsigned tickets[64];
	alignas(16) uint8_t carries[layers][2 * 128 * 64 * 2], workspace[2][64], out[layers][4][128], fresh[most_turns][4][128];
	CUgraphExec_st graph;
	CUstream_st a, b, side;
	CUevent_st fork, join;
	pdproj_error err = {};
	uint64_t ticket = 0; // of the newest call
	int turn = 0;        // of the calls with destinations of their own

	explicit Play(bool direct, uint64_t staging = 64 << 10) {
		pthread_mutex_init(&h.lock, nullptr);
		h.layers = layers, h.hidden = hidden, h.dim = h.index_dim = dim, h.window = window, h.block = block, h.max_tokens = most;
		h.requests = 1, h.max_positions = 1 << 20;
		h.layer = placed, h.request = &place, h.y = y, h.yw = yw, h.raw = raw, h.tickets = tickets, h.side = &side, h.fork = &fork, h.join = &join;
		h.window_gemm.cols = dim, h.pool_gemm[0].cols = 64, h.pool_gemm[1].cols = 16;
		for (int i : {0, 1}) h.blas.workspace[i] = workspace[i];
		place.carry = carries[0], place.position = position, place.previous = previous, place.second = second;
		memset(second, 0, sizeof second);
		for (int i = 0; i < layers; i++) {
			pdproj_placed &p = placed[i];
			p.ratio = ratios[i], p.slots = slots_of(p.ratio), p.width = p.ratio == 4 ? 64 : p.ratio ? 16 : 0, p.carry = i * sizeof carries[0];
			p.kv = p.pool = p.kv_norm = weights, p.span = 128, p.gemm = h.pool_gemm + (p.ratio != 4);
			p.comp.dim = p.index.dim = dim, p.comp.gate = 16, p.index.kv = 32, p.index.gate = 48;
			for (int64_t &o : p.offset) o = -1;
			p.offset[pd::window_rows] = 0;
		}
		// Calls of a block from its beginning are prepared.
		graph.products = {reads(later, sizeof later / 2), writes(y, sizeof y), writes(yw, sizeof yw), writes(workspace[0], 64), writes(workspace[1], 64)};
		placed[0].graph[0] = {later, block, 0, nullptr, &graph, nullptr};
		placed[0].prepared = 1;
		book = {};
		if (pd::open_ring(&h.ring, staging, direct, pd::copies_together, &err)) throw "no ring";
	}

	pdproj_request *request() {
		pdproj_request *r = nullptr;
		if (pdproj_request_create(&h, &r, &err)) throw "no request";
		return r;
	}

	int project(pdproj_request *r, int layer, const uint16_t *rows, int n, cudaStream_t s) {
		const int64_t first = r->position[layer];
		const int blocks = (int)((first + n - 1) / block - first / block) + 1;
		void *dst[4];
		for (int i = 0; i < blocks; i++) dst[i] = out[layer][i];
		return pdproj_project(&h, r, layer, rows, n, first, dst, blocks, nullptr, 0, nullptr, &ticket, s, &err);
	}

	// A block of layer 1, to where no other call's bytes go; room is for its pieces.
	int block_of(pdproj_request *r, int room, cudaStream_t s) {
		void *dst = fresh[turn++];
		pdproj_piece piece;
		return pdproj_project(&h, r, 1, later, block, r->position[1], &dst, 1, &piece, room, nullptr, &ticket, s, &err);
	}

	int seeded(pdproj_request *r, cudaStream_t s) { return pdproj_seed(&h, r, 0, block, seed, seed, seed, seed, s, &err); }

	// The caller reuses what he gave as soon as his stream comes to it.
	void reuse(cudaStream_t s) { book.work(s, {writes(x, sizeof x)}); }

	// Waits for what was called so far, of which copies may have been refused: destinations can be used again.
	void settle(cudaStream_t s) {
		if (ticket) pdproj_wait(&h, ticket, &err);
		if (h.ring.copies) s->past |= h.ring.copies->past;
	}
};

struct Count {
	int faults, failed, lost;
};

// What is called after the one that fails: a layer with a side or without, of 128, prepared, seeded.
enum Then { beside, alone, other, prepared, seeds };

// Counts a call with that code, and tells whether no later one may come.
bool refuses(const Play &p, int code, bool was, Count *count) {
	const bool lost = p.h.ring.lost != cudaSuccess;
	if (lost && !code) throw "a call whose work has no order passes";
	if (lost != (code == PDPROJ_ELOST)) throw "the code does not say whether later calls are refused";
	count->faults += was, count->failed += code != 0, count->lost += lost;
	return lost;
}

// Lets that step fail of a call, or of a seed, in the stream of the one before or away from it, and makes another one; whether
// there was such a step.
bool play(bool direct, bool seed, Then then, bool away, bool elsewhere, int fault, Count *count) {
	Play p(direct);
	pdproj_request *r = p.request();
	// Its rows begin and end within windows, and have a whole one between.
	if (p.project(r, 0, p.x, block - 3, &p.a) || p.project(r, 1, p.x, block - 3, &p.a)) throw "a call fails by itself";
	p.reuse(&p.a);
	p.settle(&p.a);
	const cudaStream_t at = away ? &p.b : &p.a;
	if (away) p.settle(at);
	book.left = fault;
	// What the caller reuses in one stream is not read in another.
	const int code = seed ? p.seeded(r, at) : p.project(r, 0, away ? p.later : p.x, most - 1, at);
	const bool was = book.left < 0;
	book.left = -1;
	const bool lost = refuses(p, code, was, count);
	if (!lost) p.reuse(&p.a), p.settle(&p.a);
	pdproj_request_free(&p.h, r);
	r = p.request();
	const size_t before = book.done.size();
	const cudaStream_t s = elsewhere ? &p.b : &p.a;
	if (elsewhere && !lost) p.settle(s);
	const int layer = then == alone ? 1 : then == other ? 2 : 0;
	for (int i = 0; i < 2; i++) {
		const int next = then == seeds && i == 0 ? p.seeded(r, s) : p.project(r, layer, p.later, then == prepared ? block : most - 5, s);
		if (next != (lost ? PDPROJ_ELOST : PDPROJ_OK)) throw lost ? "a call comes behind what has no order" : "a call fails for one before it";
		if (!lost) p.settle(s);
	}
	if (lost && book.done.size() != before) throw "a refused call began something";
	pd::close_ring(&p.h.ring);
	if (lost != book.synchronized) throw "the memory is freed under what has no order";
	return was;
}

// The staging holds eight calls, whose copies leave by four, and nobody waits. The ninth call, away from the others, takes the
// first one's place; that step of it fails, or its pieces have no room. The next one takes what left with the first one's.
bool lap(bool room, bool elsewhere, int fault, Count *count) {
	Play p(false, 8 * 256);
	pdproj_request *r = p.request();
	for (int i = 0; i < 8; i++) {
		if (p.block_of(r, 1, &p.a)) throw "a call fails by itself";
	}
	if (p.h.ring.copied != 8 || p.h.ring.by[1] != 4 || p.h.ring.head != p.h.ring.size) throw "the staging is not full of joined copies";
	book.left = fault;
	const int code = p.block_of(r, room, &p.b);
	const bool was = book.left < 0;
	book.left = -1;
	if (!room && !code) throw "pieces without room pass";
	const bool lost = refuses(p, code, was, count);
	pdproj_request_free(&p.h, r);
	r = p.request();
	if (p.block_of(r, 1, elsewhere ? &p.b : &p.a) != (lost ? PDPROJ_ELOST : PDPROJ_OK)) throw "the next call fails, or passes";
	pd::close_ring(&p.h.ring);
	return was;
}

} // namespace

int main() {
	Count count = {};
	for (int c = 0; c < 2 * 2 * 2 * 2 * 5; c++) {
		const bool direct = c & 1, seed = c & 2, elsewhere = c & 4, away = c & 8;
		const Then then = (Then)(c / 16);
		for (int fault = 0, more = 1; more; fault++) {
			try {
				more = play(direct, seed, then, away, elsewhere, fault, &count);
			} catch (const char *what) {
				printf("order: %s: %s, step %d of a %s in stream %s, then %d in %s\n", what, direct ? "direct" : "staged", fault, seed ? "seed" : "call",
					away ? "b" : "a", (int)then, elsewhere ? "b" : "a");
				return 1;
			}
		}
	}
	for (int c = 0; c < 2 * 2; c++) {
		const bool room = c & 1, elsewhere = c & 2;
		for (int fault = 0, more = 1; more; fault++) {
			try {
				more = lap(room, elsewhere, fault, &count);
			} catch (const char *what) {
				printf("order: %s: step %d of a call %s room that laps the staging, then one in stream %s\n", what, fault, room ? "with" : "without",
					elsewhere ? "b" : "a");
				return 1;
			}
		}
	}
	if (!count.failed || !count.lost || count.failed == count.lost || count.faults == count.failed) return printf("order: the faults do not differ\n"), 1;
	printf("order: %d faults, %d of them failed the call, after %d no call may come\n", count.faults, count.failed, count.lost);
	return 0;
}
