// How finished bytes leave the device: staging memory used in turn, one copy
// stream, and an event for each call.
#pragma once

#include <cuda_runtime.h>
#include <pthread.h>
#include <stdint.h>

#include "pdproj.h"

namespace pd {

int fail(pdproj_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int fail_cuda(pdproj_error *err, cudaError_t e, const char *what);

// Makes a device current for a call and the caller's own current again after it, which starts
// that one's context where it has none.
class On {
public:
	explicit On(int device) : before_(-1) {
		int now = -1;
		if (cudaGetDevice(&now) == cudaSuccess && now != device && cudaSetDevice(device) == cudaSuccess) before_ = now;
	}
	~On() {
		if (before_ >= 0) cudaSetDevice(before_);
	}
	On(const On &) = delete;
	On &operator=(const On &) = delete;

private:
	int before_;
};

class Locked {
public:
	explicit Locked(pthread_mutex_t *m) : m_(m) { pthread_mutex_lock(m_); }
	~Locked() { pthread_mutex_unlock(m_); }
	Locked(const Locked &) = delete;
	Locked &operator=(const Locked &) = delete;

private:
	pthread_mutex_t *m_;
};

// One contiguous copy from staging to its destination.
struct Range {
	uint8_t *to;
	const uint8_t *from;
	int64_t bytes;
};

// A call of which a copy was refused.
struct Refused {
	uint64_t ticket;
	cudaError_t why;
};

// Events of the calls that may still be in flight. A call more than this many
// behind the newest is looked up under a newer one.
constexpr unsigned tickets = 512;

// Calls whose copies are enqueued together, at most: each start of copies costs the
// host as much as a kernel's, in events alone, and a layer's bytes can wait for those
// of the next few. And the most copies that wait.
constexpr int copies_together = 4;
constexpr int most_waiting = 64;

struct Ring {
	uint8_t *memory; // device staging, null in direct mode
	uint64_t size;
	uint64_t head;            // next free byte, counted without end
	cudaStream_t copies;      // null in direct mode
	cudaEvent_t produced;     // the newest call's kernels
	cudaEvent_t done[tickets];
	uint64_t begins[tickets]; // where the call's bytes begin, counted as head
	uint64_t by[tickets];     // the ticket whose event stands for the call: of the last call that was copied with it
	uint64_t begin;           // begins of the call at hand
	uint64_t issued;          // tickets given out; the newest is this number
	uint64_t copied;          // copies are enqueued of all up to this one
	uint64_t finished;        // all up to this one are known to be done
	uint64_t reused;          // all up to this one have left their staging before what is enqueued now
	uint64_t waiting_bytes;
	Range waiting[most_waiting]; // copies of the calls since
	uint64_t waiting_of[most_waiting]; // and the calls' tickets
	Refused refused[tickets];          // by ticket mod tickets; the newest of those stays
	int waitings, together;      // how many; and calls whose copies are enqueued together
	cudaStream_t stream;         // of the newest call
	bool used;
	cudaError_t lost; // why work that was enqueued cannot be told from what comes later, or cudaSuccess
};

// together is for copies_together, or 1.
int open_ring(Ring *r, uint64_t staging, bool direct, int together, pdproj_error *err);
// Finishes what waits to be copied, and frees everything.
void close_ring(Ring *r);

// The code of a call that failed in e: PDPROJ_ELOST where the ring takes no more.
int fail_call(const Ring *r, pdproj_error *err, cudaError_t e, const char *what);
// Orders the call behind earlier ones if they used another stream, before anything else of it. Fails for good once mark has.
cudaError_t follow(Ring *r, cudaStream_t stream);
// Orders calls to come behind what the stream holds, also where the call at hand fails half-way: the
// workspace is shared. Where that is refused nobody knows when that work is over, and no call may come.
cudaError_t mark(Ring *r, cudaStream_t stream);
// Takes bytes of staging for a call; later work on the stream may write there. The call ends in mark, also where it
// enqueues nothing: what its stream waits for here, later ones do not wait for again.
cudaError_t take(Ring *r, uint64_t bytes, cudaStream_t stream, uint8_t **out);
// Ends a call: the ranges are copied behind what the stream holds now, at the latest when
// somebody asks for the ticket that it issues, and now without waiting for the next calls'. Changes the ranges.
// Fails, without a ticket, where nothing of the call is known to have been enqueued; a copy that is refused is
// told by done and wait of its ticket, and disturbs no other.
cudaError_t finish(Ring *r, Range *ranges, int n, bool now, cudaStream_t stream, uint64_t *ticket);
// 0, or 1 or a negative code when nothing is written to the call's destinations any longer.
int done(Ring *r, uint64_t ticket, pdproj_error *err);
int wait(Ring *r, pthread_mutex_t *lock, uint64_t ticket, pdproj_error *err);

} // namespace pd
