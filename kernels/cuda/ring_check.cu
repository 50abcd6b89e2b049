// The order of staging, copies and tickets, against a simulated device: build.sh OUT ring.
//
// Streams are queues of work, of which some is done at random whenever the library looks
// or waits. A kernel writes its call's number to staging, so a copy that is made too early,
// or of bytes that a later call has written over, brings another number; without staging it writes it to its
// destination. Some copies are refused, as those to memory
// that was given back are, and some events: then the calls concerned say so, all others arrive, no copy is made
// twice, and none is made to memory whose call has been told of.
#include "ring.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
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

constexpr int blocks = 4, slots = 1200;
constexpr int64_t part = 256;

struct Device {
	std::vector<CUstream_st *> streams;
	std::mt19937_64 random{7};
	uint64_t copies = 0, joined = 0, refused = 0, gone_copies = 0, lost_events = 0;
	struct Slot {
		size_t size;
		bool told; // of the call whose bytes it gets
	};
	std::map<const uint8_t *, Slot> host; // allocations that copies go to, by address
	std::set<const void *> gone;          // destinations that are no memory any longer
	cudaStream_t unsteady = nullptr;      // its events are lost at times

	Slot *slot(const void *at, size_t n) {
		auto next = host.upper_bound((const uint8_t *)at);
		if (next == host.begin()) return nullptr;
		auto &[begin, s] = *--next;
		return (const uint8_t *)at + n <= begin + s.size ? &s : nullptr;
	}
	void move(void *to, const void *from, size_t n) {
		const Slot *s = slot(to, n);
		if (s && s->told) fail("a copy to memory that its call's ticket has given back");
		if (!memcmp(to, from, sizeof(uint64_t))) fail("a copy that was made before");
		memcpy(to, from, n);
	}
	[[noreturn]] static void fail(const char *what) {
		printf("ring: %s\n", what);
		exit(1);
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
			if (!any) fail("the streams wait for each other");
		}
	}
};

Device device;

bool always() { return true; }

} // namespace

extern "C" {
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t) { return "simulated"; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
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
	if (s == device.unsteady && device.random() % 64 == 0) return device.lost_events++, cudaErrorUnknown;
	const uint64_t n = ++e->recorded;
	s->work.push_back({always, [e, n] { e->passed = n; }});
	return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
	if (s == device.unsteady && device.random() % 64 == 0) return device.lost_events++, cudaErrorUnknown;
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
	if (device.gone.count(to)) return device.gone_copies++, cudaErrorInvalidValue;
	device.copies++, device.joined += n > part;
	s->work.push_back({always, [to, from, n] { device.move(to, from, n); }});
	return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t t, const void *from, size_t f, size_t n, size_t rows, cudaMemcpyKind, cudaStream_t s) {
	// As the driver does with rows of two allocations.
	if (!device.slot(to, (rows - 1) * t + n)) return device.refused++, cudaErrorInvalidValue;
	for (size_t i = 0; i < rows; i++) {
		if (device.gone.count((uint8_t *)to + i * t)) return cudaErrorInvalidValue;
	}
	device.copies++;
	s->work.push_back({always, [=] {
						   for (size_t i = 0; i < rows; i++) device.move((uint8_t *)to + i * t, (const uint8_t *)from + i * f, n);
					   }});
	return cudaSuccess;
}
}

namespace {

// What a call was, and where its bytes must be when its ticket is done.
struct Made {
	uint64_t ticket;
	int n, apart; // parts, and how many parts lie from one to the next
	std::vector<uint8_t> *to;
	int gone;    // the range whose destination is no memory, or -1
	bool shaken; // an event was lost while its copies were enqueued
};

void check(const Made &m) {
	for (int i = 0; i < m.n; i++) {
		if (i == m.gone) continue;
		for (int64_t j = 0; j < part; j += 64) {
			uint64_t got;
			memcpy(&got, m.to->data() + m.apart * i * part + j, sizeof got);
			if (got == m.ticket) continue;
			printf("ring: ticket %llu is done, but its bytes are of call %llu\n", (unsigned long long)m.ticket, (unsigned long long)got);
			exit(1);
		}
	}
}

// A ring, the calls that were made on it, and what they must come to.
struct Play {
	pd::Ring r;
	pdproj_error err;
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	CUstream_st own[2];
	bool direct;
	std::vector<std::vector<uint8_t>> memory{slots, std::vector<uint8_t>(2 * blocks * part)};
	std::deque<Made> open;

	// Marks the calls that a lost event concerns.
	template <typename F> int noting(F call) {
		const uint64_t lost = device.lost_events, copied = r.copied;
		const int code = call();
		for (Made &m : open) m.shaken |= device.lost_events != lost && m.ticket > copied;
		return code;
	}

	void told(const Made &m, int code) {
		const bool right = code == PDPROJ_OK ? m.gone < 0 : m.gone >= 0 || m.shaken;
		if (right && (code == PDPROJ_OK || !m.shaken)) check(m);
		if (right) return;
		printf("ring: ticket %llu, range %d refused, came to %d\n", (unsigned long long)m.ticket, m.gone, code);
		exit(1);
	}

