// The order of staging, copies and tickets, against a simulated device: build.sh OUT ring.
//
// Streams are queues of work, of which some is done at random whenever the library looks
// or waits. A kernel writes its call's number to staging, so a copy that is made too early,
// or of bytes that a later call has written over, brings another number.
#include "ring.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <vector>

struct CUevent_st {
	uint64_t recorded, passed;
};

struct Work {
	std::function<bool()> ready;
	std::function<void()> run;
};

struct CUstream_st {
	std::deque<Work> work;
};

namespace {

struct Device {
	std::vector<CUstream_st *> streams;
	std::mt19937_64 random{7};
	uint64_t copies = 0, refused = 0;
	std::vector<std::pair<const uint8_t *, size_t>> host; // allocations that copies go to

	bool in_one(const void *at, size_t n) const {
		for (auto &[begin, size] : host) {
			if (at >= begin && (const uint8_t *)at + n <= begin + size) return true;
		}
		return false;
	}

	// Does one piece of work of a stream, if its turn has come.
	bool step(CUstream_st *s) {
		if (s->work.empty() || !s->work.front().ready()) return false;
		s->work.front().run();
		s->work.pop_front();
		return true;
	}
	void some() {
		for (int n = (int)(random() % 4); n > 0; n--) step(streams[random() % streams.size()]);
	}
	void until(const std::function<bool()> &done) {
		while (!done()) {
			bool any = false;
			for (CUstream_st *s : streams) any |= step(s);
			if (!any) {
				printf("ring: the streams wait for each other\n");
				exit(1);
			}
		}
	}
};

Device device;

bool always() { return true; }

} // namespace

extern "C" {
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t) { return "simulated"; }
cudaError_t cudaGetDevice(int *d) { return *d = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaMalloc(void **p, size_t n) { return *p = malloc(n), cudaSuccess; }
cudaError_t cudaFree(void *p) { return free(p), cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { return *e = new CUevent_st{0, 0}, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) {
	*s = new CUstream_st;
	device.streams.push_back(*s);
	return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
	device.until([s] { return s->work.empty(); });
	return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
	for (size_t i = 0; i < device.streams.size(); i++) {
		if (device.streams[i] == s) device.streams.erase(device.streams.begin() + i);
	}
	delete s;
	return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
	const uint64_t n = ++e->recorded;
	s->work.push_back({always, [e, n] { e->passed = n; }});
	return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
	const uint64_t n = e->recorded;
	s->work.push_back({[e, n] { return e->passed >= n; }, [] {}});
	return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
	device.some();
	return e->passed >= e->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
	const uint64_t n = e->recorded;
	device.until([e, n] { return e->passed >= n; });
	return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind, cudaStream_t s) {
	device.copies++;
	s->work.push_back({always, [to, from, n] { memcpy(to, from, n); }});
	return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t t, const void *from, size_t f, size_t n, size_t rows, cudaMemcpyKind, cudaStream_t s) {
	// As the driver does with rows of two allocations.
	if (!device.in_one(to, (rows - 1) * t + n)) return device.refused++, cudaErrorInvalidValue;
	device.copies++;
	s->work.push_back({always, [=] {
						   for (size_t i = 0; i < rows; i++) memcpy((uint8_t *)to + i * t, (const uint8_t *)from + i * f, n);
					   }});
	return cudaSuccess;
}
}

namespace {

constexpr int blocks = 4, slots = 1200;
constexpr int64_t part = 256;

// What a call was, and where its bytes must be when its ticket is done.
struct Made {
	uint64_t ticket;
	int n;
	std::vector<uint8_t> *to;
};

void check(const Made &m) {
	for (int i = 0; i < m.n; i++) {
		for (int64_t j = 0; j < part; j += 64) {
			uint64_t got;
			memcpy(&got, m.to->data() + 2 * i * part + j, sizeof got);
			if (got == m.ticket) continue;
			printf("ring: ticket %llu is done, but its bytes are of call %llu\n", (unsigned long long)m.ticket, (unsigned long long)got);
			exit(1);
		}
	}
}

void play(uint64_t size, int together, int calls) {
	pd::Ring r;
	pdproj_error err;
	if (pd::open_ring(&r, size, false, together, &err)) exit(1);
	CUstream_st own[2];
	device.streams.push_back(&own[0]), device.streams.push_back(&own[1]);
	std::vector<std::vector<uint8_t>> memory(slots, std::vector<uint8_t>(2 * blocks * part));
	device.host.clear();
	for (auto &m : memory) device.host.push_back({m.data(), m.size()});
	std::deque<Made> open;
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	for (int c = 0; c < calls; c++) {
		CUstream_st *s = &own[device.random() % 16 == 0];
		// Some calls complete nothing, and parts lie apart or together.
		const int n = (int)(device.random() % (blocks + 1));
		const int apart = 1 + (int)(device.random() % 2);
		uint8_t *staging;
		pd::follow(&r, s);
		pd::take(&r, (uint64_t)n * 2 * part, s, &staging);
		std::vector<uint8_t> *to = &memory[c % slots];
		const uint64_t ticket = r.issued + 1;
		pd::Range ranges[blocks];
		for (int i = 0; i < n; i++) ranges[i] = {to->data() + 2 * i * part, staging + apart * i * part, part};
		s->work.push_back({always, [=] {
							   for (int i = 0; i < n; i++) {
								   for (int64_t j = 0; j < part; j += 64) memcpy(staging + apart * i * part + j, &ticket, sizeof ticket);
							   }
						   }});
		uint64_t got;
		if (pd::finish(&r, ranges, n, device.random() % 8 == 0, s, &got) || got != ticket) exit(1);
		open.push_back({ticket, n, to});
		device.some();
		if (device.random() % 3 == 0) {
			const Made &m = open[device.random() % open.size()];
			if (pd::done(&r, m.ticket, &err) == 1) check(m);
		}
		if (device.random() % 40 == 0 || open.size() > slots - 2) {
			const size_t upto = open.size() > slots - 2 ? open.size() : 1 + device.random() % open.size();
			if (pd::wait(&r, &lock, open[upto - 1].ticket, &err)) exit(1);
			for (size_t i = 0; i < upto; i++) check(open[i]);
			open.erase(open.begin(), open.begin() + upto);
		}
	}
	for (CUstream_st &s : own) cudaStreamSynchronize(&s);
	std::vector<Made> rest(open.begin(), open.end());
	pd::close_ring(&r); // which sends what waits
	for (const Made &m : rest) check(m);
	device.streams.clear();
}

} // namespace

int main() {
	for (uint64_t size : {2 * 2 * blocks * part, 3 * 2 * blocks * part, 12 * 2 * blocks * part, 2000 * 2 * blocks * part}) {
		for (int together : {1, pd::copies_together}) {
			for (int round = 0; round < 20; round++) play(size, together, 3000);
		}
	}
	if (!device.refused) return printf("ring: no copy was refused, and none had to go by itself\n"), 1;
	printf("ring: %llu copies at the right time\n", (unsigned long long)device.copies);
	return 0;
}
