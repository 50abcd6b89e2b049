#include "ring.cuh"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

namespace pd {

int fail(pdproj_error *err, int code, const char *format, ...) {
	if (err) {
		va_list args;
		va_start(args, format);
		vsnprintf(err->text, sizeof err->text, format, args);
		va_end(args);
		err->code = code;
	}
	return code;
}

int fail_cuda(pdproj_error *err, cudaError_t e, const char *what) {
	cudaGetLastError(); // else the caller's next check would find it
	int code = PDPROJ_ECUDA;
	switch (e) {
	case cudaErrorMemoryAllocation: code = PDPROJ_EMEM; break;
	case cudaErrorNoDevice:
	case cudaErrorInvalidDevice:
	case cudaErrorInsufficientDriver:
	case cudaErrorNoKernelImageForDevice:
	case cudaErrorSystemDriverMismatch:
	case cudaErrorStubLibrary: code = PDPROJ_ENODEV; break;
	default: break;
	}
	return fail(err, code, "%s: %s", what, cudaGetErrorString(e));
}

int open_ring(Ring *r, uint64_t staging, bool direct, pdproj_error *err) {
	memset(r, 0, sizeof *r);
	cudaError_t e = cudaEventCreateWithFlags(&r->produced, cudaEventDisableTiming);
	for (unsigned i = 0; i < tickets && !e; i++) {
		e = cudaEventCreateWithFlags(&r->done[i], cudaEventDisableTiming | cudaEventBlockingSync);
	}
	if (!e && !direct) {
		r->size = staging;
		e = cudaMalloc(&r->memory, staging);
		if (!e) e = cudaStreamCreateWithFlags(&r->copies, cudaStreamNonBlocking);
	}
	if (!e) return PDPROJ_OK;
	close_ring(r);
	return fail_cuda(err, e, "take staging memory");
}

void close_ring(Ring *r) {
	if (r->copies) {
		cudaStreamSynchronize(r->copies);
		cudaStreamDestroy(r->copies);
	}
	if (r->memory) cudaFree(r->memory);
	for (unsigned i = 0; i < tickets; i++) {
		if (r->done[i]) cudaEventDestroy(r->done[i]);
	}
	if (r->produced) cudaEventDestroy(r->produced);
	memset(r, 0, sizeof *r);
}

cudaError_t follow(Ring *r, cudaStream_t stream) {
	const bool other = r->used && r->stream != stream;
	r->used = true;
	r->stream = stream;
	return other ? cudaStreamWaitEvent(stream, r->produced, 0) : cudaSuccess;
}

cudaError_t take(Ring *r, uint64_t bytes, cudaStream_t stream, uint8_t **out) {
	*out = r->memory;
	if (bytes == 0) return cudaSuccess;
	uint64_t begin = (r->head + 255) / 256 * 256;
	if (begin % r->size + bytes > r->size) begin = (begin / r->size + 1) * r->size;
	r->head = begin + bytes;
	r->begin = begin;
	*out = r->memory + begin % r->size;
	// Calls begin in order, and so do their copies: the newest one that began where
	// this one ends, a lap ago, stands for all before it. One whose event was used again
	// is stood for by the oldest that is left.
	uint64_t last = r->reused;
	while (last < r->issued && (last + 1 + tickets <= r->issued || r->begins[(last + 1) % tickets] + r->size < r->head)) last++;
	if (last == r->reused) return cudaSuccess;
	r->reused = last;
	if (last + tickets <= r->issued) last = r->issued + 1 - tickets;
	return cudaStreamWaitEvent(stream, r->done[last % tickets], 0);
}

namespace {

// Ranges that follow each other at both ends become one.
int join(Range *v, int n) {
	int kept = 0;
	for (int i = 0; i < n; i++) {
		Range *last = kept > 0 ? v + kept - 1 : nullptr;
		if (last && v[i].to == last->to + last->bytes && v[i].from == last->from + last->bytes) {
			last->bytes += v[i].bytes;
		} else {
			v[kept++] = v[i];
		}
	}
	return kept;
}

// Copies of one length at equal distances are one strided copy.
cudaError_t copy(const Range *v, int n, cudaStream_t stream) {
	for (int i = 0; i < n;) {
		const Range a = v[i];
		int rows = 1;
		int64_t to = 0, from = 0;
		if (i + 1 < n) to = v[i + 1].to - a.to, from = v[i + 1].from - a.from;
		if (to >= a.bytes && from >= a.bytes && to < INT32_MAX) {
			while (i + rows < n && v[i + rows].bytes == a.bytes && v[i + rows].to == a.to + rows * to &&
				v[i + rows].from == a.from + rows * from) {
				rows++;
			}
		}
		const cudaError_t e = rows > 1 ? cudaMemcpy2DAsync(a.to, to, a.from, from, a.bytes, rows, cudaMemcpyDefault, stream)
									   : cudaMemcpyAsync(a.to, a.from, a.bytes, cudaMemcpyDefault, stream);
		if (e) return e;
		i += rows;
	}
	return cudaSuccess;
}

} // namespace

cudaError_t finish(Ring *r, Range *ranges, int n, cudaStream_t stream, uint64_t *ticket) {
	cudaError_t e = cudaEventRecord(r->produced, stream);
	cudaStream_t last = stream;
	if (!e && r->copies) {
		last = r->copies;
		e = cudaStreamWaitEvent(last, r->produced, 0);
		if (!e) e = copy(ranges, join(ranges, n), last);
	}
	const uint64_t next = r->issued + 1;
	if (!e) e = cudaEventRecord(r->done[next % tickets], last);
	if (e) return e;
	r->issued = next;
	r->begins[next % tickets] = n > 0 ? r->begin : r->head;
	if (ticket) *ticket = next;
	return cudaSuccess;
}

int done(Ring *r, uint64_t ticket, pdproj_error *err) {
	if (ticket > r->issued) return -fail(err, PDPROJ_EARG, "ticket %llu was not issued", (unsigned long long)ticket);
	if (ticket <= r->finished) return 1;
	// An event that was used again answers for the newer call that owns it now.
	const uint64_t at = ticket + tickets <= r->issued ? r->issued + 1 - tickets : ticket;
	const cudaError_t e = cudaEventQuery(r->done[at % tickets]);
	if (e == cudaErrorNotReady) {
		cudaGetLastError();
		return 0;
	}
	if (e) return -fail_cuda(err, e, "look whether pieces have arrived");
	r->finished = at;
	return 1;
}

// The lock is not held while waiting, so the handle stays usable.
int wait(Ring *r, pthread_mutex_t *lock, uint64_t ticket, pdproj_error *err) {
	cudaEvent_t event;
	uint64_t at;
	{
		Locked locked(lock);
		if (ticket > r->issued) return fail(err, PDPROJ_EARG, "ticket %llu was not issued", (unsigned long long)ticket);
		if (ticket <= r->finished) return PDPROJ_OK;
		at = ticket + tickets <= r->issued ? r->issued + 1 - tickets : ticket;
		event = r->done[at % tickets];
	}
	const cudaError_t e = cudaEventSynchronize(event);
	if (e) return fail_cuda(err, e, "wait for pieces");
	Locked locked(lock);
	if (at > r->finished) r->finished = at;
	return PDPROJ_OK;
}

} // namespace pd