	void arrive(size_t i) {
		uint64_t lost;
		int code;
		do { // until an event says that nothing is in flight
			lost = device.lost_events;
			code = noting([&] { return pd::wait(&r, &lock, open[i].ticket, &err); });
		} while (lost != device.lost_events);
		told(open[i], code);
	}

	void call(int c) {
		CUstream_st *s = &own[device.random() % 16 == 0];
		// Some calls complete nothing, and parts lie apart or together at either end, or at both.
		const int n = (int)(device.random() % (blocks + 1));
		const int apart = 1 + (int)(device.random() % 2), apart_to = 2 - (int)(device.random() % 4 == 0);
		uint8_t *staging = nullptr;
		pd::follow(&r, s);
		if (!direct && noting([&] { return (int)pd::take(&r, (uint64_t)n * 2 * part, s, &staging); })) return; // a call that fails, without a ticket
		std::vector<uint8_t> *to = &memory[c % slots];
		device.host[to->data()].told = false;
		for (int i = 0; i < blocks; i++) device.gone.erase(to->data() + 2 * i * part);
		const uint64_t ticket = r.issued + 1;
		const int gone = !direct && n > 0 && apart_to == 2 && device.random() % 24 == 0 ? (int)(device.random() % n) : -1;
		if (gone >= 0) device.gone.insert(to->data() + 2 * gone * part);
		pd::Range ranges[blocks];
		for (int i = 0; i < n; i++) {
			uint8_t *const at = to->data() + apart_to * i * part;
			ranges[i] = {at, direct ? at : staging + apart * i * part, part};
		}
		const std::vector<pd::Range> made(ranges, ranges + n);
		s->work.push_back({always, [made, ticket] {
							   for (const pd::Range &m : made) {
								   for (int64_t j = 0; j < part; j += 64) memcpy((uint8_t *)m.from + j, &ticket, sizeof ticket);
							   }
						   }});
		uint64_t got;
		open.push_back({ticket, n, apart_to, to, gone, false});
		if (noting([&] { return (int)pd::finish(&r, ranges, n, device.random() % 8 == 0, s, &got); }) || got != ticket) {
			Device::fail("a call is refused for what a copy came to");
		}
	}

	void ask() {
		const size_t i = device.random() % open.size();
		const uint64_t lost = device.lost_events;
		const int code = noting([&] { return pd::done(&r, open[i].ticket, &err); });
		if (code && lost == device.lost_events) told(open[i], code == 1 ? PDPROJ_OK : -code);
	}

	// A size of 0 is direct mode.
	void run(uint64_t size, int together, bool unsteady, int calls) {
		direct = size == 0;
		if (pd::open_ring(&r, size, direct, together, &err)) exit(1);
		if (direct && (r.copies || r.memory)) Device::fail("direct mode has staging");
		device.streams.push_back(&own[0]), device.streams.push_back(&own[1]);
		device.unsteady = unsteady && !direct ? r.copies : nullptr;
		device.host.clear(), device.gone.clear();
		for (auto &m : memory) device.host[m.data()] = {m.size(), false};
		for (int c = 0; c < calls; c++) {
			call(c);
			device.some();
			if (!open.empty() && device.random() % 3 == 0) ask();
			if (!open.empty() && (device.random() % 40 == 0 || open.size() > slots - 2)) {
				const size_t upto = open.size() > slots - 2 ? open.size() : 1 + device.random() % open.size();
				arrive(upto - 1);
				for (size_t i = 0; i < upto; i++) {
					arrive(i);
					device.host[open[i].to->data()].told = true;
				}
				open.erase(open.begin(), open.begin() + upto);
			}
		}
		device.unsteady = nullptr;
		for (CUstream_st &s : own) cudaStreamSynchronize(&s);
		pd::close_ring(&r); // which sends what waits
		for (const Made &m : open) {
			if (!m.shaken) check(m);
		}
		device.streams.clear();
	}
};

} // namespace

int main() {
	for (uint64_t size : {0 * part, 2 * 2 * blocks * part, 3 * 2 * blocks * part, 12 * 2 * blocks * part, 2000 * 2 * blocks * part}) {
		for (int together : {1, pd::copies_together}) {
			for (int round = 0; round < 20; round++) Play().run(size, together, round % 4 == 3, 3000);
		}
	}
	if (!device.refused) return printf("ring: no copy was refused, and none had to go by itself\n"), 1;
	if (!device.joined) Device::fail("no parts were joined");
	if (!device.gone_copies || !device.lost_events) Device::fail("nothing was refused for good");
	printf("ring: %llu copies at the right time, %llu of joined parts, %llu refused, %llu events lost\n", (unsigned long long)device.copies,
		(unsigned long long)device.joined, (unsigned long long)device.gone_copies, (unsigned long long)device.lost_events);
	return 0;
}
